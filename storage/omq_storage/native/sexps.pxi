# Parses one sexp in steps: the positions of its atoms and parentheses, and the values of its atoms.

cdef enum Mode:
    BETWEEN  # tokens
    BARE
    QUOTED
    LINE_COMMENT
    BLOCK_COMMENT
    STRING_IN_COMMENT

cdef enum Fault:  # the sentences are in omq/protocol/omq/sexp.py, in this order
    NO_FAULT
    CARRIAGE_RETURN
    BAD_STRING
    NEVER_BEGAN
    PAIR_IN_ATOM
    BAD_STRING_IN_COMMENT
    ENDLESS_COMMENT
    TOO_DEEP
    COMMENTS_NOTHING
    NEVER_OPENED
    MORE_THAN_ONE
    TOO_MANY
    ENDLESS_LIST

cdef enum:
    OPENED = -1
    CLOSED = -2
    MANY = 255


cdef inline int64_t escape_length(const uint8_t* at, int64_t left) noexcept nogil:
    """Return the length of the escape whose backslash is at `at`, without blanks after a line feed; 0 for none."""
    if left < 2:
        return 0
    if c'0' <= at[1] <= c'9':
        return 4 if left >= 4 and is_decimal(at + 1) else 0
    if at[1] == c'x':
        return 4 if left >= 4 and digit(at[2]) >= 0 and digit(at[3]) >= 0 else 0
    return 2


cdef inline int digit(uint8_t octet) noexcept nogil:
    """Return the value of a hexadecimal digit, or -1."""
    if c'0' <= octet <= c'9':
        return octet - c'0'
    if c'a' <= octet <= c'f':
        return octet - c'a' + 10
    if c'A' <= octet <= c'F':
        return octet - c'A' + 10
    return -1


