# cython: language_level=3, embedsignature=False, binding=False
"""What is done for each message, compiled: the twin of the plain functions in `storage/plain.py`, of
`omq/protocol/dmp_reader.py`, `dmp_writer.py`, `frames.py` and `lines.py`.

It takes what is common, and leaves everything else to the plain code: a function returns None, or a taker stops
where something stands that it does not know.  So there is one place that says what is wrong with bad octets, and
one text for it.

A *span* says where the body of one message lies in octets that were received.  Spans are found first, and
checked; copying follows when the sum of their lengths is known and memory for exactly that is there.  Every
length that is read from octets is compared, in 64 bits, with what is left of them before it is used.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    /* Whether an octet is there that ends a bare atom, or a # or |. The distance to the nearest of them, and
       not a comparison with each, is what compilers turn into operations on many octets at a time. */
    static int omq_has_mark(const uint8_t *at, size_t size) {
        static const uint8_t marks[9] = {'\\t', '\\f', '\\r', '"', '(', ')', ';', '#', '|'};
        uint8_t found = 0;
        for (size_t i = 0; i < size; i++) {
            uint8_t nearest = (uint8_t)(at[i] ^ ' ');
            for (int j = 0; j < 9; j++) {
                uint8_t distance = (uint8_t)(at[i] ^ marks[j]);
                nearest = distance < nearest ? distance : nearest;
            }
            found |= nearest == 0 ? 1 : 0;
        }
        return found;
    }
    """
    bint has_mark "omq_has_mark"(const uint8_t* at, size_t size) noexcept nogil


cdef enum:
    HEADER = 17  # of a frame
    COUNTED = 13  # octets of that which its length counts
    MESSAGE = 2
    NUMBER = 4
    NAMES = 4  # octets of an envelope's head without names and properties

    TABLE = 0x2000  # the flag of the property headers
    UNKNOWN = 0x0003  # flags that stand for no property
    OCTETS = 0x1800  # the flags of properties of one octet
    LONG = 0x0040  # the flag of the property timestamp
    MEANINGFUL = 3  # the options mandatory and immediate

cdef int64_t FRAMES_LIMIT = 1 << 30
cdef int64_t LONGEST_SIZE = 0xFFFFFFFF

# The GIL is let go only where it takes longer than getting it back from a thread that is busy in Python.
cdef int64_t LARGE = 1 << 20

cdef bytes PLAIN_HEAD = b"\0\0\0\0"
cdef bytes HEAD_WITH_TABLE = b"\0\0\x20\0\0\0\0\0"


cdef struct Span:
    const uint8_t* at
    uint32_t length  # of the body
    uint32_t written  # octets it takes where it lies: more than `length` where some are escaped
    uint32_t head  # octets of the head that ends NUMBER octets before an envelope's body
    uint32_t options


# -- numbers ------------------------------------------------------------------------------------------------

cdef inline uint32_t get_u32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline uint64_t get_u64(const uint8_t* at) noexcept nogil:
    return (<uint64_t>get_u32(at) << 32) | get_u32(at + 4)


cdef inline void put_u32(uint8_t* at, uint32_t number) noexcept nogil:
    at[0] = <uint8_t>(number >> 24)
    at[1] = <uint8_t>(number >> 16)
    at[2] = <uint8_t>(number >> 8)
    at[3] = <uint8_t>number


cdef inline void put_u64(uint8_t* at, uint64_t number) noexcept nogil:
    put_u32(at, <uint32_t>(number >> 32))
    put_u32(at + 4, <uint32_t>number)


cdef inline uint32_t get_little(const uint8_t* at) noexcept nogil:
    return at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16) | (<uint32_t>at[3] << 24)


cdef inline void put_little(uint8_t* at, uint32_t number) noexcept nogil:
    at[0] = <uint8_t>number
    at[1] = <uint8_t>(number >> 8)
    at[2] = <uint8_t>(number >> 16)
    at[3] = <uint8_t>(number >> 24)


cdef inline uint8_t* octets_of(bytes owner) noexcept:
    return <uint8_t*>PyBytes_AS_STRING(owner)


cdef inline bint occurs(uint64_t eight, uint64_t octet) noexcept nogil:
    """Whether an octet is one of eight that were read as a number."""
    cdef uint64_t difference = eight ^ (octet * 0x0101010101010101ULL)
    return ((difference - 0x0101010101010101ULL) & ~difference & 0x8080808080808080ULL) != 0


# -- frames -------------------------------------------------------------------------------------------------

