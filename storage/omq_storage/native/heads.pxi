# The heads of a block's messages: exchange, routing key, property flags, properties.

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
