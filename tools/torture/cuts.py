"""Power failures: record a server under load, and start one on a possible content of the disk."""

import random
import shutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import trio
from disk import Disk, Shape
from examiner import Broken, Examiner, RefusedToStart, Served
from history import Failure, History, Safety
from load import CONFIGURATION, declare_all, load
from recording import Entry, Kind, build, entries, recorded
from server import Server
from tally import Outcome

IMAGES = 80
"""Number of disk images from one recording."""

WEAK_SECONDS = 0.25
ASYNC_SECONDS = 0.6
"""Between checkpoints."""

RUN_SECONDS = (1.5, 3.5)

CHECKPOINTS = {Safety.WEAK: "weak/checkpoint", Safety.ASYNC: "async/checkpoint"}


async def cuts(directory: Path, count: int, chance: random.Random, done: Callable[[], None]) -> Outcome:
    """Try `count` images. Raises NoCompiler. `done` is called after each image."""
    library = build(directory)
    shapes = cycle(Shape)
    outcome = Outcome()
    history = History()
    start: Path | None = None
    number = 0
    with Examiner() as examiner:
        while count > 0:
            work = directory / f"cut-{number}"
            work.mkdir()
            number += 1
            store = work / "store"
            if start is None:
                store.mkdir()
            else:
                shutil.move(start, store)
            base = work / "base"
            disk = Disk(store)
            await _record(library, store, work / "log", number, history, chance)
            images = min(IMAGES, count)
            count -= images
            last: tuple[Served, Failure] | None = None
            for image, failure in enumerate(_failures(disk, work / "log", images, chance)):
                shape = next(shapes)
                to = work / "image"
                disk.write_image(to, shape, chance)
                kept = work / f"broken-{image}"
                shutil.copytree(to, kept)
                finding = examiner.examine(to, f"boot-{number}-{image}")
                match finding:
                    case Served(topics):
                        found = history.broken(topics, failure)
                        last = finding, failure
                        outcome.count(topics)
                    case RefusedToStart(sentence):
                        found = [f"it refuses to start: {sentence}"]
                    case Broken(what):
                        found = [what]
                outcome.blame(f"{kept}, {shape.value}", found)
                if not found:
                    shutil.rmtree(kept)
                done()
            # Every third recording begins with nothing, the others with the last image, as it was served.
            if last is not None and number % 3 and not outcome.broken:
                history = history.after(last[0].topics, last[1])
                start = base
                shutil.move(work / "image", start)
            else:
                history, start = History(), None
            (work / "log").unlink()
    return outcome


async def _record(
    library: Path, store: Path, log: Path, number: int, history: History, chance: random.Random
) -> None:
    settings = CONFIGURATION.format(weak=WEAK_SECONDS, asynchronous=ASYNC_SECONDS)
    with Server(store, settings, f"recorded-{number}", recorded(library, store, log)) as server:
        port = await server.ready()
        await declare_all(port, history)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, port, history, chance)
            await trio.sleep(chance.uniform(*RUN_SECONDS))
            server.kill()


def _failures(disk: Disk, log: Path, count: int, chance: random.Random) -> Iterator[Failure]:
    """Replay the recording up to random moments, and yield the messages that a power failure then may lose.

    Of Weak and Async that is what was told after the last checkpoint but one was complete: what was told
    earlier is in the last one, however long the machine took for it.
    """
    whole: list[Entry] = list(entries(log))
    places = sorted(chance.randrange(1, len(whole) + 1) for _ in range(count))
    files: dict[int, Safety] = {}
    complete = {safety: [whole[0].when] for safety in CHECKPOINTS}
    fed = 0
    for place in places:
        for entry in whole[fed:place]:
            disk.feed(entry)
            for safety, path in CHECKPOINTS.items():
                if entry.kind is Kind.OPENED and entry.path == path:
                    files[entry.file] = safety
            if entry.kind is Kind.SYNCED and entry.file in files:
                complete[files[entry.file]].append(entry.when)
        fed = place
        when = whole[place - 1].when
        due = {safety: times[-2] if len(times) > 1 else times[0] for safety, times in complete.items()}
        yield Failure(when, {**dict.fromkeys(Safety, when), **due}, ids_are_consecutive=False)