cdef inline uint8_t meaning(uint8_t letter) noexcept nogil:
    """What an escape of one letter stands for; the letter itself for those that escape a mark."""
    if letter == c'n':
        return 10
    if letter == c't':
        return 9
    if letter == c'b':
        return 8
    if letter == c'r':
        return 13
    return letter


cdef void unescape(uint8_t* out, int64_t length, const uint8_t* at, int64_t written) noexcept nogil:
    """Copy octets with escapes that `quoted_end` has checked; writes `length` octets at the most."""
    cdef int64_t done = 0
    cdef int64_t i = 0
    cdef uint64_t eight
    while i < written and done < length:
        if written - i >= 8 and length - done >= 8:
            memcpy(&eight, at + i, 8)
            if not occurs(eight, c'\\'):
                memcpy(out + done, &eight, 8)
                i += 8
                done += 8
                continue
        if at[i] != c'\\':
            out[done] = at[i]
            i += 1
        elif i + 1 < written and not c'0' <= at[i + 1] <= c'9':
            out[done] = meaning(at[i + 1])
            i += 2
        elif i + 3 < written:
            out[done] = <uint8_t>((at[i + 1] - c'0') * 100 + (at[i + 2] - c'0') * 10 + (at[i + 3] - c'0'))
            i += 4
        else:
            return
        done += 1


cdef int64_t frames_size(const Span* spans, int64_t count) noexcept nogil:
    cdef int64_t size = HEADER * count
    cdef int64_t i
    for i in range(count):
        size += spans[i].length
    return size


cdef void write_frames(
    const Span* spans, int64_t count, uint32_t topic, uint64_t first, uint8_t* out, uint8_t* offsets
) noexcept nogil:
    """Fill `frames_size` octets of frames, and count + 1 offsets."""
    cdef int64_t at = 0
    cdef int64_t i
    cdef uint32_t length
    put_little(offsets, 0)
    for i in range(count):
        length = spans[i].length
        put_u32(out + at, COUNTED + length)
        out[at + 4] = MESSAGE
        put_u64(out + at + 5, first + <uint64_t>i)
        put_u32(out + at + 13, topic)
        if spans[i].written == length:
            memcpy(out + at + HEADER, spans[i].at, length)
        else:
            unescape(out + at + HEADER, length, spans[i].at, spans[i].written)
        at += HEADER + <int64_t>length
        put_little(offsets + NUMBER * (i + 1), <uint32_t>at)


@cython.final
cdef class Frames:
    """Frames that lack only their ids and their topic.

    They are stamped where they lie, once, when they are handed out; who asks again gets others.
    """

    cdef bytes _frames
    cdef bytes _offsets
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t octets
    cdef bint _given

    def __cinit__(self):
        self._frames = b""
        self._offsets = b"\0\0\0\0"
        self.count = 0
        self.octets = 0
        self._given = False

    def stamped(self, topic, first):
        """Frames and offsets, with ids from `first` on; None where the numbers do not fit."""
        cdef uint32_t topic_number
        cdef uint64_t number
        cdef bytes frames = self._frames
        cdef uint8_t* out
        cdef const uint8_t* offsets = octets_of(self._offsets)
        cdef int64_t count = self.count
        if type(topic) is not int or type(first) is not int:
            return None
        if not count or not 0 <= topic <= 0xFFFFFFFF or not 0 <= first or first + count > 1 << 64:
            return None
        topic_number = topic
        number = first
        if self._given:
            frames = PyBytes_FromStringAndSize(PyBytes_AS_STRING(frames), PyBytes_GET_SIZE(frames))
        self._given = True
        out = octets_of(frames)
        if self.octets >= LARGE:
            with nogil:
                stamp(out, offsets, count, topic_number, number)
        else:
            stamp(out, offsets, count, topic_number, number)
        return frames, self._offsets

    def part(self, Py_ssize_t begin, Py_ssize_t end):
        """The messages from index `begin` up to `end`."""
        if not 0 <= begin <= end <= self.count:
            raise ValueError(f"{begin} to {end} is not within 0 to {self.count}.")
        cdef const uint8_t* offsets = octets_of(self._offsets)
        cdef int64_t start = get_little(offsets + NUMBER * begin)
        cdef int64_t size = get_little(offsets + NUMBER * end) - start
        cdef Frames made = new_frames(end - begin, size)
        memcpy(octets_of(made._frames), octets_of(self._frames) + start, size)
        cdef uint8_t* out = octets_of(made._offsets)
        cdef int64_t i
        for i in range(end - begin + 1):
            put_little(out + NUMBER * i, <uint32_t>(get_little(offsets + NUMBER * (begin + i)) - start))
        return made

    def bodies(self):
        """The bodies, each by itself."""
        cdef const uint8_t* frames = octets_of(self._frames)
        cdef const uint8_t* offsets = octets_of(self._offsets)
        cdef list found = []
        cdef int64_t i, begin, end
        for i in range(self.count):
            begin = <int64_t>get_little(offsets + NUMBER * i) + HEADER
            end = get_little(offsets + NUMBER * (i + 1))
            found.append(PyBytes_FromStringAndSize(<const char*>frames + begin, end - begin))
        return found


