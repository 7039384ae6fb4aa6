"""Read the envelopes of a DMP connection, in pieces of any size, into runs or batches.

Only `scan` works on single messages. The compiled codec finds the envelopes in the common forms, and
`_checking` here checks each of the others.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from omq.model import DEFAULT_MAX_BODY
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import openamq
from omq.protocol.amqp.head import MAX_HEAD, PLAIN_HEAD
from omq.protocol.amqp.properties import check_headers
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.dmp.envelopes import (
    AFTER_HEAD,
    IMMEDIATE,
    LONGEST_6_DMP_BODY,
    MANDATORY,
    NUMBER,
    EnvelopeBatch,
    EnvelopeError,
    EnvelopeRun,
    LongEnvelope,
    beginning,
)
from omq.protocol.steps import Steps, finished
from omq_storage import codec
from omq_storage.batches import Bodies, batch

if TYPE_CHECKING:
    from omq_storage._codec import Spans

ENVELOPES_A_STEP = 8 << 10
"""The most envelopes of one step; a long head counts as several."""

PLAIN_ENVELOPES_A_STEP = 1 << 9
"""The same in plain Python, where an envelope whose head differs from the previous one counts AS_WORK more.
"""

AS_WORK = 8

SURE_HEAD = MAX_HEAD * 5 // 9
"""A head from OpenAMQ of this size is not above MAX_HEAD when it is translated: a time with its type, the
least value that grows, has five octets before and nine after.
"""

SMALLEST = len(PLAIN_HEAD) + AFTER_HEAD
"""The least size an envelope can have, other than a null message's 0."""


PushFound = Callable[["Spans"], int]
"""Sends the messages of the first envelopes that were found, and returns their number."""


