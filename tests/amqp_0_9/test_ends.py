"""Ends of connections by the server: at its stop, because of octets from strangers, and at a quota."""

import re
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
from server_command import running_server

from .broker import Broker
from .serving import client_table, serving_guest
from .wire import body, consume, declare_queue, get, header, long, method, publish, publishing, short, table


def test_clients_are_told_that_the_server_stops(tmp_path: Path) -> None:
    with serving_guest(tmp_path) as server:
        client = Broker(("127.0.0.1", server.port)).channel()
        client.said(declare_queue(1, "q", durable=1), consume(1, "q", "t"))
        server.process.send_signal(signal.SIGTERM)
        assert client.wait().told() == "connection.close 320 CONNECTION_FORCED (0,0)"
        assert client.wait().name == "EOF"
        assert server.process.wait(timeout=60) == 0
        client.close()


def test_a_client_that_has_only_logged_in_is_told_that_the_server_stops(tmp_path: Path) -> None:
    with serving_guest(tmp_path) as server:
        client = Broker(("127.0.0.1", server.port)).reach()
        client.send(b"AMQP\0\0\x09\1")
        assert client.wait().name == "start"
        response = short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        assert client.call(method(0, 10, 11, table({}) + response)).name == "tune"
        server.process.send_signal(signal.SIGTERM)
        assert client.wait().told() == "connection.close 320 CONNECTION_FORCED (0,0)"
        assert client.wait().name == "EOF"
        assert server.process.wait(timeout=60) == 0
        client.close()


def test_the_messages_of_a_connection_are_counted(tmp_path: Path) -> None:
    with serving_guest(tmp_path) as server:
        client = Broker(("127.0.0.1", server.port)).channel()
        large = b"x" * 3_000_000  # its body comes in parts
        client.call(declare_queue(1, "q"))
        client.send(publish(1, "", "q", b"a"), publish(1, "", "q", b"b"))
        client.send(publishing(1, "", "q"), header(1, len(large)))
        client.send(*(body(1, large[begin : begin + 100_000]) for begin in range(0, len(large), 100_000)))
        assert client.call(get(1, "q")).body == b"a"
        assert client.call(consume(1, "q", "t")).name == "consume-ok"
        assert client.wait().body == b"b"
        assert client.wait().body == large
        client.call(method(0, 10, 50, b"\0" * 7))
        client.close()
        log = server.stop()[2]
    assert re.search(r"'guest' \(AMQP 0-9-1\) .*; 3 messages and \d+ octets in, 3 messages and", log)


@pytest.mark.parametrize("octets", [20_000, 100_000])
def test_a_stranger_sends_no_long_frame(tmp_path: Path, octets: int) -> None:
    with serving_guest(tmp_path) as server:
        client = Broker(("127.0.0.1", server.port)).reach()
        client.send(b"AMQP\0\0\x09\1", struct.pack(">BHI", 1, 0, octets) + bytes(18_000))
        assert client.wait().name == "start"
        assert client.wait().told() == "connection.close 501 FRAME_ERROR (0,0)"
        client.close()


def test_the_connections_of_a_client_are_counted(tmp_path: Path) -> None:
    (tmp_path / "omq.toml").write_text(client_table("guest", {}) + "max_connections = 1\n")
    options = ("--config", tmp_path / "omq.toml", "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*options) as server:
        broker = Broker(("127.0.0.1", server.port))
        assert broker.connect().opened.name == "open-ok"
        assert broker.connect().tune.told() == "connection.close 530 NOT_ALLOWED (0,0)"
        broker.close()


@pytest.mark.parametrize("option", ["x_dead_letter_exchange", "x_dead_letter_routing_key"])
def test_a_name_for_dead_letters_has_at_most_255_octets(tmp_path: Path, option: str) -> None:
    with serving_guest(tmp_path) as server:
        broker = Broker(("127.0.0.1", server.port))
        longest: dict[str, Any] = {"x_dead_letter_exchange": "", option: "x" * 255}
        assert broker.channel().call(declare_queue(1, "q", **longest)).name == "queue.declare-ok"
        refused = broker.channel().call(declare_queue(1, "r", **{**longest, option: "x" * 256}))
        assert refused.told().startswith("channel.close 406 PRECONDITION_FAILED")
        broker.close()