cdef void stamp(
    uint8_t* out, const uint8_t* offsets, int64_t count, uint32_t topic, uint64_t first
) noexcept nogil:
    cdef int64_t i
    cdef uint8_t* frame
    for i in range(count):
        frame = out + get_little(offsets + NUMBER * i)
        put_u64(frame + 5, first + <uint64_t>i)
        put_u32(frame + 13, topic)


cdef Frames new_frames(int64_t count, int64_t size):
    """With room for so much; the caller fills all of it."""
    cdef Frames made = Frames.__new__(Frames)
    made._frames = PyBytes_FromStringAndSize(NULL, size)
    made._offsets = PyBytes_FromStringAndSize(NULL, NUMBER * (count + 1))
    made.count = count
    made.octets = size
    return made


cdef Frames frames_from(const Span* spans, int64_t count, uint32_t topic, uint64_t first):
    """None when they would be too large for a block."""
    cdef int64_t size = frames_size(spans, count)
    if size >= FRAMES_LIMIT:
        return None
    cdef Frames made = new_frames(count, size)
    cdef uint8_t* out = octets_of(made._frames)
    cdef uint8_t* offsets = octets_of(made._offsets)
    if size >= LARGE:
        with nogil:
            write_frames(spans, count, topic, first, out, offsets)
    else:
        write_frames(spans, count, topic, first, out, offsets)
    return made


def joined(list parts):
    """All of these `Frames` as one; None when they would be too large for a block."""
    cdef int64_t count = 0
    cdef int64_t size = 0
    cdef Frames part
    cdef tuple held = tuple(parts)
    for part in held:
        if part is None:
            raise TypeError("None is no Frames")
        count += part.count
        size += part.octets
    if size >= FRAMES_LIMIT:
        return None
    cdef Frames made = new_frames(count, size)
    cdef uint8_t* out = octets_of(made._frames)
    cdef uint8_t* offsets = octets_of(made._offsets)
    cdef int64_t at = 0
    cdef int64_t index = 0
    cdef int64_t i
    cdef const uint8_t* theirs
    for part in held:
        memcpy(out + at, octets_of(part._frames), part.octets)
        theirs = octets_of(part._offsets)
        for i in range(part.count):
            put_little(offsets + NUMBER * (index + i), <uint32_t>(at + get_little(theirs + NUMBER * i)))
        at += part.octets
        index += part.count
    put_little(offsets + NUMBER * count, <uint32_t>size)
    return made


cdef tuple spanned(object bodies, Span** spans):
    """Spans of a list of bytes, to be freed; and what keeps their octets.  None for anything but bytes."""
    cdef tuple held
    if type(bodies) is list:
        held = tuple(<list>bodies)
    elif type(bodies) is tuple:
        held = bodies
    else:
        return None
    cdef Py_ssize_t count = len(held)
    cdef Py_ssize_t i
    cdef object body
    spans[0] = <Span*>PyMem_RawRealloc(NULL, (count + 1) * sizeof(Span))
    if spans[0] == NULL:
        raise MemoryError
    for i in range(count):
        body = held[i]
        if not PyBytes_CheckExact(body) or PyBytes_GET_SIZE(body) > LONGEST_SIZE:
            PyMem_RawFree(spans[0])
            spans[0] = NULL
            return None
        spans[0][i].at = <const uint8_t*>PyBytes_AS_STRING(body)
        spans[0][i].length = spans[0][i].written = <uint32_t>PyBytes_GET_SIZE(body)
        spans[0][i].head = NAMES
        spans[0][i].options = 0
    return held


def prepare(bodies):
    """`Frames` of a list of bodies; None where they cannot be made."""
    cdef Span* spans = NULL
    cdef tuple held = spanned(bodies, &spans)
    if held is None:
        return None
    try:
        return frames_from(spans, len(held), 0, 0)
    finally:
        PyMem_RawFree(spans)


