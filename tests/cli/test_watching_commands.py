"""omq top, connections, topics --lag, disconnect, purge and retain, as processes against a server process."""

import json
import os
import pty
import re
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Shell, right_aligned
from forked import Forked
from server_command import configured_server, running_server

from omq import blocking
from omq.cli.top import CLEAR, TopicRates, moment
from omq.client import Numbers, Round
from omq.model import Delivery, Transient
from omq.terminals.connection.statistics import EndedConnections
from omq.watching import TopicWatch, TrafficRates


def records(shell: Shell, *command: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in shell.ok(*command, "--format", "json").splitlines()]


def lag(shell: Shell, topic: str) -> dict[str, object]:
    (found,) = [record for record in records(shell, "topics", "--lag") if record["topic"] == topic]
    return found


def test_waiting_messages_are_shown_and_purged(shell: Shell) -> None:
    shell.ok("declare", "watched-jobs", "--delivery", "round-robin", "--persistence", "strong")
    shell.ok("pub", "watched-jobs", "-", "--confirm", input=b"one\ntwo\n")
    found = lag(shell, "watched-jobs")
    assert (found["ready"], found["unconfirmed"], found["messages_in"]) == (2, 0, 2)
    assert (found["delivery"], found["persistence"]) == ("round-robin", "strong")
    head, *rows = shell.ok("topics", "--lag").decode().splitlines()
    assert re.split("  +", head) == [
        "NAME", "MESSAGES", "READY", "UNCONFIRMED", "BEHIND", "SUBSCRIBERS", "PUBLISHERS WAITING",
    ]  # fmt: skip
    assert ["watched-jobs", "2", "2", "0", "0", "0", "0"] in [row.split() for row in rows]
    (row,) = [row for row in rows if row.startswith("watched-jobs ")]
    assert right_aligned(head, row) >= {*re.split("  +", head)[1:]}
    assert shell.ok("purge", "watched-jobs") == b"2\n"
    assert lag(shell, "watched-jobs")["ready"] == 0


def test_the_retention_of_a_topic_is_changed(shell: Shell) -> None:
    shell.ok("declare", "watched-log")
    shell.ok("retain", "watched-log", "--octets", "1000000", "--seconds", "0.5")
    found = lag(shell, "watched-log")
    assert (found["retention_octets"], found["retention_ms"]) == (1_000_000, 500)
    for option in ("--configured", "--unlimited"):
        shell.ok("retain", "watched-log", option)
        found = lag(shell, "watched-log")
        assert (found["retention_octets"], found["retention_ms"]) == (None, None)


@pytest.mark.parametrize("options", [(), ("--octets", "1", "--unlimited"), ("--unlimited", "--configured")])
def test_a_retention_must_be_clear(shell: Shell, options: tuple[str, ...]) -> None:
    done = shell.omq("retain", "watched-log", *options)
    assert (done.returncode, b"give limits" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--octets", "10GiB", b"'10GiB' is no number: write 10737418240\n"),
        ("--octets", "ten", b"'ten' is no number\n"),
        ("--seconds", "30d", b"'30d' is no number of seconds above 0: write 2592000\n"),
        ("--octets", "9007199254740993", b"' is above 9007199254740992, the most that is kept\n"),
        ("--seconds", "1e99", b"'1e99' is above 9007199254740: use --unlimited\n"),
    ],
)
def test_a_limit_that_cannot_be_set_is_told(shell: Shell, option: str, value: str, said: bytes) -> None:
    done = shell.omq("retain", "watched-log", option, value)
    assert (done.returncode, done.stderr.endswith(said)) == (2, True), done.stderr


