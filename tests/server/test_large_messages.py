"""Large messages of sinks are stored in fragments as they arrive, and read piece by piece."""

import tracemalloc
from pathlib import Path

import pytest
import trio

from omq.client import Client, FromBeginning, connect
from omq.drivers.seam import MessageOutline
from omq.model import LONGEST_BODY
from omq.protocol.amqp.head import Head, encode
from omq.protocol.dmp.writer import for_sink
from omq.protocol.omq.types import Error, StoredBlock, Subscribed
from omq.terminals.dmp.forms import FeedForm
from omq_storage import codec
from omq_storage import fragments as fragments_module
from omq_storage.batches import LARGE_OCTETS
from omq_storage.blocks import FRAME_HEADER, unpack_sent

from .conversation import Conversation, declared, eventually, serving
from .dmp_conversation import envelopes, feed, sink, stored
from .large_messages import LARGE, MIB, body, everything, fragments, leftovers, send, swept


@pytest.mark.parametrize("level", [b"Strong", b"Weak", b"Async"])
async def test_large_and_small_messages_keep_their_order(store: Path, level: bytes) -> None:
    bodies = [b"first", LARGE[0], b"second", b"third", LARGE[1], LARGE[2], b"last"]
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent %s)" % level)
        live = await host.connect()
        await live.ask(b"(Subscribe t From_current)")
        consumer = await feed(host, client)
        await send(host, client, bodies)
        messages = await live.messages(len(bodies))
        assert [message.id for message in messages] == list(range(1, 8))
        assert [message.body for message in messages] == bodies
        assert await consumer.bodies(len(bodies)) == bodies
        assert await everything(host, client, len(bodies)) == bodies
        info = (await host.connect()).topics()
        assert (await info)[b"t"].messages == 7
        assert host.memory_used == 0
        assert host.server.memory.uploaded.used == 0
    assert leftovers(store, level.decode().lower()) == (fragments(LARGE), 0)
    async with serving(store) as host:  # and from the store, after a start
        assert await everything(host, await host.connect(), len(bodies)) == bodies


async def test_the_plain_codec_stores_the_same(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "COMPILED", False)
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, [b"first", *LARGE, b"last"])
        assert await everything(host, client, 5) == [b"first", *LARGE, b"last"]
    assert leftovers(store) == (fragments(LARGE), 0)


async def test_workers_get_large_messages(store: Path) -> None:
    bodies = [b"first", *LARGE, b"last"]
    async with serving(store) as host:
        client = await declared(host, b"Round_robin (Persistent Weak)")
        await send(host, client, bodies)
        await client.say(b"(Request t 10)")
        assert isinstance(await client.ask(b"(Subscribe t From_current)"), Subscribed)
        assert await client.bodies(5) == bodies
        # Unconfirmed messages go to another worker.
        await client.say(b"(Received t 1)", b"(Received t 2)")
        await client.settle()
        client.close()
        other = await host.connect()
        await other.say(b"(Request t 10)")
        assert isinstance(await other.ask(b"(Subscribe t From_current)"), Subscribed)
        assert await other.bodies(3) == bodies[2:]


async def test_fetch_gives_large_messages_as_blocks(store: Path) -> None:
    bodies = [b"first", *LARGE, b"last"]
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, bodies)
        await client.say(b"(Fetch t 1 100)")
        found: list[bytes] = []
        while True:
            frame = await client.frame()
            assert isinstance(frame, StoredBlock)
            block = unpack_sent(frame.value)
            if not block.count:
                break
            found += [bytes(each)[FRAME_HEADER:] for each in block.slices(block.first)]
        assert found == bodies
        assert host.server.memory.fetched.used == 0


async def test_fetch_tells_of_a_message_that_no_block_can_hold(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, LARGE)
        monkeypatch.setattr(fragments_module, "FRAMES_LIMIT", 3 * MIB)  # 1 GiB is too much for a test
        await client.say(b"(Fetch t 1 100)")
        frames = [await client.frame() for _ in range(4)]
        blocks = [unpack_sent(frame.value) for frame in frames if isinstance(frame, StoredBlock)]
        assert [(block.first, block.count) for block in blocks] == [(1, 1), (2, 1), (4, 0)]
        text = b"Fetch t: messages 3 to 3 are gone: it has 3145745 octets, too many for a block"
        assert frames[2] == Error(text)


async def test_a_repeated_large_message_is_stored_once(store: Path) -> None:
    async with serving(store) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        for _ in range(2):
            async with client.sink("t", producer="p") as numbered:
                for each in LARGE:
                    await numbered.publish(each)
        (info,) = [info for info in await client.topics() if info.topic == b"t"]
        assert info.messages == 3
        assert await bodies_of(client, 3) == LARGE
    await swept(store)


async def bodies_of(client: Client, count: int) -> list[bytes]:
    async with client.subscribe("t", FromBeginning()) as messages:
        return [(await messages.__anext__()).body for _ in range(count)]


@pytest.mark.usefixtures("each_codec")
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_large_messages_of_a_transient_topic(store: Path, delivery: bytes) -> None:
    bodies = [b"first", LARGE[0], b"second", LARGE[1], LARGE[2], body(LARGE_OCTETS, 4), b"last"]
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t %s Transient)" % delivery)
        live = await host.connect()
        await live.ask(b"(Subscribe t From_current)")
        connection = await sink(host, client)
        heads = [encode(Head(b"", b"key"))] * 3
        octets = for_sink(bodies[:3], heads) + envelopes(bodies[3:])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_in_parts, connection, octets)
            assert await live.bodies(len(bodies)) == bodies
        assert await stored(connection) == len(bodies)
        await eventually(lambda: not host.server.memory.unfinished.used)


async def send_in_parts(connection: Conversation, octets: bytes) -> None:
    for begin in range(0, len(octets), 70_001):
        await connection.send(octets[begin : begin + 70_001])


async def test_a_large_message_is_copied_once(store: Path) -> None:
    """To copy one of 60 MiB keeps all connections waiting for tens of milliseconds."""
    if not codec.COMPILED:
        pytest.skip("the plain codec joins the parts at the end")
    async with serving(store) as host:
        client = await declared(host, b"Broadcast Transient")
        connection = await sink(host, client)
        octets = envelopes([b"x" * (16 * MIB)])
        await connection.send(octets[:MIB])
        tracemalloc.start()
        try:
            for begin in range(MIB, len(octets), MIB):
                await connection.send(octets[begin : begin + MIB])
            assert await stored(connection) == 1
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 16 * MIB


def test_the_longest_body_fits_into_the_envelope_of_a_feed() -> None:
    """Also with a default head that has a long name: then the envelope has a plain head."""
    head = encode(Head(routing_key=b"n" * 255))
    assert FeedForm(head).begin(MessageOutline(1, 1, 0, b"", LONGEST_BODY))
    with pytest.raises(ValueError, match="does not fit"):
        FeedForm(head).begin(MessageOutline(1, 1, 0, head, LONGEST_BODY))
