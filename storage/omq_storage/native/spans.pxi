# Finds bodies in received octets: DMP envelopes and Publish lines.

@cython.final
cdef class Spans:
    """The positions of bodies in `data`: found here, or added by the plain code."""

    cdef bytes _data
    cdef list _before  # the octets that `follow` has replaced: bodies were found there
    cdef Span* _spans
    cdef int64_t _capacity
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t longest
    cdef bint _busy

    def __cinit__(self, bytes data not None):
        self._data = data
        self._before = []
        self._spans = NULL
        self._capacity = 0
        self.count = 0
        self.longest = 0
        self._busy = False

    def __dealloc__(self):
        PyMem_RawFree(self._spans)

    def follow(self, bytes data not None):
        """Continue with `data`: positions that are added later are in these octets."""
        if self.count:
            self._before.append(self._data)
        self._data = data

    cdef int add(
        self, const uint8_t* at, uint32_t length, uint32_t written, uint32_t head, uint32_t options
    ) except -1:
        cdef int64_t capacity
        cdef Span* spans
        if self.count == self._capacity:
            if self._busy:
                raise RuntimeError("These spans are in use in another thread.")
            capacity = max(16, 2 * self._capacity)
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
        """Add an envelope that the plain code has checked: the begin of its head and of its body, and its end."""
        # Compare `body` with both bounds first, so that subtractions from it stay within 64 bits.
        if not NUMBER <= body <= end <= PyBytes_GET_SIZE(self._data) or not 0 <= head <= body - NUMBER:
            raise ValueError("This envelope does not lie in the octets.")
        if end - body > LONGEST_SIZE or body - head > LONGEST_SIZE:
            raise ValueError("This envelope is too long.")
        cdef uint32_t length = <uint32_t>(end - body)
        self.add(octets_of(self._data) + body, length, length, <uint32_t>(body - NUMBER - head), options)

    def take_envelopes(self, Py_ssize_t position, max_message, max_head, Py_ssize_t most, uint8_t time=8):
        """Add the envelopes from `position` on, at most about `most`. `time` is the size of a time in their tables.

        Return the position of its stop, and the number of octets it needs from there on: 0 if the octets are there, but
        the plain code must parse them; -1 if it has added `most`.
        """
        cdef const uint8_t* octets = octets_of(self._data)
        cdef int64_t size = PyBytes_GET_SIZE(self._data)
        cdef int64_t at = position
        cdef int64_t longest_body = min(max(max_message, 0), LONGEST_SIZE)
        cdef int64_t longest_head = min(max(max_head, 0), 1 << 20)
        cdef int64_t length, end, start, head_end, left
        cdef int64_t work = most
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
            if work <= 0:
                return at, -1
            length = get_u32(octets + at)
            work -= 1
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
                head_end = after_head(octets, start, min(end - NUMBER, start + longest_head), time)
                if head_end < 0:
                    return at, 0
                work -= (head_end - start) // 16  # a table may have a value in every octet
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

    def deal(self, Pass passed not None, uint32_t topic, bytes name not None):
        """Have a pass take the first messages, for one topic, up to one that has a head or options, or is not routed.
        Return their number.
        """
        cdef int64_t place = passed.topic(octets_of(name), PyBytes_GET_SIZE(name))
        cdef Span* span
        cdef int64_t dealt = 0
        if place < 0 or (<Route>passed._topics[place].route).topic != topic:
            return 0
        while dealt < self.count and not passed.is_full:
            span = &self._spans[dealt]
            if span.head > NAMES or span.options or not passed.add(place, span.at, span.length, span.written):
                break
            dealt += 1
        if dealt:
            passed.write()
        return dealt

    def frames(self):
        """Return the `Frames` of all; None if they are too large for a block."""
        if self._busy:
            raise RuntimeError("These spans are in use in another thread.")
        self._busy = True
        try:
            return frames_from(self._spans, self.count, 0, 0)
        finally:
            self._busy = False

    def bodies(self):
        """Return the bodies, each by itself."""
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
        """Return the heads of the envelopes; an empty list if each is `PLAIN_HEAD`."""
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
        """Return the options of the envelopes; an empty list if each is 0."""
        cdef int64_t i
        for i in range(self.count):
            if self._spans[i].options:
                break
        else:
            return []
        return [self._spans[i].options for i in range(self.count)]


DEALT_TOPICS = 1024  # less than a millisecond of work
cdef int64_t MOST_DEALT = DEALT_TOPICS


