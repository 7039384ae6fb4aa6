"""OpenAMQ's clients in direct mode: their recorded octets, with the leases and queue names of this server."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dmp_recordings import sent
from server_command import RunningServer, running_server

from . import raw_client, wire
from .broker import Broker
from .raw_client import Client

DIRECT = 61500
HEADER = 8
"""The octets of a protocol header, those of a frame around its payload, and the type of heartbeats."""

END = b"\xce"
GREETING = b"200 OK DP/0.1"
PRINCIPAL = "A_pub.conn1"
SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server whose clients may do everything."""
    store = tmp_path_factory.mktemp("direct") / "store"
    with running_server("--listen", "127.0.0.1:0", "--store", store) as server:
        yield server


class Principal:
    """The AMQP connection of a recorded client, which sends its frames one by one."""

    def __init__(self, broker: Broker, name: str = PRINCIPAL) -> None:
        self._socket = socket.create_connection(broker.address, SECONDS)
        octets = sent(name, "C")
        self._octets = octets[HEADER:]
        self._socket.sendall(octets[:HEADER])
        self._received = b""
        self.start = self.answer(10, 10)
        self.send_next()
        self.answer(10, 30)
        self.send_next()  # Tune-Ok
        self.send_next()
        self.answer(10, 41)
        self.send_next()
        self.answer(20, 11)

    def close(self) -> None:
        self._socket.close()

    def leave(self) -> None:
        """Send the recorded Channel.Close and Connection.Close, and close the socket after the answers."""
        self.send_next()
        self.answer(20, 41)
        self.send_next()
        self.answer(10, 51)
        self.close()

    def peek(self) -> bytes:
        """Return the next recorded frame."""
        return self._octets[: struct.unpack_from(">I", self._octets, 3)[0] + HEADER]

    def send_next(self, change: Callable[[bytes], bytes] = lambda octets: octets) -> None:
        """Send the next recorded frame, changed in its payload; leave heartbeats out."""
        while (octets := self.peek())[0] == HEADER:
            self._octets = self._octets[len(octets) :]
        self._octets = self._octets[len(octets) :]
        kind, channel, _ = struct.unpack_from(">BHI", octets)
        self._socket.sendall(wire.frame(kind, channel, change(octets[7:-1])))

    def send(self, octets: bytes) -> None:
        self._socket.sendall(octets)

    def frame(self) -> bytes:
        """Return the next frame that is no heartbeat."""
        while True:
            if len(self._received) >= HEADER:
                size = struct.unpack_from(">I", self._received, 3)[0] + HEADER
                if len(self._received) >= size:
                    found, self._received = self._received[:size], self._received[size:]
                    assert found.endswith(END)
                    if found[0] != HEADER:
                        return found
                    continue
            octets = self._socket.recv(65536)
            assert octets, "the server closed the connection"
            self._received += octets

    def answer(self, class_id: int, method_id: int) -> bytes:
        """Return the arguments of the next method, which must be this one."""
        octets = self.frame()
        assert struct.unpack_from(">HH", octets, 7) == (class_id, method_id), octets
        return octets[11:-1]

    def lease(self) -> bytes:
        """Return the lease of Put-Ok or Get-Ok."""
        found = self.frame()
        assert struct.unpack_from(">HH", found, 7) in ((DIRECT, 11), (DIRECT, 21)), found
        return found[12:-1]


class Dmp:
    """A DMP connection that has shown its lease."""

    def __init__(self, broker: Broker, lease: bytes) -> None:
        self.socket = socket.create_connection(broker.address, SECONDS)
        self.socket.sendall(b"AMQP\x0a\x01\x00\x01" + wire.short(lease))
        assert self.short() == GREETING
        self.said = self.short()

    def exactly(self, count: int) -> bytes:
        octets = b""
        while len(octets) < count:
            more = self.socket.recv(count - len(octets))
            assert more, f"the server closed the connection after {octets!r}"
            octets += more
        return octets

    def short(self) -> bytes:
        return self.exactly(self.exactly(1)[0])

    def envelope(self) -> bytes:
        """Return the next envelope that is no null message."""
        while not (size := struct.unpack(">I", octets := self.exactly(4))[0]):
            pass
        return octets + self.exactly(size)

    def close(self) -> None:
        self.socket.close()


