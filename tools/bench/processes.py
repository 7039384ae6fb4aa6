"""The processor time and the memory of a process."""

import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return the processor time so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> tuple[int, int]:
    """Return the resident memory, all and anonymous, in octets."""
    found = {"VmRSS": 0, "RssAnon": 0}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        word, _, value = line.partition(":")
        if word in found:
            found[word] = int(value.split()[0]) * 1024
    return found["VmRSS"], found["RssAnon"]
