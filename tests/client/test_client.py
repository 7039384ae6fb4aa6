"""The client library against a real server."""

from contextlib import suppress
from typing import cast

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from client_helpers import OpenServer, Running, connect_to
from ports import reserved_port
from quietness import quiet
from trio.testing import MockClock

from omq.client import (
    Client,
    ConnectionFailed,
    ConnectionLost,
    Delivery,
    FromBeginning,
    FromCurrent,
    FromMessage,
    Gap,
    HandshakeRefused,
    Message,
    Persistent,
    PublishRefused,
    ServerError,
    Sync,
    Topic,
    Transient,
    connect,
)
from omq.client.connection import READ_OCTETS
from omq.client.network import Stream
from omq.client.send_queue import SendQueue
from omq.config import TopicConfig
from omq.server import Server


async def test_declare_publish_confirm_subscribe(client: Client) -> None:
    topic = await client.declare("prices", Delivery.BROADCAST, Persistent(Sync.STRONG))
    assert topic == Topic(topic.id, b"prices")
    await client.publish("prices", b"one")
    await client.publish_confirmed(b"prices", b"two")
    async with client.subscribe("prices", FromBeginning()) as subscription:
        assert subscription.topic == topic
        assert await anext(subscription) == Message(1, topic.id, b"one")
        assert await anext(subscription) == Message(2, topic.id, b"two")
        await client.publish("prices", b"three")
        assert await anext(subscription) == Message(3, topic.id, b"three")


async def test_a_server_may_close_before_the_client_sees_that_its_end_is_sent(nursery: TaskGroup) -> None:
    class Closing:
        async def send_all(self, data: bytes) -> None:
            pass

        async def send_eof(self) -> None:
            queue.close()

    def refuse() -> None:
        if queue.closed:
            raise ConnectionLost("the server closed the connection")

    queue = SendQueue(cast(Stream, Closing()), refuse, lambda: None)
    nursery.start_soon(queue.run)
    await queue.finish()
    assert queue.is_finished
    with pytest.raises(ConnectionLost):
        await queue.send(b"late")


async def test_a_block_is_entered_once_at_a_time(server: Server) -> None:
    block = connect_to(server)
    for _ in range(2):
        async with block as client:
            with pytest.raises(RuntimeError, match="connected already"):
                async with block:
                    pass
            await client.ping()


async def test_topics_returns_types_and_counts(client: Client) -> None:
    await client.declare("work", Delivery.ROUND_ROBIN, Transient())
    await client.declare("prices")
    await client.publish_confirmed("prices", b"12345")
    infos = {info.topic: info for info in await client.topics()}
    assert infos[b"work"].delivery is Delivery.ROUND_ROBIN
    assert infos[b"work"].persistence == Transient()
    prices = infos[b"prices"]
    assert prices.persistence == Persistent(Sync.WEAK)
    assert (prices.messages, prices.first, prices.last, prices.subscribers) == (1, 1, 1, 0)


BODIES = [
    b"",
    b"a",
    b"a b",
    b'"',
    b"\\",
    b"#|",
    b"\n",
    b"\r\n",
    bytes(range(256)),
    "é".encode(),
    b"x" * 100_000,
]


@pytest.mark.parametrize("name", [b"plain", b"a b", b"\x00\xff", b"t" * 255, b'"(;'])
async def test_any_octets_arrive_unchanged(client: Client, name: bytes) -> None:
    async with client.subscribe(name) as subscription:
        for body in BODIES:
            await client.publish(name, body)
        assert await client.publish_many(name, BODIES) == len(BODIES)
        got = [(await anext(subscription)).body for _ in range(2 * len(BODIES))]
    assert got == BODIES * 2


