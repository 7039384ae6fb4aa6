"""SIGHUP: the configuration is read again, and connections that are still allowed do not notice."""

import hashlib
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pika
import pytest
from cli_helpers import watch_until
from server_command import RunningServer, running_server

from omq.access.hashes import SecretHash
from omq.protocol.handshake import DMP_HEADER

ERROR, PING, MESSAGE, SUBSCRIBED, CONFIRMED, LEASED = 0, 1, 2, 3, 6, 7

DMP_GREETING = b"\x0d200 OK DP/0.1"


def hash_of(secret: str) -> str:
    """Return the hash of a secret, computed at the lowest cost."""
    salt = secret.ljust(16).encode()[:16]
    return str(SecretHash(1, 8, 1, salt, hashlib.scrypt(secret.encode(), salt=salt, n=2, r=8, p=1, dklen=32)))


def client(name: str, *secrets: str, **lists: object) -> str:
    """Return a `[[clients]]` table, with the right to all topics where no other is given."""
    hashes = [hash_of(secret) for secret in secrets]
    rights = {"declare": ["*"], "publish": ["*"], "subscribe": ["*"]} | lists
    keys = {"name": name, "secret": hashes[0] if len(hashes) == 1 else hashes, **rights}
    return "[[clients]]\n" + "".join(f"{key} = {value!r}\n" for key, value in keys.items())


class Peer:
    """An omq connection of a client, from an address of its own, so that wrong secrets delay no other."""

    numbers = iter(range(2, 250))

    def __init__(self, server: RunningServer, id: str, closing: ExitStack) -> None:
        self.host = f"127.0.0.{next(self.numbers)}"
        here, there = (self.host, 0), ("127.0.0.1", server.port)
        self.socket = closing.enter_context(socket.create_connection(there, 60, source_address=here))
        self.input = closing.enter_context(self.socket.makefile("rb"))
        self.say(bytes(7) + b"\1" + f'(Connect 1 "{id}")\n'.encode())
        assert len(self.input.read(8)) == 8

    def say(self, octets: bytes) -> None:
        self.socket.sendall(octets)

    def frame(self) -> tuple[int, bytes]:
        """Return the next frame that is no Ping: its type and payload; (-1, b"") at the end."""
        while head := self.input.read(4):
            whole = self.input.read(int.from_bytes(head, "big"))
            if whole[0] != PING:
                return whole[0], whole[1:]
        return -1, b""

    def ask(self, command: bytes) -> tuple[int, bytes]:
        self.say(command + b"\n")
        return self.frame()

    def works(self) -> bool:
        return self.ask(b"(Confirm 5)")[0] == CONFIRMED

    def end(self) -> bytes:
        """Return the Error with which the server ends the connection. Reports on sinks may follow."""
        kind, payload = self.frame()
        assert kind == ERROR
        while (later := self.frame()) != (-1, b""):
            assert (later[0], later[1][:5]) == (ERROR, b"Sink ")
        return payload


class Configured:
    """A server with a configuration file that changes."""

    def __init__(self, server: RunningServer, file: Path) -> None:
        self.server = server
        self.file = file
        self.closing = ExitStack()

    def peer(self, id: str) -> Peer:
        """Return a new connection with this id."""
        return Peer(self.server, id, self.closing)

    def reload(self, text: str, end: str = "SIGHUP: reloaded the configuration") -> list[str]:
        """Write the file, send SIGHUP, and return what the server logs until it has read it."""
        self.file.write_text(text)
        self.server.process.send_signal(signal.SIGHUP)
        assert self.server.process.stderr is not None
        lines = []
        for line in self.server.process.stderr:
            lines.append(line.rstrip("\n"))
            if end in line:
                return lines
        raise AssertionError(lines)


@contextmanager
def configured(path: Path, text: str, *options: str) -> Iterator[Configured]:
    file = path / "omq.toml"
    file.write_text(text)
    with running_server(
        "--config", file, "--listen", "127.0.0.1:0", "--store", path / "store", *options
    ) as server:
        run = Configured(server, file)
        with run.closing:
            yield run
        assert server.stop()[0] == 0


