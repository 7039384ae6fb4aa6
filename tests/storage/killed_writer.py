"""A process that stores large messages in fragments until it is killed.

As a program it forks such a process for each line of its standard input (last step, level, path), and writes
the number of the signal that ended it. So it imports the store only once.
"""

import os
import signal
import sys
from functools import lru_cache
from itertools import count
from pathlib import Path

from crc32c import crc32c
from storage_helpers import NOON

from omq_storage.fragments import FRAGMENT_OCTETS, Fragmented, Fragments
from omq_storage.levels import Level
from omq_storage.store import Store

MIB = 1 << 20
AT_ONCE = 6 * FRAGMENT_OCTETS


@lru_cache(maxsize=16)
def body(size: int, salt: int = 0) -> bytes:
    """Return a body in which no two fragments are equal."""
    return b"".join(b"%d-%07d " % (salt, n) for n in range(size // 8 + 1))[:size]


def described(topic: int, first: int, number: int, content: bytes, head: bytes = b"") -> Fragmented:
    """Return a message whose fragments are stored."""
    return Fragmented(topic, first, NOON, number, len(content), crc32c(content), head)


def write(path: Path, level: Level, last_step: int) -> None:
    """Store two messages, delete them and sweep. Kill this process after `last_step`, or at the end."""
    steps = count(1)

    def step() -> None:
        if next(steps) == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    store = Store.open(path, map_size=1 << 28, boot_id="first")
    environment = store.level(level)
    for message in (1, 2):
        content = body(MIB, message)
        number = environment.bodies.begin()
        for begin in range(0, len(content), AT_ONCE):
            part = content[begin : begin + AT_ONCE]
            environment.put_fragments([Fragments(0, number, begin // FRAGMENT_OCTETS, part)])
            step()
        environment.append([described(0, message, number, content)])
        step()
        environment.checkpoint()
        step()
    while environment.trim(0, 3).messages:
        pass
    step()
    while environment.sweep():
        step()
    step()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    for line in sys.stdin:
        last_step, level, path = line.rstrip("\n").split(" ", 2)
        process = os.fork()
        if process == 0:
            write(Path(path), Level(level), int(last_step))  # never returns
        _, status = os.waitpid(process, 0)
        print(os.WTERMSIG(status), flush=True)


if __name__ == "__main__":
    main()
