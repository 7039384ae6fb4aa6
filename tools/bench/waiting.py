"""The parts of a round trip: work, and waiting for a processor, of the server's thread and of the client.

The kernel counts both for each thread (`/proc/PID/task/TID/schedstat`): how long it ran, to a tick of
some milliseconds, and how long it could have run while other threads had the processors. The rest of a round
trip is neither: the server's thread waited for a lock, such as the interpreter's, or for the disk, or the
client ran.
"""

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Parts:
    """Milliseconds."""

    whole: float
    server_ran: float
    server_waited: float
    client_waited: float

    @property
    def rest(self) -> float:
        return max(0.0, self.whole - self.server_ran - self.server_waited - self.client_waited)

    def row(self) -> dict[str, float]:
        return {
            "server ran": self.server_ran,
            "server waited for a processor": self.server_waited,
            "client waited for a processor": self.client_waited,
            "rest": self.rest,
        }

    def __str__(self) -> str:
        return ", ".join(f"{number:.2f}" for number in self.row().values())


class ThreadTimes:
    """The time that a thread ran, and that it waited for a processor, since it began."""

    def __init__(self, process: int, thread: int) -> None:
        self._file = os.open(f"/proc/{process}/task/{thread}/schedstat", os.O_RDONLY)

    def __enter__(self) -> "ThreadTimes":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def milliseconds(self) -> tuple[float, float]:
        """Return the time that it ran, and that it waited."""
        ran, waited, _ = os.pread(self._file, 100, 0).split()
        return int(ran) / 1e6, int(waited) / 1e6


def mean_of_slowest(trips: Sequence[Parts], share: float = 0.01) -> Parts:
    """Return the means of this share of the round trips, at least of one: the slowest."""
    slowest = sorted(trips, key=lambda parts: -parts.whole)[: max(1, int(share * len(trips)))]
    columns = zip(*map(astuple, slowest), strict=True)
    return Parts(*(sum(column) / len(slowest) for column in columns))
