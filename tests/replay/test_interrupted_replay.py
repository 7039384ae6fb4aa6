"""Replays that are interrupted, and servers that stop in the middle."""

import os
import re
import signal
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from made_stores import Topic, body, make_store
from replay_helpers import Counting, bodies, replay, request
from replayed_topics import way
from serving_stores import Serving, serving

from omq.bulk.errors import Unreachable
from omq.bulk.remote import RetryPolicy
from omq.replay import copying
from omq.replay.copying import copy
from omq.replay.pacing import pace
from omq.replay.plan import make_plan
from omq.replay.read_ahead import ReadAhead
from omq.replay.request import ToServer
from omq.replay.stopping import cancel_on_interrupt, stop_on_interrupt


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


@pytest.mark.parametrize(("bound", "least"), [("PORTION_OCTETS", 1), ("PORTION_SECONDS", 0)])
def test_interrupted_it_says_where_to_go_on(
    source: Serving, target: Serving, monkeypatch: pytest.MonkeyPatch, bound: str, least: int
) -> None:
    monkeypatch.setattr(copying, bound, least)
    meter = Interrupting()
    words = (*way(source, "servers"), "plain", "--to", f"omq://{target.address}/{bound}")
    assert run_copy(words, meter)
    (line,) = meter.said
    assert line == "plain: messages up to 1 are published; --first 2 continues there"
    assert bodies(target.address, bound) == [b"1"]
    assert replay(*words, "--first", "2") == 0
    assert bodies(target.address, bound) == bodies(source.address, "plain")


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


class Stopping(Counting):
    """Kills a server when the target has messages of a topic, in the middle of the copy."""

    def __init__(self, victim: Serving, target: Serving, topic: str) -> None:
        super().__init__()
        self.victim: Serving | None = victim
        self.target = target
        self.topic = topic

    def show(self, messages: int) -> None:
        if self.victim is not None and messages > 100:
            victim, self.victim = self.victim, None
            self.target.wait_for(self.topic, lambda stored: stored >= 1)
            victim.kill()


def test_a_source_that_does_not_come_back(
    target: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay publishes the messages that it has read before, and says how far each topic is."""
    store = make_store(tmp_path / "store", early=Topic([100]), gone=Topic([200] * 200, size=1000))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(copying, "PORTION_OCTETS", 1 << 20)
    with serving(store) as server:
        meter = Stopping(server, target, "gone")
        words = ("--server", f"omq://{server.address}", "early", "gone", "--to", f"omq://{target.address}")
        with pytest.raises(Unreachable, match=r"message [0-9]+ of 'gone' is the next one"):
            run_copy(words, meter)
    count = target.messages("gone")
    assert 0 < count < 40_000
    assert bodies(target.address, "gone") == [body(n, 1000) for n in range(1, count + 1)]
    assert meter.said == [
        f"gone: messages up to {count} are published",
        "early: messages up to 100 are published",
    ]


def test_a_target_that_does_not_come_back_is_in_doubt_about_its_last_topic_only(
    tmp_path: Path,
) -> None:
    store = make_store(
        tmp_path / "store", early=Topic([100]), gone=Topic([200] * 200, size=1000), late=Topic([3])
    )
    with serving(tmp_path / "target") as target:
        meter = Stopping(target, target, "gone")
        words = ("--path", str(store), "--pattern", ".*", "--to", f"omq://{target.address}")
        with pytest.raises(
            Unreachable, match=r"Of 'gone', nothing is published for certain, and some of 1 to "
        ):
            run_copy(words, meter, QUICK)
    assert meter.said == ["early: messages up to 100 are published", "late: nothing is published"]


class Ending(Counting):
    """Kills the target when the first messages are confirmed."""

    def __init__(self, target: Serving) -> None:
        super().__init__()
        self.target = target

    def add(self, topic: str, messages: int, octets: int) -> None:
        super().add(topic, messages, octets)
        if len(self.messages) == 1 and self.messages[topic] == messages:
            self.target.kill()


def test_at_a_pace_it_says_how_far_each_topic_is_when_the_target_fails(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", a=Topic([1, 1, 1]), b=Topic([1, 1], first=2))
    with serving(tmp_path / "target") as target:
        meter = Ending(target)
        words = ("--path", str(store), "--pattern", ".*", "--speed", "40", "--to", f"omq://{target.address}")
        wanted = request(*words)
        assert isinstance(wanted.destination, ToServer)
        with wanted.source.open() as access:
            plan = make_plan(access, wanted)
        with pytest.raises(Unreachable):
            pace(plan, wanted.destination, meter, threading.Event())
    first, second = meter.said
    assert re.fullmatch("a: messages up to 1 are published for certain, and some of 2 to [23] may be", first)
    assert second == "b: nothing is published"


def test_the_greatest_and_the_least_speed(target: Serving, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", two=Topic([1, 1]))
    to = f"omq://{target.address}"
    assert replay("--path", str(store), "two", "--speed", "1e308", "--to", f"{to}/fast") == 0
    assert bodies(target.address, "fast") == [b"1", b"2"]
    wanted = request("--path", str(store), "two", "--speed", "1e-300", "--to", f"{to}/slow")
    assert isinstance(wanted.destination, ToServer)
    with wanted.source.open() as access:
        plan = make_plan(access, wanted)
    stop, meter = threading.Event(), Counting()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(pace, plan, wanted.destination, meter, stop)
        target.wait_for("slow", lambda stored: stored == 1 or slow.done())
        stop.set()
        slow.result(60)
    assert meter.said == ["two: messages up to 1 are published; --first 2 continues there"]


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
