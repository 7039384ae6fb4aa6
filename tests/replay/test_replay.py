"""Replays without Spark: blocks from a store or a server to a server (`omq/replay/`)."""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_stores import NOON, Topic, damage, make_store
from made_stores import body as made_body
from replay_helpers import Counting, WrongCommandLine, bodies, parsed, replay, request, stored
from server_command import running_server
from serving_stores import Serving, serving

from omq.bulk.errors import Unreachable
from omq.bulk.remote import RetryPolicy
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import LongString, Table
from omq.protocol.amqp.head import PLAIN_HEAD, Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp.reader import EnvelopeReader
from omq.replay import copying
from omq.replay.copying import copy
from omq.replay.envelopes import ReplayProducer, envelopes
from omq.replay.plan import make_plan
from omq.replay.read_ahead import ReadAhead
from omq.replay.request import ToServer
from omq.replay.stopping import cancel_on_interrupt, stop_on_interrupt
from omq_storage.blocks import encode, merge

KEYED = stored_head.encode(Head(b"", b"a key", Properties(content_type=b"text/plain")))
TABLED = stored_head.encode(Head(b"ex", b"", Properties(headers=Table(((b"n", LongString(b"7")),)))))
NUMBERED = stored_head.encode(Head(b"", b"", Properties(app_id=b"meter", message_id=b"3")))
KEYED_AND_NUMBERED = stored_head.encode(Head(b"", b"k", Properties(app_id=b"meter", message_id=b"4")))

TOPICS = {
    "plain": Topic((1, 1000, 1499)),
    "headed": Topic((10, 5), heads={2: KEYED, 3: TABLED, 9: KEYED}),
    "empty": Topic(()),
    "trimmed": Topic((100, 100), deleted=101),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store = make_store(tmp_path_factory.mktemp("source") / "store", **TOPICS)
    with serving(store) as server:
        yield server


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("target") / "store") as server:
        yield server


def way(source: Serving, name: str) -> tuple[str, str]:
    return ("--server", f"omq://{source.address}") if name == "servers" else ("--path", str(source.store))


# -- what is copied -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["servers", "path"])
def test_topics_are_copied_as_they_are(
    source: Serving, target: Serving, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = replay(*way(source, how), "headed", "--to", f"omq://{target.address}/headed-{how}")
    said = capsys.readouterr()
    assert (done, said.err) == (
        0,
        "omq: the messages go over as they are: stored blocks are copied, without Spark\n",
    )
    assert said.out.splitlines()[1].split() == ["headed", "15", "21", "B"]
    assert stored(target.address, f"headed-{how}") == stored(source.address, "headed")


def test_the_log_of_a_server_names_the_program(source: Serving, tmp_path: Path) -> None:
    with running_server("--store", tmp_path / "store", "--listen", "127.0.0.1:0") as fresh:
        assert replay(*way(source, "path"), "plain", "--to", f"omq://{fresh.address}") == 0
        _, _, log = fresh.stop()
    assert "'omq.replay' (omq) disconnected" in log
    assert "omq.spark" not in log
    # And each level of a new store says that it is new.
    assert log.count(": It is new.") == 3
    assert "nothing needed to be done" not in log


def test_a_pattern_and_the_names_of_the_source(source: Serving, tmp_path: Path) -> None:
    with serving(tmp_path / "store") as fresh:
        assert replay(*way(source, "servers"), "--pattern", "[a-z]+", "--to", f"omq://{fresh.address}") == 0
        for topic in ("plain", "headed", "trimmed"):
            assert stored(fresh.address, topic) == stored(source.address, topic), topic


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        (["--first", "2490"], range(2490, 2501)),
        (["--last", "3"], range(1, 4)),
        (["--first", "1000", "--last", "1003"], range(1000, 1004)),
        (["--since", "2023-11-14T22:54:50Z"], range(2490, 2501)),
        (["--until", "2023-11-14T22:13:22Z"], range(1, 2)),
        (["--first", "3", "--until", "2023-11-14T22:13:22+00:00"], range(0)),
        (["--last", "9000", "--first", "2499", "--skip-lost"], range(2499, 2501)),
    ],
)
def test_bounds(source: Serving, target: Serving, bounds: list[str], wanted: range) -> None:
    topic = "bounds" + "".join(bounds).replace("-", "").replace(":", "").replace("+", "")
    assert replay(*way(source, "servers"), "plain", *bounds, "--to", f"omq://{target.address}/{topic}") == 0
    assert bodies(target.address, topic) == [made_body(message) for message in wanted]


