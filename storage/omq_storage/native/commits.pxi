# The stored values of one commit: the twin of `omq_storage.blocks.pack`, and of `pack_info` and `pack_extent` in
# `omq_storage.records`.

cdef enum:
    KEY = 12  # octets of the key of a block
    BEFORE_OFFSETS = 48  # octets of a stored block
    CHECKSUM_AT = 8  # in a stored block
    SUMMED_AT = 12
    INFO = 21  # octets of an index record, without its checksum
    EXTENT = 32  # of the record of a topic's extent, without its checksum

cdef int64_t MOST_OF_BLOCK = 4096  # messages, as BLOCK_MESSAGES in omq_storage/batches.py
cdef int64_t OCTETS_OF_BLOCK = 512 << 10
cdef int64_t TOPICS_AT_ONCE = 256  # whose records are made in one step, which keeps the interpreter's lock
cdef bytes BLOCK_START = b"omqB\x01\0\0\0"
cdef object START_SUM = crc32c(BLOCK_START)


cdef struct Piece:  # the messages of one part for one topic
    uint32_t part
    uint32_t topic  # its place in the part
    uint32_t next  # of the same topic


cdef struct Committing:  # one topic of a commit
    PyObject* route
    uint32_t topic
    uint32_t first_piece
    uint32_t last_piece
    bint is_watched  # whether it had subscribers when the commit began
    int64_t count
    uint64_t first
    uint64_t time
    Stored extent


cdef struct Reading:  # where the next message of a topic is
    uint32_t piece
    uint32_t message


cdef int by_topic(const void* left, const void* right) noexcept nogil:
    cdef uint32_t a = (<const Committing*>left).topic
    cdef uint32_t b = (<const Committing*>right).topic
    return (a > b) - (a < b)


cdef uint64_t _commits = 0