def deal_lines(bytes data not None, Py_ssize_t position, Py_ssize_t most, Pass routed = None):
    """Add the bodies of the Publish lines from `position` on, as long as they have a quick form, to a `Spans`
    for each topic.

    Return pairs of a topic as it is written and its spans, in the order of the topics' first lines, and where it
    stopped: at the end, at another line, at one more topic after DEALT_TOPICS of them, or when it has read `most`
    octets.  It processes a long line only if its body is copied unchanged: one with escapes is parsed in steps.  The
    topics of two pairs always differ, however they are written: a topic with escapes has a pair of its own.

    With `routed`, the messages that can be routed go there instead, and it also stops when that is full, or
    where messages must wait.  DEALT_TOPICS topics of other messages fill it.
    """
    cdef const uint8_t* octets = octets_of(data)
    cdef int64_t size = PyBytes_GET_SIZE(data)
    cdef int64_t at = position
    cdef int64_t place = -1  # of the last line's topic in `routed`
    cdef int64_t line_end, body, body_end, length
    cdef int64_t topic = 0, topic_end = 0, name = 0, name_end = 0
    cdef int64_t last = 0, last_length = -1  # the last line's topic
    cdef int64_t head = 0, head_length = 0  # of the last line: everything before its body
    cdef const uint8_t* found
    cdef bint quoted = False, same, alone = False
    cdef list dealt = []
    cdef dict by_name = {}
    cdef Spans spans = None
    cdef bytes key = None
    if not 0 <= at <= size:
        raise ValueError(f"{position} is not within 0 to {size}.")
    while at < size and at - position < most:
        found = <const uint8_t*>memchr(octets + at, 10, size - at)
        if found == NULL:
            break
        line_end = found - octets
        if line_end - at > LONG_LINE and not is_simple(octets + at, line_end - at):
            break
        same = head_length and head_length <= line_end - at and not memcmp(octets + at, octets + head, head_length)
        if same:
            # `quoted` is that of the last line: a quote would be part of its head.
            body = at + head_length
            if not quoted and octets[body] == c'"':
                body = body_at(octets, at, line_end, &topic, &topic_end, &quoted)
        else:
            body = body_at(octets, at, line_end, &topic, &topic_end, &quoted)
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
        if not same and (topic_end - topic != last_length or memcmp(octets + topic, octets + last, last_length)):
            if alone:
                break
            name, name_end = topic, topic_end
            if octets[topic] == c'"':
                name += 1
                name_end -= 1
                if memchr(octets + name, c'\\', name_end - name) != NULL:
                    if at > position:
                        break
                    alone = True
            place = -1 if routed is None or alone else routed.topic(octets + name, name_end - name)
            if place == -3:
                break
            spans = None
            last = topic
            last_length = topic_end - topic
        if place >= 0 and not routed.add(
            place, octets + body, <uint32_t>length, <uint32_t>(body_end - body)
        ):
            place = -1
        if place >= 0:
            if routed.is_full:
                at = line_end + 1
                break
        else:
            if spans is None:
                key = PyBytes_FromStringAndSize(<const char*>octets + name, name_end - name)
                spans = by_name.get(key)
                if spans is None:
                    if len(dealt) >= MOST_DEALT:
                        if routed is not None:
                            routed.is_full = True
                        break
                    spans = Spans(data)
                    by_name[key] = spans
                    dealt.append((PyBytes_FromStringAndSize(<const char*>octets + last, last_length), spans))
            spans.add(octets + body, <uint32_t>length, <uint32_t>(body_end - body), 0, 0)
        head = at
        head_length = body - at
        at = line_end + 1
    if routed is not None:
        routed.write()
    return dealt, at


cdef bint is_simple(const uint8_t* at, int64_t size) noexcept nogil:
    """Return whether a line has neither escapes nor octets that need a closer check in a bare atom."""
    return (
        memchr(at, c'\\', size) == NULL and memchr(at, c'#', size) == NULL and memchr(at, c'|', size) == NULL
    )


