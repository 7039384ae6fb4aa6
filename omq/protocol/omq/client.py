"""A client's side of a connection, without a socket: octets in, events out (docs/PROTOCOL.md).

A session knows which commands wait for an answer, because the server answers them in their order. So it can
say of each Error whether it answers a command, reports missing messages, or is why the server closes the
connection. The user of a session attaches a *token* to each command that has an answer; its event has it.

Octets to send gather in the session: take them with `take_output` after each call.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from omq.model import Topic
from omq.protocol import handshake
from omq.protocol.handshake import VERSION_ONE
from omq.protocol.omq.commands import sexp_of_command
from omq.protocol.omq.frames import DEFAULT_MAX_FRAME, FrameDecoder, FrameError, MessageRun
from omq.protocol.omq.sentences import Sentence, read_sentence
from omq.protocol.omq.types import (
    Ack,
    BlockList,
    Blocks,
    Command,
    Confirm,
    Confirmed,
    Connect,
    Declare,
    Declared,
    Delete,
    Deleted,
    Error,
    Fetch,
    Frame,
    Get,
    Leased,
    Message,
    Ping,
    Put,
    StoredBlock,
    Subscribe,
    Subscribed,
    TopicList,
    Topics,
    Unsubscribe,
    Unsubscribed,
)

T = TypeVar("T")

AnsweredCommand = Subscribe | Unsubscribe | Declare | Confirm | Delete | Topics | Blocks | Put | Get
"""Commands with one answer. A Fetch has many."""

Answer = Subscribed | Unsubscribed | Declared | Confirmed | Deleted | TopicList | BlockList | Leased


# -- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered(Generic[T]):
    """The server did what a command asked."""

    command: AnsweredCommand
    token: T
    frame: Answer


@dataclass(frozen=True, slots=True)
class Declined(Generic[T]):
    """The server answered a command with an Error. A Fetch that was declined is over."""

    command: AnsweredCommand | Fetch
    token: T
    text: bytes
    sentence: Sentence


@dataclass(frozen=True, slots=True)
class BlockFetched(Generic[T]):
    """A stored block of the Fetch whose turn it is. Call `end_fetch` when the block has no messages."""

    token: T
    value: bytes | memoryview


@dataclass(frozen=True, slots=True)
class MessagesGone:
    """Messages of a subscription or a Fetch that will not come; it goes on behind them."""

    constructor: str
    argument: bytes
    """The topic, as an atom is printed."""
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The server ended a subscription, because its topic was deleted."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class Told:
    """An Error that answers no command that waits: about a Publish, a sink, a feed or a worker, or why the
    server closes the connection.
    """

    text: bytes
    sentence: Sentence | None


Event = Answered[T] | Declined[T] | BlockFetched[T] | MessagesGone | Ended | Told | MessageRun


class Refused(Exception):
    """What answered is no server of this version; the message says so."""


class NotAnOmqServer(Refused):
    """Somebody answered with other octets than the protocol's."""


class Unasked(Exception):
    """The server sent what was not asked for; the message says what."""


# -- the session --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Expected(Generic[T]):
    command: AnsweredCommand | Fetch
    token: T


class Greeting:
    """The first eight octets of both sides. It comes before a session."""

    octets = handshake.hello()
    """What the client sends."""

    def __init__(self) -> None:
        self._answer = b""

    @property
    def missing(self) -> int:
        """How many octets of the answer have not come."""
        return handshake.LENGTH - len(self._answer)

    def feed(self, octets: bytes) -> bool:
        """Take some of the answer, at most `missing` octets; True when it is complete and agrees.

        Raises Refused.
        """
        self._answer += octets
        if self.missing:
            return False
        if self._answer == handshake.REFUSED:
            raise Refused(f"does not speak version {VERSION_ONE} of omq")
        if self._answer != handshake.ACCEPTED:
            raise NotAnOmqServer(f"is no omq server: it answered {self._answer!r}")
        return True