@cython.final
cdef class StoreCommit:
    """The parts that one transaction stores.  Its topics have places, in the order of their ids from `begin` on."""

    cdef readonly int64_t messages
    cdef readonly int64_t octets  # of the frames
    cdef readonly int64_t values  # octets of the stored values
    cdef list _parts
    cdef dict _blocks  # topic id -> blocks, of topics with subscribers
    cdef uint64_t _number
    cdef Committing* _topics
    cdef int64_t _count
    cdef int64_t _capacity  # of topics, and of pieces
    cdef Piece* _pieces
    cdef uint32_t _piece_count

    def __cinit__(self):
        global _commits
        _commits += 1
        self._number = _commits
        self._parts = []
        self._blocks = {}
        self._count = self._capacity = self.messages = self.octets = self.values = 0
        self._topics = NULL
        self._pieces = NULL
        self._piece_count = 0

    def __dealloc__(self):
        PyMem_RawFree(self._topics)
        PyMem_RawFree(self._pieces)

    def __len__(self):
        """Return the number of topics."""
        return self._count

    def add(self, StorePart part not None):
        """Add a part after those that it has."""
        cdef Route route
        cdef Committing* committing
        cdef Piece* piece
        cdef uint32_t i, number = <uint32_t>len(self._parts)
        self.make_room(len(part._routes))
        self._parts.append(part)
        self.messages += part.messages
        self.octets += part.octets
        for i in range(<uint32_t>len(part._routes)):
            route = <Route>part._routes[i]
            if route._commit != self._number:
                route._commit = self._number
                route._commit_place = <uint32_t>self._count
                committing = &self._topics[self._count]
                self._count += 1
                committing.route = <PyObject*>route  # the part owns it
                committing.topic = route.topic
                committing.first_piece = self._piece_count
                committing.count = 0
            else:
                committing = &self._topics[route._commit_place]
                self._pieces[committing.last_piece].next = self._piece_count
            committing.last_piece = self._piece_count
            committing.count += part._topics[i].count
            piece = &self._pieces[self._piece_count]
            self._piece_count += 1
            piece.part = number
            piece.topic = i
            piece.next = LAST

    cdef int make_room(self, int64_t count) except -1:
        """Make room for N (`count`) more topics and pieces."""
        cdef int64_t capacity = max(self._piece_count + count, 2 * self._capacity)
        cdef Committing* topics
        cdef Piece* pieces
        if self._piece_count + count <= self._capacity:
            return 0
        topics = <Committing*>PyMem_RawRealloc(self._topics, capacity * sizeof(Committing))
        if topics == NULL:
            raise MemoryError
        self._topics = topics
        pieces = <Piece*>PyMem_RawRealloc(self._pieces, capacity * sizeof(Piece))
        if pieces == NULL:
            raise MemoryError
        self._pieces = pieces
        self._capacity = capacity
        return 0

    def is_whole(self, int64_t begin, int64_t end):
        """Return whether no topic from one place to another was deleted."""
        cdef int64_t i
        for i in range(begin, min(end, self._count)):
            if (<Route>self._topics[i].route).owner is None:
                return False
        return True

    def without_ids(self, int64_t begin, int64_t end):
        """Return the driver of each topic from one place to another whose next ids are not reserved, and the
        number of ids that it needs.
        """
        cdef int64_t i
        cdef Committing* topic
        cdef Route route
        cdef list found = []
        for i in range(begin, min(end, self._count)):
            topic = &self._topics[i]
            route = <Route>topic.route
            if route.next_id + <uint64_t>topic.count > route.reserved and route.owner is not None:
                found.append((route.owner, topic.count))
        return found

    def number(self, int64_t begin, int64_t end, uint64_t now):
        """Give the messages of the topics from one place to another the next ids, and the time of this commit, which
        never goes back.
        """
        cdef int64_t i
        cdef Committing* topic
        cdef Route route
        for i in range(begin, min(end, self._count)):
            topic = &self._topics[i]
            route = <Route>topic.route
            topic.first = route.next_id
            topic.time = max(now, route.time)
            topic.is_watched = route.is_watched

    def put(self, writing):
        """Store the blocks of all topics, and the new extent of each topic, in this write transaction.

        Return False when the messages of a topic do not lie after its stored ones, or the record of these is
        damaged.  Then abort the transaction, and store topic by topic: the plain code names the fault.
        """
        cdef int64_t begin = 0
        # A transaction that failed may be tried again.
        self._blocks.clear()
        self.values = 0
        with nogil:
            qsort(self._topics, self._count, sizeof(Committing), by_topic)  # a store is fastest in this order
        while begin < self._count:
            if not self.put_some(writing, begin, min(begin + TOPICS_AT_ONCE, self._count)):
                return False
            begin += TOPICS_AT_ONCE
        return True

    cdef bint put_some(self, writing, int64_t begin, int64_t end) except -1:
        """Store the topics from one place to another; return False as `put` does."""
        cdef int64_t i
        cdef Committing* topic
        cdef Reading reading
        cdef uint64_t first
        cdef int64_t left
        cdef bytes key
        cdef list keys = []
        cdef list blocks = []
        cdef list index = []
        cdef list found = []
        cdef dict extents
        for i in range(begin, end):
            key = PyBytes_FromStringAndSize(NULL, NUMBER)
            put_u32(octets_of(key), self._topics[i].topic)
            keys.append(key)
        extents = writing.get_many(b"extents", keys)
        for i in range(begin, end):
            topic = &self._topics[i]
            key = <bytes>keys[i - begin]
            if not self.read_extent(topic, key, extents.get(key)):
                return False
            reading.piece = topic.first_piece
            reading.message = self.first_of(reading.piece)
            first = topic.first
            left = topic.count
            while left:
                left -= self.block(topic, &reading, first, left, blocks, index)
                first = topic.first + <uint64_t>(topic.count - left)
            found.append((key, self.extent_record(topic, key)))
        writing.put_many(b"blocks", blocks)
        writing.put_many(b"index", index)
        writing.put_many(b"extents", found)
        return True

    def stored(self, int64_t begin, int64_t end):
        """Take over the stored extents of the topics from one place to another.  Return the driver of each topic with
        subscribers, the first id of its messages, and its blocks: first id, count, time, frames, and offsets.  It
        has no blocks if it had no subscribers when the commit began.
        """
        cdef int64_t i
        cdef Committing* topic
        cdef Route route
        cdef list found = []
        for i in range(begin, min(end, self._count)):
            topic = &self._topics[i]
            route = <Route>topic.route
            route.next_id = topic.first + <uint64_t>topic.count
            route.time = topic.time
            route.messages_in += topic.count
            route._extent = topic.extent
            route._has_extent = True
            route.octets_in += self.octets_of_topic(topic)
            if route.is_watched and route.owner is not None:
                found.append((route.owner, topic.first, self._blocks.pop(topic.topic, [])))
        return found

    cdef int64_t octets_of_topic(self, Committing* topic):
        cdef int64_t octets = 0
        cdef uint32_t piece = topic.first_piece
        while piece != LAST:
            octets += (<StorePart>self._parts[self._pieces[piece].part])._topics[self._pieces[piece].topic].octets
            piece = self._pieces[piece].next
        return octets

    cdef uint32_t first_of(self, uint32_t piece):
        return (<StorePart>self._parts[self._pieces[piece].part])._topics[self._pieces[piece].topic].first

    cdef const uint8_t* take(self, Reading* reading, uint32_t* length):
        """Return the body of the next message, and move on."""
        cdef StorePart part = <StorePart>self._parts[self._pieces[reading.piece].part]
        cdef Kept* kept = &part._kept[reading.message]
        cdef const uint8_t* body = part._bodies + kept.begin
        length[0] = get_u32(body)
        reading.message = kept.next
        if reading.message == LAST:
            reading.piece = self._pieces[reading.piece].next
            if reading.piece != LAST:
                reading.message = self.first_of(reading.piece)
        return body + NUMBER

    cdef int64_t block(
        self, Committing* topic, Reading* reading, uint64_t first, int64_t left, list blocks, list index
    ) except -1:
        """Add the records of the next block of a topic; return the number of its messages."""
        cdef Reading ahead = reading[0]
        cdef Reading before
        cdef int64_t count = 0, octets = 0, i
        cdef uint32_t length
        cdef uint32_t at = 0
        cdef bytes key, value, info
        cdef uint8_t* out
        cdef uint8_t* frames
        cdef const uint8_t* body
        while count < left and count < MOST_OF_BLOCK:
            before = ahead
            self.take(&ahead, &length)
            if count and octets + HEADER + length > OCTETS_OF_BLOCK:
                ahead = before
                break
            octets += HEADER + <int64_t>length
            count += 1
        value = PyBytes_FromStringAndSize(NULL, BEFORE_OFFSETS + NUMBER * (count + 1) + octets)
        out = octets_of(value)
        memcpy(out, octets_of(BLOCK_START), CHECKSUM_AT)
        put_u32(out + 12, topic.topic)
        put_u64(out + 16, first)
        put_u64(out + 24, topic.time)
        put_u32(out + 32, <uint32_t>count)
        put_u32(out + 36, <uint32_t>octets)
        put_u64(out + 40, 0)
        frames = out + BEFORE_OFFSETS + NUMBER * (count + 1)
        put_little(out + BEFORE_OFFSETS, 0)
        for i in range(count):
            body = self.take(reading, &length)
            put_u32(frames + at, COUNTED + length)
            frames[at + 4] = MESSAGE
            put_u64(frames + at + 5, first + <uint64_t>i)
            put_u32(frames + at + 13, topic.topic)
            memcpy(frames + at + HEADER, body, length)
            at += HEADER + length
            put_little(out + BEFORE_OFFSETS + NUMBER * (i + 1), at)
        put_u32(out + CHECKSUM_AT, <uint32_t>crc32c(memoryview(value)[SUMMED_AT:], START_SUM))
        key = PyBytes_FromStringAndSize(NULL, KEY)
        put_u32(octets_of(key), topic.topic)
        put_u64(octets_of(key) + 4, first)
        info = PyBytes_FromStringAndSize(NULL, INFO)
        out = octets_of(info)
        put_u32(out, <uint32_t>count)
        put_u64(out + 4, topic.time)
        put_u32(out + 12, 0)
        put_u32(out + 16, <uint32_t>PyBytes_GET_SIZE(value))
        out[20] = 0
        blocks.append((key, value))
        index.append((key, summed(b"index/", key, info)))
        if topic.is_watched:
            view = memoryview(value)
            i = BEFORE_OFFSETS + NUMBER * (count + 1)
            self._blocks.setdefault(topic.topic, []).append(
                (first, count, topic.time, view[i:], view[BEFORE_OFFSETS:i])
            )
        self.values += PyBytes_GET_SIZE(value)
        topic.extent.last = first + <uint64_t>count - 1
        topic.extent.messages += <uint64_t>count
        topic.extent.octets += <uint64_t>PyBytes_GET_SIZE(value)
        return count

    cdef bint read_extent(self, Committing* topic, bytes key, bytes stored) except -1:
        """Read the stored extent of a topic; return False if the record does not fit."""
        cdef const uint8_t* at
        cdef Stored* extent = &topic.extent
        if stored is None:
            extent.first = topic.first
            extent.messages = extent.octets = 0
            return True
        if PyBytes_GET_SIZE(stored) != NUMBER + EXTENT or summed(b"extents/", key, stored[NUMBER:]) != stored:
            return False
        at = octets_of(stored) + NUMBER
        extent.first = get_u64(at)
        extent.last = get_u64(at + 8)
        extent.messages = get_u64(at + 16)
        extent.octets = get_u64(at + 24)
        if (extent.messages or extent.first > extent.last) and topic.first <= extent.last:
            return False
        if not extent.messages:
            extent.first = topic.first
        return True

    cdef bytes extent_record(self, Committing* topic, bytes key):
        cdef bytes record = PyBytes_FromStringAndSize(NULL, EXTENT)
        cdef uint8_t* out = octets_of(record)
        put_u64(out, topic.extent.first)
        put_u64(out + 8, topic.extent.last)
        put_u64(out + 16, topic.extent.messages)
        put_u64(out + 24, topic.extent.octets)
        return summed(b"extents/", key, record)


cdef bytes summed(bytes table, bytes key, bytes record):
    """Return a record with its checksum, as `omq_storage.checksummed.with_checksum`.  `table` ends with a slash."""
    cdef bytes found = PyBytes_FromStringAndSize(NULL, NUMBER + PyBytes_GET_SIZE(record))
    put_u32(octets_of(found), <uint32_t>crc32c(table + key + record))
    memcpy(octets_of(found) + NUMBER, octets_of(record), PyBytes_GET_SIZE(record))
    return found
