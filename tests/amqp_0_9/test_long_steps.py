"""Work of one connection for thousands of messages, queues or channels is divided into short steps."""

from contextlib import closing
from pathlib import Path

import pytest
import trio
from counted_steps import counted_calls, watched
from server.conversation import InProcess, eventually, serving

from omq.drivers import slices
from omq.terminals.amqp_0_9.posts import MOST_BATCHES, MOST_MESSAGES
from omq.terminals.connection import forwarding, transport

from .broker import Broker
from .raw_client import Client
from .test_direct import Dmp, envelope, lease
from .test_long_ends import OPENAMQ, answer, connected, consuming, replies, the_queue
from .test_many_consumers import flow, held
from .wire import (
    ack,
    bind,
    body,
    close_channel,
    commit,
    consume,
    declare_exchange,
    declare_queue,
    header,
    nack,
    open_channel,
    publish,
    publishing,
    qos,
    rollback,
    select_confirms,
    select_tx,
)

QUEUES = 1000

SHORT_STEP = 3500
"""A number of calls that no step makes, however many queues, messages or channels there are."""

SETTLED_STEP = 1000
"""A number of calls in which a step settles a few messages."""

FRAME = 100_000
"""The octets of a message in one frame."""

BLOCKING = bytes(16 << 20)
"""A message that no socket takes at once: while it is being sent, others of its channel wait."""


def in_frames(message: bytes) -> list[bytes]:
    """Return the body frames of a message."""
    return [body(1, message[start : start + FRAME]) for start in range(0, len(message), FRAME)]


async def sent(client: Client, *frames: bytes) -> None:
    await trio.to_thread.run_sync(client.send, *frames)


async def with_queues(host: InProcess, count: int = QUEUES) -> Client:
    """Return a connection that has made queues with numbers."""
    client = await connected(host)
    await sent(client, *[declare_queue(1, str(number)) for number in range(count)])
    assert {reply.name for reply in await replies(client, count)} == {"queue.declare-ok"}
    return client


async def with_bound_queues(host: InProcess, count: int = QUEUES) -> Client:
    """Return such a connection, which has bound all of them to the fanout exchange `e`."""
    client = await with_queues(host, count)
    await answer(client, declare_exchange(1, "e", "fanout"))
    await sent(client, *[bind(1, str(number), "e") for number in range(count)])
    assert {reply.name for reply in await replies(client, count)} == {"bind-ok"}
    return client


def messages_in(host: InProcess) -> int:
    """Return the number of messages that came into all queues."""
    return sum(driver.statistics().messages_in for driver in host.server.catalogue)


async def delivered(client: Client, count: int) -> None:
    """Read N (`count`) messages."""

    def read() -> None:
        left = count
        while left:
            left -= client.wait().name == "deliver"

    await trio.to_thread.run_sync(read)


async def confirmed(client: Client, count: int) -> None:
    """Wait until N (`count`) messages are acknowledged."""

    def read() -> None:
        tag = 0
        while tag < count:
            reply = client.wait()
            assert reply.name == "ack"
            assert reply.tag > tag
            tag = reply.tag

    await trio.to_thread.run_sync(read)


