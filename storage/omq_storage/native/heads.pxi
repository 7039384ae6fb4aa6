# The heads of a block's messages: exchange, routing key, property flags, properties.

def multiples(step, count):
    """See `omq_storage.numbers.multiples`; None for numbers that do not fit."""
    cdef int64_t i, each, total
    cdef bytes made
    cdef uint8_t* at
    if not 0 <= step < 1 << 32 or not 0 < count < 1 << 28 or step * (count - 1) >= 1 << 32:
        return None
    each = step
    total = count
    made = PyBytes_FromStringAndSize(NULL, NUMBER * total)
    at = octets_of(made)
    for i in range(total):
        put_little(at + NUMBER * i, <uint32_t>(each * i))
    return made


def property_flags(offsets, octets):
    """See `omq_storage.plain.property_flags`; None for offsets that are not numbers of octets of these."""
    cdef Py_buffer bounds, buffer
    cdef const uint8_t* at
    cdef const uint8_t* heads
    cdef int64_t count, i, begin, end
    cdef uint32_t flags = 0
    PyObject_GetBuffer(offsets, &bounds, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(octets, &buffer, PyBUF_SIMPLE)
        try:
            at = <const uint8_t*>bounds.buf
            heads = <const uint8_t*>buffer.buf
            count = bounds.len // NUMBER - 1
            for i in range(count):
                begin = get_little(at + NUMBER * i)
                end = get_little(at + NUMBER * (i + 1))
                if end > buffer.len:
                    return None
                if begin < end:
                    begin += 1 + heads[begin]
                if begin < end:
                    begin += 1 + heads[begin]
                    if begin + 2 <= end:
                        flags |= (<uint32_t>heads[begin] << 8) | heads[begin + 1]
            return flags
        finally:
            PyBuffer_Release(&buffer)
    finally:
        PyBuffer_Release(&bounds)


cdef enum:
    # The flags of the properties up to priority.
    CONTENT_TYPE = 0x8000
    CONTENT_ENCODING = 0x4000
    HEADERS = 0x2000
    DELIVERY_MODE = 0x1000
    PRIORITY = 0x0800


def priorities(offsets, octets):
    """See `omq_storage.plain.priorities`; None for offsets that are not numbers of octets of these, and for a
    head that is not whole.
    """
    cdef Py_buffer bounds, buffer
    cdef const uint8_t* at
    cdef const uint8_t* heads
    cdef uint8_t* level
    cdef int64_t count, i, begin, end
    cdef bytes made
    PyObject_GetBuffer(offsets, &bounds, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(octets, &buffer, PyBUF_SIMPLE)
        try:
            at = <const uint8_t*>bounds.buf
            heads = <const uint8_t*>buffer.buf
            count = bounds.len // NUMBER - 1
            if count < 0:
                return None
            made = PyBytes_FromStringAndSize(NULL, count)
            level = octets_of(made)
            for i in range(count):
                begin = get_little(at + NUMBER * i)
                end = get_little(at + NUMBER * (i + 1))
                if begin > end or end > buffer.len:
                    return None
                if begin == end:
                    level[i] = 0
                elif not get_priority(heads, begin, end, level + i):
                    return None
            return made
        finally:
            PyBuffer_Release(&buffer)
    finally:
        PyBuffer_Release(&bounds)


cdef bint get_priority(const uint8_t* heads, int64_t at, int64_t end, uint8_t* priority) noexcept nogil:
    """Set the priority of the head at these octets, and return whether it is whole up to there."""
    cdef uint32_t flags
    at += 1 + heads[at]
    if at >= end:
        return False
    at += 1 + heads[at]
    if at + 2 > end:
        return False
    flags = get_u16(heads + at)
    at += 2
    priority[0] = 0
    if not flags & PRIORITY:
        return True
    if flags & CONTENT_TYPE:
        if at >= end:
            return False
        at += 1 + heads[at]
    if flags & CONTENT_ENCODING:
        if at >= end:
            return False
        at += 1 + heads[at]
    if flags & HEADERS:
        if at + 4 > end:
            return False
        at += 4 + <int64_t>get_u32(heads + at)
    if flags & DELIVERY_MODE:
        at += 1
    if at >= end:
        return False
    priority[0] = heads[at]
    return True


cdef enum:
    ORIGIN = 0x88  # the flags of the properties message-id and app-id
    DIGITS = 20  # of the largest sequence number


def origins(heads):
    """See `omq.protocol.amqp.producer.origins`; None if a message with both properties has other ones too, or if
    a head is not whole.
    """
    cdef const uint8_t* at
    cdef const uint8_t* name
    cdef const uint8_t* before = NULL  # the name of the message before, which is often the same
    cdef Py_ssize_t size, spot, end, length, length_before = 0
    cdef uint32_t flags
    cdef uint64_t sequence
    cdef object producer = None
    cdef list found = []
    for head in heads:
        if not PyBytes_CheckExact(head):
            return None
        at = <const uint8_t*>PyBytes_AS_STRING(head)
        size = PyBytes_GET_SIZE(head)
        spot = 1 + at[0] if size else size
        spot += 1 + at[spot] if spot < size else 0
        if spot + 2 > size:
            return None
        flags = (<uint32_t>at[spot] << 8) | at[spot + 1]
        if flags & ORIGIN != ORIGIN:
            found.append(None)
            continue
        spot += 2
        if flags != ORIGIN or spot >= size:
            return None
        end = spot + 1 + at[spot]
        if end >= size:
            return None
        name = at + end + 1
        length = size - end - 1
        if length == 0 or not 0 < at[spot] <= DIGITS or not get_digits(at + spot + 1, at[spot], &sequence):
            found.append(None)
            continue
        if length != length_before or memcmp(name, before, length) != 0:
            producer = PyBytes_FromStringAndSize(<const char*>name, length)
            before, length_before = <const uint8_t*>PyBytes_AS_STRING(producer), length
        found.append((producer, sequence))
    return found


cdef bint get_digits(const uint8_t* at, Py_ssize_t count, uint64_t* number) noexcept nogil:
    """Set the number that these decimal digits write, and return whether it is one of 64 bits."""
    cdef Py_ssize_t i
    cdef uint64_t digit
    number[0] = 0
    for i in range(count):
        if not 48 <= at[i] <= 57:
            return False
        digit = at[i] - 48
        if number[0] > (<uint64_t>0xFFFFFFFFFFFFFFFF - digit) // 10:
            return False
        number[0] = number[0] * 10 + digit
    return True