@cython.final
cdef class SexpScan:
    """Parses `text` as at most one sexp.

    A fault in a token ends the parsing. A fault in the structure is reported at the end only, because a later fault
    in a token has precedence.
    """

    cdef bytes _text
    cdef int64_t _at
    cdef int64_t _begin  # of the token that is being read
    cdef Mode _mode
    cdef int64_t _nested  # comments that are open
    cdef Fault _lexical
    cdef Fault _structural
    cdef int64_t _max_depth
    cdef int64_t _max_tokens
    cdef uint8_t* _opened  # for each open list: the number of `#;` before it
    cdef int64_t _capacity
    cdef int64_t _used
    cdef int64_t _depth
    cdef int64_t _comments  # `#;` that wait for their sexp in the innermost list
    cdef int64_t _hidden  # open lists at the begin of the surrounding comment, including the commented list
    cdef int64_t _whole
    cdef int64_t _tokens
    cdef readonly list marks  # without comments: OPENED, CLOSED, or the begin and the end of an atom

    def __cinit__(self, bytes text not None, max_depth, max_tokens):
        self._text = text
        self._mode = BETWEEN
        self._lexical = self._structural = NO_FAULT
        self._max_depth = min(max(max_depth, 0), LONGEST_SIZE)
        self._max_tokens = min(max(max_tokens, 0), LONGEST_SIZE)
        self._opened = NULL
        self.marks = []

    def __dealloc__(self):
        PyMem_RawFree(self._opened)

    @property
    def fault(self):
        """The fault; 0 for none."""
        return self._lexical or self._structural

    @property
    def is_empty(self):
        """Whether there was no sexp."""
        return not self._whole

    def step(self, Py_ssize_t octets):
        """Parse about `octets` more; return False at the end."""
        cdef int64_t size = PyBytes_GET_SIZE(self._text)
        self.read(self._at + min(max(octets, 1), size - self._at), size)
        if self._lexical != NO_FAULT:
            return False
        if self._at < size:
            return True
        self.finish(size)
        return False

    cdef int read(self, int64_t stop, int64_t size) except -1:
        # A 0 follows the last octet of `text`, so the next octet can always be read.
        cdef const uint8_t* octets = octets_of(self._text)
        cdef int64_t at = self._at
        cdef int64_t length
        cdef uint8_t octet
        while at < stop:
            octet = octets[at]
            if self._mode == BETWEEN:
                if octet == c' ' or octet == c'\t' or octet == c'\f' or octet == c'\n':
                    at += 1
                elif octet == c'(':
                    self.open()
                    at += 1
                elif octet == c')':
                    self.close()
                    at += 1
                elif octet == c'"':
                    self._begin = at
                    self._mode = QUOTED
                    at += 1
                elif octet == c';':
                    self._mode = LINE_COMMENT
                    at += 1
                elif octet == c'\r':
                    if at + 1 < size and octets[at + 1] != c'\n':
                        return self.stop_at(CARRIAGE_RETURN)
                    at += 1
                elif octet == c'#' and octets[at + 1] == c'|':
                    self._nested = 1
                    self._mode = BLOCK_COMMENT
                    at += 2
                elif octet == c'#' and octets[at + 1] == c';':
                    self._comments += 1
                    at += 2
                elif octet == c'|' and octets[at + 1] == c'#':
                    return self.stop_at(NEVER_BEGAN)
                else:
                    self._begin = at
                    self._mode = BARE
            elif self._mode == BARE:
                while at < stop and not KIND[octets[at]]:
                    at += 1
                if at == stop:
                    break
                octet = octets[at]
                if KIND[octet] == 1:
                    self._mode = BETWEEN
                    self.atom(at)
                elif (octet == c'#' and octets[at + 1] == c'|') or (octet == c'|' and octets[at + 1] == c'#'):
                    return self.stop_at(PAIR_IN_ATOM)
                else:
                    at += 1
            elif self._mode == QUOTED or self._mode == STRING_IN_COMMENT:
                while at < stop and octets[at] != c'"' and octets[at] != c'\\':
                    at += 1
                if at == stop:
                    break
                if octets[at] == c'"':
                    at += 1
                    if self._mode == QUOTED:
                        self._mode = BETWEEN
                        self.atom(at)
                    else:
                        self._mode = BLOCK_COMMENT
                else:
                    length = escape_length(octets + at, size - at)
                    if not length:
                        return self.stop_at(BAD_STRING if self._mode == QUOTED else BAD_STRING_IN_COMMENT)
                    at += length
            elif self._mode == LINE_COMMENT:
                while at < stop and octets[at] != c'\r' and octets[at] != c'\n':
                    at += 1
                if at < stop:
                    self._mode = BETWEEN
            else:
                if octet == c'#' and octets[at + 1] == c'|':
                    self._nested += 1
                    at += 2
                elif octet == c'|' and octets[at + 1] == c'#':
                    self._nested -= 1
                    at += 2
                    if not self._nested:
                        self._mode = BETWEEN
                else:
                    if octet == c'"':
                        self._mode = STRING_IN_COMMENT
                    at += 1
        self._at = at
        return 0

    cdef int stop_at(self, Fault fault) except -1:
        self._lexical = fault
        return 0

    cdef int finish(self, int64_t size) except -1:
        if self._mode == QUOTED:
            self._lexical = BAD_STRING
        elif self._mode == STRING_IN_COMMENT:
            self._lexical = BAD_STRING_IN_COMMENT
        elif self._mode == BLOCK_COMMENT:
            self._lexical = ENDLESS_COMMENT
        elif self._mode == BARE:
            self.atom(size)
        self._mode = BETWEEN
        if self._structural == NO_FAULT:
            if self._comments:
                self._structural = COMMENTS_NOTHING
            elif self._depth:
                self._structural = ENDLESS_LIST
        return 0

    cdef int open(self) except -1:
        if self._structural != NO_FAULT:
            return 0
        self.push(self._comments)
        if not self._hidden:
            if self._comments:
                self._hidden = self._depth
            elif self._depth > self._max_depth:
                self._structural = TOO_DEEP
                return 0
            else:
                self.marks.append(OPENED)
                self._tokens += 1
        self._comments = 0
        return self.check_tokens()

    cdef int close(self) except -1:
        if self._structural != NO_FAULT:
            return 0
        if self._comments:
            self._structural = COMMENTS_NOTHING
            return 0
        if not self._depth:
            self._structural = NEVER_OPENED
            return 0
        if not self._hidden:
            self.marks.append(CLOSED)
            self._tokens += 1
        elif self._hidden == self._depth:
            self._hidden = 0
        self._comments = self.pop()
        return self.end_sexp()

    cdef int atom(self, int64_t end) except -1:
        if self._structural != NO_FAULT:
            return 0
        if not self._comments and not self._hidden:
            self.marks.append(self._begin)
            self.marks.append(end)
            self._tokens += 1
        return self.end_sexp()

    cdef int end_sexp(self) except -1:
        # The oldest waiting `#;` hides this sexp; if none waits, the sexp counts.
        if self._comments:
            self._comments -= 1
        elif not self._depth:
            self._whole += 1
            if self._whole > 1:
                self._structural = MORE_THAN_ONE
                return 0
        return self.check_tokens()

    cdef int check_tokens(self) except -1:
        if self._tokens > self._max_tokens:
            self._structural = TOO_MANY
        return 0

    # A count takes one octet, or from MANY on four and MANY: never more than the `#;` that it counts.

    cdef int push(self, int64_t count) except -1:
        cdef int64_t capacity
        cdef uint8_t* opened
        if self._capacity - self._used < 5:
            capacity = max(64, 2 * self._capacity)
            opened = <uint8_t*>PyMem_RawRealloc(self._opened, capacity)
            if opened == NULL:
                raise MemoryError
            self._opened = opened
            self._capacity = capacity
        if count >= MANY:
            put_u32(self._opened + self._used, <uint32_t>count)
            self._used += 4
            count = MANY
        self._opened[self._used] = <uint8_t>count
        self._used += 1
        self._depth += 1
        return 0

    cdef int64_t pop(self) noexcept:
        cdef int64_t count
        self._depth -= 1
        self._used -= 1
        count = self._opened[self._used]
        if count == MANY:
            self._used -= 4
            count = get_u32(self._opened + self._used)
        return count


