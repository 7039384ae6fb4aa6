"""SIGKILL at random moments: after each one the server starts again and must keep every promise."""

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import trio
from examiner import read_all
from history import SECOND, Failure, History, Safety
from load import CONFIGURATION, declare_all, load
from server import DidNotStart, Server
from tally import Outcome

LIVES = 10
"""Number of kills before a new store is used."""


async def kills(directory: Path, count: int, chance: random.Random, done: Callable[[], None]) -> Outcome:
    """Kill the server N (`count`) times. `done` is called after each."""
    outcome = Outcome()
    for first in range(0, count, LIVES):
        store = directory / f"kills-{first}"
        found = await _one_store(store, min(LIVES, count - first), chance, outcome, done)
        outcome.blame(f"kills from {first} on", found)
        if not found:
            shutil.rmtree(store)
    return outcome


async def _one_store(
    store: Path, lives: int, chance: random.Random, outcome: Outcome, done: Callable[[], None]
) -> list[str]:
    """Kill the server on one store `count` times. Return the broken promises."""
    history = History()
    settings = CONFIGURATION.format(weak=0.3, asynchronous=1.0)
    is_declared = False
    killed = 0
    while True:
        with Server(store, settings, "this-boot", {}) as server:
            if killed < lives and chance.random() < 0.2:
                # Kill it while it starts. The next start examines its store.
                await trio.sleep(chance.random() * 0.6)
                server.kill()
                killed += 1
                done()
                continue
            try:
                port = await server.ready()
            except DidNotStart as problem:
                return [f"it does not start any more: {problem}"]
            if is_declared:
                # Slightly later than now: all promises made before count.
                now = time.monotonic_ns() + SECOND
                failure = Failure(now, dict.fromkeys(Safety, now), ids_are_consecutive=True)
                stored = await read_all(port)
                outcome.count(stored)
                broken = history.broken(stored, failure)
                if broken or killed == lives:
                    return broken
                history.look(stored, failure.when - SECOND)
            else:
                if killed == lives:
                    return []
                await declare_all(port, history)
                is_declared = True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load, port, history, chance)
                await trio.sleep(0.05 + chance.random())
                server.kill()
                killed += 1
                done()
