# Messages on their way from passes to the store of their topics.

cdef enum:
    LAST = 0xFFFFFFFF  # ends a chain


cdef struct Stored:  # the stored extent of a topic: `omq_storage.records.Extent`
    uint64_t first
    uint64_t last
    uint64_t messages
    uint64_t octets


cdef struct Kept:  # one message of a part
    uint32_t begin  # of the length and the octets of its body
    uint32_t next  # of the same topic


cdef struct KeptTopic:  # one topic of a part
    uint32_t first  # its messages
    uint32_t last
    uint32_t count
    int64_t octets


cdef int64_t MOST_COLLECTED = 1 << 30  # octets: the places in a part have 32 bits


cdef inline int64_t kept_octets(uint32_t length) noexcept nogil:
    """Return the octets of memory that a message with a body of this length takes."""
    return NUMBER + <int64_t>length + <int64_t>sizeof(Kept)


@cython.final
cdef class StoreLane:
    """The store of a level, as the destination of messages.  It takes a bounded amount of them for one commit."""

    cdef readonly int64_t octets_left
    cdef readonly int64_t messages_left
    cdef public object owner  # the writer of the level
    cdef int64_t _octets
    cdef int64_t _messages
    cdef uint64_t _pass  # as in `Lane`
    cdef uint32_t _place

    def __cinit__(self, int64_t octets, int64_t messages):
        if octets > MOST_COLLECTED:
            raise ValueError(f"{octets} octets are more than {MOST_COLLECTED}.")
        self._octets = self.octets_left = octets
        self._messages = self.messages_left = messages
        self.owner = None
        self._pass = 0
        self._place = 0

    @property
    def is_full(self):
        """Whether it takes nothing more before the next commit begins."""
        return self.octets_left <= 0 or self.messages_left <= 0

    def begin(self):
        """Begin with the messages of the next commit."""
        self.octets_left = self._octets
        self.messages_left = self._messages


@cython.final
cdef class StorePart:
    """The messages of one pass for one store: lengths and bodies, and for each topic the chain of its messages."""

    cdef readonly int64_t messages
    cdef readonly int64_t octets  # of the frames
    cdef readonly list names  # of its topics
    cdef list _routes
    cdef KeptTopic* _topics
    cdef Kept* _kept
    cdef uint8_t* _bodies
    cdef int64_t _used  # octets of the bodies and their lengths so far
    cdef uint32_t _count  # messages so far

    def __cinit__(self):
        self.messages = self.octets = self._used = 0
        self._count = 0
        self.names = []
        self._routes = []
        self._topics = NULL
        self._kept = NULL
        self._bodies = NULL

    def __dealloc__(self):
        PyMem_RawFree(self._topics)
        PyMem_RawFree(self._kept)
        PyMem_RawFree(self._bodies)

    cdef int allocate(self, int64_t topics) except -1:
        self._topics = <KeptTopic*>PyMem_RawCalloc(topics + 1, sizeof(KeptTopic))
        self._kept = <Kept*>PyMem_RawCalloc(self.messages + 1, sizeof(Kept))
        self._bodies = <uint8_t*>PyMem_RawCalloc(self.octets - (HEADER - NUMBER) * self.messages + 1, 1)
        if self._topics == NULL or self._kept == NULL or self._bodies == NULL:
            raise MemoryError
        return 0

    cdef uint32_t add_topic(self, object route, bytes name) except 0xFFFFFFFF:
        """Add a topic; return its place."""
        cdef uint32_t place = <uint32_t>len(self._routes)
        self._routes.append(route)
        self.names.append(name)
        self._topics[place].first = self._topics[place].last = LAST
        return place

    cdef void add(self, uint32_t place, const uint8_t* at, uint32_t length, uint32_t written) noexcept:
        """Add a message of a topic. `written`: the octets of its body in the input."""
        cdef KeptTopic* topic = &self._topics[place]
        cdef Kept* kept = &self._kept[self._count]
        cdef uint8_t* out = self._bodies + self._used
        kept.begin = <uint32_t>self._used
        kept.next = LAST
        if topic.first == LAST:
            topic.first = self._count
        else:
            self._kept[topic.last].next = self._count
        topic.last = self._count
        topic.count += 1
        topic.octets += HEADER + <int64_t>length
        put_u32(out, length)
        if written == length:
            memcpy(out + NUMBER, at, length)
        else:
            unescape(out + NUMBER, length, at, written)
        self._used += NUMBER + <int64_t>length
        self._count += 1

    @property
    def held(self):
        """The number of octets that it takes of the memory."""
        return self.octets + (<int64_t>sizeof(Kept) + NUMBER - HEADER) * self.messages

    def owners(self):
        """Return the driver of each of its topics; None for a topic that was deleted."""
        return [route.owner for route in self._routes]

    def bodies(self, Py_ssize_t topic):
        """Return the bodies of the messages of the topic at this place."""
        cdef uint32_t at
        cdef const uint8_t* body
        cdef list found = []
        if not 0 <= topic < len(self._routes):
            raise IndexError(topic)
        at = self._topics[topic].first
        while at != LAST:
            body = self._bodies + self._kept[at].begin
            found.append(PyBytes_FromStringAndSize(<const char*>body + NUMBER, get_u32(body)))
            at = self._kept[at].next
        return found