def envelopes_sent(name: str) -> bytes:
    """Return the octets that a recorded sink sent after its lease."""
    octets = sent(name, "C")[HEADER:]
    return octets[1 + octets[0] :]


def envelopes_delivered(name: str) -> bytes:
    """Return the envelopes that a recorded feed received after its ready response, without null messages."""
    octets = sent(name, "S")
    for _ in range(2):
        octets = octets[1 + octets[0] :]
    found = b""
    while octets:
        size = 4 + struct.unpack_from(">I", octets)[0]
        found += octets[:size] if size > 4 else b""
        octets = octets[size:]
    return found


def feed(broker: Broker, name: str) -> tuple[Principal, Dmp, bytes]:
    """Return a recorded consumer up to the ready response of its feed; its queue's name, too."""
    principal = Principal(broker, name)
    if struct.unpack_from(">HH", principal.peek(), 7) == (40, 10):
        principal.send_next()
        principal.answer(40, 11)
    principal.send_next()
    declared = principal.answer(50, 11)
    queue = declared[1 : 1 + declared[0]]
    assert queue
    principal.send_next(lambda _: struct.pack(">HH", DIRECT, 20) + wire.short(queue))
    connection = Dmp(broker, principal.lease())
    assert connection.said == b"200 OK Feed '%s' ready" % queue
    return principal, connection, queue


def renamed(old: bytes, queue: bytes) -> Callable[[bytes], bytes]:
    """Change the name of a queue in the payload of a method."""
    return lambda payload: payload.replace(wire.short(old), wire.short(queue))


def test_the_server_offers_direct_mode(broker: Broker) -> None:
    with closing(Principal(broker)) as principal:
        assert b"\x06directI\0\0\0\x01" in principal.start


def consuming_feed(broker: Broker, name: str, old: bytes) -> tuple[Principal, Dmp, bytes]:
    """Return a recorded consumer that has bound and consumes its queue, whose name was `old`."""
    principal, connection, queue = feed(broker, name)
    principal.send_next(renamed(old, queue))
    principal.answer(50, 21)
    principal.send_next(renamed(old, queue))
    principal.answer(60, 21)
    return principal, connection, queue


def test_a_message_of_openamq_arrives_octet_for_octet(broker: Broker) -> None:
    principal, connection, _ = consuming_feed(broker, "A_sub.conn1", b"auto.0")
    for number in (1, 3, 5, 7):
        with closing(Principal(broker, f"A_pub.conn{number}")) as publisher:
            publisher.send_next()
            with closing(Dmp(broker, publisher.lease())) as sink:
                assert sink.said == b"200 OK Sink 'amq.direct' ready"
                sink.socket.sendall(envelopes_sent(f"A_pub.conn{number + 1}"))
                sink.socket.shutdown(socket.SHUT_WR)
                assert b"messages stored" in sink.short()
    expected = envelopes_delivered("A_sub.conn2")
    assert connection.exactly(len(expected)) == expected
    principal.close()
    connection.close()


def test_one_client_that_publishes_and_receives(broker: Broker) -> None:
    principal, connection, queue = feed(broker, "C_amq_client.conn1")
    principal.send_next(renamed(b"auto.1", queue))
    principal.answer(50, 21)
    principal.send_next(renamed(b"auto.1", queue))
    tag = principal.answer(60, 21)
    principal.send_next()
    with closing(Dmp(broker, principal.lease())) as sink:
        octets = envelopes_sent("C_amq_client.conn3")
        key = wire.short(b"auto.1")
        assert key in octets
        body = b"body"
        envelope = (
            wire.short(b"amq.direct") + wire.short(queue) + b"\0\0" + struct.pack(">I", len(body)) + body
        )
        sink.socket.sendall(struct.pack(">I", len(envelope)) + envelope)
        assert connection.envelope()[4:] == envelope
    principal.send_next(lambda _: struct.pack(">HH", 60, 30) + tag + b"\0")
    assert principal.answer(60, 31) == tag
    principal.leave()
    connection.close()


