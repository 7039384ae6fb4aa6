# Spans or lists of bodies to frames and offsets.

cdef inline uint8_t meaning(uint8_t letter) noexcept nogil:
    """Return the octet of an escape of one letter; the letter itself if it escapes a mark."""
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


cdef bytes copied(const uint8_t* octets, int64_t size):
    """Return these octets, which the caller keeps, as bytes; other threads run while many are copied."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* out = octets_of(made)
    if size >= LARGE:
        with nogil:
            memcpy(out, octets, size)
    else:
        memcpy(out, octets, size)
    return made


@cython.final
cdef class Frames:
    """Frames without their ids and topic.

    `stamped` writes ids and topic in place and gives the frames away; a second call returns a copy.
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
        """Return frames and offsets, with ids from `first` on; None if the numbers do not fit."""
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
            frames = copied(octets_of(frames), PyBytes_GET_SIZE(frames))
        self._given = True
        out = octets_of(frames)
        if self.octets >= LARGE:
            with nogil:
                stamp(out, offsets, count, topic_number, number)
        else:
            stamp(out, offsets, count, topic_number, number)
        return frames, self._offsets

    def part(self, Py_ssize_t begin, Py_ssize_t end):
        """Return the messages from index `begin` up to `end`."""
        if not 0 <= begin <= end <= self.count:
            raise ValueError(f"{begin} to {end} is not within 0 to {self.count}.")
        cdef const uint8_t* offsets = octets_of(self._offsets)
        cdef int64_t start = get_little(offsets + NUMBER * begin)
        cdef int64_t size = get_little(offsets + NUMBER * end) - start
        cdef Frames made = Frames.__new__(Frames)
        made._frames = copied(octets_of(self._frames) + start, size)
        made._offsets = PyBytes_FromStringAndSize(NULL, NUMBER * (end - begin + 1))
        made.count = end - begin
        made.octets = size
        cdef uint8_t* out = octets_of(made._offsets)
        cdef int64_t i
        for i in range(end - begin + 1):
            put_little(out + NUMBER * i, <uint32_t>(get_little(offsets + NUMBER * (begin + i)) - start))
        return made

    def bodies(self):
        """Return the bodies, each by itself."""
        cdef const uint8_t* frames = octets_of(self._frames)
        cdef const uint8_t* offsets = octets_of(self._offsets)
        cdef list found = []
        cdef int64_t i, begin, end
        for i in range(self.count):
            begin = <int64_t>get_little(offsets + NUMBER * i) + HEADER
            end = get_little(offsets + NUMBER * (i + 1))
            found.append(copied(frames + begin, end - begin))
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
    """Allocate frames of this size; the caller fills all of it."""
    cdef Frames made = Frames.__new__(Frames)
    made._frames = PyBytes_FromStringAndSize(NULL, size)
    made._offsets = PyBytes_FromStringAndSize(NULL, NUMBER * (count + 1))
    made.count = count
    made.octets = size
    return made


@cython.final
cdef class FrameInParts:
    """One frame whose body arrives in parts: each octet is copied once, to its place."""

    cdef Frames _made  # None when it was given away
    cdef int64_t _filled

    def __cinit__(self, Py_ssize_t size):
        """Prepare for a body of N (`size`) octets.  Raise ValueError if it is too large for a block."""
        if not 0 <= size < FRAMES_LIMIT - HEADER:
            raise ValueError(f"A body of {size} octets does not fit into a block.")
        self._made = new_frames(1, HEADER + size)
        self._filled = HEADER
        cdef uint8_t* out = octets_of(self._made._frames)
        cdef uint8_t* offsets = octets_of(self._made._offsets)
        put_u32(out, <uint32_t>(COUNTED + size))
        out[4] = MESSAGE
        put_u64(out + 5, 0)
        put_u32(out + 13, 0)
        put_little(offsets, 0)
        put_little(offsets + NUMBER, <uint32_t>(HEADER + size))

    def add(self, bytes octets not None):
        """Take the next octets of the body.  Raises ValueError if they are too many."""
        cdef int64_t size = PyBytes_GET_SIZE(octets)
        if self._made is None or size > self._made.octets - self._filled:
            raise ValueError("The body is longer than announced.")
        memcpy(octets_of(self._made._frames) + self._filled, octets_of(octets), size)
        self._filled += size

    def frames(self):
        """Give the `Frames` away.  Raises ValueError unless the body is complete."""
        cdef Frames made = self._made
        if made is None or self._filled < made.octets:
            raise ValueError("The body is not complete.")
        self._made = None
        return made


cdef Frames frames_from(const Span* spans, int64_t count, uint32_t topic, uint64_t first):
    """Return the frames of these spans; None when they would be too large for a block."""
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
    """Return all of these `Frames` as one; None if they are too large for a block."""
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
    """Return the spans of a list of bytes, which the caller frees, and the owner of their octets.  None for other types."""
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
    """Return the `Frames` of a list of bodies; None if the plain code must decide."""
    cdef Span* spans = NULL
    cdef tuple held = spanned(bodies, &spans)
    if held is None:
        return None
    try:
        return frames_from(spans, len(held), 0, 0)
    finally:
        PyMem_RawFree(spans)


def frames_of(topic, first, bodies):
    """Return frames and offsets of a list of bodies; None if the plain code must decide."""
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
