"""The answers to the commands of a connection, in the order of the commands.

Some answers are ready at once. Others wait until messages are stored, and delay the answers after them.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import trio
from msgspec import Struct

from omq.access.leases import DmpEnd
from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure
from omq.drivers.routed import RoutedPost
from omq.drivers.seam import Unavailable
from omq.drivers.signal import Signal
from omq.protocol.omq.frames import encode, encoding
from omq.protocol.omq.sentences import gone, sentence
from omq.protocol.omq.types import Confirmed, ConnectionList, Error, Frame, Managed, SubscriberList
from omq.terminals.connection.last_outcomes import settled
from omq.terminals.connection.turns import in_turns
from omq.terminals.omq.long_answers import LongAnswer

COLLECTED_OCTETS = 64 << 10
"""The number of octets of answers that are sent at once. After each send, messages have their turn."""


MOST_REPLIES = 1000
"""The number of waiting answers from which on no more commands are read."""

MOST_REPLY_OCTETS = 32 << 10
"""The octets of memory of waiting answers from which on no more commands are read, because some answers are
large.
"""

ANSWER_OCTETS = 200
"""The approximate memory of a waiting answer besides its octets."""


class _Answer(Struct, frozen=True):
    """A frame, and the function to call when it is sent."""

    octets: bytes
    then: Callable[[], None] | None


Make = Callable[[], Awaitable[LongAnswer]]


@dataclass(slots=True)
class _Long:
    """An answer that `make` makes in a task of its own, when everything before it is answered."""

    make: Make
    begun: bool = False
    made: LongAnswer | None = None


class _Refusal(Struct, frozen=True):
    """The Error that answers `count` Publishes."""

    octets: bytes
    count: int


class _Outcome(Struct, frozen=True):
    """Messages that were posted. They are answered with an Error if they fail, and otherwise with nothing."""

    topic: bytes
    count: int
    confirmation: Confirmation


class _Routed(Struct, frozen=True):
    """Messages of several topics that were posted together. Each topic whose messages fail gets an Error:
    `failures` are those without one yet, when the outcome is known.
    """

    post: RoutedPost
    failures: Iterator[tuple[bytes, int, Failure]]


class _Confirm(Struct, frozen=True):
    n: int


class Replies:
    """The queue of answers. `signal` is set whenever `collect`, `begin_long` or `take_long` may return
    more.
    """

    __slots__ = ("_is_closed", "_queue", "_refused", "_room", "_signal", "fetches", "octets", "unconfirmed")

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._room: trio.lowlevel.ParkingLot | None = None  # made by the first task that waits in it
        self._is_closed = False
        self.fetches = 0
        """The number of Fetch commands that are not completely answered. Their answers are not in this queue.
        """
        # A list, because it is empty most of the time, and an empty deque takes 700 octets.
        self._queue: list[_Answer | _Long | _Refusal | _Outcome | _Routed | _Confirm] = []
        self._refused = 0
        self.unconfirmed = 0
        """The number of posted messages without an outcome."""
        self.octets = 0
        """The approximate memory of the waiting answers."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for one more answer."""
        return len(self._queue) + self.fetches >= MOST_REPLIES or self.octets >= MOST_REPLY_OCTETS

    async def room(self) -> None:
        """Wait until there is room for one more answer, or the connection is over."""
        while self.is_full and not self._is_closed:
            if self._room is None:
                self._room = trio.lowlevel.ParkingLot()
            await self._room.park()

    def has_room(self) -> None:
        """Wake the tasks that wait in `room`: there are fewer answers than before."""
        if self._room is not None:
            self._room.unpark_all()

    async def report(self, end: DmpEnd, topic: bytes, what: str | Unavailable) -> None:
        """Report an event of a DMP connection with a lease of this client. Waits for room, as a command."""
        await self.room()
        words = gone(what.first, what.last, what.reason) if isinstance(what, Unavailable) else what
        self.add(Error(sentence(end.value, topic, words)))

    def add(self, frame: Frame, then: Callable[[], None] | None = None) -> None:
        """Answer with a frame. Call `then` when the frame is about to be sent."""
        self._answer(encode(frame), then)

    async def add_list(self, frame: Managed | ConnectionList | SubscriberList) -> None:
        """Answer with a frame that has a list. Other tasks run while it is encoded."""
        self._answer(await in_turns(encoding(frame)), None)

    def after(self, then: Callable[[], None]) -> None:
        """Call `then` when everything before it is answered. It has no answer in this queue."""
        self._answer(b"", then)

    def _answer(self, octets: bytes, then: Callable[[], None] | None) -> None:
        self._append(_Answer(octets, then))
        self.octets += len(octets) + ANSWER_OCTETS

    def _append(self, answer: _Answer | _Long | _Refusal | _Confirm) -> None:
        """Queue an answer. Behind another one it wakes nobody: the sender is awake, or is woken when that one
        is ready. A Confirm usually follows messages that are being stored, and the sender would find nothing.
        """
        if self._is_closed:
            return
        if not self._queue:
            self._signal.set()
        self._queue.append(answer)

    def make(self, make: Make) -> None:
        """Answer with the result of `make`, which is called when everything before it is answered."""
        self._append(_Long(make))
        self.octets += ANSWER_OCTETS

    def made(self, answer: LongAnswer) -> None:
        """Take the long answer that was started and is ready."""
        first = self._queue[0] if self._queue else None
        if isinstance(first, _Long) and first.begun:
            first.made = answer
            self._signal.set()
        else:
            answer.close()  # the connection is over

    def begin_long(self) -> Make | None:
        """Return the maker of the next answer if that is a long one and not started. Call `made` with the
        result.
        """
        first = self._queue[0] if self._queue else None
        if not isinstance(first, _Long) or first.begun:
            return None
        first.begun = True
        return first.make

    @property
    def is_making(self) -> bool:
        """Whether the next answer is a long one that is being made. No message is sent before it."""
        if not self._queue:
            return False
        first = self._queue[0]
        return isinstance(first, _Long) and first.begun and first.made is None

    def take_long(self) -> LongAnswer | None:
        """Return the next answer if it is a long one that is ready. The caller closes it."""
        if not self._queue:
            return None
        first = self._queue[0]
        if not isinstance(first, _Long) or first.made is None:
            return None
        self._queue.pop(0)
        self.octets -= ANSWER_OCTETS
        self.has_room()
        return first.made

    def refuse_publish(self, text: bytes, count: int = 1) -> None:
        """Answer `count` Publishes with one Error. The next Confirm reports them too."""
        refusal = _Refusal(encode(Error(text)), count)
        self._append(refusal)
        self.octets += len(refusal.octets) + ANSWER_OCTETS

    def published(self, topic: bytes, count: int, confirmation: Confirmation) -> None:
        """Queue the confirmation of `count` posted messages in the place of their answer."""
        if self._is_closed or (confirmation.settled and confirmation.failure is None and not self._queue):
            return
        self._queue.append(_Outcome(topic, count, confirmation))
        self.unconfirmed += count
        confirmation.listen(self._signal.set)

    def routed(self, post: RoutedPost, stored: Callable[[], None]) -> None:
        """Queue the outcome of messages that were routed to a store. Call `stored` when they are stored: then
        `collect` may return more, without the signal.
        """
        if self._is_closed:
            return
        self._queue.append(_Routed(post, post.failures()))
        self.unconfirmed += post.messages
        post.confirmation.listen(partial(self._settled, post, stored))

    def _settled(self, post: RoutedPost, stored: Callable[[], None]) -> None:
        """Count the Errors of its failures: there may be thousands, and the client may not read them."""
        if post.confirmation.failure is None:
            stored()
            return
        if not self._is_closed:
            self.octets += ANSWER_OCTETS * post.failed
        self._signal.set()

    def confirm(self, n: int) -> None:
        """Answer when everything before it is answered."""
        self._append(_Confirm(n))

    async def settled(self) -> None:
        """Wait until the outcomes of all messages that were posted are known."""
        for answer in list(self._queue):
            if isinstance(answer, _Outcome):
                await settled(answer.confirmation)
            elif isinstance(answer, _Routed):
                await settled(answer.post.confirmation)

    def end(self, error: Error | None) -> None:
        """Drop the first outcome that is not known, and the answers after it. Answer with this Error, and
        with nothing after it: the server ends the connection.
        """
        if self._is_closed:
            return
        self._drop(next((at for at, each in enumerate(self._queue) if _is_unknown(each)), len(self._queue)))
        if error is not None:
            self.add(error)
        self._is_closed = True
        self.has_room()

    def close(self) -> None:
        """Drop all answers: the connection is over."""
        self._is_closed = True
        self.has_room()
        self._drop(0)
        self.octets = self.unconfirmed = 0

    def _drop(self, begin: int) -> None:
        """Drop the answers from this index on. Their octets are not counted out: the connection ends."""
        for answer in self._queue[begin:]:
            match answer:
                case _Long(made=LongAnswer() as made):
                    made.close()
                case _Outcome(count=count):
                    self.unconfirmed -= count
                case _Routed(post=post):
                    self.unconfirmed -= post.messages
                case _:
                    pass
        del self._queue[begin:]

    @property
    def are_waiting(self) -> bool:
        """Whether there is no answer, or the first one waits for messages that are being stored."""
        return not self._queue or _is_unknown(self._queue[0])

    def collect(self) -> bytes:
        """Return the octets of the answers that are ready."""
        if not self._queue:
            return b""
        ready = bytearray()
        while self._queue and len(ready) < COLLECTED_OCTETS:
            answer = self._queue[0]
            match answer:
                case _Answer(octets, then):
                    ready += octets
                    self.octets -= len(octets) + ANSWER_OCTETS
                    if then is not None:
                        then()
                case _Long():
                    break
                case _Refusal(octets, refused):
                    ready += octets
                    self.octets -= len(octets) + ANSWER_OCTETS
                    self._refused += refused
                case _Outcome(topic, count, confirmation):
                    if not confirmation.settled:
                        break
                    self.unconfirmed -= count
                    if confirmation.failure is not None:
                        for part, failure in confirmation.outcomes(count):
                            if failure is not None:
                                ready += encode(Error(_not_stored(topic, part, failure)))
                                self._refused += part
                case _Routed(post, failures):
                    if not post.confirmation.settled:
                        break
                    for topic, part, failure in failures:
                        ready += encode(Error(_not_stored(topic, part, failure)))
                        self.octets -= ANSWER_OCTETS
                        self._refused += part
                        if len(ready) >= COLLECTED_OCTETS:
                            break
                    if len(ready) >= COLLECTED_OCTETS:
                        break  # there may be more failures
                    self.unconfirmed -= post.messages
                case _Confirm(n):
                    ready += self._confirmed(n)
                    self._refused = 0
                case _:
                    assert_never(answer)
            self._queue.pop(0)
        self.has_room()
        return bytes(ready)

    def _confirmed(self, n: int) -> bytes:
        if not self._refused:
            return encode(Confirmed(n))
        what = f"{self._refused} published before it and after the last Confirm were refused"
        return encode(Error(sentence("Confirm", str(n).encode(), what)))


def _is_unknown(answer: object) -> bool:
    """Return whether it is an outcome that is not known yet."""
    match answer:
        case _Outcome(confirmation=confirmation):
            return not confirmation.settled
        case _Routed(post=post):
            return not post.confirmation.settled
        case _:
            return False


def _not_stored(topic: bytes, count: int, failure: Failure) -> bytes:
    what = failure.text if count == 1 else f"{count} messages: {failure}"
    return sentence("Publish", topic, what)
