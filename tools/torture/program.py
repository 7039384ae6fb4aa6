"""The command line: the failures to cause, their number, and the report."""

import argparse
import random
import secrets
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import trio
from cuts import cuts
from damage import damage
from kills import kills
from long_messages import long_messages
from mixture import mixture
from order import order
from recording import NoCompiler
from room import room
from soak import JUDGED_SECONDS, soak
from starts import starts
from tally import Outcome
from tqdm import tqdm

Torture = Callable[[Path, int, random.Random, Callable[[], None]], Awaitable[Outcome]]

TORTURES: dict[str, tuple[Torture, int, str]] = {
    "kills": (kills, 100, "SIGKILL at random moments"),
    "starts": (starts, 160, "interrupted starts, and misplaced files"),
    "images": (cuts, 1000, "disk images after a power failure"),
    "order": (order, 3000, "Strong messages, each on the disk before it is sent or confirmed"),
    "rooms": (room, 1, "no room on the disk, in the map, for descriptors, in memory"),
    "long": (long_messages, 64, "MiB of each long message, many of which are sent at once"),
    "mixture": (mixture, 300, "clients of all protocols that do random things, after which nothing is held"),
    "flips": (damage, 1000, "flipped bits, and each file truncated, emptied and removed"),
}
DEFAULT_SEED = 1
SOAK_SECONDS = 600
SOAK_CONNECTIONS = 2000
SOAK = "seconds with slow and hostile clients"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, and return its exit status."""
    options = _parser().parse_args(arguments)
    seed: int = options.seed
    print(f"seed {seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="omq-torture-", dir=options.directory))
    tortures = dict(TORTURES)
    tortures["soak"] = partial(_soak, options.connections), 0, SOAK
    broken = False
    for name, (torture, default, what) in tortures.items():
        given: int | None = getattr(options, name)
        count = given if given is not None else 0 if options.soak else default
        if not count:
            continue
        # Each kind has a seed of its own, so that it can be repeated alone.
        chance = random.Random(f"{seed} {name}")
        with tqdm(total=count, desc=name, unit="", disable=None) as bar:
            try:
                outcome = trio.run(torture, directory, count, chance, bar.update)
            except NoCompiler as problem:
                outcome = Outcome([str(problem)])
        print(
            f"{name}: {count} ({what}), {outcome.messages} messages checked, "
            f"{len(outcome.broken)} promises broken",
            flush=True,
        )
        for sentence in outcome.broken:
            print(f"  {sentence}")
        for sentence in outcome.left_out:
            print(f"  left out: {sentence}")
        broken |= bool(outcome.broken)
    if broken:
        print(f"the files of the failed runs are in {directory}")
    else:
        shutil.rmtree(directory)
    return int(broken)


async def _soak(
    connections: int, directory: Path, count: int, chance: random.Random, done: Callable[[], None]
) -> Outcome:
    return await soak(directory, count, connections, chance, done)


def seed_number(text: str) -> int:
    return secrets.randbits(32) if text == "random" else int(text)


def whole_number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/torture.py",
        description="Make the failures of real machines happen to omq-server, and check its promises "
        "(docs/RELIABILITY.md).",
        epilog="Exit status: 0 all promises were kept, 1 some were not, 2 the command line was wrong.",
    )
    parser.add_argument(
        "--seed",
        type=seed_number,
        default=DEFAULT_SEED,
        help=f"seed of all random numbers: a number, or the word random (default {DEFAULT_SEED})",
    )
    for name, (_, count, what) in TORTURES.items():
        parser.add_argument(
            f"--{name}",
            type=whole_number,
            metavar="N",
            help=f"{what} (default {count}; 0 for none)",
        )
    parser.add_argument(
        "--soak",
        type=whole_number,
        nargs="?",
        const=SOAK_SECONDS,
        metavar="SECONDS",
        help=f"{SOAK} ({SOAK_SECONDS} when no number is given); runs only with this option, and then other "
        f"parts run only with theirs; latency and growth are judged from {JUDGED_SECONDS} seconds on",
    )
    parser.add_argument(
        "--connections",
        type=whole_number,
        default=SOAK_CONNECTIONS,
        metavar="N",
        help=f"how many hostile connections the soak has (default {SOAK_CONNECTIONS})",
    )
    parser.add_argument("--directory", help="working directory (default: the system's temporary directory)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
