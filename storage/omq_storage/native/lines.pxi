# The forms of Publish lines that clients usually print.

# The kind of an octet in a bare atom: 0 if it is allowed, 1 if it ends the atom, and # and |.
cdef uint8_t KIND[256]
for _octet in range(256):
    KIND[_octet] = 0
for _octet in b' \t\f\r\n"();':
    KIND[_octet] = 1
KIND[<int>c'#'] = 2
KIND[<int>c'|'] = 3


cdef int64_t bare_end(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Return the end of a bare atom at `at`; -1 if there is none.  `octets[end]` is a line feed."""
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
    """Return the same as `bare_end`, but faster for an atom without # or | up to the last parenthesis of the line."""
    cdef int64_t last = end - 1
    if last > at and octets[last] == c')' and not has_mark(octets + at, last - at):
        return last
    return bare_end(octets, at, end)


cdef int64_t quoted_end(const uint8_t* octets, int64_t at, int64_t end, int64_t* length) noexcept nogil:
    """Return the position of the closing quote of the content at `at`, and the length without escapes; else -1."""
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
        # `octets[end]` is a line feed, which no escape contains, so no escape is read past it.
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
    """Return whether there are three digits of a number up to 255."""
    if not (c'0' <= at[0] <= c'2' and c'0' <= at[1] <= c'9' and c'0' <= at[2] <= c'9'):
        return False
    return at[0] < c'2' or at[1] < c'5' or (at[1] == c'5' and at[2] <= c'5')


cdef inline bint ends_well(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Return whether only `)`, and perhaps a carriage return, precede the line feed at `end`."""
    if octets[at] != c')':
        return False
    at += 1
    if octets[at] == c'\r':
        at += 1
    return at == end


cdef int64_t body_at(
    const uint8_t* octets, int64_t at, int64_t end, int64_t* topic, int64_t* topic_end, bint* quoted
) noexcept nogil:
    """Return the begin of the body of a Publish line, after its quote if it has one; -1 for any other line."""
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
