"""A client's side of a connection, without a socket: octets in, events out (docs/PROTOCOL.md).

A session knows which commands wait for an answer, because the server answers them in order. So it can tell
for each Error whether it answers a command, reports missing messages, or gives the reason why the server
closes the connection. The user of a session attaches a *token* to each command that has an answer; the event
of the answer contains it.

The session collects octets to send: take them with `take_output` after each call.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from omq import watching
from omq.management import subject
from omq.model import Topic
from omq.protocol import handshake
from omq.protocol.handshake import VERSION_ONE
from omq.protocol.omq.commands import sexp_of_command
from omq.protocol.omq.frames import (
    DEFAULT_MAX_FRAME,
    Decoded,
    DroppedMessage,
    FrameDecoder,
    FrameError,
    MessageRun,
)
from omq.protocol.omq.sentences import Sentence, read_sentence
from omq.protocol.omq.types import (
    Ack,
    BlockList,
    Blocks,
    Command,
    Confirm,
    Confirmed,
    Connect,
    ConnectionList,
    Connections,
    Declare,
    Declared,
    Delete,
    Deleted,
    Disconnect,
    Done,
    Error,
    Fetch,
    Frame,
    Get,
    Leased,
    Manage,
    Managed,
    Message,
    Ping,
    Purge,
    Put,
    Retain,
    StoredBlock,
    Subscribe,
    Subscribed,
    SubscriberList,
    Subscribers,
    TopicList,
    Topics,
    Unsubscribe,
    Unsubscribed,
    Watch,
    Watched,
)

T = TypeVar("T")

AnsweredCommand = (
    Subscribe | Unsubscribe | Declare | Confirm | Delete | Topics | Blocks | Put | Get | Manage
    | Watch | Connections | Subscribers | Disconnect | Purge | Retain
)  # fmt: skip
"""Commands with one answer. A Fetch has many."""

AnswerFrame = (
    Subscribed | Unsubscribed | Declared | Confirmed | Deleted | TopicList | BlockList | Leased | Managed
    | Watched | ConnectionList | SubscriberList | Done
)  # fmt: skip


# -- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered(Generic[T]):
    """The server executed a command."""

    command: AnsweredCommand
    token: T
    frame: AnswerFrame


@dataclass(frozen=True, slots=True)
class Declined(Generic[T]):
    """The server answered a command with an Error. This ends a Fetch."""

    command: AnsweredCommand | Fetch
    token: T
    text: bytes
    sentence: Sentence


@dataclass(frozen=True, slots=True)
class BlockFetched(Generic[T]):
    """A stored block of the oldest Fetch. Call `end_fetch` if the block has no messages."""

    token: T
    value: bytes | memoryview


@dataclass(frozen=True, slots=True)
class MessagesGone:
    """Messages of a subscription or a Fetch that are not available; it continues after them."""

    constructor: str
    argument: bytes
    """The topic, printed as an atom."""
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The server ended a subscription, because its topic was deleted."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class UnsolicitedError:
    """An Error that answers no waiting command: about a Publish, a sink, a feed or a worker, or with the
    reason why the server closes the connection.
    """

    text: bytes
    sentence: Sentence | None


@dataclass(frozen=True, slots=True)
class Reported:
    """Statistics that follow the answer to a Watch."""

    statistics: watching.Statistics


Event = (
    Answered[T]
    | Declined[T]
    | BlockFetched[T]
    | MessagesGone
    | Ended
    | UnsolicitedError
    | Reported
    | MessageRun
    | DroppedMessage
)


class HandshakeFailed(Exception):
    """The peer is not a server of this version; the message gives the reason."""


class NotAnOmqServer(HandshakeFailed):
    """The peer's answer is not an answer of the omq protocol."""


class UnsolicitedFrame(Exception):
    """The server sent a frame that answers no command; the message describes it."""


# -- the session --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Expected(Generic[T]):
    command: AnsweredCommand | Fetch
    token: T


class ClientHandshake:
    """The exchange of the first eight octets, before a session."""

    octets = handshake.hello()
    """The octets that the client sends."""

    def __init__(self) -> None:
        self._answer = b""

    @property
    def missing(self) -> int:
        """The number of missing octets of the answer."""
        return handshake.LENGTH - len(self._answer)

    def feed(self, octets: bytes) -> bool:
        """Take some of the answer, at most `missing` octets. Return True when it is complete and accepts.

        Raises HandshakeFailed.
        """
        self._answer += octets
        if self.missing:
            return False
        if self._answer == handshake.REFUSED:
            raise HandshakeFailed(f"does not speak version {VERSION_ONE} of omq")
        if self._answer != handshake.ACCEPTED:
            raise NotAnOmqServer(f"is no omq server: it answered {self._answer!r}")
        return True