@pytest.mark.parametrize("name", ["B_mandatory", "B_mandimm"])
def test_mandatory_messages_without_a_route_come_back_to_the_principal(name: str, broker: Broker) -> None:
    principal = Principal(broker, f"{name}.conn1")
    principal.send_next()
    with closing(Dmp(broker, principal.lease())) as sink:
        sink.socket.sendall(envelopes_sent(f"{name}.conn2"))
        expected = sent(f"{name}.conn1", "S")
        begin = expected.index(b"\0\x3c\0\x32\x01\x36") - 7
        frames = [principal.frame() for _ in range(3)]
        assert expected[begin:].startswith(b"".join(frames))
        assert b"no route is defined" in frames[0]
    principal.close()


def test_the_default_exchange_is_called_as_openamq_calls_it(broker: Broker) -> None:
    client = broker.channel()
    client.call(wire.declare_queue(1, "some.queue"))
    with closing(Principal(broker, "C_defexch.conn1")) as principal:
        principal.send_next()
        with closing(Dmp(broker, principal.lease())) as sink:
            assert sink.said == b"200 OK Sink '$default$' ready"
            sink.socket.sendall(envelopes_sent("C_defexch.conn2"))
            sink.socket.shutdown(socket.SHUT_WR)
            assert sink.short() == b"200 OK 1 messages stored"
    assert client.call(wire.get(1, "some.queue", no_ack=1)).body == b"to default exchange"


def direct(client: Client, method_id: int, name: str) -> raw_client.Reply:
    return client.call(wire.method(1, DIRECT, method_id, wire.short(name)))


@pytest.mark.parametrize("method_id", [10, 20])
def test_leases_for_missing_topics_are_refused(method_id: int, broker: Broker) -> None:
    client = broker.channel()
    answer = direct(client, method_id, "nosuch")
    assert answer.told() == f"channel.close 404 NOT_FOUND (61500,{method_id})"


def test_feeds_of_queues_that_are_not_owned(broker: Broker) -> None:
    client = broker.channel()
    client.call(wire.declare_queue(1, "shared"))
    assert direct(client, 20, "shared").told() == "channel.close 404 NOT_FOUND (61500,20)"
    other = broker.channel()
    assert direct(other, 20, "").told() == "connection.close 502 SYNTAX_ERROR (61500,20)"


def test_the_queue_of_a_feed_lives_until_both_connections_are_gone(broker: Broker) -> None:
    principal, connection, queue = feed(broker, "A_sub.conn1")
    name = queue.decode()
    principal.send_next(renamed(b"auto.0", queue))
    principal.answer(50, 21)
    principal.send_next(renamed(b"auto.0", queue))
    principal.answer(60, 21)
    principal.leave()
    client = broker.channel()
    client.send(wire.publish(1, "amq.direct", "dmp.test", b"late"))
    assert connection.envelope().endswith(b"late")
    connection.close()
    gone = "channel.close 404"
    answer = raw_client.until(gone, lambda: broker.channel().call(wire.declare_queue(1, name, passive=1)))
    assert answer.told().startswith(gone)


# -- sinks and feeds of any client --------------------------------------------------------------------------


def lease(client: Client, method_id: int, name: str) -> bytes:
    """Return the lease that Put (10) or Get (20) grants."""
    answer = direct(client, method_id, name)
    assert answer.name in ("put-ok", "get-ok(direct)"), answer.told()
    return answer.args[1:]


def envelope(key: str, body: bytes, options: int = 0, props: bytes = wire.NO_PROPERTIES) -> bytes:
    octets = (
        wire.short("kept") + wire.short(key) + props + struct.pack(">I", options << 24 | len(body)) + body
    )
    return struct.pack(">I", len(octets)) + octets


MANDATORY = 2


