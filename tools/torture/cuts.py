"""Power failures: a server is recorded under load, and started on what the disk may have held at a moment."""

import random
import shutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import trio
from disk import Disk, Shape
from examiner import Broken, Examiner, RefusedToStart, Served
from history import SECOND, Failure, History, Safety
from load import CONFIGURATION, declare_all, load
from recording import Entry, build, entries, recorded
from server import Server
from tally import Outcome

IMAGES = 80
"""How many images are made of one recording."""

WEAK_SECONDS = 0.25
ASYNC_SECONDS = 0.6
SLACK_SECONDS = 1.0
"""How long a checkpoint may take on a busy machine."""

RUN_SECONDS = (1.5, 3.5)

WINDOWS = {
    Safety.TRANSIENT: 0,
    Safety.STRONG: 0,
    Safety.WEAK: int((WEAK_SECONDS + SLACK_SECONDS) * SECOND),
    Safety.ASYNC: int((ASYNC_SECONDS + SLACK_SECONDS) * SECOND),
}


async def cuts(directory: Path, count: int, chance: random.Random, done: Callable[[], None]) -> Outcome:
    """So many images. Raises NoCompiler. `done` is called after each image."""
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
            for image, moment in enumerate(_moments(disk, work / "log", images, chance)):
                shape = next(shapes)
                to = work / "image"
                disk.write_image(to, shape, chance)
                failure = Failure(moment, WINDOWS, ids_are_consecutive=False)
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
    server = Server(store, settings, f"recorded-{number}", recorded(library, store, log))
    try:
        port = await server.ready()
        await declare_all(port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, port, history, chance)
            await trio.sleep(chance.uniform(*RUN_SECONDS))
            server.kill()
    finally:
        server.kill()


def _moments(disk: Disk, log: Path, count: int, chance: random.Random) -> Iterator[int]:
    """Feeds the disk up to so many random moments, and tells the time of each, the last one included."""
    whole: list[Entry] = list(entries(log))
    places = sorted(chance.randrange(1, len(whole) + 1) for _ in range(count))
    fed = 0
    for place in places:
        for entry in whole[fed:place]:
            disk.feed(entry)
        fed = place
        yield whole[place - 1].when