def test_a_dry_run_shows_the_plan_and_does_nothing(
    source: Serving, target: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--pattern", "plain|empty", "--first", "11", "--skip-lost", "--dry-run")
    assert replay(*way(source, "servers"), *words, "--to", f"omq://{target.address}/dry", "--speed", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        f"from   omq://{source.address}",
        f"to     omq://{target.address}, topic 'dry'",
        "how    stored blocks are copied, without Spark, at 2 times the pace they were published at",
    ]
    assert lines[5].split()[:4] == ["empty", "-", "-", "0"]
    assert lines[6].split()[:4] == ["plain", "11", "2500", "2,490"]
    assert stored(target.address, "dry") == []


# -- producers ----------------------------------------------------------------------------------------------


def test_messages_of_one_producer_in_two_topics_all_arrive(target: Serving, tmp_path: Path) -> None:
    """Were its name kept, the second topic would look like a repetition of the first."""
    store = make_store(
        tmp_path / "store",
        one=Topic((5,), heads={3: NUMBERED, 4: KEYED_AND_NUMBERED}),
        two=Topic((5,), heads={3: NUMBERED, 4: KEYED_AND_NUMBERED}),
    )
    for _ in range(2):
        assert replay("--path", str(store), "one", "two", "--to", f"omq://{target.address}/both") == 0
    found = stored(target.address, "both")
    assert [body for body, _ in found] == [made_body(message) for message in range(1, 6)] * 4
    copied = stored_head.decode(found[3][1])
    assert (copied.routing_key, copied.properties.message_id) == (b"k", b"4")
    assert copied.properties.app_id != b"meter"
    assert found[0][1] == b""


def test_a_replay_with_a_producer_can_be_repeated(source: Serving, target: Serving) -> None:
    words = (*way(source, "servers"), "headed", "--producer", "night")
    assert replay(*words, "--last", "7", "--to", f"omq://{target.address}/once") == 0
    for _ in range(2):
        assert replay(*words, "--to", f"omq://{target.address}/once") == 0
    found = stored(target.address, "once")
    assert [body for body, _ in found] == bodies(source.address, "headed")
    heads = [stored_head.decode(head) for _, head in found]
    assert [head.properties.message_id for head in heads] == [b"%d" % message for message in range(1, 16)]
    assert heads[1].routing_key == b"a key"
    assert heads[2].properties.headers == Table(((b"n", LongString(b"7")),))


HEADS = st.sampled_from([b"", KEYED, TABLED, NUMBERED, KEYED_AND_NUMBERED])


@given(
    st.lists(st.tuples(st.binary(max_size=30), HEADS), min_size=1, max_size=20),
    st.data(),
    st.sampled_from([None, b"p"]),
)
def test_envelopes_equal_the_messages_of_the_block(
    messages: list[tuple[bytes, bytes]], data: st.DataObject, producer: bytes | None
) -> None:
    parts = [
        encode(7, 100 + number, [body], NOON, [head] if head else ())
        for number, (body, head) in enumerate(messages)
    ]
    block = merge(parts)
    begin = data.draw(st.integers(block.first, block.last))
    end = data.draw(st.integers(begin + 1, block.next))
    made = envelopes(block, range(begin, end), ReplayProducer(producer or b"replay", producer is not None))
    batch = EnvelopeReader(1 << 20).feed_batch(made)
    found = batch.heads or [PLAIN_HEAD] * len(batch)
    assert batch.batch.bodies() == [body for body, _ in messages[begin - 100 : end - 100]]
    for message, head in zip(range(begin, end), found, strict=True):
        was = stored_head.decode(messages[message - 100][1] or PLAIN_HEAD)
        now = stored_head.decode(head)
        if producer is not None or was.properties.app_id is not None:
            assert now.properties.message_id == b"%d" % message
            assert now.properties.app_id == (producer or b"replay")
        else:
            assert now == was
        assert (now.exchange, now.routing_key) == (was.exchange, was.routing_key)


# -- at a pace ----------------------------------------------------------------------------------------------


def test_at_a_pace_topics_come_in_the_order_of_time(target: Serving, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", early=Topic((20,)), late=Topic((10, 5), heads={2: KEYED}))
    words = ("--path", str(store), "early", "late", "--speed", "500")
    assert replay(*words, "--to", f"omq://{target.address}/paced") == 0
    found = bodies(target.address, "paced")
    # Both topics have a message each second, from the same one on; a tick here is ten of them.
    assert sorted(found, key=int) == sorted(
        [made_body(n) for n in range(1, 21)] + [made_body(n) for n in range(1, 16)], key=int
    )
    assert {int(body) for body in found[:20]} == set(range(1, 11))
    assert KEYED in [head for _, head in stored(target.address, "paced")]


# -- what is missing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_a_damaged_block(
    target: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str], pace: list[str]
) -> None:
    store = make_store(tmp_path / "store", hurt=Topic((5, 4, 6)))
    damage(store, 0, 6)
    copied = f"hurt{len(pace)}"
    words = ("--path", str(store), "hurt", *pace, "--to", f"omq://{target.address}/{copied}")
    assert replay(*words) == 1
    said = capsys.readouterr().err
    assert "Topic 'hurt': messages 6 to 9 are gone: the store is damaged there" in said
    assert "omq: hurt: messages up to 5 are published\n" in said
    assert (
        "With --skip-lost they are left out; a replay of 'hurt' with --first 10 begins after them.\n" in said
    )
    assert bodies(target.address, copied) == [made_body(n) for n in range(1, 6)]
    assert replay(*words, "--first", "10") == 0
    assert bodies(target.address, copied) == [made_body(n) for n in (*range(1, 6), *range(10, 16))]
    capsys.readouterr()
    topic = f"whole{len(pace)}"
    assert replay(*words[:-1], f"omq://{target.address}/{topic}", "--skip-lost") == 0
    assert bodies(target.address, topic) == [made_body(n) for n in (*range(1, 6), *range(10, 16))]
    assert "\nmessages that could not be had any more and were left out: 4\n" in capsys.readouterr().out


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_a_damaged_block_among_several_topics(
    target: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str], pace: list[str]
) -> None:
    """The replay says how far each topic is, with damage in the last block of a topic and in the first."""

    def said(name: str, first: int, *words: str) -> str:
        topics = {"a": Topic((2,)), "hurt": Topic((5, 4)), "late": Topic((3,), first=7), "z": Topic(())}
        store = make_store(tmp_path / name, **topics)
        damage(store, 1, first)
        to = f"omq://{target.address}/{name}{len(pace)}"
        assert replay("--path", str(store), "--pattern", ".*", *pace, *words, "--to", to) == 1
        return capsys.readouterr().err

    last = said("last", 6)
    assert "omq: a: messages up to 2 are published\n" in last
    assert "omq: hurt: messages up to 5 are published\n" in last
    assert "omq: late: nothing is published\n" in last
    assert "z:" not in last
    assert "With --skip-lost they are left out; none of this topic follow.\n" in last
    first = said("first", 1, "--until", "2023-11-14T22:13:27Z")
    assert "omq: hurt: nothing is published\n" in first
    assert "late" not in first, "it has no messages within the bounds"
    assert "a replay of 'hurt' with --first 6 begins after them.\n" in first


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "omq: There is no topic 'nothing'.\n"),
        (["--pattern", "x.*"], "omq: No topic that can be read matches the pattern.\n"),
        (["trimmed", "--first", "7"], "--first is 7, but the oldest message kept is 101."),
        (["plain", "--last", "2501"], "--last is 2501, but its last message is 2500."),
    ],
)
def test_a_missing_topic_or_range_is_refused(
    source: Serving, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert replay(*way(source, "servers"), *words, "--to", "omq://127.0.0.1:1") == 1
    assert sentence in capsys.readouterr().err


# -- what is cut short --------------------------------------------------------------------------------------


class Interrupting(Counting):
    """Presses Ctrl-C when the first portion is confirmed."""

    def add(self, topic: str, messages: int, octets: int) -> None:
        super().add(topic, messages, octets)
        if len(self.messages) == 1 and self.messages[topic] == messages:
            os.kill(os.getpid(), signal.SIGINT)


class Restarting(Counting):
    """Kills the server when the first portion is confirmed, and starts it again, or not."""

    def __init__(self, server: Serving, again: bool) -> None:
        super().__init__()
        self.server: Serving | None = server
        self.again = again
        self.next: Iterator[Serving] | None = None

    def add(self, topic: str, messages: int, octets: int) -> None:
        super().add(topic, messages, octets)
        if self.server is not None:
            server, self.server = self.server, None
            server.kill()
            if self.again:
                self.next = _started(server)
                next(self.next)


def _started(before: Serving) -> Iterator[Serving]:
    with serving(before.store, port=before.running.port) as server:
        yield server


QUICK = RetryPolicy(2, 0.001)


def run_copy(words: tuple[str, ...], meter: Counting, retry_policy: RetryPolicy | None = None) -> bool:
    """Return whether it was interrupted."""
    wanted = request(*words)
    destination = wanted.destination
    assert isinstance(destination, ToServer)
    if retry_policy is not None:
        destination = replace(destination, place=replace(destination.place, retry_policy=retry_policy))
    with wanted.source.open() as access:
        plan = make_plan(access, wanted)
    with stop_on_interrupt() as stop:
        copy(plan, destination, meter, stop)
        return stop.is_set()


def test_interrupted_it_says_where_to_go_on(
    source: Serving, target: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PORTION_OCTETS", 1)
    meter = Interrupting()
    words = (*way(source, "servers"), "plain", "--to", f"omq://{target.address}/cut")
    assert run_copy(words, meter)
    (line,) = meter.said
    assert line == "plain: messages up to 1 are published; --first 2 continues there"
    assert bodies(target.address, "cut") == [b"1"]
    assert replay(*words, "--first", "2") == 0
    assert bodies(target.address, "cut") == bodies(source.address, "plain")


def test_cancelled_work_raises_keyboardinterrupt_or_completes() -> None:
    def work(fails: bool) -> None:
        cancelled = threading.Event()
        with cancel_on_interrupt(cancelled.set) as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            assert cancelled.wait(60)
            assert interrupted.is_set()
            if fails:
                raise RuntimeError("cancelled")

    work(fails=False)
    with pytest.raises(KeyboardInterrupt):
        work(fails=True)


def test_work_that_fails_by_itself_is_not_interrupted() -> None:
    cancelled = threading.Event()
    with pytest.raises(RuntimeError), cancel_on_interrupt(cancelled.set):
        raise RuntimeError("by itself")
    assert not cancelled.is_set()


def test_a_server_that_comes_back_gets_everything_once_from_a_producer(
    source: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PORTION_OCTETS", 1)
    with serving(tmp_path / "store") as server:
        meter = Restarting(server, again=True)
        words = (*way(source, "servers"), "plain", "--to", f"omq://{server.address}", "--producer", "p")
        assert not run_copy(words, meter)
        assert bodies(server.address, "plain") == bodies(source.address, "plain")
        assert meter.counts == {"plain": 2500}
        assert meter.next is not None
        next(meter.next, None)


class Killing(Counting):
    """Kills the server in the middle of its first portion, when some of it is stored."""

    def __init__(self, server: Serving, again: bool) -> None:
        super().__init__()
        self.server: Serving | None = server
        self.again = again
        self.next: Iterator[Serving] | None = None
        self.stored = 0

    def show(self, messages: int) -> None:
        if self.server is None or messages < 1001:  # the first two blocks of `plain`
            return
        server, self.server = self.server, None
        server.wait_for("plain", lambda stored: stored >= 1)
        self.stored = server.messages("plain")
        server.kill()
        if self.again:
            self.next = _started(server)
            next(self.next)


def test_a_server_that_dies_in_the_middle_of_a_portion_has_every_message_once(
    source: Serving, tmp_path: Path
) -> None:
    with serving(tmp_path / "store") as server:
        meter = Killing(server, again=True)
        words = (*way(source, "servers"), "plain", "--to", f"omq://{server.address}", "--producer", "p")
        assert not run_copy(words, meter)
        assert meter.stored > 0
        assert any(line.endswith("; continuing at message 1") for line in meter.said)
        assert bodies(server.address, "plain") == bodies(source.address, "plain")
        assert meter.counts == {"plain": 2500}
        assert meter.next is not None
        next(meter.next, None)


@pytest.mark.parametrize("producer", [[], ["--producer", "p"]])
def test_attempts_that_send_nothing_settle_no_doubt(
    source: Serving, tmp_path: Path, producer: list[str]
) -> None:
    """Attempts that send nothing any more do not make it certain that nothing of it is stored."""
    with serving(tmp_path / "store") as server:
        words = (*way(source, "servers"), "plain", "--to", f"omq://{server.address}", *producer)
        with pytest.raises(Unreachable) as caught:
            run_copy(words, Killing(server, again=False), QUICK)
    attempts = r" \(3 attempts\)" if producer else ""
    assert re.search(
        rf"{attempts}\. Of 'plain', nothing is published for certain, and "
        r"some of 1 to (1001|2500) may be",
        str(caught.value),
    )


def test_a_server_that_does_not_come_back(
    source: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PORTION_OCTETS", 1)
    with serving(tmp_path / "store") as server:
        words = (*way(source, "servers"), "plain", "--to", f"omq://{server.address}")
        with pytest.raises(Unreachable, match=r"Of 'plain', messages up to 1 are published\.$"):
            run_copy(words, Restarting(server, again=False), QUICK)


def test_a_server_that_is_not_there(source: Serving) -> None:
    meter = Counting()
    with pytest.raises(Unreachable, match=r"\(3 attempts\)\. Of 'plain', nothing is published\.$"):
        run_copy((*way(source, "servers"), "plain", "--to", "omq://127.0.0.1:9"), meter, QUICK)
    assert [line.rpartition("; ")[2] for line in meter.said] == ["trying again"] * 2


def test_reading_ahead_passes_errors_on_and_ends() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise ValueError("no more")

    with ReadAhead(items()) as ahead:
        iterator = iter(ahead)
        assert next(iterator) == 1
        with pytest.raises(ValueError, match="no more"):
            next(iterator)

    closed = []

    def zeros() -> Generator[int, None, None]:
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    with ReadAhead(zeros()) as endless:
        assert next(iter(endless)) == 0
    assert closed, "the thread has ended, and it closed the generator"


# -- the command line ---------------------------------------------------------------------------------------

TO = ("--to", "omq://127.0.0.1:7731")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (TO, "Say what to replay"),
        (("a", "--pattern", "b", *TO), "Give topics or --pattern, not both."),
        (("a", "--to", "ftp://x"), "--to is omq://HOST:PORT"),
        (("a", "--to", "parquet:"), "--to is omq://HOST:PORT"),
        (("a", "--to", "omq://x:y"), "omq.servers"),
        (("a", "--to", "parquet:/"), "/ is there already."),
        (("a", "--to", "parquet:new", "--speed", "2"), "--speed is for"),
        (("a", "--to", "jsonl:new", "--producer", "p"), "--producer is for"),
        (("a", "--first", "3", "--last", "2", *TO), "--first 3 is after --last 2."),
        (("a", "--since", "2024-01-02", "--until", "2024-01-01", *TO), "--since is after --until."),
        (("a", "--decode", "csv:a INT", *TO), "--decode is for --where here"),
        (("a", "--decode", "xml:a", *TO), "--decode is csv:COLUMNS or json:COLUMNS"),
        (("a", "--where", "true", "--producer", "p", *TO), "--producer goes with --where only at a --speed"),
        (("--pattern", "(", *TO), "is no regular expression"),
        (("a", "--path", "p", "--server", "omq://h", *TO), "Give --server or --path, not both."),
        (("a", "--path", "p", "--id-file", "f", *TO), "--id-file is for --server, not for --path."),
        (("a", "--path", "p", "--ca", "f", *TO), "--ca is for --server, not for --path."),
        (("a", "--to", "omq://127.0.0.1:7730"), "--to is where the messages come from"),
        (("a", "b", "--to", "omq://127.0.0.1/b"), "--to is where the messages come from"),
    ],
)
def test_wrong_command_lines(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(WrongCommandLine) as caught:
        replay(*words)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--first", "0"), "argument --first: '0' is no message id"),
        (("--last", str(1 << 63)), f"argument --last: '{1 << 63}' is no message id"),
        (("--first", "²"), "argument --first: '²' is no message id"),
        (("--speed", "0"), "argument --speed: '0' is not a number above 0"),
        (("--speed", "inf"), "argument --speed: 'inf' is not a number above 0"),
        (("--speed", "fast"), "argument --speed: 'fast' is not a number above 0"),
        (("--since", "noon"), "argument --since: 'noon' is no time like 2024-05-01T12:00"),
        (("--until", "0001-01-01T00:00+23:59"), "argument --until: '0001-01-01T00:00+23:59' is no time like"),
        (("--producer", ""), "argument --producer: a producer's name has 1 to 200 octets"),
        (("--producer", "é" * 101), "argument --producer: a producer's name has 1 to 200 octets"),
    ],
)
def test_wrong_values(words: tuple[str, str], sentence: str) -> None:
    with pytest.raises(argparse.ArgumentError) as caught:
        parsed("a", *TO, *words)
    assert str(caught.value).startswith(sentence)


def test_values_at_their_bounds() -> None:
    taken = parsed("a", *TO, "--first", "1", "--last", str((1 << 63) - 1), "--producer", "é" * 100)
    assert (taken.first, taken.last, taken.producer) == (1, (1 << 63) - 1, "é" * 100)
    assert parsed("a", *TO, "--since", "1970-01-01T00:00:01Z").since == 1_000_000


def test_the_other_commands_load_nothing_of_it() -> None:
    program = (
        "import sys, omq.cli.client; "
        "sys.exit(any(name.partition('.')[0] in ('pyspark', 'pyarrow', 'lmdb') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_copying_loads_no_spark() -> None:
    program = (
        "import sys, omq.replay.command, omq.replay.copying, omq.replay.pacing; "
        "sys.exit(any(name.partition('.')[0] in ('pyspark', 'pyarrow', 'trio') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_java_it_says_so_in_one_sentence(source: Serving, tmp_path: Path) -> None:
    server = ("--server", f"omq://{source.address}")
    words = ("replay", "plain", "--where", "true", "--to", f"jsonl:{tmp_path}/files")
    program = "from omq.cli.start import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", program, *server, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment | {"PATH": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("omq: Spark needs Java 17 or later: install ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["omq", "tools"])
def test_both_programs_replay(source: Serving, target: Serving, program: str) -> None:
    tool = Path(__file__).parents[2] / "tools" / "replay.py"
    server = ("--server", f"omq://{source.address}")
    command = (
        [sys.executable, "-c", "from omq.cli.start import main; main()", *server, "replay"]
        if program == "omq"
        else [sys.executable, str(tool), *server]
    )
    words = ["headed", "--to", f"omq://{target.address}/{program}"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "15 messages, 21 B, in " in done.stdout
    assert stored(target.address, program) == stored(source.address, "headed")