def unescaped(bytes text not None, Py_ssize_t begin, Py_ssize_t stop, Py_ssize_t end):
    """Resolve the escapes in `text` from `begin` to about `stop`, within the content of a quoted atom that ends at
    `end`.

    Return the octets and where it stopped: it always processes a whole escape.  Raises ValueError for a bad escape.
    """
    if not 0 <= begin <= stop <= end <= PyBytes_GET_SIZE(text):
        raise ValueError("These octets do not lie in the text.")
    cdef const uint8_t* octets = octets_of(text)
    cdef int64_t at = begin
    cdef int64_t length
    cdef uint8_t octet
    cdef bytes made = PyBytes_FromStringAndSize(NULL, stop - begin + 2)  # an escape has at most two octets
    cdef uint8_t* start = octets_of(made)
    cdef uint8_t* to = start
    while at < stop:
        octet = octets[at]
        if octet != c'\\':
            to[0] = octet
            to += 1
            at += 1
            continue
        length = escape_length(octets + at, end - at)
        if not length:
            raise ValueError("This escape is bad.")
        octet = octets[at + 1]
        if length == 4:
            if octet == c'x':
                to[0] = <uint8_t>(16 * digit(octets[at + 2]) + digit(octets[at + 3]))
            else:
                to[0] = <uint8_t>(100 * (octet - c'0') + 10 * (octets[at + 2] - c'0') + octets[at + 3] - c'0')
            to += 1
        elif octet == c'\n' or (octet == c'\r' and at + 2 < end and octets[at + 2] == c'\n'):
            # A line continuation.
            length = 2 if octet == c'\n' else 3
            while at + length < end and (octets[at + length] == c' ' or octets[at + length] == c'\t'):
                length += 1
        else:
            if octet == c'n':
                octet = c'\n'
            elif octet == c't':
                octet = c'\t'
            elif octet == c'b':
                octet = 8
            elif octet == c'r':
                octet = c'\r'
            elif octet != c'\\' and octet != c'"' and octet != c"'" and octet != c'\r':
                # An unknown escape keeps its backslash.
                to[0] = c'\\'
                to += 1
            to[0] = octet
            to += 1
        at += length
    return made[: to - start], at
