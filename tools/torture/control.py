"""A well-behaved publisher and subscriber, which measure the latency of each message."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

import trio

from omq.client import Client, Delivery, Persistence, Persistent, Sync, Transient, connect

TOPICS: dict[str, Persistence] = {"transient": Transient(), "weak": Persistent(Sync.WEAK)}

PAUSE_SECONDS = 0.02


@dataclass(slots=True)
class Latencies:
    """Latencies of one topic in seconds, in the order of the messages."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """A sentence for each message that was lost, repeated or out of order."""


class Control:
    """`run` it; `latencies` grows."""

    def __init__(self, port: int) -> None:
        self.latencies = {topic: Latencies() for topic in TOPICS}
        self._url = f"omq://127.0.0.1:{port}"
        self._published = 0
        self._ending = trio.Event()

    async def run(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Publish to every topic 50 times a second, until `end`. Raises omq.client.OmqError."""
        async with connect(self._url) as publisher, connect(self._url) as subscriber:
            for topic, persistence in TOPICS.items():
                await publisher.declare(topic, Delivery.BROADCAST, persistence)
            async with trio.open_nursery() as nursery:
                for topic in TOPICS:
                    await nursery.start(self._listen, subscriber, topic)
                task_status.started()
                await self._publish(publisher)

    def count(self) -> dict[str, int]:
        """Return the number of received messages by topic."""
        return {topic: len(found.seconds) for topic, found in self.latencies.items()}

    def end(self) -> None:
        """Stop publishing; `run` returns when every message has arrived."""
        self._ending.set()

    async def _publish(self, client: Client) -> None:
        due = trio.current_time()
        while not self._ending.is_set():
            self._published += 1
            for topic in TOPICS:
                await client.publish(topic, b"%d %d" % (self._published, time.perf_counter_ns()))
            due = max(due + PAUSE_SECONDS, trio.current_time())
            await trio.sleep_until(due)
        await client.confirm()
        for topic in TOPICS:
            await client.publish(topic, b"end")

    async def _listen(
        self, client: Client, topic: str, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED
    ) -> None:
        found = self.latencies[topic]
        expected = 1
        async with client.subscribe(topic) as messages:
            task_status.started()
            async for message in messages:
                now = time.perf_counter_ns()
                if message.body == b"end":
                    if expected != self._published + 1:
                        found.wrong.append(f"{topic}: it ended at {expected} of {self._published}")
                    return
                number, sent = map(int, message.body.split())
                if number != expected:
                    found.wrong.append(f"{topic}: message {number} came where {expected} should")
                expected = number + 1
                found.seconds.append((now - sent) / 1e9)


def in_words(seconds: Sequence[float]) -> str:
    """Return median and 99th percentile, in milliseconds."""
    if len(seconds) < 2:
        return "- / -"
    return f"{median(seconds) * 1e3:.2f} / {quantiles(seconds, n=100)[-1] * 1e3:.1f}"
