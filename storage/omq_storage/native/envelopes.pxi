# Writing DMP envelopes.

def envelopes(bodies, heads, smallest):
    """Return envelopes with options 0 and these heads, or `PLAIN_HEAD` for each; none with a size below `smallest`.

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
        return written_envelopes(spans, len(held), held_heads, PLAIN_HEAD, smallest)
    finally:
        PyMem_RawFree(spans)


cdef bytes written_envelopes(const Span* spans, int64_t count, tuple heads, bytes common, smallest):
    """Return the envelopes of these spans. `heads` has one for each, or is None for the head `common` each."""
    cdef int64_t least = min(max(smallest, 0), LONGEST_SIZE)
    cdef int64_t size = 0
    cdef int64_t one, i
    cdef const uint8_t* head = octets_of(common)
    cdef int64_t length
    for i in range(count):
        one = <int64_t>spans[i].head + NUMBER + spans[i].length
        if one < least:
            if (common if heads is None else heads[i]) != PLAIN_HEAD:
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
