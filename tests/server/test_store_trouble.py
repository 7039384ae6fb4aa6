"""Reports to clients and the log when the store fails while it is opened, read, changed or closed."""

import errno
import os
import socket
from pathlib import Path
from typing import NoReturn

import pytest
import trio
from ports import reserved_port
from scarcity import no_descriptors
from trio.testing import MockClock

from omq.client import connect
from omq.client.errors import ServerError
from omq.config import Config
from omq.drivers.round_robin import RETRY_SECONDS
from omq.listening import ListenError
from omq.management import Messages, Peek
from omq.protocol.omq.types import Done, Subscribed
from omq.server import open_server
from omq.terminals.connection.accepting import PAUSE_SECONDS
from omq_storage.blocks import encode
from omq_storage.catalogue import StoreCatalogue
from omq_storage.environment import Environment
from omq_storage.errors import StoreError
from omq_storage.levels import Level
from omq_storage.store import FORMAT, FORMAT_FILE, Store

from .conversation import declared, eventually, numbered, publish, serving
from .dmp_conversation import feed, news

NOON = 1_700_000_000_000_000
FAILED = b"the store failed, the server's log has more"


def fail(*_: object, **__: object) -> NoReturn:
    raise StoreError("The disk does not answer.")


async def stored_messages(store: Path, delivery: bytes) -> None:
    """Make a topic t with five messages that a server has stored."""
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t %s (Persistent Strong))" % delivery)
        await client.send(publish(b"t", numbered(1, 5)))
        await client.confirm()


