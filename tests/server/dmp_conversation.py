"""Raw DMP connections to a server under test: short strings and envelopes out of octets."""

from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.envelopes import Envelope
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.omq.types import Error, Leased

from .conversation import Conversation, Host

HEADER = b"AMQP\x0a\x01\x00\x01"
GREETING = b"\x0d200 OK DP/0.1"


def short(octets: bytes) -> bytes:
    """Return a short string."""
    return bytes([len(octets)]) + octets


def envelopes(bodies: list[bytes]) -> bytes:
    """Return the octets that a sink is sent."""
    return dmp_writer.for_sink(bodies)


async def lease(client: Conversation, command: bytes) -> bytes:
    """Return the lease that answers Put or Get."""
    answer = await client.ask(command)
    assert isinstance(answer, Leased), answer
    assert answer.lease.isascii()
    return answer.lease


async def response(connection: Conversation) -> bytes:
    """Return the next short string."""
    length = (await connection.octets(1))[0]
    return await connection.octets(length) if length else b""


async def said(connection: Conversation) -> list[bytes]:
    """Return every short string until the server closes, which it must do after a whole one."""
    octets = b""
    while data := await connection.stream.receive_some(65536):
        octets += data
    found = []
    while octets:
        length = octets[0]
        assert len(octets) > length
        found.append(octets[1 : 1 + length])
        octets = octets[1 + length :]
    return found


async def show(host: Host, shown: bytes, receive_octets: int | None = None) -> Conversation:
    """Return a DMP connection that was greeted and has shown a lease."""
    connection = await host.open(receive_octets)
    await show_on(connection, shown)
    return connection


async def show_on(connection: Conversation, shown: bytes) -> None:
    """Show a lease on a connection that was just opened."""
    await connection.send(HEADER + short(shown))
    assert await connection.octets(len(GREETING)) == GREETING


async def sink(host: Host, client: Conversation, topic: bytes = b"t") -> Conversation:
    """Return a sink that is ready."""
    connection = await show(host, await lease(client, b"(Put %s)" % topic))
    assert await response(connection) == b"200 OK Sink '%s' ready" % topic
    return connection


class Consumer:
    """The envelopes of a feed."""

    def __init__(self, connection: Conversation) -> None:
        self.connection = connection
        self.octets = bytearray()
        """All that came after the ready response."""
        self._reader = EnvelopeReader()
        self._envelopes: list[Envelope] = []

    @property
    def unfinished(self) -> int:
        """Octets of an envelope that is not complete."""
        return self._reader.unfinished

    async def receive(self) -> bool:
        """Read once; False at the end."""
        data = bytes(await self.connection.stream.receive_some(256 << 10))
        self.octets += data
        self._envelopes += self._reader.feed(data).envelopes()
        return bool(data)

    async def take(self, count: int) -> list[Envelope]:
        """Return the next N (`count`) envelopes."""
        while len(self._envelopes) < count:
            assert await self.receive(), "the feed ended"
        taken, self._envelopes = self._envelopes[:count], self._envelopes[count:]
        return taken

    async def bodies(self, count: int) -> list[bytes]:
        """Return the bodies of the next so many."""
        return [envelope.body for envelope in await self.take(count)]

    async def rest(self) -> list[bytes]:
        """Return the bodies up to the end of the feed, which must be between two envelopes."""
        while await self.receive():
            pass
        assert self.unfinished == 0
        taken, self._envelopes = self._envelopes, []
        return [envelope.body for envelope in taken]


async def feed(
    host: Host, client: Conversation, get: bytes = b"(Get t From_current)", receive_octets: int | None = None
) -> Consumer:
    """Return a feed that is ready."""
    connection = await show(host, await lease(client, get), receive_octets)
    ready = await response(connection)
    assert ready.startswith(b"200 OK Feed '"), ready
    return Consumer(connection)


async def stored(connection: Conversation) -> int:
    """Half-close a sink; how many messages the server says are stored."""
    await connection.done()
    answers = await said(connection)
    assert len(answers) == 1, answers
    start, end = b"200 OK ", b" messages stored"
    assert answers[0].startswith(start), answers
    assert answers[0].endswith(end), answers
    return int(answers[0][len(start) : -len(end)])


async def send_all(host: Host, client: Conversation, bodies: list[bytes]) -> None:
    """Publish bodies longer than a line may be."""
    connection = await sink(host, client)
    for body in bodies:
        await connection.send(envelopes([body]))
    assert await stored(connection) == len(bodies)


async def news(client: Conversation) -> bytes:
    """Return the Error that a principal gets about its sink or feed."""
    frame = await client.frame()
    assert isinstance(frame, Error), frame
    return frame.text
