"""Reads the envelopes of a DMP connection, in pieces of any size, into runs.

`scan` is all that is done for each message: a compiled twin can take its place, argument for argument.
"""

from omq.protocol import dmp_head
from omq.protocol.dmp_envelopes import (
    AFTER_HEAD,
    IMMEDIATE,
    LONGEST_6_DMP_BODY,
    MANDATORY,
    NUMBER,
    EnvelopeError,
    EnvelopeRun,
    beginning,
)
from omq.protocol.dmp_head import MAX_HEAD, PLAIN_HEAD
from omq.protocol.frames import DEFAULT_MAX_BODY
from omq.protocol.shortstr import FieldError

SMALLEST = len(PLAIN_HEAD) + AFTER_HEAD
"""The least size an envelope can have, other than a null message's 0."""


class EnvelopeReader:
    """Turns one side's octets, after its dialogue, into runs of envelopes; null messages vanish.

    It keeps at most one unfinished envelope, so its memory is bounded by the piece last fed, `max_message`
    and `MAX_HEAD`; lengths that a peer only claims take none. Every octet is moved a fixed number of times,
    however small the pieces.
    """

    __slots__ = ("_max_message", "_needed", "_read", "_unfinished")

    def __init__(self, max_message: int = DEFAULT_MAX_BODY) -> None:
        """`max_message`: octets of the longest body that is accepted."""
        self._max_message = max_message
        self._unfinished = bytearray()
        self._needed = NUMBER.size  # octets of `_unfinished` it takes to get one step further
        self._read = 0

    @property
    def unfinished(self) -> int:
        """Octets held of an envelope that is not complete: not 0 at the end of a stream means it was cut."""
        return len(self._unfinished)

    @property
    def expected(self) -> int:
        """Octets that the unfinished envelope will have, as far as it has told; 0 when there is none."""
        return max(self._needed, len(self._unfinished)) if self._unfinished else 0

    def feed(self, data: bytes) -> EnvelopeRun:
        """Every envelope that `data` completes, as one run, perhaps empty.

        Raises `EnvelopeError`, which holds the good ones before it, for sizes that do not add up, for a head
        that is none, for options that do not exist and for a body above `max_message`; the reader must not
        be fed after that.
        """
        if self._unfinished:
            if len(self._unfinished) + len(data) < self._needed:
                self._unfinished += data
                return EnvelopeRun([], [], [])
            data = b"".join((self._unfinished, data))
            self._unfinished = bytearray()
        bodies: list[bytes] = []
        heads: list[bytes] = []
        options: list[int] = []
        try:
            done, self._needed = scan(data, self._max_message, bodies, heads, options)
        except FieldError as error:
            number = self._read + len(bodies) + 1
            raise EnvelopeError(f"envelope {number}: {error}", EnvelopeRun(bodies, heads, options)) from error
        if done < len(data):
            self._unfinished += memoryview(data)[done:]
        self._read += len(bodies)
        return EnvelopeRun(bodies, heads, options)


def scan(
    data: bytes, max_message: int, bodies: list[bytes], heads: list[bytes], options: list[int]
) -> tuple[int, int]:
    """Append every whole envelope at the start of `data` to the three lists of a run.

    The lists are empty, or filled by earlier calls. Returns where the first unfinished envelope begins, and
    how many octets it takes from there to get further. Raises `FieldError` at the first bad envelope; the
    lists have all those before it.
    """
    size = len(data)
    largest = max_message + MAX_HEAD + AFTER_HEAD
    four = NUMBER.size
    unpack_number = NUMBER.unpack_from
    position = 0
    while True:
        # One envelope with all its checks.
        if size - position < four:
            return position, four
        (length,) = unpack_number(data, position)
        if not length:
            position += four
            continue
        if length < SMALLEST:
            raise FieldError(f"its size is {length}, and even an empty message takes {SMALLEST}")
        if length > largest:
            raise FieldError(f"its size is {length}, and no message may take more than {largest}")
        end = position + four + length
        if end > size:
            return position, four + length
        start = position + four
        head_end = dmp_head.skip(data, start, end - AFTER_HEAD)
        left = end - head_end - AFTER_HEAD
        (number,) = unpack_number(data, head_end)
        wanted = 0 if number == left <= max_message else _options(number, left, max_message)
        head = data[start:head_end]
        if len(head) > MAX_HEAD:
            raise FieldError(f"names and properties take {len(head)} octets, more than {MAX_HEAD}")
        before = len(bodies)
        bodies.append(data[head_end + AFTER_HEAD : end])
        position = end
        # Those that follow with the same head and without options: checking it once was enough.
        if not wanted and data.startswith(head, position + four):
            shape = beginning(len(head))
            unpack = shape.unpack_from
            skipped = shape.size
            besides = skipped - four
            last = size - skipped
            while position <= last:
                length, same, body = unpack(data, position)
                if same != head or length != body + besides or body > max_message:
                    break
                end = position + four + length
                if end > size:
                    break
                bodies.append(data[position + skipped : end])
                position = end
        if heads or head != PLAIN_HEAD:
            heads += [PLAIN_HEAD] * (before - len(heads))
            heads += [head] * (len(bodies) - before)
        if options or wanted:
            options += [0] * (before - len(options))
            options += [wanted] * (len(bodies) - before)


def _options(number: int, left: int, max_message: int) -> int:
    """The options of an envelope: `number` is before its body, for which its size leaves `left` octets.

    `scan` has taken those where `number` is `left`: 4-DMP's, and 6-DMP's without options.
    """
    options, length = number >> 24, number & LONGEST_6_DMP_BODY
    if left > max_message:
        raise FieldError(f"its body of {left} octets is above the limit of {max_message}")
    if length != left:
        raise FieldError(f"its body's length is {length}, but its size leaves {left} octets for the body")
    if options & ~(MANDATORY | IMMEDIATE):
        raise FieldError(f"its options {options:#04x} have bits set that stand for nothing")
    return options
