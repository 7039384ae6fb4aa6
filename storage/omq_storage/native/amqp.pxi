# Runs of messages and of acknowledgements of AMQP 0-9-1, and blocks as deliveries.

cdef enum:
    METHOD_FRAME = 1
    HEADER_FRAME = 2
    BODY_FRAME = 3
    FRAME_END = 0xCE
    FRAME_START = 7  # type, channel, size
    FRAME_OVERHEAD = 8
    PUBLISH = 0x003C0028
    DELIVER = 0x003C003C
    ACK = 0x003C0050
    BASIC_CONTENT = 0x003C0000  # the class, and the weight 0
    CONTENT_START = 12  # class, weight, size of the body
    TIME = 8  # the size of a time in tables
    NAMES_AT = 13  # in a frame of Basic.Publish: after its ids and the ticket
    ACK_FRAME = 21
    LONG_OPENING = 512


cdef int64_t whole_frame(
    const uint8_t* octets, int64_t at, int64_t end, uint8_t kind, uint16_t channel, int64_t largest
) noexcept nogil:
    """Return the end of the whole frame at `at`; -1 if there is none, or one of another type or channel."""
    cdef int64_t size
    if end - at < FRAME_OVERHEAD or octets[at] != kind or get_u16(octets + at + 1) != channel:
        return -1
    size = get_u32(octets + at + 3)
    if size > largest or size > end - at - FRAME_OVERHEAD or octets[at + FRAME_START + size] != FRAME_END:
        return -1
    return at + FRAME_OVERHEAD + size


cdef int64_t whole_publish(
    const uint8_t* octets, int64_t at, int64_t end, uint16_t channel, int64_t largest
) noexcept nogil:
    """Return the end of the whole frame of a Basic.Publish without other flags than mandatory; -1 if there is none."""
    cdef int64_t names = at + NAMES_AT
    cdef int64_t stop = whole_frame(octets, at, end, METHOD_FRAME, channel, largest)
    cdef int64_t bits = stop - 2
    if stop < 0 or names >= bits or get_u32(octets + at + FRAME_START) != PUBLISH:
        return -1
    names = after_name(octets, names, bits)
    if names >= 0:
        names = after_name(octets, names, bits)
    return stop if names == bits and octets[bits] <= 1 else -1


def take_publishes(bytes data not None, Py_ssize_t position, channel, max_body, max_frame, max_head, Py_ssize_t most):
    """Take whole messages of a channel from `position` on whose methods are equal, at most `most`.

    Return the position after them, their spans, a head for each, their property flags together, exchange and routing
    key, and whether they are mandatory.  None if there is no message in the common form.
    """
    cdef const uint8_t* octets = octets_of(data)
    cdef int64_t size = PyBytes_GET_SIZE(data)
    cdef int64_t at = position
    cdef uint16_t number = channel
    cdef int64_t longest_body = min(max(max_body, 0), LONGEST_SIZE)
    cdef int64_t largest = min(max(max_frame, 0), LONGEST_SIZE)
    cdef int64_t longest_head = min(max(max_head, 0), LONGEST_SIZE)
    cdef int64_t method_end, method, names, header_end, body, body_end, properties, length
    cdef int64_t start, known = 0, known_length = -1
    cdef uint32_t flags = 0
    cdef Spans spans
    cdef list heads
    cdef bytes head = None
    if not 0 <= at <= size:
        raise ValueError(f"{position} is not within 0 to {size}.")
    start = at
    method_end = whole_publish(octets, at, size, number, largest)
    if method_end < 0:
        return None
    method = method_end - at
    names = method - NAMES_AT - 2
    spans = Spans(data)
    heads = []
    while spans.count < most and size - at >= method and not memcmp(octets + at, octets + start, method):
        header_end = whole_frame(octets, at + method, size, HEADER_FRAME, number, largest)
        properties = at + method + FRAME_START + CONTENT_START
        if header_end < 0 or header_end - 1 < properties:
            break
        if get_u32(octets + properties - CONTENT_START) != BASIC_CONTENT or get_u32(octets + properties - 8):
            break
        body = get_u32(octets + properties - 4)
        length = header_end - 1 - properties
        if names + length > longest_head or body > longest_body:
            break
        body_end = header_end
        if body:
            body_end = whole_frame(octets, header_end, size, BODY_FRAME, number, largest)
            if body_end < 0 or body_end - header_end - FRAME_OVERHEAD != body:
                break
        if length != known_length or memcmp(octets + properties, octets + known, length):
            if after_properties(octets, properties, header_end - 1, TIME) != header_end - 1:
                break
            known = properties
            known_length = length
            flags |= get_u16(octets + properties)
            head = PyBytes_FromStringAndSize(NULL, names + length)
            memcpy(octets_of(head), octets + start + NAMES_AT, names)
            memcpy(octets_of(head) + names, octets + properties, length)
        heads.append(head)
        spans.add(octets + body_end - 1 - body, <uint32_t>body, <uint32_t>body, 0, 0)
        at = body_end
    if not spans.count:
        return None
    names = start + NAMES_AT
    length = names + 1 + octets[names]
    return (
        at, spans, heads, flags, data[names + 1 : length],
        data[length + 1 : start + method - 2], octets[start + method - 2] == 1,
    )


