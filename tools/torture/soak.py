"""Slow and hostile clients for a long time: do they affect a well-behaved publisher and subscriber?

A control publishes and subscribes while nothing else goes on, and then while the clients of `hostile` do what
they do. At the end they go away, and everything must be as it was.
"""

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import trio
from control import Control, in_words
from hostile import BUSY, HISTORY, KINDS, WORK
from server import DidNotStart, Server
from tally import Outcome, leaves
from tqdm import tqdm
from vitals import ProcessSample, Work, counts, vitals, work

from omq.client import Delivery, OmqError, Persistent, Sync, Transient, connect

MIB = 1 << 20
PROCESSES = 2
"""Number of processes with hostile clients."""

SETTINGS = "disk_reserve_bytes = 0\nretention_bytes = 67_108_864\n"

MEMORY_OCTETS = 64 * MIB
"""The default of `memory_bytes`."""
CONNECTION_OCTETS = 100 << 10
"""The memory of a connection beyond that (docs/CONFIGURATION.md)."""

STORED = 20_000
"""Number of messages in the topics for replays and for workers."""
BODY = b"h" * 1000

BUSY_SECONDS = 0.05
BUSY_MESSAGES = 20
LOOK_SECONDS = 2.0
AFTERWARDS_SECONDS = 60.0
"""Time limit for the return to the initial state after the hostile clients have gone."""

JUDGED_SECONDS = 180
"""Shorter soaks do not check latency and growth: there is too little to compare."""
MOST_LATENCY = 2.0
"""The median latency may be this many times the one before."""
MOST_GROWTH = 1.1
"""The memory in the last fifth may be this many times that of the second minute."""

LOG_LINES = 40
"""A minute, and as many besides."""


HEADINGS = ("", "connections", "tasks", "MiB", "descriptors", "threads", "log", "processors", "others")
"""Columns of the table: `processors` used by the server, `others` used by other programs."""


class Failed(Exception):
    """The soak could not go on."""


@dataclass(slots=True)
class Record:
    """The measurements."""

    calm: dict[str, list[float]] = field(default_factory=dict)
    soaked: dict[str, list[float]] = field(default_factory=dict)
    calm_again: dict[str, list[float]] = field(default_factory=dict)
    before: ProcessSample | None = None
    during: list[ProcessSample] = field(default_factory=list)
    began: float = 0.0
    most_connections: int = 0


async def soak(
    directory: Path, seconds: int, connections: int, chance: random.Random, done: Callable[[], None]
) -> Outcome:
    """Run hostile connections for some seconds. `done` is called after each second."""
    outcome = Outcome()
    server = Server(directory / "soak", SETTINGS, "this-boot", {})
    try:
        port = await server.ready()
        await _fill(port)
        outcome.blame("soak", await _soak(server, port, seconds, connections, chance, done, outcome))
    except* (DidNotStart, Failed, OmqError) as problems:
        outcome.blame("soak", map(str, leaves(problems)))
    except* trio.TooSlowError:
        outcome.blame("soak", ["the server, or a process of hostile clients, did not answer in time"])
    finally:
        server.kill()
    return outcome