async def test_lines_and_runs(client: Client) -> None:
    count = 50_000
    text = b"".join(b'{"line": %d}\n' % n for n in range(count))
    got: list[bytes] = []
    ids: list[int] = []
    async with client.subscribe("lines") as subscription, anyio.create_task_group() as nursery:

        async def publish() -> None:
            assert await client.publish_lines("lines", text[:-1]) == count

        nursery.start_soon(publish)
        async for run in subscription.runs():
            assert len(run.ids) == len(run.bodies)
            got += run.bodies
            ids += run.ids
            if len(got) >= count:
                break
    assert got == text[:-1].split(b"\n")
    assert ids == list(range(1, count + 1))
    assert await client.publish_lines("lines", b"") == 0


async def test_a_client_says_after_its_block_that_it_was_closed(server: Server) -> None:
    async with connect_to(server) as client:
        await client.publish_confirmed("t", b"x")
    for call in (client.ping, client.topics, client.confirm):
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await call()


async def test_replay_from_a_message(client: Client) -> None:
    await client.publish_many("log", [b"%d" % n for n in range(1, 11)])
    await client.confirm()
    async with client.subscribe("log", FromMessage(8)) as subscription:
        assert [(await anext(subscription)).id for _ in range(3)] == [8, 9, 10]


async def test_leaving_unsubscribes_and_the_topic_can_be_subscribed_again(client: Client) -> None:
    for body in (b"one", b"two"):
        async with client.subscribe("t") as subscription:
            await client.publish("t", body)
            assert (await anext(subscription)).body == body
        (info,) = await client.topics()
        assert info.subscribers == 0


async def test_a_second_subscription_to_a_topic_is_refused_and_the_first_goes_on(client: Client) -> None:
    async with client.subscribe("t") as first:
        with pytest.raises(ServerError, match="subscribed already"):
            async with client.subscribe("t"):
                pass
        await client.publish("t", b"x")
        assert (await anext(first)).body == b"x"


@pytest.mark.parametrize("reconnect", [False, True])
async def test_a_cancelled_second_subscription_leaves_the_first(server: Server, reconnect: bool) -> None:
    async with connect_to(server, reconnect=reconnect) as client, client.subscribe("t") as first:
        with suppress(ServerError), anyio.move_on_after(0):
            async with client.subscribe("t"):
                pass
        await client.publish_confirmed("t", b"x")
        (info,) = await client.topics()
        assert info.subscribers == 1
        assert (await anext(first)).body == b"x"


async def test_errors_are_typed_and_name_the_command(client: Client) -> None:
    await client.declare("prices", Delivery.BROADCAST, Transient())
    await client.publish_confirmed("prices", b"x")
    with pytest.raises(ServerError) as caught:
        await client.declare("prices", Delivery.ROUND_ROBIN, Transient())
    assert (caught.value.command, caught.value.argument) == ("Declare", b"prices")
    with pytest.raises(ServerError) as caught:
        await client.delete("no such")
    assert (caught.value.command, caught.value.argument) == ("Delete", b"no such")
    with pytest.raises(ServerError) as caught:
        async with client.subscribe("prices", FromBeginning()):
            pass
    assert caught.value.command == "Subscribe"
    long = b"t" * 200
    with pytest.raises(ServerError) as caught:
        await client.delete(long)
    assert caught.value.argument == long
    await client.confirm()  # nothing of that has put the answers out of step


@pytest.mark.parametrize("name", [b"", "", b"x" * 256, "é" * 128])
async def test_invalid_names_are_refused_by_the_client(client: Client, name: bytes | str) -> None:
    with pytest.raises(ValueError, match="name"):
        await client.publish(name, b"")
    with pytest.raises(ValueError, match="name"):
        await client.declare(name)


async def test_a_refused_publish_is_reported_by_confirm_once(open_omq: OpenServer) -> None:
    async with open_omq(allow_undeclared=False) as server, connect_to(server) as client:
        await client.publish("unknown", b"x")
        with pytest.raises(PublishRefused) as caught:
            await client.confirm()
        (refusal,) = caught.value.refusals
        assert refusal.startswith("Publish unknown: ")
        assert refusal in str(caught.value)
        await client.confirm()


