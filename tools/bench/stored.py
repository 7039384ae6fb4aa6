"""A growing store: the cost of a start, of memory and of a replay with increasing numbers of messages."""

import statistics
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from cases import fill, replay_once, write_back
from measure import TOPIC, Sample, Settings, server
from systems import Kind, System
from workers import BenchFailure

REPLAYS = 3
"""Replays of one filling; the median counts, since a small store is read in a few milliseconds."""

START, START_KILLED, MEMORY, REPLAY = "stored-start", "stored-start-killed", "stored-memory", "stored-replay"


def start_again(system: System, directory: Path, held: int) -> Sample:
    """Measure the seconds from the start of the server's process until it states its number of messages."""
    begun = time.perf_counter()
    system.start(directory, Kind.WEAK)
    found = system.held(TOPIC)
    seconds = time.perf_counter() - begun
    if found != held:
        raise BenchFailure(f"{found} messages are there after a restart, {held} were stored")
    return Sample(seconds, held, seconds, f"{held} stored, {found} there after the start")


def grow(
    system: System, settings: Settings, size: int, levels: Sequence[int]
) -> Generator[dict[str, Sample], None, None]:
    """Fill one store to each level in turn; the figures of each level by their names.

    The files are in the page cache throughout.
    """
    with server(system, Kind.WEAK, settings) as directory:
        chunk = system.chunk(Kind.WEAK, TOPIC, size)
        held = 0
        for level in levels:
            held = fill(system, chunk, level - held, held)
            write_back(directory, drop=False)
            system.stop()
            found = {START: start_again(system, directory, held)}
            replays = [replay_once(system, held, chunk.last) for _ in range(REPLAYS)]
            middle = statistics.median_low(sample.value for sample in replays)
            found[REPLAY] = next(sample for sample in replays if sample.value == middle)
            anonymous = system.memory()[1]
            found[MEMORY] = Sample(float(anonymous), held, 0.0, f"RssAnon after {REPLAYS} replays of {held}")
            system.kill()
            found[START_KILLED] = start_again(system, directory, held)
            yield found
