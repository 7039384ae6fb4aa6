"""Figures into a table for readers and a document for programs."""

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from measure import Sample
from systems import Kind, System

RATE, MICROSECONDS, OCTETS, EACH = "messages/s", "microseconds", "octets", "octets each"
SECONDS = "seconds"
MICROSECONDS_EACH, LOST = "microseconds each", "percent lost"


@dataclass
class Row:
    """One system in one case with one size of message; a sample for each run, or why there is none."""

    system: str
    case: str
    size: int
    unit: str
    guarantee: str
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None
    absent: str | None = None

    @property
    def median(self) -> float:
        return statistics.median(sample.value for sample in self.samples)

    @property
    def usable(self) -> bool:
        return bool(self.samples) and self.failure is None


def machine() -> dict[str, str]:
    """Describe the machine."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{total / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def filesystem(directory: Path) -> str:
    """Return the type of the file system that the stores are on: the cost of an fsync depends on it."""
    best, kind = -1, "unknown"
    resolved = directory.resolve()
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, found, *_ = line.split()
        mount = Path(where)
        if (mount == resolved or mount in resolved.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), found
    return kind


class Measured(Protocol):
    """A system that a report names with its version."""

    @property
    def name(self) -> str: ...

    def version(self) -> str: ...


def print_conditions(directory: Path, systems: Iterable[Measured] = ()) -> None:
    """Print the machine, the file system of the stores, and the versions of the systems."""
    for name, text in machine().items():
        print(f"{name}: {text}")
    print(f"stores on: {filesystem(directory)}")
    for system in systems:
        print(f"{system.name}: {system.version()}")
    print()


def ratio(rows: Sequence[Row], row: Row) -> tuple[float, str] | None:
    """Return the factor by which it is better than the better peer: above 1 in omq's favour, for every
    unit.
    """
    if not row.system.startswith("omq") or not row.usable:
        return None
    peers = [
        each
        for each in rows
        if (each.case, each.size) == (row.case, row.size) and each.system in ("nats", "redis") and each.usable
    ]
    if not peers or row.unit == LOST:
        return None
    if row.unit == RATE:
        best = max(peers, key=lambda each: each.median)
        return row.median / best.median, best.system
    best = min(peers, key=lambda each: each.median)
    return best.median / row.median, best.system


def amount(value: float, unit: str) -> str:
    match unit:
        case "octets":
            return f"{value / 2**20:,.1f} MiB"
        case "octets each":
            return f"{value / 2**10:,.1f} KiB"
        case "microseconds":
            return f"{value:,.0f} µs"
        case "seconds":
            return f"{value:.2f} s"
        case "microseconds each":
            return f"{value:,.1f} µs"
        case "percent lost":
            return f"{value:.1f} % lost"
        case _:
            return f"{value:,.0f}"


_HEADS = (
    "case", "size", "system", "median", "min - max", "MB/s", "to better peer", "server", "load", "remark"
)  # fmt: skip


def cells(rows: Sequence[Row], row: Row) -> tuple[str, ...]:
    """Return one line of the table."""
    start = (row.case, str(row.size), row.system)
    if row.failure is not None:
        return (*start, "FAILED", "", "", "", "", "", row.failure)
    if not row.samples:
        return (*start, "-", "", "", "", "", "", row.absent or "")
    values = [sample.value for sample in row.samples]
    spread = f"{amount(min(values), row.unit)} - {amount(max(values), row.unit)}" if len(values) > 1 else ""
    compared = ratio(rows, row)
    against = f"{compared[0]:.2f}x {compared[1]}" if compared else ""
    server = load = rate = ""
    remark = row.guarantee
    if row.unit == RATE:
        rate = f"{row.median * row.size / 1e6:,.1f}"
        server = f"{statistics.median(sample.server_cores for sample in row.samples):.2f}"
        load = f"{statistics.median(sample.load_cores for sample in row.samples):.2f}"
    elif row.unit == MICROSECONDS:
        p99 = statistics.median(sample.detail["p99"] for sample in row.samples)
        longest = max(sample.detail["longest"] for sample in row.samples)
        remark = f"99th percentile {amount(p99, row.unit)}, longest {amount(longest, row.unit)}"
        flushes = [sample.detail["flush"] for sample in row.samples if "flush" in sample.detail]
        if flushes:
            remark += f"; one flush of the disk {amount(statistics.median(flushes), row.unit)}"
    elif row.unit in (EACH, SECONDS, MICROSECONDS_EACH, LOST):
        remark = row.samples[-1].counted
    else:
        sample = row.samples[-1]
        resident = amount(sample.detail["RSS"], OCTETS)
        highest = amount(sample.detail["highest RssAnon"], OCTETS)
        anonymous = amount(sample.detail["RssAnon"], OCTETS)
        if row.case == "memory-idle":
            remark = f"RSS; RssAnon {anonymous}; {sample.counted}"
        else:
            remark = f"RssAnon; highest meanwhile {highest}; RSS {resident}; {sample.counted}"
    return (*start, amount(row.median, row.unit), spread, rate, against, server, load, remark)


def table(rows: Sequence[Row]) -> str:
    """Return all figures, case by case."""
    lines: list[tuple[str, ...]] = [_HEADS]
    lines += [cells(rows, row) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADS) - 1)]
    right = {1, 3, 5, 7, 8}
    texts = []
    before: tuple[str, ...] = ()
    for number, line in enumerate(lines):
        if number > 0 and line[:2] != before:
            texts.append("")
        before = line[:2]
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line[:-1], widths, strict=True))
        ]
        texts.append("  ".join([*padded, line[-1]]).rstrip())
    return "\n".join(texts)


def document(
    rows: Sequence[Row], systems: Sequence[System], settings: dict[str, Any], checks: Sequence[str]
) -> dict[str, Any]:
    """Return everything, for programs."""
    return {
        "machine": machine(),
        "versions": {system.name: system.version() for system in systems},
        "guarantees": {
            system.name: {kind.name.lower(): system.guarantee(kind) for kind in Kind} for system in systems
        },
        "settings": settings,
        "contents compared": list(checks),
        "rows": [
            {
                "system": row.system,
                "case": row.case,
                "size": row.size,
                "unit": row.unit,
                "guarantee": row.guarantee,
                "median": row.median if row.samples else None,
                "min": min((sample.value for sample in row.samples), default=None),
                "max": max((sample.value for sample in row.samples), default=None),
                "ratio to better peer": (ratio(rows, row) or (None,))[0],
                "samples": [asdict(sample) for sample in row.samples],
                "failure": row.failure,
                "absent": row.absent,
            }
            for row in rows
        ],
    }