def frames_of(topic, first, bodies):
    """Frames and offsets of a list of bodies; None where they cannot be made."""
    cdef Span* spans = NULL
    cdef tuple held
    cdef Frames made
    if type(topic) is not int or type(first) is not int:
        return None
    if not 0 <= topic <= 0xFFFFFFFF or not 0 <= first or first + len(bodies) > 1 << 64:
        return None
    held = spanned(bodies, &spans)
    if held is None:
        return None
    try:
        if not len(held) or first + len(held) > 1 << 64:
            return None
        made = frames_from(spans, len(held), topic, first)
    finally:
        PyMem_RawFree(spans)
    return None if made is None else (made._frames, made._offsets)


# -- blocks -------------------------------------------------------------------------------------------------

cdef class Views:
    """Holds the buffers of a block's frames and offsets as long as their octets are looked at."""

    cdef Py_buffer _frames
    cdef Py_buffer _offsets
    cdef bint _has_frames
    cdef bint _has_offsets
    cdef const uint8_t* frames
    cdef const uint8_t* offsets
    cdef int64_t size
    cdef int64_t count

    def __cinit__(self, frames, offsets):
        PyObject_GetBuffer(frames, &self._frames, PyBUF_SIMPLE)
        self._has_frames = True
        PyObject_GetBuffer(offsets, &self._offsets, PyBUF_SIMPLE)
        self._has_offsets = True
        self.frames = <const uint8_t*>self._frames.buf
        self.offsets = <const uint8_t*>self._offsets.buf
        self.size = self._frames.len
        self.count = self._offsets.len // NUMBER - 1

    def __dealloc__(self):
        if self._has_frames:
            PyBuffer_Release(&self._frames)
        if self._has_offsets:
            PyBuffer_Release(&self._offsets)

    cdef bint bounds(self, int64_t index, int64_t* begin, int64_t* end) noexcept nogil:
        """Where the frame at `index`, which is below `count`, lies; False when that is not in the frames."""
        begin[0] = get_little(self.offsets + NUMBER * index)
        end[0] = get_little(self.offsets + NUMBER * (index + 1))
        return begin[0] <= end[0] <= self.size


def gathered(frames, offsets, begin, end, step):
    """The frames at these indexes, one after another; None for indexes or offsets that lead outside."""
    cdef Views views = Views(frames, offsets)
    if step < 1 or not 0 <= begin <= end <= views.count:
        return None
    # A step past the end means the same as one to the end, and adding it stays within 64 bits.
    cdef int64_t stride = min(step, views.count + 1)
    cdef int64_t start = begin
    cdef int64_t stop = end
    cdef int64_t size = 0
    cdef int64_t i, frame, after
    i = start
    while i < stop:
        if not views.bounds(i, &frame, &after):
            return None
        size += after - frame
        i += stride
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* out = octets_of(made)
    cdef int64_t done = 0
    i = start
    while i < stop:
        # Looked up again, as the buffers may belong to something that changes: nothing is written past the end.
        if not views.bounds(i, &frame, &after) or after - frame > size - done:
            return None
        memcpy(out + done, views.frames + frame, after - frame)
        done += after - frame
        i += stride
    return made if done == size else None


def slices(frames, offsets, index):
    """Views of the frames from an index on; None for an index or offsets that lead outside."""
    cdef Views views = Views(frames, offsets)
    if not 0 <= index <= views.count:
        return None
    cdef object view = memoryview(frames)
    cdef list found = []
    cdef int64_t i, begin, end
    for i in range(index, views.count):
        if not views.bounds(i, &begin, &end):
            return None
        found.append(view[begin:end])
    return found


def envelopes_of(frames, offsets, begin, end, smallest):
    """The messages at these indexes as envelopes without names and properties, none with a size below `smallest`.

    None for indexes or offsets that lead outside.
    """
    cdef Views views = Views(frames, offsets)
    if not 0 <= begin <= end <= views.count:
        return None
    cdef int64_t start = begin
    cdef int64_t count = end - begin
    cdef int64_t i, frame, after
    cdef Span* spans = <Span*>PyMem_RawRealloc(NULL, (count + 1) * sizeof(Span))
    if spans == NULL:
        raise MemoryError
    try:
        for i in range(count):
            if not views.bounds(start + i, &frame, &after) or after - frame < HEADER:
                return None
            spans[i].at = views.frames + frame + HEADER
            spans[i].length = spans[i].written = <uint32_t>(after - frame - HEADER)
            spans[i].head = NAMES
        return written_envelopes(spans, count, None, smallest)
    finally:
        PyMem_RawFree(spans)


