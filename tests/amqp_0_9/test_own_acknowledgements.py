"""A connection that publishes and acknowledges never waits for its own acknowledgements."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from server_command import RunningServer, running_server

from omq.client import Delivery, Transient, connect

from .raw_client import Client
from .wire import ack, consume, declare_queue, publish, qos, select_confirms

MESSAGES = 600
BODY = b"x" * 50_000  # together 30 MB, far more than the memory has for them
FILLED = [f"filled-{number}" for number in range(8)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    (tmp_path / "omq.toml").write_text("memory_bytes = 8_000_000\n")
    settings = ("--config", tmp_path / "omq.toml", "--listen", "127.0.0.1:0")
    with running_server(*settings, "--store", tmp_path / "store") as server:
        yield server


@pytest.mark.parametrize("made_by", ["amqp", "omq"])
def test_many_messages_are_published_before_one_is_acknowledged(server: RunningServer, made_by: str) -> None:
    if made_by == "omq":

        async def declare() -> None:
            async with connect(f"omq://127.0.0.1:{server.port}") as client:
                await client.declare("q", Delivery.ROUND_ROBIN, Transient())

        trio.run(declare)
    with Client(("127.0.0.1", server.port)) as client:
        client.shake_hands("guest", "guest")
        client.open()
        client.call(select_confirms(1))
        if made_by == "amqp":
            client.call(declare_queue(1, "q", exclusive=1))
        client.call(qos(1, 1))
        client.call(consume(1, "q"))
        client.socket.settimeout(60)
        for number in range(MESSAGES):
            client.send(publish(1, "", "q", b"%d:" % number + BODY))
            assert not client.has_ended, number
        # Now read: the confirmations, and the messages one by one, as they are acknowledged.
        confirmed, got = 0, 0
        deadline = time.monotonic() + 60
        while (confirmed < MESSAGES or got < MESSAGES) and time.monotonic() < deadline:
            reply = client.wait()
            if reply.name == "deliver":
                assert reply.body.startswith(b"%d:" % got)
                got += 1
                client.send(ack(1, reply.tag))
            elif reply.name == "ack":
                confirmed = reply.tag
            else:
                raise AssertionError(reply.name)
        assert (confirmed, got) == (MESSAGES, MESSAGES)


def test_a_topic_without_ids_takes_a_message_while_the_memory_is_full(tmp_path: Path) -> None:
    """Only acknowledgements behind that message on its connection would make room."""

    async def declare(port: int) -> None:
        async with connect(f"omq://127.0.0.1:{port}") as client:
            for topic in (*FILLED, "late"):
                await client.declare(topic, Delivery.ROUND_ROBIN, Transient())

    (tmp_path / "omq.toml").write_text("memory_bytes = 8_000_000\n")
    settings = ("--config", tmp_path / "omq.toml", "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*settings) as server:
        trio.run(declare, server.port)
    # A topic gets new ids with the first message after a start.
    with running_server(*settings) as server, Client(("127.0.0.1", server.port)) as client:
        client.shake_hands("guest", "guest")
        client.open()
        client.call(select_confirms(1))
        client.call(qos(1, 1))
        for topic in FILLED:
            client.call(consume(1, topic))
        count = 0
        for _ in range(30):
            for topic in FILLED:
                client.send(publish(1, "", topic, BODY))
                count += 1
        client.send(publish(1, "", "late", BODY))
        count += 1
        confirmed, deadline = 0, time.monotonic() + 60
        while confirmed < count and time.monotonic() < deadline:
            reply = client.wait()
            assert reply.name in ("ack", "deliver")
            if reply.name == "ack":
                confirmed = reply.tag
        assert confirmed == count
