"""One connection to a server that reads blocks with Topics, Blocks and Fetch (docs/PROTOCOL.md), over plain
sockets.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import assert_never

from omq.bulk.access import AHEAD, Gap, Span, StoredTopic
from omq.bulk.credentials import Credentials
from omq.bulk.errors import ConnectionLost, NoSuchTopic, OmqError, ServerRefused
from omq.bulk.network import Waiting, in_our_words
from omq.bulk.opening import open_wire
from omq.model import BlockInfo, Delivery, Persistence, TopicInfo
from omq.protocol.handshake import VERSION_ONE
from omq.protocol.omq.client import (
    Answered,
    AnsweredCommand,
    AnswerFrame,
    BlockFetched,
    ClientHandshake,
    ClientSession,
    Declined,
    Event,
    HandshakeFailed,
    MessagesGone,
    UnsolicitedError,
    UnsolicitedFrame,
)
from omq.protocol.omq.frames import Decoded, DroppedMessage, FrameDecoder, FrameError, FrameType, MessageRun
from omq.protocol.omq.sentences import RefusalKind, Sentence
from omq.protocol.omq.types import (
    BlockList,
    Blocks,
    Declare,
    Declared,
    Fetch,
    Leased,
    Put,
    StoredBlock,
    TopicList,
    Topics,
)
from omq.server_address import Address, Security
from omq_storage.blocks import Block, unpack_sent
from omq_storage.errors import DamagedBlock

log = logging.getLogger("omq.bulk")

_HEADER = Struct(">IB")
_LONGEST = 1 << 31

_KEPT_OCTETS = 4 << 20
"""A connection keeps a buffer of at most this size for blocks. The server's blocks are smaller, except those
of large messages.
"""


class RemoteConnection:
    """One connection, after handshake and Connect. Methods raise ConnectionLost, and ServerRefused for a
    refusal.
    """

    def __init__(self, address: Address, credentials: Credentials, silence: float) -> None:
        """Connect to the server. `silence`: how many seconds the server may send nothing. Also raise
        BadOptions, for unusable files.
        """
        self.address = address
        self.silence = silence
        self._heard = time.monotonic()
        self._gone = False
        self._credentials = credentials
        self._broke = f"The connection to {address} broke"
        self.security = Security(credentials.context(), address.host) if address.tls else None
        """The TLS settings, which its sinks use too."""
        self._room = bytearray()
        """The buffer for blocks."""
        self._fetches: deque[Fetch] = deque()
        """The Fetch commands that the server has, and that no call of `fetch` reads yet."""
        self._session: ClientSession[None] = ClientSession(credentials.read_id())
        with in_our_words(f"The server {address} cannot be reached{' with TLS' if address.tls else ''}"):
            self._wire = open_wire(address.host, address.port, self.security)
        try:
            self._greet()
            self._wire.use_timeouts(Waiting(silence))
            self._flush()
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    def _greet(self) -> None:
        handshake = ClientHandshake()
        self._send(handshake.octets)
        try:
            answer = bytes(self._receive(handshake.missing))
        except ConnectionLost as lost:
            if self.address.tls:
                raise
            raise ConnectionLost(f"{lost} at once; if it wants TLS, it is omqs://{self.address}") from lost
        try:
            handshake.feed(answer)
        except HandshakeFailed:
            raise ServerRefused(
                f"{self.address} is no omq server of version {VERSION_ONE}: it answered {answer!r}."
            ) from None

    def close(self) -> None:
        self._wire.close()

    def peer(self) -> tuple[str, int]:
        """Return the server's host and port, where its leases are valid."""
        return self._wire.peer()

    def topics(self) -> tuple[TopicInfo, ...]:
        answer = self._ask(Topics())
        if not isinstance(answer, TopicList):
            raise self._unexpected(answer)
        return answer.topics

    def blocks(self, topic: str, first: int, count: int) -> tuple[BlockInfo, ...]:
        answer = self._ask(Blocks(topic.encode(), first, count))
        if not isinstance(answer, BlockList):
            raise self._unexpected(answer)
        return answer.blocks

    def heard(self) -> float:
        """Return the time at which the connection last received data, by `time.monotonic`. Answers waiting
        pings, so that the server keeps a connection whose program is busy with a sink.

        Call this only between the answer to a command and the next command. If the connection is lost, the
        next command raises; this only returns the same time again.
        """
        try:
            while not self._gone and self._wire.is_readable():
                match self._next_event():
                    case None:
                        pass
                    case UnsolicitedError(text):
                        log.warning("%s said: %s", self.address, text.decode("utf-8", "backslashreplace"))
                    case other:
                        raise self._unexpected(other)
        except ConnectionLost as lost:
            log.debug("the connection of a sink's principal is lost: %s", lost)
            self._gone = True
        return self._heard

    def declare(self, topic: bytes, delivery: Delivery, persistence: Persistence) -> None:
        """Create a topic, or do nothing if it exists with these types."""
        answer = self._ask(Declare(topic, delivery, persistence))
        if not isinstance(answer, Declared):
            raise self._unexpected(answer)

    def put(self, topic: bytes) -> bytes:
        """Get a lease for a sink."""
        answer = self._ask(Put(topic))
        if not isinstance(answer, Leased):
            raise self._unexpected(answer)
        return answer.lease

    def fetch(
        self, topic: StoredTopic, start: int, end: int, ahead: Sequence[Span] = ()
    ) -> Iterator[Block | Gap]:
        """Yield all messages from `start` to before `end`, as blocks and gaps: the first block may begin
        before the range, and the last may end after it. A block is valid until the next one is requested. If
        you stop iterating early, or do not fetch next what `ahead` names, close the connection. Also close it
        after NoSuchTopic, which is raised if the topic was deleted, even if there is another one of its name.
        """
        self._ask_ahead([(topic, start, end), *ahead])
        position = start
        while True:
            match self._event():
                case BlockFetched(_, value):
                    pass
                case MessagesGone(_, _, first, last, reason):
                    if first != position:
                        raise ConnectionLost(f"{self.address} told of a gap at {first} instead of {position}")
                    yield Gap(first, last, reason)
                    position = last + 1
                    continue
                case Declined(_, _, text, said) | UnsolicitedError(text, said):
                    raise self._refusal(text, said)
                case other:
                    raise self._unexpected(other)
            try:
                block = unpack_sent(value)
            except DamagedBlock as damaged:
                raise ConnectionLost(
                    f"{self.address} sent a block that arrived damaged: {damaged}"
                ) from damaged
            if block.topic != topic.id:
                raise NoSuchTopic(f"The topic {topic.name!r} was deleted, and is another one now.")
            if not block.count:
                self._session.end_fetch()
                break
            if not block.first <= position < block.next:
                raise ConnectionLost(f"{self.address} sent message {block.first} instead of {position}")
            yield block
            position = block.next
        if position < end:
            yield Gap(position, end - 1, "the server has no such messages")

    def _ask_ahead(self, spans: Sequence[Span]) -> None:
        """Send the Fetch commands of the first spans which the server does not have yet."""
        not_empty = [span for span in spans if span[1] < span[2]]
        wanted = [
            Fetch(topic.name.encode(), start, end - start) for topic, start, end in not_empty[: 1 + AHEAD]
        ]
        asked = len(self._fetches)
        if wanted[:asked] != list(self._fetches):
            raise RuntimeError("what was asked for ahead must be fetched next")
        # Send many commands at once, rather than one with each answer.
        if 2 * asked <= len(wanted):
            for command in wanted[asked:]:
                self._session.ask(command, None)
                self._fetches.append(command)
            self._flush()
        self._fetches.popleft()

    # -- octets --------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send the session's output."""
        if octets := self._session.take_output():
            self._send(octets)

    def _ask(self, command: AnsweredCommand) -> AnswerFrame:
        """Send a command and return its answer."""
        self._session.ask(command, None)
        self._flush()
        while True:
            match self._event():
                case Answered(_, _, frame):
                    return frame
                case UnsolicitedError(text, said) if said is not None and said.constructor == "Sink":
                    # A notice about an earlier sink, which got the error on its own connection.
                    log.warning("%s said: %s", self.address, text.decode("utf-8", "backslashreplace"))
                case Declined(_, _, text, said) | UnsolicitedError(text, said):
                    raise self._refusal(text, said)
                case other:
                    raise self._unexpected(other)

    def _event(self) -> Event[None]:
        """Return the event of the next frame other than Ping."""
        while (event := self._next_event()) is None:
            pass
        return event

    def _next_event(self) -> Event[None] | None:
        """Return the event of the next frame; answer a Ping and return None."""
        header = self._receive(_HEADER.size)
        length, kind = _HEADER.unpack(header)
        if not 1 <= length < _LONGEST:
            raise ConnectionLost(f"{self.address} sent a frame of {length} octets")
        frame: Decoded
        if kind == FrameType.BLOCK:
            # Do not copy a block, which may be large: use the receive buffer.
            frame = StoredBlock(self._receive_block(length - 1))
        else:
            payload = self._receive(length - 1)
            try:
                (frame,) = FrameDecoder(_LONGEST).feed(bytes(header + payload))
            except FrameError as error:
                raise ConnectionLost(f"{self.address} sent what is no frame: {error}") from error
        if isinstance(frame, (MessageRun, DroppedMessage)):
            raise ConnectionLost(f"{self.address} sent messages, and nothing was subscribed to")
        try:
            event = self._session.take(frame)
        except UnsolicitedFrame as unsolicited:
            raise ConnectionLost(f"{self.address}: {unsolicited}") from None
        self._flush()
        return event

    def _send(self, octets: bytes) -> None:
        with in_our_words(self._broke):
            try:
                self._wire.send(octets)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the receive buffer may contain the reason, which is read next

    def _receive(self, count: int) -> bytearray:
        """Receive exactly `count` octets."""
        received = bytearray(count)
        with memoryview(received) as room:
            self._fill(room)
        return received

    def _receive_block(self, count: int) -> memoryview:
        """Receive exactly `count` octets into the buffer that the next block overwrites.

        A new buffer for each block would cost about as much as the copy from the socket: Python sets it to
        zero, in pages that the system has set to zero before.
        """
        room = self._room
        if len(room) < count:
            room = bytearray(count)
            if count <= _KEPT_OCTETS:
                self._room = room
        received = memoryview(room)[:count]
        self._fill(received)
        return received.toreadonly()

    def _fill(self, room: memoryview) -> None:
        """Receive octets until the buffer is full."""
        at = 0
        with in_our_words(self._broke):
            while at < len(room):
                read = self._wire.receive(room[at:])
                if not read:
                    raise ConnectionLost(f"The server {self.address} closed the connection")
                at += read
        self._heard = time.monotonic()

    def _unexpected(self, answer: AnswerFrame | Event[None]) -> ConnectionLost:
        return ConnectionLost(f"{self.address} sent a {type(answer).__name__} that was not asked for")

    def _refusal(self, octets: bytes, said: Sentence | None) -> OmqError:
        text = f"The server {self.address} said: {octets.decode('utf-8', 'backslashreplace')}"
        match None if said is None else said.refusal:
            case RefusalKind.PASSING:
                return ConnectionLost(text)
            case RefusalKind.UNKNOWN_CLIENT:
                id = self._credentials.id
                if id is None:
                    return ServerRefused(
                        f"The server {self.address} asks who we are, and no name and secret are given."
                    )
                return ServerRefused(
                    f"The server {self.address} has no client with the name and secret in {id}."
                )
            case RefusalKind.NO_TOPIC:
                return NoSuchTopic(text)
            case None:
                return ServerRefused(text)
            case other:
                assert_never(other)