class EnvelopeReader:
    """Parses the octets after the dialogue into runs of envelopes, without null messages.

    It keeps at most one unfinished envelope, so the last fed piece, `max_message` and `MAX_HEAD` bound its
    memory; it does not allocate memory for lengths that a peer only claims. It copies every octet a constant
    number of times, however small the pieces.
    """

    __slots__ = ("_from_openamq", "_max_message", "_needed", "_read", "_unfinished")

    def __init__(self, max_message: int = DEFAULT_MAX_BODY, *, from_openamq: bool = False) -> None:
        """Create a reader without octets. `max_message`: the longest accepted body, in octets. With
        `from_openamq` the tables in heads have OpenAMQ's form: they are checked as such, and returned as they
        are.
        """
        self._max_message = max_message
        self._from_openamq = from_openamq
        self._unfinished = bytearray()
        self._needed = NUMBER.size  # octets of `_unfinished` needed for progress
        self._read = 0

    @property
    def unfinished(self) -> int:
        """The held octets of an incomplete envelope: not 0 at the end of a stream means that it was
        truncated.
        """
        return len(self._unfinished)

    @property
    def expected(self) -> int:
        """The size of the unfinished envelope, as far as known; 0 if there is none."""
        return max(self._needed, len(self._unfinished)) if self._unfinished else 0

    @property
    def max_message(self) -> int:
        """The longest accepted body in octets."""
        return self._max_message

    @max_message.setter
    def max_message(self, octets: int) -> None:
        self._max_message = octets

    def taking_long(self, octets: int, least_body: int = 0) -> Steps[LongEnvelope | None]:
        """Take the unfinished envelope out of the reader if it has at least `octets` octets, and its body
        `least_body`, and everything before its body has come; otherwise return None.

        The caller then gets the rest of its body itself, and feeds the reader with what follows. `octets` is
        above MAX_HEAD. Raises `EnvelopeError` as `feed` does.
        """
        needed = NUMBER.size + MAX_HEAD + AFTER_HEAD
        if self._needed < octets or len(self._unfinished) < needed:
            return None
        beginning = bytes(self._unfinished[:needed])
        (length,) = NUMBER.unpack_from(beginning)
        start = NUMBER.size
        try:
            head_end, table = stored_head.bounds(beginning, start, needed - AFTER_HEAD)
            left = length - (head_end - start) - AFTER_HEAD
            (number,) = NUMBER.unpack_from(beginning, head_end)
            options = 0 if number == left <= self._max_message else _options(number, left, self._max_message)
            if left < least_body:
                return None
            yield from _checking_headers(beginning, start, table, head_end, self._from_openamq)
        except FieldError as error:
            nothing = EnvelopeRun([], [], [])
            raise EnvelopeError(self._name(error, 0), nothing) from error
        body = bytes(memoryview(self._unfinished)[head_end + AFTER_HEAD :])
        self._unfinished = bytearray()
        self._needed = NUMBER.size
        self._read += 1
        return LongEnvelope(beginning[start:head_end], options, left, body)

    def drop(self) -> None:
        """Drop the unfinished envelope. Do not feed the reader after that."""
        self._unfinished = bytearray()

    def feed(self, data: bytes) -> EnvelopeRun:
        """Return the envelopes that `data` completes, as one run, which may be empty.

        Raises `EnvelopeError`, which holds the valid envelopes before the bad one, for inconsistent sizes, a
        malformed head, unknown options and a body longer than `max_message`; do not feed the reader after
        that.
        """
        return finished(self._reading_run(data))

    def _reading_run(self, data: bytes) -> Steps[EnvelopeRun]:
        whole = self._completed(data)
        run = EnvelopeRun([], [], [])
        if whole is None:
            return run
        try:
            done, needed = yield from _scanning(
                whole, self._max_message, run.bodies, run.heads, run.options, self._from_openamq
            )
        except FieldError as error:
            raise EnvelopeError(self._name(error, len(run)), run) from error
        self._hold(whole, done, needed)
        self._read += len(run)
        return run

    def feed_batch(self, data: bytes) -> EnvelopeBatch:
        """Take octets as `feed` does, but return a batch, which can be posted to a topic.

        An `EnvelopeError` then holds the valid envelopes in `batch` instead of `before`.
        """
        return finished(self.reading(data))

    def reading(self, data: bytes, push: PushFound | None = None) -> Steps[EnvelopeBatch]:
        """Take octets as `feed_batch` does, in steps: one read may contain very many envelopes, or large
        headers tables. Only envelopes that `push` has not sent are in the batch; the plain codec does not
        call it.

        Do not feed the reader before this is complete.
        """
        if not codec.COMPILED:
            try:
                run = yield from self._reading_run(data)
            except EnvelopeError as error:
                before = yield from _batching(error.before)
                raise EnvelopeError(str(error), EnvelopeRun([], [], []), before) from error.__cause__
            return (yield from _batching(run))
        spans = codec.native.Spans(data)
        try:
            yield from self._finding(spans, data)
        except FieldError as error:
            text = self._name(error, spans.count)
            raise EnvelopeError(text, EnvelopeRun([], [], []), _spanned(spans)) from error
        self._read += spans.count
        pushed = push(spans) if push is not None and spans.count else 0
        return _spanned(spans, pushed) if spans.count > pushed else EnvelopeBatch(Bodies([]), [], [])

    def _finding(self, spans: "Spans", data: bytes) -> Steps[None]:
        """Find the envelopes that `data` completes, and hold the rest.

        Only the first of them is joined with what is held: one large read would be copied otherwise, which
        takes as long as everything else that is done with its octets.
        """
        position = 0
        while self._unfinished:
            end = position + self._needed - len(self._unfinished)
            if end > len(data):
                self._unfinished += memoryview(data)[position:]
                return
            first = b"".join((self._unfinished, memoryview(data)[position:end]))
            self._unfinished = bytearray()
            spans.follow(first)
            done, needed = yield from _finding(spans, first, 0, self._max_message, self._from_openamq)
            self._hold(first, done, needed)
            position = end
        spans.follow(data)
        done, needed = yield from _finding(spans, data, position, self._max_message, self._from_openamq)
        self._hold(data, done, needed)

    def _completed(self, data: bytes) -> bytes | None:
        """Join the held octets and `data`; if these allow no progress, hold both and return None."""
        if not self._unfinished:
            return data
        if len(self._unfinished) + len(data) < self._needed:
            self._unfinished += data
            return None
        whole = b"".join((self._unfinished, data))
        self._unfinished = bytearray()
        return whole

    def _hold(self, data: bytes, done: int, needed: int) -> None:
        """Hold the incomplete rest."""
        self._needed = needed
        if done < len(data):
            self._unfinished += memoryview(data)[done:]

    def _name(self, error: FieldError, before: int) -> str:
        return f"envelope {self._read + before + 1}: {error}"