# -- envelopes out ------------------------------------------------------------------------------------------

def envelopes(bodies, heads, smallest):
    """Envelopes with options 0 and these heads, or none for `PLAIN_HEAD` each; none with a size below `smallest`.

    None where a list holds anything but bytes, or a head would have to grow, or a body is too long.
    """
    cdef Span* spans = NULL
    cdef tuple held = spanned(bodies, &spans)
    cdef tuple held_heads = None
    cdef Py_ssize_t i
    if held is None:
        return None
    try:
        if heads:
            if type(heads) is not list and type(heads) is not tuple:
                return None
            held_heads = tuple(heads)
            if len(held_heads) != len(held):
                return None
            for i in range(len(held_heads)):
                if not PyBytes_CheckExact(held_heads[i]) or PyBytes_GET_SIZE(held_heads[i]) > LONGEST_SIZE:
                    return None
                spans[i].head = <uint32_t>PyBytes_GET_SIZE(held_heads[i])
        return written_envelopes(spans, len(held), held_heads, smallest)
    finally:
        PyMem_RawFree(spans)


cdef bytes written_envelopes(const Span* spans, int64_t count, tuple heads, smallest):
    """`heads` has as many as there are spans, or is None for `PLAIN_HEAD` each."""
    cdef int64_t least = min(max(smallest, 0), LONGEST_SIZE)
    cdef int64_t size = 0
    cdef int64_t one, i
    cdef const uint8_t* head = octets_of(PLAIN_HEAD)
    cdef int64_t length
    for i in range(count):
        one = <int64_t>spans[i].head + NUMBER + spans[i].length
        if one < least:
            if heads is not None and heads[i] != PLAIN_HEAD:
                return None
            one += NAMES
        if one > LONGEST_SIZE:
            return None
        size += NUMBER + one
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* out = octets_of(made)
    for i in range(count):
        length = spans[i].head
        if heads is not None:
            head = <const uint8_t*>PyBytes_AS_STRING(heads[i])
        one = length + NUMBER + spans[i].length
        if one < least:
            put_u32(out, <uint32_t>(one + NAMES))
            memcpy(out + NUMBER, octets_of(HEAD_WITH_TABLE), NAMES + NAMES)
            length += NAMES
        else:
            put_u32(out, <uint32_t>one)
            memcpy(out + NUMBER, head, length)
        out += NUMBER + length
        put_u32(out, spans[i].length)
        memcpy(out + NUMBER, spans[i].at, spans[i].length)
        out += NUMBER + <int64_t>spans[i].length
    return made


# -- frames in ----------------------------------------------------------------------------------------------

def take_messages(bytes data not None, Py_ssize_t position, largest, list found not None, run):
    """Append `run(topic, ids, bodies)` for each run of whole Message frames from `position` on.

    Returns where something else stands.  No frame whose length is above `largest` is taken.
    """
    cdef const uint8_t* octets = octets_of(data)
    cdef int64_t size = PyBytes_GET_SIZE(data)
    cdef int64_t at = position
    cdef int64_t limit = min(max(largest, 0), LONGEST_SIZE)
    cdef int64_t length
    cdef uint32_t topic
    cdef list ids, bodies
    if not 0 <= at <= size:
        raise ValueError(f"{position} is not within 0 to {size}.")
    while is_message(octets, at, size, limit):
        topic = get_u32(octets + at + 13)
        ids = []
        bodies = []
        while is_message(octets, at, size, limit) and get_u32(octets + at + 13) == topic:
            length = get_u32(octets + at)
            ids.append(get_u64(octets + at + 5))
            bodies.append(PyBytes_FromStringAndSize(<const char*>octets + at + HEADER, length - COUNTED))
            at += NUMBER + length
        found.append(run(topic, ids, bodies))
    return at


cdef inline bint is_message(const uint8_t* octets, int64_t at, int64_t size, int64_t limit) noexcept nogil:
    """Whether a whole, good Message frame begins at `at`."""
    cdef int64_t length
    if size - at < HEADER:
        return False
    length = get_u32(octets + at)
    return COUNTED <= length <= limit and length <= size - at - NUMBER and octets[at + 4] == MESSAGE


# -- spans: envelopes and lines in --------------------------------------------------------------------------