def test_a_sink_routes_each_envelope_by_its_key(broker: Broker) -> None:
    client = broker.channel()
    for name, key in (("red", "r.*"), ("blue", "b.*"), ("all", "#")):
        client.call(wire.declare_queue(1, name, exclusive=1))
        client.call(wire.bind(1, name, "amq.topic", key))
    with closing(Dmp(broker, lease(client, 10, "amq.topic"))) as sink:
        sent_now = [envelope(key, b"%d" % at) for at, key in enumerate(("r.1", "b.1", "r.2", "r.2", "x"))]
        sink.socket.sendall(b"".join(sent_now))
        sink.socket.shutdown(socket.SHUT_WR)
        assert sink.short() == b"200 OK 5 messages stored"
    found = {}
    for name in ("red", "blue", "all"):
        bodies = found[name] = list[bytes]()
        while (got := client.call(wire.get(1, name, no_ack=1))).name == "get-ok":
            bodies.append(got.body)
            assert b"\x04kept" in got.args  # the exchange in the envelope
    assert found == {"red": [b"0", b"2", b"3"], "blue": [b"1"], "all": [b"0", b"1", b"2", b"3", b"4"]}


def test_a_sink_of_an_exchange_that_looks_at_headers(broker: Broker) -> None:
    client = broker.channel()
    client.call(wire.declare_queue(1, "warm", exclusive=1))
    client.call(wire.bind_by(1, "warm", "amq.headers", {"colour": "red"}))
    with closing(Dmp(broker, lease(client, 10, "amq.headers"))) as sink:
        colours = ("red", "blue", "red")
        octets = [
            envelope("k", colour.encode(), MANDATORY, wire.properties(headers={"colour": colour}))
            for colour in colours
        ]
        sink.socket.sendall(b"".join(octets))
        returned = client.wait()
        assert (returned.told().split(" - ")[0], returned.body) == (
            "return 310 Message cannot be processed", b"blue",
        )  # fmt: skip
        sink.socket.shutdown(socket.SHUT_WR)
        assert sink.short() == b"200 OK 2 messages stored"
    assert (
        client.call(wire.declare_queue(1, "warm", passive=1)).told().startswith("queue.declare-ok messages=2")
    )


def test_envelopes_without_a_route_and_without_flags_are_dropped(broker: Broker) -> None:
    client = broker.channel()
    with closing(Dmp(broker, lease(client, 10, "amq.fanout"))) as sink:
        sink.socket.sendall(envelope("k", b"x") + b"\0\0\0\x08" + bytes(8) + envelope("k", b"y", 1))
        sink.socket.shutdown(socket.SHUT_WR)
        assert sink.short() == b"200 OK 0 messages stored"
    # Nothing was returned before this answer, not even what was immediate.
    assert client.call(wire.declare_queue(1, "", exclusive=1)).name == "queue.declare-ok"


def test_an_exchange_that_is_deleted_ends_its_sinks(broker: Broker) -> None:
    client = broker.channel()
    client.call(wire.declare_exchange(1, "short.lived"))
    with closing(Dmp(broker, lease(client, 10, "short.lived"))) as sink:
        client.call(wire.delete_exchange(1, "short.lived"))
        sink.socket.sendall(envelope("k", b"x"))
        assert sink.short().startswith(b"404 NOT-FOUND 0 messages stored")


def test_internal_exchanges_have_no_sinks(broker: Broker) -> None:
    client = broker.channel()
    client.call(wire.declare_exchange(1, "inner", internal=1))
    assert direct(client, 10, "inner").told() == "channel.close 403 ACCESS_REFUSED (61500,10)"


def test_a_sink_of_a_topic_and_a_feed_of_a_stream(broker: Broker) -> None:
    client = broker.channel()
    client.call(wire.declare_queue(1, "log", durable=1, x_queue_type="stream"))
    with (
        closing(Dmp(broker, lease(client, 20, "log"))) as stream,
        closing(Dmp(broker, lease(client, 10, "log"))) as sink,
    ):
        assert (stream.said, sink.said) == (b"200 OK Feed 'log' ready", b"200 OK Sink 'log' ready")
        sink.socket.sendall(envelope("any", b"entry"))
        assert stream.envelope() == envelope("any", b"entry")