def test_a_subscriber_is_found_and_disconnected(shell: Shell) -> None:
    shell.ok("declare", "watched-news")
    reader = shell.start("sub", "watched-news", "--exact")
    try:
        shell.wait_for_subscriber("watched-news")
        (subscriber,) = records(shell, "connections", "--topic", "watched-news")
        assert (subscriber["client"], subscriber["behind"]) == ("omq sub", 0)
        (connection,) = [
            each for each in records(shell, "connections") if each["id"] == subscriber["connection"]
        ]
        assert connection["furthest"] == [
            {
                "topic": "watched-news",
                "position": 1,
                "behind": 0,
                "credit": None,
                "unconfirmed": 0,
                "octets": 0,
            }
        ]
        assert isinstance(connection["age_ms"], int)
        assert connection["stalled_ms"] is None
        head, *rows = shell.ok("connections").decode().splitlines()
        assert head.split()[:4] == ["ID", "CLIENT", "PEER", "PROTOCOL"]
        (row,) = [row for row in rows if " omq sub " in row]
        numbers = {"ID", "AGE", "IN", "OUT", "SUBSCRIPTIONS", "BEHIND", "HELD", "STALLED"}
        assert right_aligned(head, row) >= numbers
        head, row = shell.ok("connections", "--topic", "watched-news").decode().splitlines()
        assert " omq sub " in row
        assert right_aligned(head, row) >= {"CONNECTION", "POSITION", "BEHIND", "CREDIT", "UNCONFIRMED"}
        shell.ok("disconnect", str(subscriber["connection"]))
        assert reader.wait(60) == 1
    finally:
        reader.kill()
        reader.communicate()
    assert records(shell, "connections", "--topic", "watched-news") == []
    done = shell.omq("disconnect", str(subscriber["connection"]))
    assert (done.returncode, done.stderr) == (
        1,
        b"omq: there is no connection %d\n" % subscriber["connection"],
    )


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_the_subscribers_of_a_name_that_no_topic_can_have(shell: Shell, name: str) -> None:
    done = shell.omq("connections", "--topic", name)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"argument --topic: the topic's name" in done.stderr.splitlines()[-1]


def test_top_shows_the_server_and_its_topics(shell: Shell) -> None:
    shell.ok("declare", "watched-\x1b[31m")
    shown = shell.ok("top", "--once", "--interval", "0.1", "--sort", "name").decode()
    assert shown.startswith("omq ")
    assert "\x1b" not in shown
    assert "watched-\\x1b[31m" in shown
    (record,) = records(shell, "top", "--once", "--interval", "0.1")
    assert {"time_us", "server", "warnings", "topics"} == record.keys()
    assert isinstance(record["server"], dict)
    assert record["server"]["time_us"] <= record["time_us"]
    assert 0 < record["server"]["uptime_ms"] < record["time_us"] // 1000
    assert [each["protocol"] for each in record["server"]["protocols"]] == ["omq"]


def test_top_shows_only_commits_that_there_were(tmp_path: Path) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        shell = Shell(server.address, tmp_path)
        once = ("top", "--once", "--interval", "0.1")
        assert b"\nlast commits: none\n" in shell.ok(*once)
        shell.ok("pub", "readings", "1", "--confirm")
        assert re.search(rb"\nlast commits: weak \d+\.\d ms\n", shell.ok(*once))
        assert server.stop()[0] == 0


def test_top_shows_since_when_a_warning_is_in_the_log(tmp_path: Path) -> None:
    with configured_server(tmp_path, "") as server:
        (tmp_path / "omq.toml").write_text("nonsense = 1\n")
        server.process.send_signal(signal.SIGHUP)
        shell = Shell(server.address, tmp_path)
        shown = b""
        while b"ERROR" not in shown:
            shown = shell.ok("top", "--once", "--interval", "0.1")
        assert re.search(rb"^\d\d:\d\d:\d\d ERROR omq\.server: SIGHUP: ", shown, re.MULTILINE)
        assert server.stop()[0] == 0


def test_a_warning_of_another_day_has_its_date() -> None:
    noon = int(datetime(2026, 3, 4, 12).timestamp()) * 1_000_000
    assert moment(noon - 3_600_000_000, noon) == "11:00:00"
    assert moment(noon - 36 * 3_600_000_000, noon) == "2026-03-03 00:00:00"


@pytest.mark.parametrize(
    ("octets", "shown"),
    [(4 << 20, "4.0 MiB"), ((1 << 30) - 1, "1.0 GiB"), (1 << 30, "1.0 GiB"), (3 << 39, "1.5 TiB")],
)
def test_top_shows_the_memory_in_units(tmp_path: Path, octets: int, shown: str) -> None:
    with configured_server(tmp_path, f"memory_bytes = {octets}\n") as server:
        shell = Shell(server.address, tmp_path)
        assert f"\nmemory: 0 octets of {shown}\n".encode() in shell.ok("top", "--once", "--interval", "0.1")
        assert server.stop()[0] == 0


