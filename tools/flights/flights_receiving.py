"""Counts and checks the messages that subscribers of all topics receive."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import trio
from flights_file import DemoFailed, Flights
from flights_telling import show
from tqdm import tqdm

from omq.client import (
    FromBeginning,
    Gap,
    MessageRun,
    Subscription,
    connect,
)

PATIENCE_SECONDS = 30.0
"""The number of seconds without a message after which the demo gives up waiting for the rest."""


class RowComparison:
    """Compares the messages of one topic with the rows of the file."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        self.count = 0
        self.problem: str | None = None
        self._rows = rows

    def take(self, run: MessageRun) -> None:
        start, end = self.count, self.count + len(run.bodies)
        self.count = end
        # If each row is stored exactly once and in order, ids count the rows.
        if self.problem is None and (
            run.bodies != self._rows[start:end] or run.ids != list(range(start + 1, end + 1))
        ):
            self.problem = self._describe(run, start)

    def _describe(self, run: MessageRun, start: int) -> str:
        for number, (id, body) in enumerate(zip(run.ids, run.bodies, strict=True), start):
            if number >= len(self._rows):
                return f"message {id} is one more than the file has rows"
            if id != number + 1:
                return f"message {id} came where {number + 1} was due"
            if body != self._rows[number]:
                return f"message {id} is not row {number + 1} of the file: {body!r:.60}"
        raise ValueError("the run is as it must be")

    def lose(self, gap: Gap) -> None:
        if self.problem is None:
            self.problem = f"messages {gap.first} to {gap.last} are missing: {gap.reason}"


class Reception:
    """The messages that subscribers to all topics have received so far."""

    def __init__(self, flights: Flights) -> None:
        self.tallies = {topic: RowComparison(rows) for topic, rows in flights.by_topic.items()}
        self._due = len(flights.rows)
        self._came = trio.lowlevel.ParkingLot()

    @property
    def count(self) -> int:
        return sum(tally.count for tally in self.tallies.values())

    def count_of(self, topic: bytes) -> int:
        tally = self.tallies.get(topic)
        return 0 if tally is None else tally.count

    def problems_of(self, topic: bytes, way: str) -> list[str]:
        tally = self.tallies.get(topic)
        return [] if tally is None or tally.problem is None else [f"{way}: {tally.problem}"]

    async def subscribe(
        self,
        url: str,
        *,
        id: str,
        reconnect: bool,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Receive until cancelled. Has started when all topics are subscribed to.

        Every subscription is from the beginning. For a topic that is still empty that is nothing but live
        messages, and if the connection is lost before the first one came, none is missed.
        """
        on_gap = self._lose
        async with (
            connect(url, id=id, reconnect=reconnect, on_gap=on_gap) as client,
            AsyncExitStack() as subscriptions,
            trio.open_nursery() as nursery,
        ):
            for topic, tally in self.tallies.items():
                subscription = await subscriptions.enter_async_context(
                    client.subscribe(topic, FromBeginning())
                )
                nursery.start_soon(self._receive, subscription, tally)
            task_status.started()

    async def _receive(self, subscription: Subscription, tally: RowComparison) -> None:
        async for run in subscription.runs():
            tally.take(run)
            self._came.unpark_all()

    def _lose(self, gap: Gap) -> None:
        self.tallies[gap.topic].lose(gap)

    async def complete(self, bar: "tqdm[None]") -> None:
        """Wait until the number of received messages is the number of rows in the file."""
        while (count := self.count) < self._due:
            show(bar, count)
            with trio.move_on_after(PATIENCE_SECONDS) as limit:
                await self._came.park()
            if limit.cancelled_caught:
                raise DemoFailed(
                    f"{count:,} of {self._due:,} messages came, and for {PATIENCE_SECONDS:g} s no other"
                )
        show(bar, count)
