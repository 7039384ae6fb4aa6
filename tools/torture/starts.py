"""Starts that are interrupted, or that find misplaced files.

A server under load is killed. Then something happens to its store. What starts next must keep every promise:
above all that no id gets a second meaning, however often a start was interrupted before.
"""

import random
import shutil
import time
from collections.abc import Callable
from enum import Enum
from itertools import cycle
from pathlib import Path

import trio
from examiner import Examiner, Repaired, read_all
from history import SECOND, Failure, History, Safety
from load import CONFIGURATION, declare_all, load
from server import DidNotStart, Server
from tally import Outcome

from omq_storage.levels import Level

FLUSH_SECONDS = 60
"""Checkpoint interval: a power failure loses everything in Weak and Async that no start made durable."""

FEWEST, MOST = 8, 40
"""Limits of descriptors; a start needs about 35."""

STARTS_KILLED = 4

MOUNT = "this-mount"

PAGE = 4096

SAFETIES = {Level.STRONG: Safety.STRONG, Level.WEAK: Safety.WEAK, Level.ASYNC: Safety.ASYNC}


class Fault(Enum):
    """The fault between the kill and the start that is checked."""

    KILLED = "the power fails, and starts are killed"
    DESCRIPTORS = "the power fails, and a start has too few descriptors"
    REPAIRED = "the power fails, and a start is refused for damage, which is repaired"
    REMOUNTED = "the file system is mounted again, and starts are killed"
    MADE_DURABLE = "it is started again and killed again, and then the machine is restarted"
    EXCHANGED = "two levels change places"
    OLDER = "a level is put back as it was before"
    OLDER_CATALOGUE = "the catalogue is put back as it was before"


async def starts(directory: Path, count: int, chance: random.Random, done: Callable[[], None]) -> Outcome:
    """Run `count` kills, each followed by a problem. `done` is called after each."""
    outcome = Outcome()
    with Examiner({"OMQ_MOUNT_ID": MOUNT}) as examiner:
        for number, trouble in zip(range(count), cycle(Fault), strict=False):
            store = directory / f"start-{number}"
            found = await _Case(store, trouble, chance, examiner, outcome).run()
            outcome.blame(f"{store}, {trouble.value}", found)
            if not found:
                shutil.rmtree(store)
            done()
    return outcome


class _Case:
    """One store."""

    def __init__(
        self, store: Path, trouble: Fault, chance: random.Random, examiner: Examiner, outcome: Outcome
    ) -> None:
        self._store = store
        self._trouble = trouble
        self._chance = chance
        self._examiner = examiner
        self._outcome = outcome
        self._history = History()
        self._boot = "this-boot"
        self._mount = MOUNT
        self._due: dict[Safety, int] = {}
        self._broken: list[str] = []
        self._start_seconds = 0.5

    async def run(self) -> list[str]:
        """Return the promises that were broken."""
        await self._load()
        older = self._store.with_name(self._store.name + "-older")
        if self._trouble in (Fault.OLDER, Fault.OLDER_CATALOGUE):
            shutil.copytree(self._store, older)
            await self._load()
        self._due = dict.fromkeys(Safety, time.monotonic_ns())
        await self._make_trouble(older)
        shutil.rmtree(older, ignore_errors=True)
        server = self._server()
        try:
            port = await server.ready()
            when = time.monotonic_ns() + SECOND
            stored = await read_all(port)
        except DidNotStart as problem:
            return [*self._broken, f"it does not start any more: {problem}"]
        finally:
            server.kill()
        self._outcome.count(stored)
        return [*self._broken, *self._history.broken(stored, Failure(when, self._due, False))]

    def _server(self, descriptors: int | None = None) -> Server:
        settings = CONFIGURATION.format(weak=FLUSH_SECONDS, asynchronous=FLUSH_SECONDS)
        return Server(self._store, settings, self._boot, {"OMQ_MOUNT_ID": self._mount}, descriptors)

    async def _load(self) -> None:
        """Run a server under load, and stop or kill it."""
        began = time.monotonic()
        with self._server() as server:
            port = await server.ready()
            self._start_seconds = time.monotonic() - began
            await declare_all(port, self._history)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load, port, self._history, self._chance)
                await trio.sleep(self._chance.uniform(0.1, 0.5))
                server.kill()

    async def _make_trouble(self, older: Path) -> None:
        match self._trouble:
            case Fault.KILLED:
                self._lose_power()
                await self._kill_starts()
            case Fault.DESCRIPTORS:
                self._lose_power()
                server = self._server(self._chance.randint(FEWEST, MOST))
                try:
                    await server.ready()
                except DidNotStart:
                    pass  # as it should
                finally:
                    server.kill()
            case Fault.REPAIRED:
                self._lose_power()
                file = self._store / "async" / "data.mdb"
                whole = file.read_bytes()
                file.write_bytes(whole[: 2 * PAGE] + bytes(len(whole) - 2 * PAGE))
                await self._is_refused(file)
                self._repair()
            case Fault.REMOUNTED:
                self._lose_power()
                self._boot = "this-boot"
                self._mount = "another-mount"
                await self._kill_starts()
            case Fault.MADE_DURABLE:
                with self._server() as server:
                    await server.ready()
                self._boot = "another-boot"  # and still every promised message must be there
            case Fault.EXCHANGED:
                one, other = self._chance.sample(list(Level), 2)
                name = self._chance.choice(("data.mdb", ""))
                _exchange(self._store / one.value / name, self._store / other.value / name)
                await self._is_refused(self._store)
                self._repair()
            case Fault.OLDER:
                level = self._chance.choice(list(Level))
                self._put_back(older, level.value)
                self._due[SAFETIES[level]] = 0
                await self._is_refused(self._store / level.value)
                self._repair()
            case Fault.OLDER_CATALOGUE:
                self._put_back(older, "catalogue")
                await self._is_refused(self._store)
                self._repair()

    def _lose_power(self) -> None:
        self._boot = "another-boot"
        self._due |= {Safety.WEAK: 0, Safety.ASYNC: 0}

    async def _kill_starts(self) -> None:
        for _ in range(self._chance.randint(1, STARTS_KILLED)):
            server = self._server()
            await trio.sleep(self._start_seconds * self._chance.uniform(0.4, 1.2))
            server.kill()

    async def _is_refused(self, path: Path) -> None:
        server = self._server()
        try:
            await server.ready()
            self._broken.append("it starts all the same")
        except DidNotStart as problem:
            if str(path) not in str(problem):
                self._broken.append(f"the sentence does not name {path}: {problem}")
        finally:
            server.kill()

    def _repair(self) -> None:
        repaired = self._examiner.repair(self._store, self._boot)
        if not isinstance(repaired, Repaired):
            self._broken.append(f"it cannot be repaired: {repaired}")

    def _put_back(self, older: Path, name: str) -> None:
        shutil.rmtree(self._store / name)
        shutil.copytree(older / name, self._store / name)


def _exchange(one: Path, other: Path) -> None:
    aside = one.with_name(one.name + ".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
