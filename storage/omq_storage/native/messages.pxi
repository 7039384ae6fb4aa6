# Reading Message frames.

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
    """Return whether a complete, valid Message frame begins at `at`."""
    cdef int64_t length
    if size - at < HEADER:
        return False
    length = get_u32(octets + at)
    return COUNTED <= length <= limit and length <= size - at - NUMBER and octets[at + 4] == MESSAGE