def test_a_feed_is_stopped_by_cancel_and_goes_on_with_consume(broker: Broker) -> None:
    client = broker.channel()
    client.call(wire.declare_queue(1, "mine", exclusive=1))
    with closing(Dmp(broker, lease(client, 20, "mine"))) as connection:
        client.send(wire.publish(1, "", "mine", b"early"))
        assert client.call(wire.consume(1, "mine", "t", no_ack=1)).text == "t"
        assert connection.envelope().endswith(b"early")
        again = client.call(wire.consume(1, "mine", "t", no_ack=1))
        assert again.told() == "connection.close 530 NOT_ALLOWED (60,20)"
    client = broker.channel()
    client.call(wire.declare_queue(1, "mine2", exclusive=1))
    with closing(Dmp(broker, lease(client, 20, "mine2"))) as connection:
        client.call(wire.consume(1, "mine2", "t", no_ack=1))
        assert client.call(wire.cancel(1, "t")).name == "cancel-ok"
        client.send(wire.publish(1, "", "mine2", b"waits"))
        assert client.call(wire.declare_queue(1, "mine2", passive=1)).told() == (
            "queue.declare-ok messages=1 consumers=1"
        )
        client.call(wire.consume(1, "mine2", "u", no_ack=1))
        assert connection.envelope().endswith(b"waits")


def timed(octets: int) -> bytes:
    """Return properties with a time of N `octets` among the headers."""
    return b"\x20\0" + wire.long(wire.short("t") + b"T" + (5).to_bytes(octets, "big"))


OWN, ORDINARY = timed(4), timed(8)


def test_times_in_envelopes_of_openamq_have_four_octets(broker: Broker) -> None:
    principal, connection, queue = consuming_feed(broker, "C_amq_client.conn1", b"auto.1")
    principal.send_next()
    client = broker.channel()
    client.call(wire.declare_queue(1, "times", exclusive=1))
    client.call(wire.bind(1, "times", "amq.direct", "times"))
    name = queue.decode()
    with closing(Dmp(broker, principal.lease())) as sink:
        sink.socket.sendall(envelope(name, b"own", props=OWN) + envelope("times", b"others", props=OWN))
        assert connection.envelope() == envelope(name, b"own", props=OWN)
        sink.socket.shutdown(socket.SHUT_WR)
        assert sink.short() == b"200 OK 2 messages stored"
    got = client.call(wire.get(1, "times", no_ack=1))
    assert (got.body, got.raw_properties) == (b"others", ORDINARY)
    client.send(wire.publish(1, "amq.direct", name, b"back", ORDINARY))
    assert connection.envelope().endswith(OWN + struct.pack(">I", 4) + b"back")
    principal.close()
    connection.close()


def test_times_in_long_envelopes_of_openamq(broker: Broker) -> None:
    client = broker.channel()
    client.call(wire.declare_queue(1, "long times", durable=1, x_queue_type="stream"))
    client.call(wire.consume(1, "long times"))
    data = bytes(1 << 20)
    with closing(Principal(broker)) as principal:
        principal.send_next(lambda _: struct.pack(">HH", DIRECT, 10) + wire.short("long times"))
        lease_of_sink = principal.lease()
        principal.send(wire.method(1, DIRECT, 20, wire.short("long times")))
        with (
            closing(Dmp(broker, principal.lease())) as stream,
            closing(Dmp(broker, lease_of_sink)) as sink,
        ):
            sink.socket.sendall(envelope("any", data, props=OWN))
            assert stream.envelope() == envelope("any", data, props=OWN)
    delivered = client.wait()
    assert delivered.body == data
    assert delivered.properties["headers"] == {"t": "T:5", "x-stream-offset": "l:1"}


def test_direct_mode_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "omq.toml").write_text("amqp_direct = false\n")
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store", "--config", tmp_path / "omq.toml")
    with running_server(*options) as server, closing(Broker(("127.0.0.1", server.port))) as broker:
        with closing(Principal(broker)) as principal:
            assert b"\x06direct" not in principal.start
        client = broker.channel()
        assert direct(client, 10, "amq.direct").told() == "connection.close 540 NOT_IMPLEMENTED (61500,10)"
