"""The resources of a running server, from Linux and from the server itself."""

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import trio
from server import Server

COUNTS = re.compile(r"SIGUSR1: (\d+) connections?, (\d+) tasks?\n")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """The resources of a process at one moment."""

    when: float
    memory: int
    """Anonymous memory of the process in octets (RssAnon)."""
    descriptors: int
    threads: int


def vitals(pid: int) -> ProcessSample:
    """Measure a process. Raises OSError if it has ended."""
    place = Path(f"/proc/{pid}")
    found = re.search(r"^RssAnon:\s+(\d+) kB$", (place / "status").read_text(), re.MULTILINE)
    assert found is not None, "this is not Linux"
    return ProcessSample(
        when=trio.current_time(),
        memory=int(found[1]) << 10,
        descriptors=len(list((place / "fd").iterdir())),
        threads=len(list((place / "task").iterdir())),
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Processor time so far, in seconds."""

    when: float
    all: float
    by: dict[int, float]
    """By process."""

    def since(self, before: "Work", *pids: int) -> float:
        """Return the number of processors that these processes used on average."""
        seconds = self.when - before.when
        return sum(self.by.get(pid, 0.0) - before.by.get(pid, 0.0) for pid in pids) / seconds

    def others(self, before: "Work") -> float:
        """Return the number of processors that all other processes used."""
        return (self.all - before.all) / (self.when - before.when) - self.since(before, *self.by)


def work(*pids: int) -> Work:
    """Return the processor time of the machine and of these processes. Raises OSError if one has ended."""
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
    """Return the numbers of connections and tasks that the server logs. Raises trio.TooSlowError."""
    before = len(COUNTS.findall(server.log()))
    server.process.send_signal(signal.SIGUSR1)
    for _ in range(600):
        told = COUNTS.findall(server.log())
        if len(told) > before:
            connections, tasks = told[-1]
            return int(connections), int(tasks)
        await trio.sleep(0.05)
    raise trio.TooSlowError