@cython.final
cdef class Spans:
    """Where the bodies of messages lie in `data`: found by the two takers, or told by the plain code."""

    cdef bytes _data
    cdef Span* _spans
    cdef int64_t _capacity
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t longest
    cdef bint _busy

    def __cinit__(self, bytes data not None):
        self._data = data
        self._spans = NULL
        self._capacity = 0
        self.count = 0
        self.longest = 0
        self._busy = False

    def __dealloc__(self):
        PyMem_RawFree(self._spans)

    cdef int add(
        self, const uint8_t* at, uint32_t length, uint32_t written, uint32_t head, uint32_t options
    ) except -1:
        cdef int64_t capacity
        cdef Span* spans
        if self.count == self._capacity:
            if self._busy:
                raise RuntimeError("These spans are in use in another thread.")
            capacity = max(64, 2 * self._capacity)
            spans = <Span*>PyMem_RawRealloc(self._spans, capacity * sizeof(Span))
            if spans == NULL:
                raise MemoryError
            self._spans = spans
            self._capacity = capacity
        self._spans[self.count].at = at
        self._spans[self.count].length = length
        self._spans[self.count].written = written
        self._spans[self.count].head = head
        self._spans[self.count].options = options
        self.count += 1
        if length > self.longest:
            self.longest = length
        return 0

    def add_envelope(self, Py_ssize_t head, Py_ssize_t body, Py_ssize_t end, uint32_t options):
        """Add an envelope that the plain code has checked: where its head and its body begin, and its end."""
        if not 0 <= head <= body - NUMBER or not body <= end <= PyBytes_GET_SIZE(self._data):
            raise ValueError("This envelope does not lie in the octets.")
        if end - body > LONGEST_SIZE or body - head > LONGEST_SIZE:
            raise ValueError("This envelope is too long.")
        cdef uint32_t length = <uint32_t>(end - body)
        self.add(octets_of(self._data) + body, length, length, <uint32_t>(body - NUMBER - head), options)

    def take_envelopes(self, Py_ssize_t position, max_message, max_head):
        """Add the envelopes from `position` on.

        Returns where it stopped, and how many octets it takes from there to get further: 0 when they are all
        there, and the plain code is to say what they are.
        """
        cdef const uint8_t* octets = octets_of(self._data)
        cdef int64_t size = PyBytes_GET_SIZE(self._data)
        cdef int64_t at = position
        cdef int64_t longest_body = min(max(max_message, 0), LONGEST_SIZE)
        cdef int64_t longest_head = min(max(max_head, 0), 1 << 20)
        cdef int64_t length, end, start, head_end, left
        cdef uint32_t number, options
        cdef const uint8_t* known = NULL  # the last head, unless it was one without names and properties
        cdef int64_t known_length = 0
        if not 0 <= at <= size:
            raise ValueError(f"{position} is not within 0 to {size}.")
        if self.count and self._spans[self.count - 1].head > NAMES:
            known_length = self._spans[self.count - 1].head
            known = self._spans[self.count - 1].at - NUMBER - known_length
        while True:
            if size - at < NUMBER:
                return at, NUMBER
            length = get_u32(octets + at)
            if length == 0:
                at += NUMBER
                continue
            if length < NAMES + NUMBER or length > longest_body + longest_head + NUMBER:
                return at, 0
            if length > size - at - NUMBER:
                return at, NUMBER + length
            start = at + NUMBER
            end = start + length
            if known_length and known_length <= length - NUMBER and not memcmp(octets + start, known, known_length):
                head_end = start + known_length
            else:
                head_end = after_head(octets, start, end - NUMBER)
                if head_end < 0:
                    return at, 0
                known = octets + start
                known_length = head_end - start if head_end - start > NAMES else 0
            left = end - NUMBER - head_end
            if head_end - start > longest_head or left > longest_body:
                return at, 0
            number = get_u32(octets + head_end)
            options = 0
            if number != left:
                options = number >> 24
                if (number & 0xFFFFFF) != left or options > MEANINGFUL:
                    return at, 0
            self.add(octets + head_end + NUMBER, <uint32_t>left, <uint32_t>left, <uint32_t>(head_end - start), options)
            at = end

    def take_lines(self, Py_ssize_t position):
        """Add the bodies of the Publish lines of one topic from `position` on, if they are in a quick form.

        Returns the topic as it is written, None when there was not even one, and where it stopped.
        """
        cdef const uint8_t* octets = octets_of(self._data)
        cdef int64_t size = PyBytes_GET_SIZE(self._data)
        cdef int64_t at = position
        cdef int64_t line_end, body, body_end, length, topic, topic_end
        cdef int64_t first_topic = 0, first_length = -1
        cdef int64_t head = 0, head_length = 0  # of the last line: all before its body
        cdef const uint8_t* found
        cdef bint quoted = False
        if not 0 <= at <= size:
            raise ValueError(f"{position} is not within 0 to {size}.")
        while at < size:
            found = <const uint8_t*>memchr(octets + at, 10, size - at)
            if found == NULL:
                break
            line_end = found - octets
            if head_length and head_length <= line_end - at and not memcmp(octets + at, octets + head, head_length):
                # `quoted` is that of the last line: a quote would have been part of its head.
                body = at + head_length
                if not quoted and octets[body] == c'"':
                    body = body_at(octets, at, line_end, &topic, &topic_end, &quoted)
            else:
                body = body_at(octets, at, line_end, &topic, &topic_end, &quoted)
                if body < 0:
                    break
                if first_length < 0:
                    first_topic = topic
                    first_length = topic_end - topic
                elif topic_end - topic != first_length or memcmp(octets + topic, octets + first_topic, first_length):
                    break
            if body < 0:
                break
            if quoted:
                body_end = quoted_end(octets, body, line_end, &length)
                if body_end < 0 or not ends_well(octets, body_end + 1, line_end):
                    break
            else:
                body_end = bare_body_end(octets, body, line_end)
                length = body_end - body
                if body_end < 0 or not ends_well(octets, body_end, line_end):
                    break
            if body_end - body > LONGEST_SIZE:
                break
            self.add(octets + body, <uint32_t>length, <uint32_t>(body_end - body), 0, 0)
            head = at
            head_length = body - at
            at = line_end + 1
        if not self.count or first_length < 0:
            return None, at
        return PyBytes_FromStringAndSize(<const char*>octets + first_topic, first_length), at

    def frames(self):
        """`Frames` of all; None when they would be too large for a block."""
        if self._busy:
            raise RuntimeError("These spans are in use in another thread.")
        self._busy = True
        try:
            return frames_from(self._spans, self.count, 0, 0)
        finally:
            self._busy = False

    def bodies(self):
        """The bodies, each by itself."""
        cdef list found = []
        cdef int64_t i
        cdef bytes body
        for i in range(self.count):
            if self._spans[i].written == self._spans[i].length:
                body = PyBytes_FromStringAndSize(<const char*>self._spans[i].at, self._spans[i].length)
            else:
                body = PyBytes_FromStringAndSize(NULL, self._spans[i].length)
                unescape(octets_of(body), self._spans[i].length, self._spans[i].at, self._spans[i].written)
            found.append(body)
        return found

    def heads(self):
        """The envelopes' heads; an empty list when each is `PLAIN_HEAD`."""
        cdef int64_t i, start
        cdef Span* span
        cdef bytes head = PLAIN_HEAD
        cdef list found
        for start in range(self.count):
            span = &self._spans[start]
            if span.head != NAMES or memcmp(span.at - NUMBER - NAMES, octets_of(PLAIN_HEAD), NAMES):
                break
        else:
            return []
        found = [head] * start
        for i in range(start, self.count):
            span = &self._spans[i]
            if span.head != PyBytes_GET_SIZE(head) or memcmp(
                span.at - NUMBER - span.head, octets_of(head), span.head
            ):
                head = PyBytes_FromStringAndSize(<const char*>span.at - NUMBER - span.head, span.head)
            found.append(head)
        return found

    def options(self):
        """The envelopes' options; an empty list when each is 0."""
        cdef int64_t i
        for i in range(self.count):
            if self._spans[i].options:
                break
        else:
            return []
        return [self._spans[i].options for i in range(self.count)]