def take_acks(bytes data not None, Py_ssize_t position, channel, Py_ssize_t most):
    """Take whole Basic.Ack of a channel from `position` on, at most `most`; return ranges, and the position after them.

    A range is (first, last), or (0, last) for all up to `last`.
    """
    cdef const uint8_t* octets = octets_of(data)
    cdef int64_t size = PyBytes_GET_SIZE(data)
    cdef int64_t at = position
    cdef uint16_t number = channel
    cdef uint64_t tag, first = 0, last = 0  # of a range that may go on; none if `first` is 0
    cdef Py_ssize_t count = 0
    cdef uint8_t bits
    cdef list ranges = []
    if not 0 <= at <= size:
        raise ValueError(f"{position} is not within 0 to {size}.")
    while count < most and whole_frame(octets, at, size, METHOD_FRAME, number, ACK_FRAME - FRAME_OVERHEAD) == at + ACK_FRAME:
        tag = get_u64(octets + at + FRAME_START + 4)
        bits = octets[at + ACK_FRAME - 2]
        if get_u32(octets + at + FRAME_START) != ACK or bits > 1 or not (tag or bits):
            break
        if not bits and first and last + 1 == tag:
            last = tag
        else:
            if first:
                ranges.append((first, last))
            first = last = tag
            if bits:
                ranges.append((0, tag))
                first = 0
        at += ACK_FRAME
        count += 1
    if first:
        ranges.append((first, last))
    return ranges, at


cdef class Written:
    """Octets that grow."""

    cdef bytes octets
    cdef int64_t size

    def __cinit__(self, int64_t capacity):
        self.octets = PyBytes_FromStringAndSize(NULL, capacity)
        self.size = 0

    cdef uint8_t* room(self, int64_t more) except NULL:
        """Make room for `more` octets, which then count, and return its begin."""
        cdef int64_t capacity = PyBytes_GET_SIZE(self.octets)
        cdef bytes larger
        if more > capacity - self.size:
            larger = PyBytes_FromStringAndSize(NULL, max(2 * capacity, self.size + more))
            memcpy(octets_of(larger), octets_of(self.octets), self.size)
            self.octets = larger
        self.size += more
        return octets_of(self.octets) + self.size - more