async def test_a_refused_publish_is_reported_at_the_end_without_a_confirm(open_omq: OpenServer) -> None:
    async with open_omq(allow_undeclared=False) as server:
        with pytest.raises(PublishRefused, match="unknown"):
            async with connect_to(server) as client:
                await client.publish("unknown", b"x")


async def test_published_messages_are_sent_before_the_client_closes(server: Server, client: Client) -> None:
    async with connect_to(server) as short:
        for n in range(5_000):
            await short.publish("t", b"%d" % n)
    async with client.subscribe("t", FromBeginning()) as subscription:
        assert [(await anext(subscription)).body for _ in range(5_000)] == [b"%d" % n for n in range(5_000)]


async def test_a_lone_publish_leaves_at_once(mock_clock: MockClock, server: Server, client: Client) -> None:
    """Without waiting for further messages: time stands still in this test, so no timer ends."""
    async with connect_to(server) as publisher, client.subscribe("t") as subscription:
        await publisher.publish("t", b"x")
        assert (await anext(subscription)).body == b"x"


async def test_deleting_ends_the_subscription(client: Client) -> None:
    await client.publish_confirmed("t", b"last")
    async with client.subscribe("t", FromBeginning()) as subscription:
        assert (await anext(subscription)).body == b"last"
        await client.delete("t")
        assert [message async for message in subscription] == []
    await client.confirm()


async def test_exceptions_of_the_block_are_raised_unchanged(server: Server) -> None:
    with pytest.raises(ZeroDivisionError):
        async with connect_to(server) as client, client.subscribe("t"):
            raise ZeroDivisionError


async def test_messages_published_before_an_exception_arrive(server: Server, client: Client) -> None:
    async def publish_and_fail() -> None:
        async with connect_to(server) as failing:
            for n in range(1000):
                await failing.publish("t", b"%d" % n)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await publish_and_fail()
    (info,) = await client.topics()
    assert info.last == 1000


async def test_cancelling_a_waiting_subscriber_leaves_the_client_usable(client: Client) -> None:
    with anyio.CancelScope() as limit:
        async with client.subscribe("t") as subscription:
            limit.deadline = anyio.current_time() + 0.05
            await anext(subscription)
    assert limit.cancelled_caught
    (info,) = await client.topics()
    assert info.subscribers == 0


async def test_cancelled_commands_do_not_confuse_answers(client: Client) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await client.declare("cancelled")
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with client.subscribe("t"):
            pass
    assert (await client.declare("next")).topic == b"next"
    assert {info.topic: info.subscribers for info in await client.topics()}.get(b"t", 0) == 0


async def test_a_handler_may_wait_for_answers_while_its_buffer_is_full(client: Client) -> None:
    """The client stops reading for a full subscription, but not while its task waits for an answer."""
    await client.publish_many("in", [b"x" * 1000] * 3000)
    await client.confirm()
    async with client.subscribe("in", FromBeginning(), capacity=10_000) as subscription:
        await anext(subscription)
        for n in range(20):
            await anext(subscription)
            await client.publish_confirmed("out", b"%d" % n)
        assert {info.topic: info.messages for info in await client.topics()}[b"out"] == 20


