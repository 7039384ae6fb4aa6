"""The objects of a connection are free as soon as it is over (`garbage`)."""

import socket
import struct
from pathlib import Path

import pytest
import trio
from garbage import uncollected
from server.conversation import eventually, serving

from .raw_client import Client
from .wire import (
    consume,
    declare_queue,
    delete_queue,
    frame,
    get,
    header,
    method,
    publish,
    publishing,
    select_confirms,
    select_tx,
    short,
)

SIZE = 1_000_000

BODY = 3
"""The type of a frame with a part of a body."""

CLOSE = method(0, 10, 50, b"\0\xc8" + short("bye") + b"\0\0\0\0")


def use_channels(client: Client) -> None:
    """Use channels of each kind. Leave messages unsettled and one incomplete."""
    client.shake_hands("guest", "guest")
    for channel in range(1, 5):
        client.open(channel)
    client.call(declare_queue(1, "jobs", durable=1))
    client.call(declare_queue(1, "own", exclusive=1))
    client.call(declare_queue(1, "rest", durable=1))
    client.call(declare_queue(1, "gone"))
    client.call(select_confirms(1))
    for queue in ("jobs", "jobs", "own", "rest"):
        assert client.call(publish(1, "", queue, b"x")).name == "ack"
    assert client.call(get(1, "jobs")).body == b"x"
    for queue in ("jobs", "own"):
        assert client.call(consume(2, queue, queue)).name == "consume-ok"
        assert client.wait().body == b"x"
    direct = "amq.rabbitmq.reply-to"
    assert client.call(consume(2, direct, "replies", no_ack=1)).name == "consume-ok"
    assert client.call(consume(2, "gone", "gone")).name == "consume-ok"
    assert client.call(delete_queue(1, "gone")).name == "delete-ok"
    assert client.wait().name == "basic.cancel"
    client.call(select_tx(3))
    client.send(publish(3, "", "jobs", b"y"))
    client.send(publishing(4, "", "rest"), header(4, SIZE), frame(BODY, 4, bytes(100_000)))
    assert client.call(declare_queue(1, "jobs", passive=1)).name == "queue.declare-ok"


def reset(client: Client) -> None:
    """End the connection the hard way: the server gets a reset instead of an end."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("how", ["closed", "ended", "reset", "stopped"])
async def test_connections_leave_nothing_behind(tmp_path: Path, how: str) -> None:
    with uncollected() as left:
        async with serving(tmp_path / "store") as host:
            with Client(("127.0.0.1", host.port)) as client:
                await trio.to_thread.run_sync(use_channels, client)
                match how:
                    case "closed":
                        closed = await trio.to_thread.run_sync(client.call, CLOSE)
                        assert closed.name == "close-ok"
                    case "reset":
                        reset(client)
                    case "stopped":
                        await host.server.stop()
                        closed = await trio.to_thread.run_sync(client.wait)
                        assert closed.name == "connection.close"
            await eventually(lambda: host.server.connections == 0)
            await eventually(lambda: not left())