def test_top_shows_shares_of_the_memory_that_are_more_than_half_full(tmp_path: Path) -> None:
    with configured_server(tmp_path, f"memory_bytes = {4 << 20}\n") as server:
        shell = Shell(server.address, tmp_path)
        for topic in ("one", "two", "three"):
            shell.ok("declare", topic, "--delivery", "round-robin", "--persistence", "transient")
            shell.ok("pub", topic, "-", "--confirm", input=b"x" * 200_000)
        (record,) = records(shell, "top", "--once", "--interval", "0.1")
        server_of: Any = record["server"]
        (held,) = [share for share in server_of["memory"] if share["used"]]
        assert (held["name"], held["limit"]) == ("waiting", 3 << 18)
        used = held["used"]
        assert 600_000 < used < 700_000
        line = f"\nmemory: {used / 1024:.1f} KiB of 4.0 MiB; waiting {100 * used // (3 << 18)} %\n"
        assert line.encode() in shell.ok("top", "--once", "--interval", "0.1")
        assert server.stop()[0] == 0


def test_top_sorts_topics_and_limits_their_number(tmp_path: Path) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        shell = Shell(server.address, tmp_path)
        for topic, lines in (
            ("a", b"1\n"),
            ("b", b"1\n2\n3\n"),
            ("c", b"octets of a line that is much longer than the others\n2\n"),
        ):
            shell.ok("declare", topic, "--delivery", "round-robin")
            shell.ok("pub", topic, "-", "--confirm", input=lines)
        for order, expected in (("name", "abc"), ("ready", "bca"), ("octets", "cba"), ("in", "abc")):
            for limit in (2, 3):
                options = ("--sort", order, "--limit", str(limit))
                shown = shell.ok("top", "--once", "--interval", "0.1", *options).decode()
                table = shown.partition("\n\n")[2].splitlines()
                assert [row.split()[0] for row in table[1:]] == [*expected[:limit]]
                assert right_aligned(*table[:2]) >= {"READY", "UNCONFIRMED", "MESSAGES", "OCTETS"}
                assert "\ntopics: 3, 0 messages/s in, 0 messages/s out\n" in shown
        assert server.stop()[0] == 0


def test_rates_are_those_of_the_time_in_which_a_topic_changed() -> None:
    def round(seconds: int, *changed: TopicWatch, gone: tuple[int, ...] = ()) -> Round:
        for topic in changed:
            topics[topic.id] = Numbers(1_000_000 * seconds, topic)
        for id in gone:
            del topics[id]
        return Round(1_000_000 * seconds, None, dict(topics), tuple(one.id for one in changed), gone, ())

    def watched(id: int, messages_in: int, messages_out: int) -> TopicWatch:
        counts = (messages_in, 0, messages_out, 0, 0, 0)
        return TopicWatch(
            id, b"t", Delivery.BROADCAST, Transient(), 0, 0, 1, 0, 1, 0, 0, 0, *counts, None, None
        )

    topics: dict[int, Numbers] = {}
    rates = TopicRates()
    for taken, first, second in (
        (round(10, watched(1, 100, 50)), (0, 0), (0, 0)),
        (round(12, watched(1, 300, 150)), (100, 50), (0, 0)),
        (round(14, watched(2, 9, 9)), (0, 0), (0, 0)),
        (round(15, watched(1, 310, 150), watched(2, 13, 11)), (10, 0), (4, 2)),
        (round(15, watched(1, 320, 150)), (0, 0), (0, 0)),
        (round(16, watched(2, 15, 15)), (0, 0), (2, 4)),
        (round(17, watched(1, 321, 150), gone=(2,)), (1, 0), (0, 0)),
    ):
        rates.take(taken)
        assert (rates.of(1), rates.of(2)) == (first, second)


def test_a_count_that_began_again_has_no_rate() -> None:
    before, now = EndedConnections(9, 5000, 100, 70, 8), EndedConnections(1, 40, 300, 1, 10)
    assert TrafficRates.between(before, now, 0.5) == TrafficRates(octets_out=400, messages_out=4)
    assert TrafficRates.between(now, before, 0) == TrafficRates()