def _batching(run: EnvelopeRun) -> Steps[EnvelopeBatch]:
    octets = longest = 0
    for begin in range(0, len(run), ENVELOPES_A_STEP):
        if begin:
            yield
        part = Bodies(run.bodies[begin : begin + ENVELOPES_A_STEP])
        octets += part.octets
        longest = max(longest, part.longest)
    return EnvelopeBatch(Bodies(run.bodies, (octets, longest)), run.heads, run.options)


def _spanned(spans: "Spans", begin: int = 0) -> EnvelopeBatch:
    found = EnvelopeBatch(batch(spans), spans.heads(), spans.options())
    if not begin:
        return found
    return EnvelopeBatch(found.batch.part(begin, spans.count), found.heads[begin:], found.options[begin:])


def scan(
    data: bytes, max_message: int, bodies: list[bytes], heads: list[bytes], options: list[int]
) -> tuple[int, int]:
    """Append every complete envelope at the start of `data` to the three lists of a run.

    The lists are empty, or filled by earlier calls. Returns the position of the first unfinished envelope,
    and the number of octets needed from there for progress. Raises `FieldError` at the first bad envelope;
    the lists then contain the envelopes before it.
    """
    return finished(_scanning(data, max_message, bodies, heads, options))


def _scanning(
    data: bytes,
    max_message: int,
    bodies: list[bytes],
    heads: list[bytes],
    options: list[int],
    from_openamq: bool = False,
) -> Steps[tuple[int, int]]:
    if not codec.COMPILED:
        return (yield from _scanning_plain(data, max_message, bodies, heads, options, from_openamq))
    spans = codec.native.Spans(data)
    try:
        return (yield from _finding(spans, data, 0, max_message, from_openamq))
    finally:
        before = len(bodies)
        bodies += spans.bodies()
        if (found_heads := spans.heads()) or heads:
            heads += [PLAIN_HEAD] * (before - len(heads))
            heads += found_heads or [PLAIN_HEAD] * spans.count
        if (found_options := spans.options()) or options:
            options += [0] * (before - len(options))
            options += found_options or [0] * spans.count


def _finding(
    spans: "Spans", data: bytes, position: int, max_message: int, from_openamq: bool
) -> Steps[tuple[int, int]]:
    """Find all complete envelopes from `position` on; returns and raises as `scan` does."""
    longest, time = (SURE_HEAD, openamq.TIME) if from_openamq else (MAX_HEAD, openamq.ORDINARY_TIME)
    while True:
        position, needed = spans.take_envelopes(position, max_message, longest, ENVELOPES_A_STEP, time)
        if needed < 0:
            yield
            continue
        if needed:
            return position, needed
        (length,) = NUMBER.unpack_from(data, position)
        start, end = position + NUMBER.size, position + NUMBER.size + length
        head_end, options = yield from _checking(data, start, end, max_message, from_openamq)
        spans.add_envelope(start, head_end + AFTER_HEAD, end, options)
        position = end


def scan_plain(
    data: bytes, max_message: int, bodies: list[bytes], heads: list[bytes], options: list[int]
) -> tuple[int, int]:
    """Scan envelopes as `scan` does, in plain Python."""
    return finished(_scanning_plain(data, max_message, bodies, heads, options))