cdef int64_t after_name(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Where a short string at `at` is over; -1 when that is not by `end`."""
    if at >= end or octets[at] > end - at - 1:
        return -1
    return at + 1 + octets[at]


cdef int64_t after_head(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Where a head is over; -1 when it has a table, or is not over by `end`, or is bad."""
    cdef uint32_t flags, flag
    at = after_name(octets, at, end)
    if at >= 0:
        at = after_name(octets, at, end)
    if at < 0 or end - at < 2:
        return -1
    flags = (<uint32_t>octets[at] << 8) | octets[at + 1]
    at += 2
    if not flags:
        return at
    if flags & (TABLE | UNKNOWN):
        return -1
    flag = 0x8000
    while flag > UNKNOWN:
        if flags & flag:
            if flag & OCTETS:
                at += 1
            elif flag & LONG:
                at += 8
            else:
                at = after_name(octets, at, end)
            if at < 0 or at > end:
                return -1
        flag >>= 1
    return at


# -- lines --------------------------------------------------------------------------------------------------

# What an octet is in a bare atom: 0 for any that may stand there, 1 for one that ends it, and # and |.
cdef uint8_t KIND[256]
cdef int _octet
for _octet in range(256):
    KIND[_octet] = 0
for _octet in b' \t\f\r\n"();':
    KIND[_octet] = 1
KIND[<int>c'#'] = 2
KIND[<int>c'|'] = 3


cdef int64_t bare_end(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Where a bare atom at `at` ends; -1 when there is none.  `octets[end]` is a line feed."""
    cdef int64_t i = at
    cdef uint8_t kind
    if KIND[octets[at]] == 1 or (octets[at] == c'#' and octets[at + 1] == c';'):
        return -1
    while i < end:
        kind = KIND[octets[i]]
        if kind == 1:
            break
        if (kind == 2 and octets[i + 1] == c'|') or (kind == 3 and octets[i + 1] == c'#'):
            return -1
        i += 1
    return i


cdef int64_t bare_body_end(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """As `bare_end`, faster where the atom goes up to the parenthesis that ends the line and has no # or |."""
    cdef int64_t last = end - 1
    if last > at and octets[last] == c')' and not has_mark(octets + at, last - at):
        return last
    return bare_end(octets, at, end)


cdef int64_t quoted_end(const uint8_t* octets, int64_t at, int64_t end, int64_t* length) noexcept nogil:
    """Where the quote stands that ends the content at `at`, and what is its length without escapes; else -1."""
    cdef const uint8_t* quote = <const uint8_t*>memchr(octets + at, c'"', end - at)
    cdef const uint8_t* escape
    cdef int64_t i = at
    cdef int64_t saved = 0
    cdef uint64_t eight
    if quote == NULL:
        return -1
    escape = <const uint8_t*>memchr(octets + at, c'\\', quote - (octets + at))
    if escape == NULL:
        length[0] = quote - octets - at
        return quote - octets
    i = escape - octets
    while i < end:
        if end - i >= 8:
            memcpy(&eight, octets + i, 8)
            if not occurs(eight, c'"') and not occurs(eight, c'\\'):
                i += 8
                continue
        if octets[i] == c'"':
            length[0] = i - at - saved
            return i
        if octets[i] != c'\\':
            i += 1
            continue
        # `octets[end]` is a line feed, which no escape has: so none is read past it.
        if octets[i + 1] in b'"\\ntrb\'':
            saved += 1
            i += 2
        elif is_decimal(octets + i + 1):
            saved += 3
            i += 4
        else:
            return -1
    return -1


cdef inline bint is_decimal(const uint8_t* at) noexcept nogil:
    """Whether three digits of a number up to 255 stand there."""
    if not (c'0' <= at[0] <= c'2' and c'0' <= at[1] <= c'9' and c'0' <= at[2] <= c'9'):
        return False
    return at[0] < c'2' or at[1] < c'5' or (at[1] == c'5' and at[2] <= c'5')


cdef inline bint ends_well(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Whether only `)`, and perhaps a carriage return, stand before the line feed at `end`."""
    if octets[at] != c')':
        return False
    at += 1
    if octets[at] == c'\r':
        at += 1
    return at == end


cdef int64_t body_at(
    const uint8_t* octets, int64_t at, int64_t end, int64_t* topic, int64_t* topic_end, bint* quoted
) noexcept nogil:
    """Where the body of a Publish line begins, behind its quote if it has one; -1 when it is another line."""
    cdef int64_t length
    if end - at < 8 or octets[at] != c'(' or (octets[at + 1] != c'P' and octets[at + 1] != c'p'):
        return -1
    if memcmp(octets + at + 2, <const char*>b"ublish", 6):
        return -1
    at += 8
    if octets[at] == c' ':
        at += 1
    elif octets[at] != c'"':
        return -1
    topic[0] = at
    if octets[at] == c'"':
        at = quoted_end(octets, at + 1, end, &length)
        if at < 0:
            return -1
        at += 1
        topic_end[0] = at
        if octets[at] == c' ':
            at += 1
    else:
        at = bare_end(octets, at, end)
        if at < 0:
            return -1
        topic_end[0] = at
        if octets[at] == c' ':
            at += 1
        elif octets[at] != c'"':
            return -1
    quoted[0] = octets[at] == c'"'
    return at + 1 if quoted[0] else at