class ClientSession(Generic[T]):
    """What a client says and hears after the greeting. `T` is the type of the tokens."""

    def __init__(self, id: bytes, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        """`id` is who the client says it is; `max_frame` bounds the length of a frame."""
        self._decoder = FrameDecoder(max_frame)
        self._output: list[bytes] = []
        self._expected: deque[_Expected[T]] = deque()
        self.say(Connect(VERSION_ONE, id))

    # -- out -----------------------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """The octets that are to be sent now."""
        octets = b"".join(self._output)
        self._output.clear()
        return octets

    def say(self, command: Command) -> None:
        """Send a command that has no answer, or whose Errors are all that comes back."""
        self._output.append(sexp_of_command(command) + b"\n")

    def ask(self, command: AnsweredCommand | Fetch, token: T) -> None:
        """Send a command whose answer comes as an event with this token."""
        self._expected.append(_Expected(command, token))
        self.say(command)

    def acknowledge(self) -> None:
        """Send a sign of life, as after each Ping."""
        self.say(Ack(time.time_ns() // 1000))

    @property
    def waiting(self) -> Iterator[T]:
        """The tokens of the commands that are not answered, in their order."""
        return (expected.token for expected in self._expected)

    def abandon(self) -> None:
        """Expect no answers any more: the connection is over."""
        self._expected.clear()

    # -- in ------------------------------------------------------------------------------------------------

    @property
    def is_within_a_frame(self) -> bool:
        """Whether the octets that came end in the middle of a frame."""
        return self._decoder.unfinished > 0

    def feed(self, octets: bytes) -> Iterator[Event[T]]:
        """The events in these octets, one after another: the session is as it is after the last one taken.

        Raises FrameError and Unasked, after the events before.
        """
        failure: FrameError | None = None
        frames: list[Frame | MessageRun]
        try:
            frames = self._decoder.feed(octets)
        except FrameError as error:
            failure, frames = error, error.before
        for frame in frames:
            if isinstance(frame, MessageRun):
                yield frame
            elif (event := self.take(frame)) is not None:
                yield event
        if failure is not None:
            raise failure

    def take(self, frame: Frame) -> Event[T] | None:
        """What a frame means; None for a Ping, which is acknowledged. Raises Unasked."""
        match frame:
            case Ping():
                self.acknowledge()
                return None
            case Error(text):
                return self._error(text)
            case Message(id, topic, body):
                return MessageRun(topic, [id], [body])
            case StoredBlock(value):
                if not self._expected or not isinstance(self._expected[0].command, Fetch):
                    raise Unasked("the server sent a block that nobody fetched")
                return BlockFetched(self._expected[0].token, value)
            case _:
                return self._answer(frame)

    def end_fetch(self) -> None:
        """The last block of the Fetch whose turn it is has come."""
        if not self._expected or not isinstance(self._expected[0].command, Fetch):
            raise RuntimeError("no Fetch is under way")
        self._expected.popleft()

    def _answer(self, frame: Answer) -> Event[T]:
        if self._expected:
            command, token = self._expected[0].command, self._expected[0].token
            if not isinstance(command, Fetch) and answers(command, frame):
                self._expected.popleft()
                return Answered(command, token, frame)
        if isinstance(frame, Unsubscribed):
            return Ended(frame.topic)
        raise Unasked(f"the server answered what was not asked: {frame!r:.200}")

    def _error(self, text: bytes) -> Event[T]:
        said = read_sentence(text)
        if said is None:
            return Told(text, None)
        if said.constructor in ("Subscribe", "Fetch") and said.argument is not None and (gap := said.gone()):
            return MessagesGone(said.constructor, said.argument, *gap)
        if self._expected:
            command, token = self._expected[0].command, self._expected[0].token
            if said.answers(constructor(command), argument(command)):
                self._expected.popleft()
                return Declined(command, token, text, said)
        return Told(text, said)


def constructor(command: Command) -> str:
    """The name that an Error about a command begins with."""
    return type(command).__name__


def argument(command: AnsweredCommand | Fetch) -> bytes | None:
    """What an Error about a command names behind the constructor."""
    match command:
        case Topics():
            return None
        case Confirm(n):
            return b"%d" % n
        case Put(sink):
            return sink
        case Get(feed, _):
            return feed
        case _:
            return command.topic


def answers(command: AnsweredCommand, frame: Answer) -> bool:
    """Whether `frame` is an answer to `command`."""
    match command, frame:
        case (
            (Subscribe(name, _), Subscribed(topic))
            | (Unsubscribe(name), Unsubscribed(topic))
            | (Declare(name, _, _), Declared(topic))
            | (Delete(name), Deleted(topic))
        ):
            return name == topic.topic
        case Confirm(n), Confirmed(answered):
            return n == answered
        case (Topics(), TopicList()) | (Blocks(), BlockList()) | (Put() | Get(), Leased()):
            return True
        case _:
            return False
