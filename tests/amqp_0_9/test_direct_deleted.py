"""Sinks of OpenAMQ's direct mode for an exchange of which a queue is deleted meanwhile."""

import socket
from contextlib import AsyncExitStack, closing
from pathlib import Path

import trio
from server.conversation import eventually, serving

from . import wire
from .broker import Broker
from .raw_client import Client
from .test_direct import Dmp, envelope, lease


async def test_a_queue_that_is_deleted_before_the_commit_does_not_end_the_sink(tmp_path: Path) -> None:
    """The other queue of the exchange has the message: the sink is told so."""

    def begin(broker: Broker) -> tuple[Client, Dmp]:
        client = broker.channel()
        for name in ("kept", "deleted"):
            client.call(wire.declare_queue(1, name, durable=1))
            client.call(wire.bind(1, name, "amq.fanout", ""))
        return client, Dmp(broker, lease(client, 10, "amq.fanout"))

    def delete(client: Client) -> None:
        assert client.call(wire.delete_queue(1, "deleted")).name == "delete-ok"

    async with serving(tmp_path / "store") as host:
        server = host.server
        broker = Broker(("127.0.0.1", server.port))
        with closing(broker):
            client, sink = await trio.to_thread.run_sync(begin, broker)
            locks = [writer.paused() for writer in server.catalogue.writers.values()]

            def is_committing() -> bool:
                return any(isinstance(lock, trio.Lock) and lock.statistics().tasks_waiting for lock in locks)

            def is_deleted() -> bool:
                return all(driver.topic.topic != b"deleted" for driver in server.catalogue)

            with closing(sink):
                async with trio.open_nursery() as deleting, AsyncExitStack() as paused:
                    for lock in locks:
                        await paused.enter_async_context(lock)
                    sink.socket.sendall(envelope("k", b"x"))
                    sink.socket.shutdown(socket.SHUT_WR)
                    await eventually(is_committing)
                    deleting.start_soon(trio.to_thread.run_sync, delete, client)
                    await eventually(is_deleted)
                assert await trio.to_thread.run_sync(sink.short) == b"200 OK 1 messages stored"