async def test_the_flow_of_many_unsent_messages_changes_in_short_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The more messages wait in the order of a channel, the more work was each of its consumers."""
    for module in (forwarding, transport):  # the client does not stall, however slow the machine is
        monkeypatch.setattr(module, "SLOW_SECONDS", 600)
    consumers, messages = 400, 12_000
    async with serving(tmp_path) as host:
        client = await consuming(host, declare_queue(1, "q"), consumers, 0, OPENAMQ)
        other = await connected(host)
        await sent(other, publishing(1, "", "q"), header(1, len(BLOCKING)), *in_frames(BLOCKING))
        await eventually(lambda: the_queue(host).unacknowledged == 1)
        await sent(other, *[publish(1, "", "q", b"%d" % number) for number in range(messages)])
        await eventually(lambda: the_queue(host).unacknowledged == 1 + messages)
        with counted_calls() as calls:
            await sent(client, flow(0))
            await eventually(lambda: held(host)() == consumers)
        assert the_queue(host).ready == messages
        assert calls.longest < messages
        await sent(client, flow(1))
        told = await replies(client, 3 + messages)
        assert [reply.name for reply in told if reply.name != "deliver"] == ["flow-ok", "flow-ok"]
        bodies = [reply.body for reply in told if reply.name == "deliver"]
        assert bodies == [BLOCKING, *[b"%d" % number for number in range(messages)]]
        client.close()
        other.close()


@pytest.mark.parametrize("confirms", [False, True])
async def test_messages_for_many_queues_are_published_in_short_steps(confirms: bool, tmp_path: Path) -> None:
    async with serving(tmp_path) as host:
        client = await with_queues(host)
        if confirms:
            assert await answer(client, select_confirms(1)) == "confirm-ok"
        with counted_calls() as calls:
            await sent(client, *[publish(1, "", str(number), b"") for number in range(QUEUES)])
            if confirms:
                await confirmed(client, QUEUES)
            else:
                await eventually(lambda: messages_in(host) == QUEUES)
        assert calls.longest < SHORT_STEP
        client.close()


async def test_a_message_for_many_queues_is_published_in_short_steps(tmp_path: Path) -> None:
    async with serving(tmp_path) as host:
        client = await with_bound_queues(host)
        assert await answer(client, select_confirms(1)) == "confirm-ok"
        with counted_calls() as calls:
            await sent(client, publish(1, "e", "", b""))
            await confirmed(client, 1)
        assert messages_in(host) == QUEUES
        assert calls.longest < SHORT_STEP
        client.close()


@pytest.mark.parametrize("confirms", [False, True])
async def test_messages_that_each_go_to_many_queues_are_published_in_short_steps(
    confirms: bool, tmp_path: Path
) -> None:
    """Their keys differ, so that each message has an outcome in each queue."""
    messages = 8
    async with serving(tmp_path) as host:
        client = await with_bound_queues(host)
        if confirms:
            assert await answer(client, select_confirms(1)) == "confirm-ok"
        with counted_calls() as calls:
            await sent(client, *[publish(1, "e", str(number), b"") for number in range(messages)])
            if confirms:
                await confirmed(client, messages)
            else:
                await eventually(lambda: messages_in(host) == messages * QUEUES)
                assert await answer(client, qos(1, 0)) == "qos-ok"
        assert messages_in(host) == messages * QUEUES
        assert calls.longest < SHORT_STEP
        client.close()


@pytest.mark.parametrize("durable", [0, 1])
async def test_many_messages_are_settled_in_short_steps(durable: int, tmp_path: Path) -> None:
    """They were given back one by one, so that each is settled by itself."""
    count = 1000
    async with serving(tmp_path) as host:
        client = await connected(host)
        await answer(client, declare_queue(1, "q", durable=durable))
        await sent(client, *[publish(1, "", "q", b"x") for _ in range(count)])
        await eventually(lambda: the_queue(host).ready == count)
        await sent(client, consume(1, "q", "t"))
        await delivered(client, count)
        for _ in range(2):
            with counted_calls() as calls:
                await sent(client, nack(1, 0, 1, 1))
                await delivered(client, count)
            assert calls.longest < SETTLED_STEP
        with counted_calls() as calls:
            await sent(client, ack(1, 0, 1))
            await eventually(lambda: not the_queue(host).unacknowledged)
        assert calls.longest < SETTLED_STEP
        client.close()


@pytest.mark.parametrize("durable", [0, 1])
async def test_a_transaction_with_many_queues_is_committed_in_short_steps(
    durable: int, tmp_path: Path
) -> None:
    async with serving(tmp_path) as host:
        client = await connected(host)
        queues = QUEUES // 10 if durable else QUEUES
        for number in range(queues):
            await answer(client, declare_queue(1, str(number), durable=durable))
        assert await answer(client, select_tx(1)) == "tx.select-ok"
        for _ in range(2):
            await sent(client, *[publish(1, "", str(number % queues), b"") for number in range(2 * QUEUES)])
            with counted_calls() as calls:
                assert await answer(client, commit(1)) == "commit-ok"
            assert calls.longest < SHORT_STEP
        assert messages_in(host) == 4 * QUEUES
        await sent(client, *[publish(1, "", str(number), b"") for number in range(queues)])
        assert await answer(client, rollback(1)) == "rollback-ok"
        assert messages_in(host) == 4 * QUEUES
        client.close()


async def test_a_long_transaction_of_one_queue_is_posted_in_parts(tmp_path: Path) -> None:
    count = 8 * MOST_MESSAGES
    async with serving(tmp_path) as host:
        client = await connected(host)
        await answer(client, declare_queue(1, "q"))
        assert await answer(client, select_tx(1)) == "tx.select-ok"
        await sent(client, *[publish(1, "", "q", b"%d" % number) for number in range(count)])
        with watched(lambda: messages_in(host)) as posted:
            assert await answer(client, commit(1)) == "commit-ok"
        assert messages_in(host) == count
        assert posted.largest_rise() < 3 * MOST_MESSAGES  # with those of a read
        await answer(client, consume(1, "q", no_ack=1))
        assert [reply.body for reply in await replies(client, count)] == [b"%d" % n for n in range(count)]
        client.close()


async def test_a_transaction_with_two_queues_in_turn_is_posted_in_parts(tmp_path: Path) -> None:
    """Each message is a batch of its own then. To join thousands of them takes long."""
    count = 4 * MOST_BATCHES
    async with serving(tmp_path) as host:
        client = await connected(host)
        for queue in "qr":
            await answer(client, declare_queue(1, queue))
        assert await answer(client, select_tx(1)) == "tx.select-ok"
        await sent(client, *[publish(1, "", "qr"[number % 2], b"%d" % number) for number in range(count)])
        with watched(lambda: messages_in(host)) as posted:
            assert await answer(client, commit(1)) == "commit-ok"
        assert messages_in(host) == count
        assert posted.largest_rise() == MOST_BATCHES
        for begin, queue in enumerate("qr"):
            await sent(client, consume(1, queue, queue, no_ack=1))
            assert (await trio.to_thread.run_sync(client.wait)).name == "consume-ok"
            told = [reply.body for reply in await replies(client, count // 2)]
            assert told == [b"%d" % number for number in range(begin, count, 2)]
        client.close()


@pytest.mark.parametrize("durable", [0, 1])
async def test_acknowledgements_of_a_transaction_are_settled_in_short_steps(
    durable: int, tmp_path: Path
) -> None:
    count = 1000
    async with serving(tmp_path) as host:
        client = await connected(host)
        await answer(client, declare_queue(1, "q", durable=durable))
        await sent(client, *[publish(1, "", "q", b"x") for _ in range(count)])
        await eventually(lambda: the_queue(host).ready == count)
        assert await answer(client, select_tx(1)) == "tx.select-ok"
        await sent(client, consume(1, "q", "t"))
        await delivered(client, count)
        await sent(client, *[ack(1, tag) for tag in range(2, count + 1, 2)])
        await answer(client, declare_queue(1, "q", durable=durable))  # after the acknowledgements
        with counted_calls() as calls:
            assert await answer(client, commit(1)) == "commit-ok"
        assert the_queue(host).unacknowledged == count // 2
        assert calls.longest < SETTLED_STEP
        client.close()


async def test_many_channels_are_closed_in_short_steps(tmp_path: Path) -> None:
    channels = range(2, 402)
    async with serving(tmp_path) as host:
        client = await connected(host)
        for number in channels:
            assert await answer(client, open_channel(number)) == "channel.open-ok"
        with counted_calls() as calls:
            await sent(client, *[close_channel(number) for number in channels])
            for _ in channels:
                assert (await trio.to_thread.run_sync(client.wait)).name == "channel.close-ok"
        assert calls.longest < SHORT_STEP
        client.close()


async def test_the_messages_of_a_sink_are_posted_to_many_queues_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as host:
        client = await with_bound_queues(host, 20)
        broker = Broker(("127.0.0.1", host.port))
        leased = await trio.to_thread.run_sync(lease, client, 10, "e")
        with closing(broker), closing(await trio.to_thread.run_sync(Dmp, broker, leased)) as sink:
            monkeypatch.setattr(slices, "SLICE_SECONDS", -1)
            with watched(lambda: messages_in(host)) as posted:
                await trio.to_thread.run_sync(sink.socket.sendall, envelope("k", b"x"))
                await eventually(lambda: messages_in(host) == 20)
            assert posted.largest_rise() == 1
        client.close()