@pytest.mark.parametrize("interval", ["0.05", "3601", "nan", "often"])
def test_the_interval_of_top_has_a_range(shell: Shell, interval: str) -> None:
    done = shell.omq("top", "--once", "--interval", interval)
    assert done.returncode == 2
    assert f"{interval!r} is no number of seconds from 0.1 to 3600".encode() in done.stderr


def test_top_shows_lagging_subscribers_on_a_narrow_terminal(shell: Shell) -> None:
    shell.ok("declare", "watched-" + "long-" * 20)
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    command = ["omq", "top", "--interval", "0.1", "--sort", "name"]
    environment = {
        name: value for name, value in shell.environment.items() if name not in ("COLUMNS", "LINES")
    }
    with Forked[bytes](command, stdin=subprocess.DEVNULL, stdout=terminal, env=environment) as live:
        os.close(terminal)
        seen = b""
        while b"TOPIC" not in seen or b"\n" not in seen.partition(b"TOPIC")[2]:
            seen += os.read(controller, 4096)
        live.kill()
    os.close(controller)
    assert seen.startswith(b"\x1b[H\x1b[2Jwaiting for the first statistics of the server: ")
    assert b"they take seconds\r\n\x1b[H\x1b[2Jomq " in seen
    head = seen[seen.index(b"TOPIC") :].partition(b"\n")[0].strip()
    assert head.split()[:5] == [b"TOPIC", b"IN/S", b"OUT/S", b"BEHIND", b"SUBSCRIBERS"]
    assert len(head) <= 80


def test_top_tells_of_a_lost_connection_and_goes_on(tmp_path: Path, kept_address: str) -> None:
    store = tmp_path / "store"
    with running_server("--listen", kept_address, "--store", store) as server:
        shell = Shell(kept_address, tmp_path)
        with blocking.connect(f"omq://{kept_address}") as client:
            for number in range(20):  # more than fit on the screen
                client.declare(f"topic {number}")
        controller, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (15, 200))
        environment = {
            name: value for name, value in shell.environment.items() if name not in ("COLUMNS", "LINES")
        }
        live = Forked[bytes](
            ["omq", "top", "--interval", "0.1"],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        os.close(terminal)
        screens = Screens(controller)
        while b"TOPIC" not in screens.next():
            pass
        server.stop(signal.SIGKILL)
    with live, ended(live):
        while not (lost := screens.next()).startswith(b"cannot connect to "):
            assert b"\ntopics: 20, " in lost
        assert lost.count(b"\n") < 15, "a screen that scrolls does not show the first line"
        assert lost.partition(b"\r\n")[0].endswith(b"Connection refused; trying again")
        with running_server("--listen", kept_address, "--store", store) as again:
            while not screens.next().startswith(b"omq "):
                pass
            live.send_signal(signal.SIGINT)
            assert live.wait(60) == 0
            assert again.stop()[0] == 0
    os.close(controller)


def test_top_as_json_ends_with_the_connection(tmp_path: Path) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        live = Shell(server.address, tmp_path).start("top", "--interval", "0.1", "--format", "json")
        assert live.stdout is not None
        assert live.stdout.readline().startswith(b"{")
        server.stop(signal.SIGKILL)
    with live:
        live.stdout.read()
        assert live.wait(60) == 1


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process with the block, also where the test fails."""
    try:
        yield
    finally:
        process.kill()


class Screens:
    """The screens that a command draws on a terminal."""

    def __init__(self, controller: int) -> None:
        self._controller = controller
        self._seen = b""

    def next(self) -> bytes:
        """Return the next whole screen: it ends where another one begins."""
        while CLEAR not in self._seen:
            self._seen += os.read(self._controller, 4096)
        screen, _, self._seen = self._seen.partition(CLEAR)
        return screen


def test_top_goes_on_until_its_output_is_closed(shell: Shell) -> None:
    with shell.start("top", "--interval", "0.1", "--format", "json") as live:
        assert live.stdout is not None
        times = [json.loads(live.stdout.readline())["time_us"] for _ in range(3)]
        assert times == sorted(set(times))
        live.stdout.close()
        assert live.wait(60) == 0