def test_clients_come_change_and_go(tmp_path: Path) -> None:
    first = client("alice", "a1") + client("bob", "b1") + client("carol", "c1")
    with configured(tmp_path, first) as run:
        alice, bob, carol, reader = (run.peer(id) for id in ("alice:a1", "bob:b1", "carol:c1", "alice:a1"))
        assert run.peer("dave:d1").end() == b"Connect: no client has this name and secret"
        assert bob.ask(b"(Subscribe news From_current)")[0] == SUBSCRIBED
        assert reader.ask(b"(Subscribe sport From_current)")[0] == SUBSCRIBED
        assert alice.ask(b"(Publish news 1)\n(Confirm 5)")[0] == CONFIRMED
        assert bob.frame()[0] == MESSAGE

        alices = client("alice", "a1", publish=["sport"], subscribe=["news"])
        log = run.reload(alices + client("bob", "b1") + client("dave", "d1"))
        # A client that is gone, and one that may not have its subscription any more.
        assert carol.end() == b"Connect: the server's configuration does not have this client any more"
        assert reader.end() == b"Connect: this client may not subscribe to 'sport' any more"
        assert sum("closed: " in line for line in log) == 2
        # A new right, also for a topic that was published to before; a subscription that goes on.
        assert alice.ask(b"(Publish news 2)") == (ERROR, b"Publish news: this client may not publish to it")
        assert alice.ask(b"(Confirm 4)")[0] == ERROR  # for the publish that was refused
        assert alice.ask(b"(Publish sport 1)\n(Confirm 5)")[0] == CONFIRMED
        dave = run.peer("dave:d1")
        assert dave.ask(b"(Publish news 3)\n(Confirm 5)")[0] == CONFIRMED
        kind, payload = bob.frame()
        assert (kind, payload[-1:]) == (MESSAGE, b"3")
        assert run.peer("carol:c1").end() == b"Connect: no client has this name and secret"


def test_a_secret_is_replaced_without_an_interruption(tmp_path: Path) -> None:
    with configured(tmp_path, client("alice", "old")) as run:
        old = run.peer("alice:old")
        refused = run.peer("alice:new")
        refused.end()
        run.reload(client("alice", "old", "new"))
        # The id that was refused is checked again.
        with socket.create_connection(
            ("127.0.0.1", run.server.port), source_address=(refused.host, 0)
        ) as again:
            again.sendall(bytes(7) + b"\1(Connect 1 alice:new)\n(Confirm 1)\n")
            assert again.makefile("rb").read(13)[-1] == CONFIRMED
        new, also_old = run.peer("alice:new"), run.peer("alice:old")
        for peer in (old, new, also_old):
            assert peer.works()
        run.reload(client("alice", "new"))
        for peer in (old, also_old):
            assert peer.end() == b"Connect: the secret of this connection is not valid any more"
        assert new.works()
        assert run.peer("alice:old").end() == b"Connect: no client has this name and secret"


def test_connections_of_every_protocol_are_told(tmp_path: Path) -> None:
    text = client("alice", "a1") + client("bob", "b1")
    with configured(tmp_path, text) as run:
        bob = run.peer("bob:b1")
        credentials = pika.PlainCredentials("bob", "b1")
        rabbit = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", run.server.port, credentials=credentials)
        )
        kind, lease = bob.ask(b"(Put notes)")
        assert kind == LEASED
        there = ("127.0.0.1", run.server.port)
        sink = run.closing.enter_context(socket.create_connection(there, 60, source_address=(bob.host, 0)))
        sink.sendall(DMP_HEADER + bytes([len(lease)]) + lease)
        answers = run.closing.enter_context(sink.makefile("rb"))
        assert answers.read(len(DMP_GREETING)) == DMP_GREETING
        assert answers.read(answers.read(1)[0]) == b"200 OK Sink 'notes' ready"
        run.reload(client("alice", "a1"))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            rabbit.process_data_events(60)
        assert (closed.value.reply_code, "does not have this client" in closed.value.reply_text) == (
            320,
            True,
        )
        assert b"does not have this client" in answers.read()
        bob.end()


def rabbit(run: Configured, name: str, secret: str) -> pika.BlockingConnection:
    """Return a connection of AMQP 0-9-1."""
    credentials = pika.PlainCredentials(name, secret)
    there = pika.ConnectionParameters("127.0.0.1", run.server.port, credentials=credentials)
    return pika.BlockingConnection(there)


def test_a_client_of_amqp_loses_its_rights_at_once(tmp_path: Path) -> None:
    with configured(tmp_path, client("alice", "a1")) as run:
        alice = rabbit(run, "alice", "a1")
        own, other = alice.channel(), alice.channel()
        own.queue_declare("work", durable=True)
        own.exchange_declare("x", "fanout")
        own.confirm_delivery()
        other.confirm_delivery()
        for exchange, channel in (("", own), ("x", other)):
            channel.basic_publish(exchange, "work", b"1")
        getting = alice.channel()
        assert getting.basic_get("work", auto_ack=True)[2] == b"1"
        run.reload(client("alice", "a1", publish=["news"], subscribe=["news"]))
        for exchange, channel in (("", own), ("x", other)):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
                channel.basic_publish(exchange, "work", b"2")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            getting.basic_get("work", auto_ack=True)
        alice.close()


def test_queues_that_need_no_right_are_kept(tmp_path: Path) -> None:
    with configured(tmp_path, client("alice", "a1")) as run:
        alice = rabbit(run, "alice", "a1")
        channel = alice.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        got: list[bytes] = []
        channel.basic_consume(queue, lambda *given: got.append(given[3]), auto_ack=True)
        channel.basic_consume("amq.rabbitmq.reply-to", lambda *given: None, auto_ack=True)
        log = run.reload(client("alice", "a1", publish=["news"], subscribe=["news"]))
        assert not [line for line in log if "closed: " in line]
        channel.basic_publish("", queue, b"to myself")
        alice.process_data_events(60)
        assert got == [b"to myself"]
        alice.close()


