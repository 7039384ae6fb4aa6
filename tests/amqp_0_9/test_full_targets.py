"""Dead letters and moved messages do not wait for the workers of the topics that get them.

These workers may wait themselves: for room in the queue with the letters, or for the answer to Move.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from server_command import RunningServer, running_server

from omq import management as m
from omq.client import Delivery, Transient, connect

from .raw_client import Client, until
from .wire import consume, declare_queue, nack, publish, select_confirms

COUNT = 100
BODY = b"x" * 50_000  # COUNT of them are more than the share of the memory for such messages


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    (tmp_path / "omq.toml").write_text("memory_bytes = 4_194_304\n")
    settings = ("--config", tmp_path / "omq.toml", "--listen", "127.0.0.1:0")
    with running_server(*settings, "--store", tmp_path / "store") as server:
        yield server


def fill(client: Client, queue: str, count: int = COUNT) -> None:
    """Publish N `count` messages to a queue, and read the confirmations."""
    for number in range(count):
        client.send(publish(1, "", queue, b"%d:" % number + BODY))
    confirmed = 0
    while confirmed < count:
        reply = client.wait()
        assert reply.name == "ack"
        confirmed = reply.tag


def declared(queue: str) -> bytes:
    return declare_queue(1, queue, passive=1)


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(("127.0.0.1", server.port)) as client:
        client.shake_hands("guest", "guest")
        client.open()
        client.call(select_confirms(1))
        yield client


async def declare_topic(port: int) -> None:
    async with connect(f"omq://127.0.0.1:{port}") as client:
        await client.declare("full", Delivery.ROUND_ROBIN, Transient())


def test_dead_letters_leave_their_queue_when_their_target_is_full(
    server: RunningServer, client: Client
) -> None:
    trio.run(declare_topic, server.port)
    client.call(
        declare_queue(1, "q", exclusive=1, x_dead_letter_exchange="", x_dead_letter_routing_key="full")
    )
    fill(client, "q")
    client.call(consume(1, "q"))
    last = client.deliveries(COUNT)[-1].tag
    client.send(nack(1, last, multiple=1, requeue=0))
    everything = f"queue.declare-ok messages={COUNT} "
    assert until(everything, lambda: client.call(declared("full"))).told().startswith(everything)
    client.call(consume(1, "full"))
    bodies = client.bodies(COUNT)
    assert [body.partition(b":")[0] for body in bodies] == [b"%d" % number for number in range(COUNT)]


def test_a_worker_moves_messages_to_its_own_full_topic(server: RunningServer, client: Client) -> None:
    trio.run(declare_topic, server.port)
    client.call(declare_queue(1, "q"))
    fill(client, "q")

    async def move() -> object:
        async with (
            connect(f"omq://127.0.0.1:{server.port}") as worker,
            worker.subscribe("full", credit=1),
        ):
            with trio.fail_after(60):
                return await worker.manage(m.Move(b"q", b"full", COUNT))

    assert trio.run(move) == m.Done(COUNT)
    assert client.call(declared("full")).told() == f"queue.declare-ok messages={COUNT} consumers=0"