class ClientSession(Generic[T]):
    """A client's commands and the server's frames after the greeting. `T` is the type of the tokens."""

    def __init__(self, id: bytes, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        """Create a session that has begun with Connect. `id` is the client's id; `max_frame` bounds the
        length of a frame, and longer messages are dropped.
        """
        self._decoder = FrameDecoder(max_frame)
        self._output: list[bytes] = []
        self._expected: deque[_Expected[T]] = deque()
        self.say(Connect(VERSION_ONE, id))

    # -- sending -------------------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """Return the octets to send now."""
        octets = b"".join(self._output)
        self._output.clear()
        return octets

    def say(self, command: Command) -> None:
        """Send a command that has no answer except Errors."""
        self._output.append(sexp_of_command(command) + b"\n")

    def ask(self, command: AnsweredCommand | Fetch, token: T) -> None:
        """Send a command; the event of its answer contains the token. If the command cannot be encoded, this
        raises, and expects no answer.
        """
        self.say(command)
        self._expected.append(_Expected(command, token))

    def acknowledge(self) -> None:
        """Send an Ack, as after each Ping."""
        self.say(Ack(time.time_ns() // 1000))

    @property
    def waiting(self) -> Iterator[T]:
        """The tokens of the unanswered commands, in order."""
        return (expected.token for expected in self._expected)

    def abandon(self) -> None:
        """Expect no more answers: the connection has ended."""
        self._expected.clear()

    # -- in ------------------------------------------------------------------------------------------------

    @property
    def is_within_a_frame(self) -> bool:
        """Whether the received octets end in the middle of a frame."""
        return self._decoder.is_within_a_frame

    def feed(self, octets: bytes) -> Iterator[Event[T]]:
        """Yield the events in these octets; the state of the session is that after the last yielded event.

        Raises FrameError and UnsolicitedFrame, after the events before.
        """
        failure: FrameError | None = None
        frames: list[Decoded]
        try:
            frames = self._decoder.feed(octets)
        except FrameError as error:
            failure, frames = error, error.before
        for frame in frames:
            if isinstance(frame, (MessageRun, DroppedMessage)):
                yield frame
            elif (event := self.take(frame)) is not None:
                yield event
        if failure is not None:
            raise failure

    def take(self, frame: Frame) -> Event[T] | None:
        """Convert a frame to an event; acknowledge a Ping and return None. Raises UnsolicitedFrame."""
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
                    raise UnsolicitedFrame("the server sent a block that nobody fetched")
                return BlockFetched(self._expected[0].token, value)
            case _:
                return self._answer(frame)

    def end_fetch(self) -> None:
        """Note that the oldest Fetch is complete."""
        if not self._expected or not isinstance(self._expected[0].command, Fetch):
            raise RuntimeError("no Fetch is under way")
        self._expected.popleft()

    def _answer(self, frame: AnswerFrame) -> Event[T]:
        if self._expected:
            command, token = self._expected[0].command, self._expected[0].token
            if not isinstance(command, Fetch) and answers(command, frame):
                self._expected.popleft()
                return Answered(command, token, frame)
        match frame:
            case Unsubscribed(topic):
                return Ended(topic)
            case Watched(statistics):
                return Reported(statistics)
        raise UnsolicitedFrame(f"the server answered what was not asked: {frame!r:.200}")

    def _error(self, text: bytes) -> Event[T]:
        said = read_sentence(text)
        if said is None:
            return UnsolicitedError(text, None)
        if said.constructor in ("Subscribe", "Fetch") and said.argument is not None and (gap := said.gone()):
            return MessagesGone(said.constructor, said.argument, *gap)
        if self._expected:
            command, token = self._expected[0].command, self._expected[0].token
            if said.answers(constructor(command), argument(command)):
                self._expected.popleft()
                return Declined(command, token, text, said)
        return UnsolicitedError(text, said)


def constructor(command: Command) -> str:
    """Return the command's name, with which an Error about it begins."""
    return type(command).__name__


def argument(command: AnsweredCommand | Fetch) -> bytes | None:
    """Return the argument that an Error about a command names after the constructor."""
    match command:
        case Topics():
            return None
        case Confirm(n):
            return b"%d" % n
        case Put(sink):
            return sink
        case Get(feed, _):
            return feed
        case Manage(request):
            return subject(request)
        case Watch(number) | Connections(number) | Disconnect(number):
            return b"%d" % number
        case _:
            return command.topic


def answers(command: AnsweredCommand, frame: AnswerFrame) -> bool:
    """Return whether `frame` is an answer to `command`."""
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
        case Watch(period), Watched(watching.Began(begun)):
            return period == begun
        case (
            (Topics(), TopicList())
            | (Blocks(), BlockList())
            | (Put() | Get(), Leased())
            | (Manage(), Managed())
            | (Connections(), ConnectionList())
            | (Subscribers(), SubscriberList())
            | (Disconnect() | Purge() | Retain(), Done())
        ):
            return True
        case _:
            return False
