# Parts of a block: single frames, every Nth frame, or envelopes.

cdef class Views:
    """Holds the buffers of a block's frames and offsets while their octets are in use."""

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
        """Return begin and end of the frame at `index`, which is below `count`; False if it is outside the frames."""
        begin[0] = get_little(self.offsets + NUMBER * index)
        end[0] = get_little(self.offsets + NUMBER * (index + 1))
        return begin[0] <= end[0] <= self.size


def gathered(frames, offsets, begin, end, step):
    """Return the joined frames at these indexes; None for indexes or offsets outside the block."""
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
        # Read the offsets again: the buffers may change meanwhile, and nothing may be written past the end.
        if not views.bounds(i, &frame, &after) or after - frame > size - done:
            return None
        memcpy(out + done, views.frames + frame, after - frame)
        done += after - frame
        i += stride
    return made if done == size else None


@cython.final
cdef class Room:
    """Holds a buffer that is written to."""

    cdef Py_buffer _buffer
    cdef bint _has_buffer
    cdef uint8_t* octets
    cdef int64_t size

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self._buffer, PyBUF_WRITABLE)
        self._has_buffer = True
        self.octets = <uint8_t*>self._buffer.buf
        self.size = self._buffer.len

    def __dealloc__(self):
        if self._has_buffer:
            PyBuffer_Release(&self._buffer)


def copy_bodies(frames, offsets, begin, end, bodies, bounds, int64_t base):
    """Copy the bodies of the frames from index `begin` to before `end` into the buffer `bodies`, one after another.
    Write where each begins there, and where the last one ends, into the buffer `bounds`, as little-endian u32 that
    count from `base`.

    Return True; None unless both buffers have exactly the size for this, for a size after which a number does not fit,
    and for indexes or offsets outside the block.
    """
    cdef Views views = Views(frames, offsets)
    if not 0 <= begin <= end <= views.count:
        return None
    cdef Room to = Room(bodies)
    cdef Room numbers = Room(bounds)
    cdef int64_t start = begin
    cdef int64_t stop = end
    cdef bint written
    if to.size >= LARGE:
        with nogil:
            written = write_bodies(views, start, stop, to, numbers, base)
    else:
        written = write_bodies(views, start, stop, to, numbers, base)
    return True if written else None


cdef bint write_bodies(Views views, int64_t start, int64_t stop, Room to, Room numbers, int64_t base) noexcept nogil:
    """Do the work of `copy_bodies`; return False where that returns None."""
    cdef int64_t done = 0
    cdef int64_t i, frame, after, length
    if numbers.size != NUMBER * (stop - start + 1) or not 0 <= base <= LONGEST_SIZE - to.size:
        return False
    for i in range(start, stop):
        if not views.bounds(i, &frame, &after):
            return False
        length = after - frame - HEADER
        if not 0 <= length <= to.size - done:
            return False
        put_little(numbers.octets + NUMBER * (i - start), <uint32_t>(base + done))
        memcpy(to.octets + done, views.frames + frame + HEADER, length)
        done += length
    put_little(numbers.octets + NUMBER * (stop - start), <uint32_t>(base + done))
    return done == to.size


def count_up(uint64_t first, numbers):
    """Fill the buffer `numbers` with the little-endian u64 from `first` on."""
    cdef Room room = Room(numbers)
    cdef int64_t i
    for i in range(room.size // 8):
        put_little(room.octets + 8 * i, <uint32_t>(first + i))
        put_little(room.octets + 8 * i + NUMBER, <uint32_t>((first + i) >> 32))


def slices(frames, offsets, index):
    """Return views of the frames from an index on; None for an index or offsets outside the block."""
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


def envelopes_of(frames, offsets, begin, end, step, smallest, bytes head not None):
    """Return the messages at these indexes as envelopes with this head, none with a size below `smallest`.

    None for indexes or offsets that lead outside, and where the head would have to grow but is not `PLAIN_HEAD`.
    """
    cdef Views views = Views(frames, offsets)
    if step < 1 or not 0 <= begin <= end <= views.count or PyBytes_GET_SIZE(head) > LONGEST_SIZE:
        return None
    cdef int64_t start = begin
    # A step past the end means the same as one to the end, and multiplying it stays within 64 bits.
    cdef int64_t stride = min(step, views.count + 1)
    cdef int64_t count = (end - begin + stride - 1) // stride
    cdef int64_t i, frame, after
    cdef Span* spans = <Span*>PyMem_RawRealloc(NULL, (count + 1) * sizeof(Span))
    if spans == NULL:
        raise MemoryError
    try:
        for i in range(count):
            if not views.bounds(start + i * stride, &frame, &after) or after - frame < HEADER:
                return None
            spans[i].at = views.frames + frame + HEADER
            spans[i].length = spans[i].written = <uint32_t>(after - frame - HEADER)
            spans[i].head = <uint32_t>PyBytes_GET_SIZE(head)
        return written_envelopes(spans, count, None, head, smallest)
    finally:
        PyMem_RawFree(spans)


def rises(offsets, count, size, least):
    """Return whether offsets begin at 0, end at `size` and are at least `least` apart; None for octets that are not
    exactly `count` + 1 numbers.
    """
    cdef Py_buffer buffer
    cdef const uint8_t* at
    cdef int64_t steps, i, before, after, apart
    cdef int64_t wrong = 0
    if not (0 <= count < FRAMES_LIMIT and 0 <= size < FRAMES_LIMIT and 0 <= least < FRAMES_LIMIT):
        return None
    steps, apart = count, least
    PyObject_GetBuffer(offsets, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len != NUMBER * (steps + 1):
            return None
        at = <const uint8_t*>buffer.buf
        before = get_little(at)
        if before != 0 or get_little(at + NUMBER * steps) != size:
            return False
        # Offsets that increase up to `size` never exceed it. A loop without an early exit lets compilers process many
        # numbers at a time.
        for i in range(1, steps + 1):
            after = get_little(at + NUMBER * i)
            wrong |= after - before - apart
            before = after
        return wrong >= 0
    finally:
        PyBuffer_Release(&buffer)
