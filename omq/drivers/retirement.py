"""The channels of a topic that are about to give back their messages together, and the messages of those that
have.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from omq.drivers.unsettled import number_of
from omq_storage.runs import RUN_IDS, RUN_OCTETS, Run, chunked

if TYPE_CHECKING:
    from omq.drivers.round_robin_channel import RoundRobinChannel

MOST_PLACED = 64
"""The number of ids with a step that are placed one by one, as those of consumers in turn are."""

CHUNK_OCTETS = RUN_OCTETS + RUN_IDS // 8


class Retirement:
    """A connection that ends closes its channels one after another, and the channels of a stalled client give
    back what they have not sent. The messages of each wait here until those of the last one have come. So
    they are assigned again in their order, and each of them once.
    """

    def __init__(self) -> None:
        self.channels: set[RoundRobinChannel] = set()
        """The channels that get nothing more, and are not closed, or have not given their messages back."""
        self.octets = 0
        """The memory that the ids take, in octets."""
        self._chunks: dict[tuple[int, int], int] = {}
        """A bitmap of each RUN_IDS neighbouring ids, by their deliveries and the number of the chunk."""
        self._others: list[Run] = []

    def __len__(self) -> int:
        return sum(map(int.bit_count, self._chunks.values())) + number_of(self._others)

    def gave_back(self, channel: "RoundRobinChannel", messages: Iterable[Run]) -> bool:
        """Add the messages of a channel. Return whether it is the last one."""
        self.channels.remove(channel)
        self.add(messages)
        return not self.channels

    def add(self, messages: Iterable[Run]) -> None:
        """Add messages of a channel that has others still."""
        for run in messages:
            # Consumers in turn have some of each run of ids: the runs become few again.
            if run.step == 1:
                self._place(run.first, run.bits, run.deliveries)
            elif run.bits.bit_count() <= MOST_PLACED:
                for id in run.ids():
                    self._place(id, 1, run.deliveries)
            else:
                self._others.append(run)
                self.octets += run.octets

    def _place(self, first: int, bits: int, deliveries: int) -> None:
        for chunk, part in chunked(first, bits):
            key = deliveries, chunk
            before = self._chunks.get(key)
            self._chunks[key] = part if before is None else before | part
            if before is None:
                self.octets += CHUNK_OCTETS

    def runs(self) -> list[Run]:
        """Return the messages as runs."""
        chunks = sorted(self._chunks.items())
        return [
            Run(chunk * RUN_IDS, 1, bits, deliveries) for (deliveries, chunk), bits in chunks
        ] + self._others

    def take(self) -> list[Run]:
        """Remove the messages, and return them as runs."""
        runs = self.runs()
        self._chunks.clear()
        self._others.clear()
        self.octets = 0
        return runs