def deliveries(
    frames, offsets, head_offsets, head_octets, begin, end, step, channel, tag, frame_max, message, template
):
    """Return the messages at these indexes as deliveries with tags from `tag` on, and their number.

    `template(head)` gives the octets before the body of a message with this head, the places of the delivery tag and
    of the size of the body in them, and that of the message's id, or -1: `message` is the first id.  If it gives
    None, the deliveries end before this message.  `head_offsets` is None where no message has a head.  None for indexes or
    offsets that lead outside.
    """
    cdef Views views = Views(frames, offsets)
    cdef Views heads = None if head_offsets is None else Views(head_octets, head_offsets)
    if step < 1 or not 0 <= begin <= end <= views.count or (heads is not None and heads.count != views.count):
        return None
    cdef int64_t stride = min(step, views.count + 1)
    cdef int64_t i = begin
    cdef int64_t stop = end
    cdef int64_t largest = frame_max - FRAME_OVERHEAD
    cdef uint16_t number = channel
    cdef uint64_t delivery = tag
    cdef uint64_t id = message
    cdef int64_t frame, after, head = 0, head_end = 0, size, part, parts
    cdef const uint8_t* known = NULL
    cdef int64_t known_length = -1
    cdef const uint8_t* body
    cdef int64_t count = 0
    cdef object made
    cdef bytes opening = None
    cdef int64_t tag_at = 0, size_at = 0, id_at = -1, opening_size = 0
    cdef Written written = None
    cdef uint8_t* out
    if largest < 1:
        return None
    while i < stop:
        if not views.bounds(i, &frame, &after) or after - frame < HEADER:
            return None
        if heads is not None and not heads.bounds(i, &head, &head_end):
            return None
        if head_end - head != known_length or (
            known_length and memcmp(heads.frames + head, known, known_length)
        ):
            known_length = head_end - head
            if heads is None:
                made = template(b"")
            else:
                known = heads.frames + head
                made = template(PyBytes_FromStringAndSize(<const char*>known, known_length))
            if made is None:
                break
            opening, tag_at, size_at, id_at = made
            if opening is None:
                raise TypeError("None is no template.")
            opening_size = PyBytes_GET_SIZE(opening)
            if not (0 <= tag_at <= opening_size - 8 and 0 <= size_at <= opening_size - 8 and id_at <= opening_size - 8):
                raise ValueError("This template has no room for its numbers.")
        size = after - frame - HEADER
        body = views.frames + frame + HEADER
        parts = (size + largest - 1) // largest
        if written is None:
            # Exact where all messages are alike, and never much more than they take.
            written = Written(
                ((stop - i + stride - 1) // stride)
                * (min(opening_size, LONG_OPENING) + FRAME_OVERHEAD * parts + min(size, views.size // views.count))
            )
        out = written.room(opening_size + FRAME_OVERHEAD * parts + size)
        memcpy(out, octets_of(opening), opening_size)
        put_u64(out + tag_at, delivery)
        put_u64(out + size_at, <uint64_t>size)
        if id_at >= 0:
            put_u64(out + id_at, id)
        out += opening_size
        while size:
            part = min(size, largest)
            out[0] = BODY_FRAME
            put_u16(out + 1, number)
            put_u32(out + 3, <uint32_t>part)
            memcpy(out + FRAME_START, body, part)
            out[FRAME_START + part] = FRAME_END
            out += FRAME_OVERHEAD + part
            body += part
            size -= part
        delivery += 1
        count += 1
        id += <uint64_t>stride
        i += stride
    if written is None:
        return b"", count
    return written.octets if written.size == PyBytes_GET_SIZE(written.octets) else written.octets[: written.size], count


def complete(parts, octets):
    """Return the number of whole deliveries in the first `octets` of these parts, and the number of octets of the next one.

    None for a part that ends within the first octets of a frame.
    """
    cdef int64_t sent = octets
    cdef int64_t count = -1  # a delivery is complete where the next one begins
    cdef int64_t begun_at = 0, total = 0, position = 0, size
    cdef Py_buffer buffer
    cdef const uint8_t* part
    for each in parts:
        PyObject_GetBuffer(each, &buffer, PyBUF_SIMPLE)
        try:
            part = <const uint8_t*>buffer.buf
            while position < buffer.len:
                if buffer.len - position < FRAME_START:
                    return None
                if part[position] == METHOD_FRAME:
                    if total > sent:
                        return count, sent - begun_at
                    count += 1
                    begun_at = total
                size = FRAME_OVERHEAD + <int64_t>get_u32(part + position + 3)
                total += size
                position += size
            position -= buffer.len
        finally:
            PyBuffer_Release(&buffer)
    if total <= sent:
        return count + 1, sent - total
    return max(count, 0), sent - begun_at