def _scanning_plain(
    data: bytes,
    max_message: int,
    bodies: list[bytes],
    heads: list[bytes],
    options: list[int],
    from_openamq: bool = False,
) -> Steps[tuple[int, int]]:
    size = len(data)
    work = 0  # since the last pause
    four = NUMBER.size
    unpack_number = NUMBER.unpack_from
    position = 0
    while True:
        # One envelope with all its checks.
        if size - position < four:
            return position, four
        if work >= PLAIN_ENVELOPES_A_STEP:
            work = 0
            yield
        work += 1
        (length,) = unpack_number(data, position)
        if not length:
            position += four
            continue
        end = position + four + length
        if end > size:
            check_size(length, max_message)
            return position, four + length
        start = position + four
        head_end, wanted = yield from _checking(data, start, end, max_message, from_openamq)
        work += AS_WORK
        head = data[start:head_end]
        before = len(bodies)
        bodies.append(data[head_end + AFTER_HEAD : end])
        position = end
        # Fast path for following envelopes with the same, already checked head and without options.
        if not wanted and data.startswith(head, position + four):
            shape = beginning(len(head))
            unpack = shape.unpack_from
            skipped = shape.size
            besides = skipped - four
            last = size - skipped
            most = len(bodies) + PLAIN_ENVELOPES_A_STEP - work
            while position <= last and len(bodies) < most:
                length, same, body = unpack(data, position)
                if same != head or length != body + besides or body > max_message:
                    break
                end = position + four + length
                if end > size:
                    break
                bodies.append(data[position + skipped : end])
                position = end
        work += len(bodies) - before
        if heads or head != PLAIN_HEAD:
            heads += [PLAIN_HEAD] * (before - len(heads))
            heads += [head] * (len(bodies) - before)
        if options or wanted:
            options += [0] * (before - len(options))
            options += [wanted] * (len(bodies) - before)


def check_size(length: int, max_message: int) -> None:
    """Raise `FieldError` for an impossible size of an envelope; the caller handles 0, a null message."""
    if length < SMALLEST:
        raise FieldError(f"its size is {length}, and even an empty message takes {SMALLEST}")
    largest = max_message + MAX_HEAD + AFTER_HEAD
    if length > largest:
        raise FieldError(f"its size is {length}, and no message may take more than {largest}")


def _checking(
    data: bytes, start: int, end: int, max_message: int, from_openamq: bool
) -> Steps[tuple[int, int]]:
    """Check a complete envelope after its size; return the end of its head, and its options.

    Raises `FieldError` for any error in it.
    """
    check_size(end - start, max_message)
    head_end, table = stored_head.bounds(data, start, end - AFTER_HEAD)
    left = end - head_end - AFTER_HEAD
    (number,) = NUMBER.unpack_from(data, head_end)
    options = 0 if number == left <= max_message else _options(number, left, max_message)
    _check_length(head_end - start)
    yield from _checking_headers(data, start, table, head_end, from_openamq)
    return head_end, options


def _check_length(head: int) -> None:
    if head > MAX_HEAD:
        raise FieldError(f"names and properties take {head} octets, more than {MAX_HEAD}")


def _checking_headers(
    data: bytes, start: int, table: int | None, end: int, from_openamq: bool
) -> Steps[None]:
    """Check the headers table of the head at `start`, if it has one. Raises `FieldError`."""
    if table is None:
        return
    if from_openamq:
        _check_length(len((yield from openamq.widening_head(data[start:end]))))
    else:
        yield from check_headers(data, table, end)


def _options(number: int, left: int, max_message: int) -> int:
    """Parse the options in `number`, which precedes the body; the envelope's size leaves `left` octets for
    the body.

    The caller has handled `number == left`: 4-DMP envelopes, and 6-DMP envelopes without options.
    """
    options, length = number >> 24, number & LONGEST_6_DMP_BODY
    if left > max_message:
        raise FieldError(f"its body of {left} octets is above the limit of {max_message}")
    if length != left:
        raise FieldError(f"its body's length is {length}, but its size leaves {left} octets for the body")
    if options & ~(MANDATORY | IMMEDIATE):
        raise FieldError(f"its options {options:#04x} have bits set that stand for nothing")
    return options
