"""Whatever is scarce for a while (descriptors, threads, LMDB's places for readers): the server goes on."""

import logging
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio
from quietness import quiet
from scarcity import no_descriptors
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.cli.allocator import LOOK_SECONDS, Glibc, give_back_much
from omq.config import Config
from omq.drivers import housekeeping
from omq.drivers.catalogue import Catalogue
from omq.drivers.housekeeping import TIDY_SECONDS
from omq.drivers.rounds import repeat
from omq.logs import PROBLEM_SECONDS
from omq.protocol.omq.types import Confirmed
from omq.threads import RETRY_SECONDS, TELL_SECONDS, CallsInThread, in_thread
from omq_storage.environment import Environment
from omq_storage.levels import Level

from .conversation import declared, eventually, numbered, publish, serving

TAKE_SLOTS = Path(__file__).parents[2] / "tools" / "torture" / "take_slots.py"


@contextmanager
def no_new_threads() -> Iterator[None]:
    """Let no thread start within the block: its stack would be larger than the address space."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)


@contextmanager
def busy_threads(nursery: trio.Nursery) -> Iterator[None]:
    """Occupy every thread that Trio keeps for later, within the block."""
    release = threading.Event()
    limiter = trio.CapacityLimiter(100)
    started = []

    def work() -> None:
        started.append(threading.get_ident())
        release.wait(60)

    for _ in range(100):
        nursery.start_soon(lambda: in_thread(work, limiter=limiter))
    try:
        yield
    finally:
        release.set()


InThread = Callable[[Callable[[], int]], Awaitable[int]]


async def by_pipe(function: Callable[[], int]) -> int:
    """Call a function in a thread that wakes the task by a pipe."""
    with closing(CallsInThread()) as calls:
        return await calls.call(function)


async def test_calls_wait_until_a_thread_can_be_started(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.rate = 0  # time passes in the steps below only
    results = []

    async def call(run_in_thread: InThread) -> None:
        results.append(await run_in_thread(lambda: 7))

    async with trio.open_nursery() as nursery:
        with busy_threads(nursery):
            await wait_all_tasks_blocked()
            with no_new_threads():
                nursery.start_soon(call, in_thread)
                nursery.start_soon(call, by_pipe)
                for _ in range(int(TELL_SECONDS / RETRY_SECONDS) + 2):
                    await wait_all_tasks_blocked()
                    clock.jump(RETRY_SECONDS)
                assert results == []
            assert len(caplog.messages) == 2
            assert "work that needs a thread waits until one can be started" in caplog.messages[0]
            clock.jump(RETRY_SECONDS)
            clock.rate = 1
            await eventually(lambda: results == [7, 7])


@pytest.mark.parametrize("run_in_thread", [in_thread, by_pipe])
async def test_errors_of_a_call_are_raised_unchanged(run_in_thread: InThread) -> None:
    def fail() -> int:
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError):
        await run_in_thread(fail)


async def test_a_call_of_its_own_pipe_is_not_cancelled() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await by_pipe(lambda: 7) == 7
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_publishers_wait_while_no_thread_can_be_started(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        async with trio.open_nursery() as nursery:
            with busy_threads(nursery):
                await wait_all_tasks_blocked()
                with no_new_threads():
                    await client.send(publish(b"t", numbered(1, 10)))
                    await client.say(b"(Confirm 1)")
                    for _ in range(100):  # everything that the server does now and then needs a thread
                        await wait_all_tasks_blocked()
                        clock.jump(0.2)
                assert await client.frame() == Confirmed(1)
        assert (await client.topics())[b"t"].messages == 10


@pytest.mark.skipif(sys.platform != "linux", reason="it looks at /proc")
async def test_memory_is_looked_at_without_a_descriptor(
    clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    resident = Glibc.resident

    def counted(self: Glibc) -> int:
        nonlocal looked
        looked += 1
        return resident(self)

    monkeypatch.setattr(Glibc, "resident", counted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_back_much)
        await wait_all_tasks_blocked()
        before = looked
        with no_descriptors():
            for round in range(1, 4):
                clock.jump(LOOK_SECONDS)
                await eventually(lambda: looked >= before + round)  # noqa: B023 - it is called before the next round of the loop
                await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert caplog.messages == []


async def test_no_round_ends_the_ones_after_it(clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    problems = iter([OSError("no descriptors"), ValueError("a mistake"), RuntimeError("no threads")])
    rounds = 0

    async def act() -> None:
        nonlocal rounds
        rounds += 1
        problem = next(problems, None)
        if problem is not None:
            raise problem

    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeat, logging.getLogger("test"), "housekeeping", PROBLEM_SECONDS, act)
        for _ in range(5):
            await wait_all_tasks_blocked()
            clock.jump(PROBLEM_SECONDS)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert rounds == 5
    assert caplog.messages[0] == "housekeeping: no descriptors"
    assert "ValueError: a mistake" in caplog.messages[1]
    assert "RuntimeError: no threads" in caplog.messages[2]
    assert len(caplog.messages) == 3


async def test_the_log_reports_every_five_seconds_that_nothing_can_be_opened(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    real = housekeeping.look_at_disk

    async def counted(catalogue: Catalogue, config: Config) -> None:
        nonlocal looked
        try:
            await real(catalogue, config)
        finally:
            looked += 1

    monkeypatch.setattr(housekeeping, "look_at_disk", counted)
    async with serving(store):
        await wait_all_tasks_blocked()
        with no_descriptors():
            before = looked
            for round in range(1, 11):
                clock.jump(TIDY_SECONDS)
                await eventually(lambda: looked >= before + round)  # noqa: B023 - it is called before the next round of the loop
                await wait_all_tasks_blocked()
    told = [line for line in caplog.messages if line.startswith("the free disk space cannot be determined: ")]
    assert "Errno 24" in told[0]
    assert 2 <= sum("Errno 24" in line for line in told) <= 1 + 10 * TIDY_SECONDS / PROBLEM_SECONDS


@pytest.mark.parametrize("failing", ["checkpoint", "reader_check", "set_positions", "merge_small"])
async def test_the_server_lives_when_housekeeping_has_no_descriptor(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    tried = 0
    is_scarce = False
    real = getattr(Environment, failing)

    def fail(self: Environment, *arguments: object) -> object:
        nonlocal tried
        if is_scarce:
            tried += 1
            raise OSError(24, "Too many open files")
        return real(self, *arguments)

    monkeypatch.setattr(Environment, failing, fail)
    async with serving(store) as host:
        client, worker = await host.connect(), await host.connect()
        await client.ask(b"(Declare t Round_robin (Persistent Weak))")
        await worker.ask(b"(Subscribe t From_current)")  # each message that it gets moves the position
        await client.send(publish(b"t", numbered(1, 10)))
        await worker.messages(10)
        is_scarce = True
        for _ in range(100):
            await client.send(publish(b"t", [b"more"]))
            await worker.message()
            if tried >= 2:
                break
            clock.jump(1)
            await quiet()
        is_scarce = False
        assert tried >= 2
        await client.confirm(2)


async def test_other_processes_cannot_take_the_reserved_reader_slots(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await host.connect()
        environment = host.server.catalogue.writers[Level.WEAK].environment
        for level in (b"Strong", b"Weak", b"Async"):
            await client.ask(b"(Declare %s Broadcast (Persistent %s))" % (level, level))
        command = [sys.executable, str(TAKE_SLOTS), str(store)]
        others = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert others.stdin is not None
        assert others.stdout is not None
        async with others.stdin, others.stdout:
            assert int(await others.stdout.receive_some()) > 3000
            for _ in range(10):
                for level in (b"Strong", b"Weak", b"Async"):
                    await client.send(publish(level, numbered(1, 10)))
                    await client.confirm()
                clock.jump(2)
                await wait_all_tasks_blocked()
            await eventually(lambda: environment.usage().durable == environment.usage().transaction)
            readers = [await host.connect() for _ in range(5)]
            for reader in readers:
                for level in (b"Strong", b"Weak", b"Async"):
                    await reader.say(b"(Subscribe %s From_beginning)" % level)
                    await reader.frame()
                    assert await reader.bodies(100) == numbered(1, 10) * 10
            await client.ask(b"(Delete Strong)")
        await others.wait()
