"""What a running server takes, as Linux and the server itself tell."""

import os
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


@dataclass(frozen=True, slots=True)
class Work:
    """What processors have done until now, in seconds."""

    when: float
    all: float
    by: dict[int, float]
    """By process."""

    def since(self, before: "Work", *pids: int) -> float:
        """How many processors these processes took, on average, of those that exist."""
        seconds = self.when - before.when
        return sum(self.by.get(pid, 0.0) - before.by.get(pid, 0.0) for pid in pids) / seconds

    def others(self, before: "Work") -> float:
        """How many all other processes took."""
        return (self.all - before.all) / (self.when - before.when) - self.since(before, *self.by)


def work(*pids: int) -> Work:
    """What the machine, and each of these processes, has done. Raises OSError when one is gone."""
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    by = {}
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        by[pid] = (int(fields[11]) + int(fields[12])) / tick
    return Work(trio.current_time(), (user + nice + system + irq + softirq + steal) / tick, by)


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
