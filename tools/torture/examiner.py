"""Starts the real server on one store after another and reads everything that it sends.

It runs in a process of its own, `Examiner` is the other end: so a damaged file that ends the process ends
this one, and is told.
"""

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio
from history import AMQP_WORK, KINDS, MARK, Kind, Safety, Stored
from load import bare
from queue_load import is_routed

from omq.client import Client, FromBeginning, FromCurrent, Gap, OmqError, Replay, connect
from omq.config import Config
from omq.drivers.reasons import Refused
from omq.drivers.stored_types import StoredTypes
from omq.server import open_server
from omq_storage.errors import StoreError
from omq_storage.repair import repair
from omq_storage.store import lock_store

PATIENCE = 30.0
"""Seconds after which an answer counts as missing."""

_ANSWER = "import examiner; examiner.main()"


@dataclass(frozen=True, slots=True)
class Served:
    """The server started: the messages that it sends, by topic."""

    topics: dict[str, Stored]


@dataclass(frozen=True, slots=True)
class RefusedToStart:
    """The server did not start, and logged the reason."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The server crashed, hung, or violated the protocol."""

    what: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """The output of a repair."""

    sentences: list[str]


Finding = Served | RefusedToStart | Broken


class Examiner:
    """The process that examines stores. The end of the block ends it."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Create an examiner. `environment`: variables of the process besides those of this one."""
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Examiner":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def examine(self, store: Path, boot_id: str) -> Finding:
        """Start the server on a store, read all messages, and stop it cleanly."""
        answer = self._ask("examine", store, boot_id)
        assert not isinstance(answer, Repaired)
        return answer

    def repair(self, store: Path, boot_id: str) -> Repaired | RefusedToStart | Broken:
        """Run `omq store repair` on a store."""
        answer = self._ask("repair", store, boot_id)
        assert not isinstance(answer, Served)
        return answer

    def _ask(self, question: str, store: Path, boot_id: str) -> Finding | Repaired:
        if self._process is None:
            self._process = subprocess.Popen(
                # Not as a script: its answers must have the same classes as here.
                [
                    sys.executable,
                    "-c",
                    f"import sys; sys.path[:0] = {sys.path!r}; import examiner; examiner.main()",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((question, store, boot_id), process.stdin)
            process.stdin.flush()
            answer: Finding | Repaired = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError):
            self._process = None
            return Broken(f"the server's process ended with {process.wait()}")
        return answer

    def _end(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None


def main() -> None:
    """Answer questions on standard input until there are no more."""
    while True:
        try:
            question, store, boot_id = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        os.environ["OMQ_BOOT_ID"] = boot_id
        answer = trio.run(examine, store) if question == "examine" else mend(store, boot_id)
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


async def examine(store: Path) -> Finding:
    """Start a server on a store and read everything."""
    config = Config(listen=["127.0.0.1:0"], store=str(store), disk_reserve_bytes=0)
    try:
        with trio.fail_after(PATIENCE):
            async with open_server(config) as server:
                return Served(await read_all(server.port))
    except (StoreError, Refused) as refusal:
        return RefusedToStart(str(refusal))
    except (OmqError, trio.TooSlowError, ExceptionGroup) as problem:
        return Broken("".join(traceback.format_exception(problem)))


def mend(store: Path, boot_id: str) -> Repaired | RefusedToStart:
    """Repair a store, as the command does."""
    try:
        with lock_store(store):
            return Repaired(repair(store, StoredTypes(), boot_id, lambda _: None))
    except StoreError as problem:
        return RefusedToStart(str(problem))


async def read_all(port: int) -> dict[str, Stored]:
    """Return the messages of all topics of a server."""
    gaps: list[Gap] = []
    async with connect(f"omq://127.0.0.1:{port}", on_gap=gaps.append) as client:
        there = {info.topic.decode() for info in await client.topics()}
        found = {}
        for kind in KINDS:
            if kind.name in there:
                gaps.clear()
                routed = kind.name != AMQP_WORK or await is_routed(port, MARK + os.urandom(8).hex().encode())
                messages, next_id, mark = await _read_topic(client, kind)
                told = [(gap.first, gap.last) for gap in gaps]
                found[kind.name] = Stored(messages, told, next_id, mark, routed)
    return found


async def _read_topic(client: Client, kind: Kind) -> tuple[list[tuple[int, bytes]], int, bytes]:
    """Return every message up to one that this function publishes, and the id and body of that one."""
    mark = MARK + os.urandom(8).hex().encode()
    found: list[tuple[int, bytes]] = []
    credit = 100_000 if kind.is_work else None
    if kind.is_work:
        await client.publish_confirmed(kind.name, mark)
    is_kept = not kind.is_work and kind.safety is not Safety.TRANSIENT
    replay: Replay = FromBeginning() if is_kept else FromCurrent()
    async with client.subscribe(kind.name, replay, credit=credit) as messages:
        if not kind.is_work:
            await client.publish_confirmed(kind.name, mark)
        while (run := await messages.next_run()) is not None:
            for id, body in zip(run.ids, run.bodies, strict=True):
                if body == mark:
                    return found, id, mark
                found.append((id, bare(body)))
    raise OmqError(f"{kind.name} ended")