def test_quotas_rates_and_retention_are_applied(tmp_path: Path) -> None:
    with configured(tmp_path, client("alice", "a1")) as run:
        alice = run.peer("alice:a1")
        assert alice.ask(b"(Declare one Broadcast (Persistent Weak))")[0] == 5
        run.reload("max_topics = 1\n" + client("alice", "a1", max_connections=1, max_subscriptions=1))
        assert alice.ask(b"(Declare two Broadcast (Persistent Weak))") == (
            ERROR,
            b"Declare two: the server has its 1 topic, the most it is configured for",
        )
        assert run.peer("alice:a1").end() == (
            b"Connect: this client has its 1 connection, the most it may have"
        )
        run.reload("retention_seconds = 0.1\n" + client("alice", "a1", watch=["*"]))
        assert alice.ask(b"(Declare two Broadcast (Persistent Weak))")[0] == 5
        assert alice.ask(b"(Publish one x)\n(Confirm 5)")[0] == CONFIRMED
        # Housekeeping looks every two seconds.
        url = f"omq://127.0.0.1:{run.server.port}"
        watch_until(url, "one", lambda numbers: numbers.last > 0 and not numbers.messages, id="alice:a1")


def test_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    with configured(tmp_path, client("alice", "a1")) as run:
        alice = run.peer("alice:a1")
        for broken in ("clients = 5", "[[clients", client("bob", "b1") + "surplus = 1"):
            line = run.reload(broken, end="SIGHUP")[-1]
            assert " ERROR " in line
            assert f"SIGHUP: kept the old configuration: {run.file}: " in line
            assert alice.works()
        assert run.peer("alice:a1").works()


def test_a_file_that_cannot_be_read_to_its_end_does_not_delay_the_stop(tmp_path: Path) -> None:
    with configured(tmp_path, client("alice", "a1")) as run:
        run.file.unlink()
        os.mkfifo(run.file)
        run.server.process.send_signal(signal.SIGHUP)
        writer = os.open(run.file, os.O_WRONLY)  # returns when the server has opened the file
        try:
            assert run.peer("alice:a1").works()
            assert run.server.stop()[0] == 0
        finally:
            os.close(writer)


def test_keys_that_need_a_start_are_named_each_time(tmp_path: Path) -> None:
    with configured(tmp_path, "") as run:
        stranger = run.peer("anybody")
        text = client("alice", "a1")
        for _ in range(2):
            log = run.reload(
                'memory_bytes = 8388608\nlisten = ["127.0.0.1:1"]\ntopics = [{name = "t"}]\n' + text
            )
            changed = [line.partition("SIGHUP: ")[2] for line in log if "WARNING" in line]
            # The address of the command line has precedence over the file, so it has not changed.
            assert changed == [
                f"{key} has changed: that is applied when the server is started again"
                for key in ("clients", "memory_bytes", "topics")
            ]
        assert stranger.works()
        assert run.peer("anybody").works()
        assert not [line for line in run.reload("") if "has changed" in line]


def test_log_levels_of_areas(tmp_path: Path) -> None:
    with configured(tmp_path, 'log_level = "error"\nlog_levels = {server = "info"}') as run:
        assert run.peer("one").works()
        run.reload('log_levels = {server = "info", connections = "info"}')
        assert run.peer("two").works()
        log = run.reload('log_level = "debug"\nlog_levels = {connections = "error"}')
        assert [line for line in log if "omq.connections" in line and "'two' connected" in line]
        assert not [line for line in log if "'one'" in line]
        assert run.peer("three").works()
        assert not [line for line in run.reload("") if "'three'" in line]


def test_the_log_tells_which_client_lacks_a_right(tmp_path: Path) -> None:
    clients = client("alice", "a1", declare=["news"], publish=["news"], subscribe=["sport", "new"])
    with configured(tmp_path, clients) as run:
        alice = run.peer("alice:a1")
        assert alice.ask(b"(Publish sport 1)") == (ERROR, b"Publish sport: this client may not publish to it")
        log = run.reload('log_levels = {access = "debug"}\n' + clients)
        assert not [line for line in log if "sport" in line]  # nothing is logged at the level info
        assert alice.ask(b"(Publish sport 1)")[0] == ERROR
        assert alice.ask(b"(Subscribe news From_current)")[0] == ERROR
        assert alice.ask(b"(Subscribe new From_current)")[0] == ERROR
        assert alice.ask(b"(Watch 1000)")[0] == ERROR
        with rabbit(run, "alice", "a1") as broker, pytest.raises(pika.exceptions.ChannelClosedByBroker):
            broker.channel().queue_declare("jobs")
        told = [line.partition(" omq.access: ")[2] for line in run.reload(clients)]
        assert [line for line in told if line] == [
            "'alice' may not publish to 'sport'",
            "'alice' may not subscribe to 'news'",
            "'alice' may not declare 'new'",
            "'alice' may not watch anything",
            "'alice' may not declare 'jobs'",
        ]
