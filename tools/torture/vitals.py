"""What a running server takes, as Linux and the server itself tell."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

import trio
from server import Server

COUNTS = re.compile(r"SIGUSR1: (\d+) connections, (\d+) tasks\n")


@dataclass(frozen=True, slots=True)
class Vitals:
    """At one moment."""

    when: float
    memory: int
    """Octets of memory that are the process's own, without what it maps of files (RssAnon)."""
    descriptors: int
    threads: int


def vitals(pid: int) -> Vitals:
    """Raises OSError when there is no such process any more."""
    place = Path(f"/proc/{pid}")
    found = re.search(r"^RssAnon:\s+(\d+) kB$", (place / "status").read_text(), re.MULTILINE)
    assert found is not None, "this is not Linux"
    return Vitals(
        when=trio.current_time(),
        memory=int(found[1]) << 10,
        descriptors=len(list((place / "fd").iterdir())),
        threads=len(list((place / "task").iterdir())),
    )


async def counts(server: Server) -> tuple[int, int]:
    """How many connections and tasks the server says it has. Raises trio.TooSlowError."""
    before = len(COUNTS.findall(server.log()))
    server.process.send_signal(signal.SIGUSR1)
    for _ in range(600):
        told = COUNTS.findall(server.log())
        if len(told) > before:
            connections, tasks = told[-1]
            return int(connections), int(tasks)
        await trio.sleep(0.05)
    raise trio.TooSlowError