async def _fill(port: int) -> None:
    """Create the topics, with stored messages for replays and workers."""
    async with connect(f"omq://127.0.0.1:{port}") as client:
        await client.declare(BUSY, Delivery.BROADCAST, Transient())
        await client.declare(HISTORY, Delivery.BROADCAST, Persistent(Sync.WEAK))
        await client.declare(WORK, Delivery.ROUND_ROBIN, Persistent(Sync.WEAK))
        for topic in (HISTORY, WORK):
            for _ in range(STORED // 100):
                await client.publish_many(topic, [BODY] * 100)
            await client.confirm()


async def _soak(
    server: Server,
    port: int,
    seconds: int,
    connections: int,
    chance: random.Random,
    done: Callable[[], None],
    outcome: Outcome,
) -> list[str]:
    """Return a sentence for each broken promise."""
    control = Control(port)
    record = Record()
    async with trio.open_nursery() as nursery:
        await nursery.start(control.run)
        busy = await nursery.start(_keep_busy, port)
        calm = max(2, min(60, seconds // 10))
        _tell(*HEADINGS, *control.latencies)
        began = work(server.process.pid, os.getpid())
        await trio.sleep(calm)
        record.calm = _cut(control, dict.fromkeys(control.latencies, 0))
        before = await counts(server)
        record.before = vitals(server.process.pid)
        _tell_vitals("before", before, record.before, server, began, record.calm)

        made = await _hostile(server, port, seconds, connections, chance, done, control, record)

        broken = await _as_it_was(server, before, record)
        first = control.count()
        began = work(server.process.pid, os.getpid())
        await trio.sleep(calm)
        record.calm_again = _cut(control, first)
        told, seen = await counts(server), vitals(server.process.pid)
        _tell_vitals("after", told, seen, server, began, record.calm_again)
        busy.cancel()
        control.end()
    outcome.messages += sum(len(found.seconds) for found in control.latencies.values())
    broken += [sentence for found in control.latencies.values() for sentence in found.wrong[:5]]
    for kind in KINDS:
        print(f"  {made[kind.name]:7} connections of those that {kind.name}", flush=True)
        if not made[kind.name]:
            broken.append(f"there was nobody to {kind.name}")
    return broken + _judged(server, seconds, connections, record)


async def _keep_busy(
    port: int, task_status: "trio.TaskStatus[trio.CancelScope]" = trio.TASK_STATUS_IGNORED
) -> None:
    """Publish to the busy topic until cancelled."""
    async with connect(f"omq://127.0.0.1:{port}") as client:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            while True:
                await client.publish_many(BUSY, [BODY] * BUSY_MESSAGES)
                await trio.sleep(BUSY_SECONDS)


async def _hostile(
    server: Server,
    port: int,
    seconds: int,
    connections: int,
    chance: random.Random,
    done: Callable[[], None],
    control: Control,
    record: Record,
) -> Counter[str]:
    """Start the hostile clients, measure the server, and end them. Return the number of connections."""
    seed = chance.randrange(1 << 32)
    program = Path(__file__).with_name("crowd.py")
    made: Counter[str] = Counter()
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            processes = []
            for number in range(PROCESSES):
                words = [str(word) for word in (port, seed, connections, number, PROCESSES)]
                process = await trio.lowlevel.open_process(
                    [sys.executable, str(program), *words], stdin=-1, stdout=-1
                )
                stack.callback(process.kill)
                processes.append(process)
            nursery.start_soon(_watch, server, record)
            record.began = trio.current_time()
            first = minute = control.count()
            ours = (server.process.pid, os.getpid(), *(process.pid for process in processes))
            began = work(*ours)
            for second in range(1, seconds + 1):
                await trio.sleep_until(record.began + second)
                if server.process.poll() is not None:
                    raise Failed(f"the server ended: {server.log()[-2000:]}")
                done()
                if second % 60 == 0 or second == seconds:
                    told = await counts(server)
                    record.most_connections = max(record.most_connections, told[0])
                    now = _cut(control, minute)
                    minute = control.count()
                    _tell_vitals(f"{second} s", told, record.during[-1], server, began, now)
                    began = work(*ours)
            record.soaked = _cut(control, first)
            for process in processes:
                assert process.stdin is not None
                await process.stdin.aclose()
            with trio.fail_after(30):
                for process in processes:
                    made.update(await _result(process))
            nursery.cancel_scope.cancel()
    return made


async def _result(process: trio.Process) -> dict[str, int]:
    """Return the report of a process of hostile clients. Raises Failed."""
    assert process.stdout is not None
    text = b"".join([part async for part in process.stdout])
    if await process.wait():
        raise Failed("a process of hostile clients ended by a defect of its own")
    made: dict[str, int] = json.loads(text)
    return made


async def _watch(server: Server, record: Record) -> None:
    while True:
        record.during.append(vitals(server.process.pid))
        await trio.sleep(LOOK_SECONDS)


async def _as_it_was(server: Server, before: tuple[int, int], record: Record) -> list[str]:
    """Wait until the server has as many connections, tasks and descriptors as before, and no more threads."""
    assert record.before is not None
    with trio.move_on_after(AFTERWARDS_SECONDS):
        while True:
            now = await counts(server)
            seen = vitals(server.process.pid)
            if now == before and seen.descriptors == record.before.descriptors:
                break
            await trio.sleep(1)
    broken = []
    for what, was, is_now in (
        ("connections", before[0], now[0]),
        ("tasks", before[1], now[1]),
        ("descriptors", record.before.descriptors, seen.descriptors),
    ):
        if was != is_now:
            broken.append(f"there were {was} {what} before, and {is_now} are left")
    return broken


def _judged(server: Server, seconds: int, connections: int, record: Record) -> list[str]:
    assert record.before is not None
    broken = []
    if record.most_connections < connections // 2:
        broken.append(f"there were {record.most_connections} connections at the most, of {connections}")
    most = max(seen.memory for seen in record.during)
    budget = record.before.memory + MEMORY_OCTETS + connections * CONNECTION_OCTETS
    print(
        f"  {most / MIB:.0f} MiB of memory at the most, of {budget / MIB:.0f}; "
        f"{max(seen.threads for seen in record.during)} threads at the most",
        flush=True,
    )
    if most > budget:
        broken.append(f"{most / MIB:.0f} MiB of memory were taken, of {budget / MIB:.0f}")
    lines = _log_lines(server)
    if lines > LOG_LINES * (1 + seconds / 60):
        broken.append(f"the log has {lines} lines")
    log = server.log()
    broken += [f"the log tells of a {word}" for word in ("Traceback", "defect") if word in log]
    for topic, soaked in record.soaked.items():
        before, after = record.calm[topic], record.calm_again[topic]
        # Whatever else the machine does may have begun or ended meanwhile.
        ratio = median(soaked) / max(median(before), median(after))
        print(
            f"  {topic}: {in_words(before)} ms before, {in_words(soaked)} ms meanwhile, {in_words(after)} ms "
            f"after (median / 99th percentile): {ratio:.2f} times the median",
            flush=True,
        )
        if seconds >= JUDGED_SECONDS and ratio > MOST_LATENCY:
            broken.append(f"{topic}: the median latency was {ratio:.2f} times that without hostile clients")
    if seconds >= JUDGED_SECONDS:
        settled = _most_memory(record, 60, 120)
        last = _most_memory(record, seconds * 0.8, seconds + 1)
        print(f"  {settled / MIB:.0f} MiB in the second minute, {last / MIB:.0f} in the last fifth")
        if last > settled * MOST_GROWTH:
            broken.append(f"memory grew from {settled / MIB:.0f} to {last / MIB:.0f} MiB")
    return broken


def _most_memory(record: Record, begin: float, end: float) -> int:
    """Return the greatest memory in these seconds of the soak."""
    return max(seen.memory for seen in record.during if begin <= seen.when - record.began <= end)


def _cut(control: Control, first: dict[str, int]) -> dict[str, list[float]]:
    """Return the figures from there on, of each topic."""
    return {topic: found.seconds[first[topic] :] for topic, found in control.latencies.items()}


def _log_lines(server: Server) -> int:
    """Return the number of log lines, except those that the soak requested, and those for the ends of
    connections, of which the server bounds the rate.
    """
    others = ("SIGUSR1", " omq.connections: ")
    return sum(not any(each in line for each in others) for line in server.log().splitlines())


def _tell(*cells: object) -> None:
    """Print a line of the table; tqdm keeps it clear of the progress bar."""
    tqdm.write("  " + " ".join(f"{cell!s:>12}" for cell in cells), file=sys.stdout)
    sys.stdout.flush()


def _tell_vitals(
    when: str,
    told: tuple[int, int],
    seen: ProcessSample,
    server: Server,
    began: Work,
    latencies: dict[str, list[float]],
) -> None:
    memory = f"{seen.memory / MIB:.0f}"
    now = work(*began.by)
    taken = f"{now.since(began, server.process.pid):.2f}", f"{now.others(began):.2f}"
    words = map(in_words, latencies.values())
    _tell(when, *told, memory, seen.descriptors, seen.threads, _log_lines(server), *taken, *words)