async def test_a_slow_consumer_stops_the_reading_of_its_connection(server: Server, client: Client) -> None:
    octets = 24 << 20  # more than the socket's buffers hold
    await client.publish_many("in", [b"x" * 1000] * (octets // 1000))
    await client.confirm()
    async with connect_to(server) as slow:
        async with slow.subscribe("in", FromBeginning(), capacity=100_000) as subscription:
            runs = subscription.runs()
            ids = list((await anext(runs)).ids)
            await quiet()
            assert 100_000 <= subscription.buffered < 100_000 + READ_OCTETS
            while ids[-1] < octets // 1000:
                ids += (await anext(runs)).ids
        assert ids == list(range(1, octets // 1000 + 1))


async def test_pings_are_answered(open_omq: OpenServer) -> None:
    async with open_omq(ping_seconds=0.2, missed_pings=2) as server, connect_to(server) as client:
        await anyio.sleep(1.5)  # the server's clock is what is tested: longer than it waits for a dead client
        await client.confirm()


async def test_a_worker_receives_and_confirms(server: Server, client: Client) -> None:
    await client.declare("work", Delivery.ROUND_ROBIN, Persistent(Sync.WEAK))
    await client.publish_many("work", [b"%d" % n for n in range(6)])

    async def fail_at_the_second() -> None:
        async with connect_to(server) as first, first.subscribe("work", credit=2) as subscription:
            async for message in subscription:
                if message.body == b"1":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    async with connect_to(server) as second, second.subscribe("work", credit=10) as subscription:
        got = [(await anext(subscription)).body for _ in range(5)]
        assert sorted(got) == [b"1", b"2", b"3", b"4", b"5"]
        last = got[-1]  # left unconfirmed, as is whatever is left in a loop that is broken off
    async with connect_to(server) as third, third.subscribe("work", credit=10) as subscription:
        message = await anext(subscription)
        assert message.body == last
        await subscription.received(message)
        await subscription.received(message)  # twice is once
    async with connect_to(server) as fourth, fourth.subscribe("work", credit=10) as subscription:
        await client.publish("work", b"new")
        assert (await anext(subscription)).body == b"new"


async def test_credit_is_never_exceeded(client: Client) -> None:
    await client.declare("work", Delivery.ROUND_ROBIN, Transient())
    await client.publish_many("work", [b"x"] * 100)
    async with client.subscribe("work", credit=3) as subscription:
        for n in range(100):
            message = await anext(subscription)
            assert message.id == n + 1
            await client.ping()
            assert subscription.buffered <= 3 * 18


async def test_a_refused_second_subscription_leaves_the_window_of_the_first(client: Client) -> None:
    async def windows() -> list[int | None]:
        return [each.credit for each in await client.subscribers("work")]

    await client.declare("work", Delivery.ROUND_ROBIN, Transient())
    async with client.subscribe("work", credit=2):
        with pytest.raises(ServerError, match=r"^Subscribe work: this connection is subscribed already$"):
            async with client.subscribe("work", credit=50):
                pass
        assert await windows() == [2]
    async with client.subscribe("work", credit=3):
        assert await windows() == [3]
    await client.delete("work")
    await client.declare("work", Delivery.ROUND_ROBIN, Transient())
    async with client.subscribe("work", credit=4):
        assert await windows() == [4]


async def test_credit_on_a_broadcast_topic_is_refused(client: Client) -> None:
    await client.declare("t")
    with pytest.raises(ServerError, match="round-robin") as caught:
        async with client.subscribe("t", credit=2):
            pass
    assert caught.value.command == "Request"
    (info,) = await client.topics()
    assert info.subscribers == 0


async def test_a_port_without_a_server() -> None:
    with reserved_port() as port, pytest.raises(ConnectionFailed, match="refused"):
        async with connect(f"omq://127.0.0.1:{port}"):
            pass


@pytest.mark.parametrize("host", ["a" * 70, "ü..x", "\udcff"])
async def test_no_host_can_have_this_name(host: str) -> None:
    with pytest.raises(ConnectionFailed, match="cannot connect to"):
        async with connect(f"omq://{host}:1"):
            pass


@pytest.mark.parametrize("answer", [b"\xff" * 8, b"HTTP/1.1"])
async def test_other_servers_are_recognised(answer: bytes) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with anyio.create_task_group() as nursery:

        async def stranger(stream: trio.SocketStream) -> None:
            await stream.send_all(answer)

        nursery.start_soon(trio.serve_listeners, stranger, [listener])
        with pytest.raises(HandshakeRefused):
            async with connect(f"omq://127.0.0.1:{port}"):
                pass
        nursery.cancel_scope.cancel()


async def test_a_lost_connection_is_reported_to_every_task(open_omq: OpenServer, nursery: TaskGroup) -> None:
    running = await Running.start(nursery, open_omq())
    async with running.connect() as client, client.subscribe("t") as subscription:
        await client.publish_confirmed("t", b"x")
        await running.stop()
        assert (await anext(subscription)).body == b"x"
        with pytest.raises(ConnectionLost):
            await anext(subscription)
        with pytest.raises(ConnectionLost):
            await client.publish("t", b"x")
        with pytest.raises(ConnectionLost):
            await client.confirm()


async def test_the_reason_why_the_server_closes_is_reported(open_omq: OpenServer) -> None:
    async with open_omq(max_line_bytes=2000) as server, connect_to(server) as client:
        await client.publish("t", b"x" * 4000)
        with pytest.raises(ConnectionLost, match="the line has more than 2000 octets"):
            await client.confirm()


async def test_from_current_begins_now(client: Client) -> None:
    await client.publish_confirmed("t", b"before")
    async with client.subscribe("t", FromCurrent()) as subscription:
        await client.publish("t", b"after")
        assert (await anext(subscription)).body == b"after"


async def test_a_gap_is_reported_to_its_subscription(open_omq: OpenServer) -> None:
    """Also when the names of two topics have a long common prefix."""
    kept, cut = "x" * 254 + "a", "x" * 254 + "b"
    gaps: list[Gap] = []
    topics = [TopicConfig(name=cut, retention_bytes=1)]
    async with open_omq(topics=topics) as server, connect_to(server, on_gap=gaps.append) as client:
        await client.publish_confirmed(kept, b"whole")
        first = 1
        while first == 1:  # until the server has deleted something
            await client.publish_confirmed(cut, b"x" * 20_000)
            first = {info.topic: info.first for info in await client.topics()}[cut.encode()]
        async with (
            client.subscribe(kept, FromBeginning()) as whole,
            client.subscribe(cut, FromMessage(1)) as rest,
        ):
            message = await anext(rest)
            # The server may delete more before it reads the next message: one gap then follows another.
            missing = [id_ for gap in gaps for id_ in range(gap.first, gap.last + 1)]
            assert missing == list(range(1, message.id))
            assert (await anext(whole)).body == b"whole"
            assert {gap.topic for gap in gaps} == {cut.encode()}
            assert whole.last == 1
            assert rest.last >= message.id  # one that came while the server was deleting may be kept too


@pytest.mark.parametrize("by_hand", [True, False])
async def test_cancelling_an_iteration_does_not_forget_a_confirmation(
    client: Client, monkeypatch: pytest.MonkeyPatch, by_hand: bool
) -> None:
    """The confirmation must wait while much output is queued, and the waiting task may be cancelled."""
    await client.declare("work", Delivery.ROUND_ROBIN, Transient())
    await client.publish_many("work", [b"1", b"2", b"3"])
    async with client.subscribe("work", credit=1) as subscription:
        for number in (1, 2):
            message = await anext(subscription)
            assert message.id == number

            async def full(self: SendQueue) -> None:
                await anyio.sleep_forever()

            with monkeypatch.context() as patch, anyio.CancelScope() as scope:
                patch.setattr(SendQueue, "room", full)
                scope.cancel()
                await (subscription.received(message) if by_hand else anext(subscription))
            assert scope.cancelled_caught
        assert (await anext(subscription)).id == 3


async def test_a_confirmation_that_was_queued_when_it_was_cancelled_is_not_repeated(client: Client) -> None:
    await client.declare("work", Delivery.ROUND_ROBIN, Transient())
    await client.publish_many("work", [b"%d" % n for n in range(200)])
    async with client.subscribe("work", credit=1) as subscription:
        seen = []
        while len(seen) < 200:
            with anyio.CancelScope() as scope:
                scope.cancel()
                seen.append((await anext(subscription)).id)
            if scope.cancelled_caught:
                seen.append((await anext(subscription)).id)
        assert seen == list(range(1, 201))