cdef int64_t after_name(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Return the end of a short string at `at`; -1 if it is beyond `end`."""
    if at >= end or octets[at] > end - at - 1:
        return -1
    return at + 1 + octets[at]


# The size of the value of a field by the octet of its type, or one of the following.
cdef uint8_t SIZE[256]
cdef enum:
    STRING = 252  # a length and octets
    FIELDS = 253  # a table
    VALUES = 254  # an array
    NO_TYPE = 255
    MAX_NESTING = 32  # as in omq/protocol/amqp/fields.py and omq/protocol/amqp_1_0/decoding.py

cdef uint64_t LATEST = 0xFFFFFFFF  # the last time of four octets
for _octet in range(256):
    SIZE[_octet] = NO_TYPE
for _octet in b"bBt":
    SIZE[_octet] = 1
for _octet in b"sUu":
    SIZE[_octet] = 2
for _octet in b"Iif":
    SIZE[_octet] = 4
for _octet in b"lLd":
    SIZE[_octet] = 8
SIZE[<int>c'D'] = 5
SIZE[<int>c'V'] = 0
SIZE[<int>c'S'] = SIZE[<int>c'x'] = STRING
SIZE[<int>c'F'] = FIELDS
SIZE[<int>c'A'] = VALUES


cdef int64_t after_values(
    const uint8_t* octets, int64_t at, int64_t end, int levels, bint named, uint8_t time
) noexcept nogil:
    """Return the end of the table or array whose length is at `at`; -1 if it is beyond `end`, or malformed.

    `time` is the size of a time: OpenAMQ's have four octets.
    """
    cdef int64_t stop
    cdef uint8_t size
    if not levels or end - at < NUMBER or get_u32(octets + at) > end - at - NUMBER:
        return -1
    stop = at + NUMBER + get_u32(octets + at)
    at += NUMBER
    while at < stop:
        if named:
            at = after_name(octets, at, stop)
            if at < 0 or at == stop:
                return -1
        size = time if octets[at] == c'T' else SIZE[octets[at]]
        at += 1
        if size == NO_TYPE:
            return -1
        if size == FIELDS or size == VALUES:
            at = after_values(octets, at, stop, levels - 1, size == FIELDS, time)
            if at < 0:
                return -1
        elif size == STRING:
            if stop - at < NUMBER or get_u32(octets + at) > stop - at - NUMBER:
                return -1
            at += NUMBER + get_u32(octets + at)
        else:
            if size > stop - at:
                return -1
            at += size
    return at


def narrowed_table(bytes data not None, Py_ssize_t at):
    """Translate the table at `data[at]` to the form of OpenAMQ, in which times have four octets. Return it and the
    end of the old one; None for octets that are no table.
    """
    cdef int64_t size = 0, end = PyBytes_GET_SIZE(data)
    cdef bytes table
    if not 0 <= at <= end or after_values(octets_of(data), at, end, MAX_NESTING, True, 8) < 0:
        return None
    table = PyBytes_FromStringAndSize(NULL, end - at)  # it does not become longer
    end = narrow_values(octets_of(data), at, True, octets_of(table), &size)
    return table[:size], end


cdef int64_t narrow_values(
    const uint8_t* octets, int64_t at, bint named, uint8_t* out, int64_t* written
) noexcept nogil:
    """Write the table or array whose length is at `at`, which `after_values` has checked; return its end."""
    cdef int64_t begin = at + NUMBER, stop = begin + get_u32(octets + at), length_at = written[0]
    cdef uint64_t time
    cdef uint8_t kind
    at = begin
    written[0] += NUMBER
    while at < stop:
        if named:
            at += 1 + octets[at]
        kind = octets[at]
        at += 1
        if kind == c'T' or SIZE[kind] == FIELDS or SIZE[kind] == VALUES:
            memcpy(out + written[0], octets + begin, at - begin)
            written[0] += at - begin
            if kind == c'T':
                time = get_u64(octets + at)
                if time > LATEST:
                    time = LATEST
                put_u32(out + written[0], <uint32_t>time)
                written[0] += 4
                at += 8
            else:
                at = narrow_values(octets, at, SIZE[kind] == FIELDS, out, written)
            begin = at
        elif SIZE[kind] == STRING:
            at += NUMBER + get_u32(octets + at)
        else:
            at += SIZE[kind]
    memcpy(out + written[0], octets + begin, stop - begin)
    written[0] += stop - begin
    put_u32(out + length_at, <uint32_t>(written[0] - length_at - NUMBER))
    return stop


cdef int64_t after_head(const uint8_t* octets, int64_t at, int64_t end, uint8_t time) noexcept nogil:
    """Return the end of a head; -1 if it is beyond `end`, or malformed."""
    at = after_name(octets, at, end)
    if at >= 0:
        at = after_name(octets, at, end)
    return -1 if at < 0 else after_properties(octets, at, end, time)


def properties_end(bytes data not None, Py_ssize_t position):
    """Return the end of property flags and properties; -1 if the plain code must name their fault."""
    if not 0 <= position <= PyBytes_GET_SIZE(data):
        raise ValueError(f"{position} is not within 0 to {PyBytes_GET_SIZE(data)}.")
    return after_properties(octets_of(data), position, PyBytes_GET_SIZE(data), 8)


cdef int64_t after_properties(const uint8_t* octets, int64_t at, int64_t end, uint8_t time) noexcept nogil:
    """Return the end of property flags and properties; -1 if it is beyond `end`, or malformed."""
    cdef uint32_t flags, flag
    if end - at < 2:
        return -1
    flags = (<uint32_t>octets[at] << 8) | octets[at + 1]
    at += 2
    if not flags:
        return at
    if flags & UNKNOWN:
        return -1
    flag = 0x8000
    while flag > UNKNOWN:
        if flags & flag:
            if flag & OCTETS:
                at += 1
            elif flag & LONG:
                at += 8
            elif flag & TABLE:
                at = after_values(octets, at, end, MAX_NESTING, True, time)
            else:
                at = after_name(octets, at, end)
            if at < 0 or at > end:
                return -1
        flag >>= 1
    return at