async def test_a_topic_that_cannot_be_read_ends_the_connection_with_the_reason(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await stored_messages(store, b"Broadcast")
    async with serving(store) as host:
        other = await host.connect()
        client = await host.connect()
        monkeypatch.setattr(Environment, "read_stored", fail)
        assert isinstance(await client.ask(b"(Subscribe t From_beginning)"), Subscribed)
        assert await client.error() == b"Subscribe t: %s, the connection is closed" % FAILED
        await client.ended()
        await other.confirm()
        assert "cannot be read: The disk does not answer." in caplog.text


async def test_a_feed_that_cannot_be_read_ends_and_its_principal_is_told(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored_messages(store, b"Broadcast")
    async with serving(store) as host:
        client = await host.connect()
        monkeypatch.setattr(Environment, "read_stored", fail)
        consumer = await feed(host, client, b"(Get t From_beginning)")
        assert await consumer.rest() == []
        assert await news(client) == b"Feed t: 541 INTERNAL-ERROR " + FAILED


async def test_work_that_cannot_be_read_is_dealt_later(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored_messages(store, b"Round_robin")
    async with serving(store) as host:
        client = await host.connect()
        with monkeypatch.context() as patch:
            tried = 0

            def fail_and_count(*_: object, **__: object) -> NoReturn:
                nonlocal tried
                tried += 1
                fail()

            patch.setattr(Environment, "read_stored", fail_and_count)
            assert isinstance(await client.ask(b"(Subscribe t From_current)"), Subscribed)
            await eventually(lambda: tried == 1)
            clock.jump(RETRY_SECONDS)
            await eventually(lambda: tried == 2)
        clock.jump(RETRY_SECONDS)
        assert await client.bodies(5) == numbered(1, 5)


async def test_messages_that_cannot_be_read_are_not_shown(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored_messages(store, b"Round_robin")
    async with serving(store) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        with monkeypatch.context() as patch:
            patch.setattr(Environment, "read_stored", fail)
            with pytest.raises(ServerError, match="Manage t: " + FAILED.decode()):
                await client.manage(Peek(b"t", 0, 5))
        answer = await client.manage(Peek(b"t", 0, 5))
        assert isinstance(answer, Messages)
        assert [message.body for message in answer.list] == numbered(1, 5)


async def test_a_topic_that_the_catalogue_cannot_store_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        with monkeypatch.context() as patch:
            patch.setattr(StoreCatalogue, "create", fail)
            refusal = await client.refusal(b"(Declare t Broadcast (Persistent Strong))")
            assert refusal == b"Declare t: " + FAILED
        await client.ask(b"(Declare t Broadcast (Persistent Strong))")


async def test_messages_that_the_store_cannot_delete_are_not_purged(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored_messages(store, b"Broadcast")
    async with serving(store) as host:
        client = await host.connect()
        with monkeypatch.context() as patch:
            patch.setattr(Environment, "retain", fail)
            assert await client.refusal(b"(Purge t)") == b"Purge t: " + FAILED
        assert await client.ask(b"(Purge t)") == Done(5)


async def test_a_server_that_cannot_store_positions_and_ids_says_so_and_ends(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        async with serving(store) as host:
            client = await declared(host, b"Round_robin (Persistent Strong)")
            await client.ask(b"(Subscribe t From_current)")
            patch.setattr(Environment, "set_positions", fail)
            patch.setattr(StoreCatalogue, "release", fail)
            await client.send(publish(b"t", numbered(1, 5)))
            assert await client.bodies(5) == numbered(1, 5)
    assert "strong: positions are not saved: The disk does not answer." in caplog.messages
    assert "reserved ids are not released: The disk does not answer." in caplog.messages
    # At least once: what was done and not saved is sent again.
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_current)")
        assert await client.bodies(5) == numbered(1, 5)


async def test_messages_at_a_level_of_another_topic_are_reported(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(store) as opened:
        topic = opened.catalogue.create(b"t", "Broadcast", "Strong", True, reserved=100).id
        for level in Level:
            opened.level(level).append([encode(topic, 1, [b"x"], NOON)])
    async with serving(store) as host:
        for level in (Level.WEAK, Level.ASYNC):
            assert f"topic {topic} has messages in {level.value}, which is not its level" in caplog.messages
        client = await host.connect()
        await client.ask(b"(Subscribe t From_beginning)")
        assert await client.bodies(1) == [b"x"]


async def test_times_and_positions_that_cannot_be_read_keep_no_server_from_starting(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin (Persistent Strong)")
        await client.send(publish(b"t", numbered(1, 5)))
        await client.say(b"(Request t 10)")
        await client.ask(b"(Subscribe t From_current)")
        assert await client.bodies(5) == numbered(1, 5)
        await client.say(b"(Received t 1)")
        await client.confirm()
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "blocks", fail)
        async with serving(store) as host:
            assert (
                "topic 0: the time of its last message cannot be read: The disk does not answer."
                in caplog.messages
            )
            assert (
                "topic 0: the number of its messages that are done cannot be read: The disk does not answer."
                in caplog.messages
            )
            client = await host.connect()
            await client.ask(b"(Subscribe t From_current)")
            assert sorted(await client.bodies(4)) == numbered(2, 5)


@pytest.mark.parametrize(
    ("address", "why"),
    [(f"{'x' * 70}:0", "that is no host name"), ("192.0.2.1:1", "Cannot assign requested")],
)
async def test_no_address_is_kept_when_one_cannot_be_had(store: Path, address: str, why: str) -> None:
    with reserved_port() as port:
        with pytest.raises(ListenError, match=f"cannot listen on .*: {why}"):
            async with open_server(Config(listen=[f"127.0.0.1:{port}", address], store=str(store))):
                pass
        assert not await trio.Path(store).exists()
        async with open_server(Config(listen=[f"127.0.0.1:{port}"], store=str(store))) as server:
            assert server.port == port


async def test_a_taken_address_leaves_no_store(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenError, match=f"cannot listen on {address}: Address already in use"):
            async with open_server(Config(listen=[address], store=str(store))):
                pass
    assert not await trio.Path(store).exists()


class WithoutIPv6(trio.abc.SocketFactory):
    """Sockets as on a machine where IPv6 is switched off."""

    def socket(
        self,
        family: socket.AddressFamily | int = socket.AF_INET,
        type: socket.SocketKind | int = socket.SOCK_STREAM,
        proto: int = 0,
    ) -> trio.socket.SocketType:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return trio.socket.from_stdlib_socket(socket.socket(family, type, proto))


async def test_without_ipv6_the_other_addresses_of_a_host_suffice(store: Path) -> None:
    trio.socket.set_custom_socket_factory(WithoutIPv6())
    async with open_server(Config(listen=["localhost:0"], store=str(store))) as server:
        assert [host for host, _ in server.addresses] == ["127.0.0.1"]
    with pytest.raises(ListenError, match=r"cannot listen on \[::1\]:0: Address family not supported"):
        async with open_server(Config(listen=["[::1]:0"], store=str(store))):
            pass


async def test_an_address_that_is_configured_twice_is_refused(store: Path) -> None:
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(ListenError, match=f"cannot listen on {address}: Address already in use"):
            async with open_server(Config(listen=[address, address], store=str(store))):
                pass


async def test_clients_are_refused_while_the_store_is_opened(store: Path) -> None:
    serves = trio.Event()

    async def serve(port: int) -> None:
        async with open_server(Config(listen=[f"127.0.0.1:{port}"], store=str(store))):
            serves.set()
            await trio.sleep_forever()

    threads = trio.to_thread.current_default_thread_limiter()
    borrowers = range(int(threads.total_tokens))
    with reserved_port() as port:
        async with trio.open_nursery() as nursery:
            for borrower in borrowers:
                threads.acquire_on_behalf_of_nowait(borrower)
            nursery.start_soon(serve, port)
            await eventually(lambda: threads.statistics().tasks_waiting > 0)
            with trio.socket.socket() as newcomer, pytest.raises(ConnectionRefusedError):
                await newcomer.connect(("127.0.0.1", port))
            for borrower in borrowers:
                threads.release_on_behalf_of(borrower)
            await serves.wait()
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            nursery.cancel_scope.cancel()


async def test_a_start_that_is_cancelled_leaves_at_once_and_its_store_is_closed_later(store: Path) -> None:
    path = store / FORMAT_FILE
    await trio.Path(store).mkdir()
    os.mkfifo(path)
    threads = trio.to_thread.current_default_thread_limiter()

    async def serve(task_status: "trio.TaskStatus[trio.CancelScope]") -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            async with open_server(Config(listen=["127.0.0.1:0"], store=str(store))):
                pytest.fail("it started without its format")

    async with trio.open_nursery() as nursery:
        scope = await nursery.start(serve)
        with await trio.to_thread.run_sync(open, path, "wb") as pipe:  # as soon as the server reads
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks
            pipe.write(b'{"format": %d, "begun": true}' % FORMAT)
    await eventually(lambda: threads.statistics().borrowed_tokens == 0)
    with Store.open(store):  # nobody has it
        pass


async def test_connections_wait_while_there_are_no_descriptors(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host:
        known = await host.connect()
        with trio.socket.socket() as newcomer:
            with no_descriptors():
                await newcomer.connect(("127.0.0.1", host.port))
                await eventually(
                    lambda: "a connection cannot be accepted: Too many open files" in caplog.text
                )
                await known.confirm()
            assert host.server.statistics().connections == 1
            clock.jump(PAUSE_SECONDS)
            await eventually(lambda: host.server.statistics().connections == 2)
