"""Dead letters: messages of a queue that are done without having been accepted.

A queue with a dead-letter exchange sends them there. They are done in the queue when their new queues have
stored them. So none is lost; after a kill between the two, one is sent again. A queue that refuses messages
at its length limit does not get them, as with RabbitMQ.
"""

import logging
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol

import trio
from msgspec import Struct

from omq.drivers.budget import Budget
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Failure
from omq.drivers.slices import Slices
from omq.drivers.unsettled import DeliveredIds, number_of
from omq.logs import LogThrottle, quoted
from omq.model import Topic
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.errors import StoreError
from omq_storage.runs import Run, joined

MOST_LETTERS = 512
"""The most dead letters that are sent together."""

LETTERS_OCTETS = 256 << 10
"""The octets of the dead letters that are sent together, but at least one."""

TURNED_AWAY_OCTETS = 16 << 20
"""The octets of the refused messages of all queues that may be on their way to dead-letter exchanges."""

RETRY_SECONDS = 1.0
"""The number of seconds that dead letters wait after a failure, until they are sent again."""

log = logging.getLogger("omq.dead_letters")


class Death(Enum):
    """The reason why a message became a dead letter. The values are those of RabbitMQ."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class DeadLetter(Struct, frozen=True):
    """A dead letter: the message as it was in its queue."""

    id: int
    body: bytes
    head: bytes
    done: set[int]
    """The ids of the topics that need not get it any more: they have it, or have no room for it."""


Undelivered = Mapping[int, Failure]
"""The letters that must be sent again, by their ids, and why."""

Deliver = Callable[[bytes, QueueOptions, Death, Sequence[DeadLetter]], Awaitable[Undelivered]]
"""Sends letters of the queue with this name and these options to those of their new queues that are not done.
It returns when these letters have the persistence of these queues, or have failed.
"""


class DeadLetterDelivery:
    """The delivery of dead letters, for the queues of a server."""

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """Create a closed delivery, which starts tasks with `start`."""
        self.start = start
        self.turned_away = Budget(TURNED_AWAY_OCTETS)
        """The octets of messages that no queue has: see `omq.drivers.turned_away`."""
        self._is_open = trio.Event()
        self._deliver: Deliver | None = None

    def open(self, deliver: Deliver) -> None:
        """Send letters by this function from now on. Call it after all stored queues and exchanges are
        loaded: an earlier letter would find no route.
        """
        self._deliver = deliver
        self._is_open.set()

    async def deliver(
        self, queue: bytes, options: QueueOptions, death: Death, letters: Sequence[DeadLetter]
    ) -> Undelivered:
        """Send letters, as soon as it is open: see `Deliver`."""
        await self._is_open.wait()
        assert self._deliver is not None
        return await self._deliver(queue, options, death, letters)


class DeadLetterSource(Protocol):
    """A queue with dead letters."""

    topic: Topic
    options: QueueOptions
    deleted: bool

    async def block_of(self, message: int) -> Block | None:
        """Return the block with this message, or None if it is not kept any more. Raises StoreError."""

    def dead_lettered(self, messages: Sequence[Run]) -> None:
        """Settle messages that have arrived in their new queues."""


class DeadLetters:
    """The dead letters of one queue that are not done yet. A task sends them as long as there are any."""

    def __init__(self, source: DeadLetterSource, delivery: DeadLetterDelivery) -> None:
        self._source = source
        self._delivery = delivery
        self._waiting: deque[tuple[Death, Run]] = deque()
        self._sending = DeliveredIds()
        self._done: dict[int, set[int]] = {}
        """The letters of the last attempt that must be sent again, by their ids: see `DeadLetter.done`."""
        self._is_running = False
        name = source.topic.topic
        self._problems = LogThrottle.of_problem(log, f"{quoted(name)}: dead letters wait", topic=name)
        self._defects = LogThrottle.of_problem(
            log, f"{quoted(name)}: dead letters dropped by a defect of the server", topic=name
        )

    def __len__(self) -> int:
        return number_of(self.runs())

    def runs(self) -> Iterator[Run]:
        """Yield all of them."""
        yield from self._sending.runs()
        for _, run in self._waiting:
            yield run

    def add(self, death: Death, messages: Iterable[Run]) -> None:
        """Send these messages, after the earlier ones."""
        for run in messages:
            if self._waiting and self._waiting[-1][0] is death:
                longer = joined(self._waiting[-1][1], run)
                if longer is not None:
                    self._waiting[-1] = death, longer
                    continue
            self._waiting.append((death, run))
        if self._waiting and not self._is_running:
            self._is_running = True
            self._delivery.start(self._run)

    def clear(self) -> None:
        """Forget the messages of a queue that was deleted."""
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting and not self._source.deleted:
                problem: StoreError | Failure | None
                try:
                    problem = await self._send_some()
                except StoreError as failed:
                    problem = failed
                if problem is not None:
                    self._problems.add(problem)
                    await trio.sleep(RETRY_SECONDS)
        finally:
            self._is_running = False

    async def _send_some(self) -> Failure | None:
        """Send the first ones that died in the same way. Return the failure if some of them must be sent
        again. Raises StoreError.
        """
        death = self._waiting[0][0]
        try:
            undelivered = await self._send(death, await self._take(death))
            for id in sorted(undelivered, reverse=True):
                kept = self._sending.take(range(id, id + 1))
                self._waiting.extendleft((death, run) for run in kept)
            self._settle_sent()
            return next(iter(undelivered.values()), None)
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - a defect, which the log shows; the server and the queue continue
            self._defects.add(traceback.format_exc())
            self._settle_sent()
            return None
        finally:
            # They were not sent, or it is not known whether they were.
            self._waiting.extendleft((death, run) for run in reversed(self._sending.runs()))
            self._sending.clear()

    async def _take(self, death: Death) -> list[DeadLetter]:
        """Let the next letters that died in this way be sent; return those that are still kept. Raises
        StoreError.
        """
        letters: list[DeadLetter] = []
        octets = 0
        block: Block | None = None
        slices = Slices()
        while self._waiting and self._waiting[0][0] is death:
            await slices.step()
            if not self._waiting:
                break  # the queue was deleted meanwhile
            if len(self._sending) >= MOST_LETTERS or octets >= LETTERS_OCTETS:
                break
            run = self._waiting[0][1]
            message = run.lowest
            self._sending.add(range(message, message + 1), run.deliveries)
            self._drop_first(run)
            if block is None or not block.first <= message < block.next:
                block = await self._source.block_of(message)
            if block is not None:
                body, head = bytes(block.frame(message)[FRAME_HEADER:]), block.head(message)
                letters.append(DeadLetter(message, body, head, self._done.get(message) or set()))
                octets += len(body) + len(head)
        return letters

    async def _send(self, death: Death, letters: Sequence[DeadLetter]) -> Undelivered:
        source = self._source
        if not letters or source.deleted:
            return {}
        undelivered = await self._delivery.deliver(source.topic.topic, source.options, death, letters)
        self._done = {letter.id: letter.done for letter in letters if letter.id in undelivered}
        return undelivered

    def _settle_sent(self) -> None:
        """Settle the messages that were sent."""
        done, self._sending = self._sending, DeliveredIds()
        if done and not self._source.deleted:
            self._source.dead_lettered(done.runs())

    def _drop_first(self, run: Run) -> None:
        """Remove the first message of the first run."""
        bits = run.bits & (run.bits - 1)
        if bits:
            self._waiting[0] = self._waiting[0][0], run._replace(bits=bits)
        else:
            self._waiting.popleft()
