"""Posts that wait in a queue: for the memory of a writer, or for room in a transient topic."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from omq.drivers.budget import Budget, Turn
from omq.drivers.confirmation import Confirmation, joined
from omq.drivers.offer import Offered, QueuedOffer
from omq.drivers.posts import Post
from omq.drivers.publisher_queue import PublisherQueue, WaitingPublisher
from omq.drivers.reasons import Failure, Refused
from omq.drivers.reservations import Numbered, Reservations
from omq.drivers.sequences import Origins
from omq.drivers.wait_graph import Room
from omq_storage.batches import Batch, pieces_within
from omq_storage.heads import octets_of


class PendingPersistentOffer(QueuedOffer):
    """A post to a persistent topic, which waits for the memory for posts."""

    __slots__ = ("_budget", "_post", "_submit", "_turn")

    def __init__(self, submit: Callable[[Post], None], budget: Budget, post: Post) -> None:
        """Enter the queue for the memory of the post; `submit` queues the post when there is memory."""
        super().__init__()
        self._submit = submit
        self._budget = budget
        self._post = post
        self._turn: Turn | None = budget.enqueue(post.octets, self.woken)

    def again(self) -> Offered:
        """See `PendingOffer`. Never raises Refused."""
        assert self._turn is not None, "the offer is finished"
        if not self._turn.is_granted:
            return self
        self._turn = None
        self._submit(self._post)
        return self._post.confirmation

    def leave(self) -> None:
        """See `PendingOffer`."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._budget.leave(turn)


class InMemory(Numbered, Protocol):
    """The interface of the driver of a transient topic for a pending offer."""

    publisher_queue: PublisherQueue
    gone: Failure
    """The failure of messages that come when the topic is deleted, or has another driver."""

    @property
    def ids(self) -> Reservations: ...

    @property
    def room(self) -> Room | None:
        """The topic, if its workers make room in it."""

    def most(self) -> int:
        """Return the octets of a piece."""

    def enqueue(self, octets: int, admitted: Callable[[], None]) -> WaitingPublisher:
        """Join the queue of the topic."""

    def has_ids(self, count: int) -> bool:
        """Return whether the next ids may be assigned."""

    def hand_over(self, batch: Batch, heads: Sequence[bytes], origins: Origins, octets: int) -> Confirmation:
        """Accept messages for which there is room, and ids. Return their confirmation. Raises Refused."""

    def free(self, octets: int) -> None:
        """Give back granted room that is not needed."""

    def log_failure(self, problem: Exception) -> Failure:
        """Log a problem, and return the failure for publishers."""


class PendingTransientOffer(QueuedOffer):
    """A post to a transient topic, which takes it in pieces: each waits for ids, then for room.

    Room is granted last, because room that one publisher has is not available to others, and a reservation of
    ids takes as long as the disk does.
    """

    __slots__ = (
        "_count",
        "_heads",
        "_held",
        "_origins",
        "_pieces",
        "_problem",
        "_taken",
        "_topic",
        "_waiting_publisher",
        "_wants_ids",
    )

    def __init__(self, topic: InMemory, batch: Batch, heads: Sequence[bytes], origins: Origins) -> None:
        """Call `again` at once."""
        super().__init__(topic.room)
        self._topic = topic
        self._pieces = deque(pieces_within(batch, topic.most()))
        self._heads = heads
        self._origins = origins
        self._count = batch.count
        self._taken: list[tuple[int, Confirmation]] = []
        """The pieces that were accepted, each with its number of messages."""
        self._waiting_publisher: WaitingPublisher | None = None
        self._held: int | None = None
        self._wants_ids = False
        self._problem: Exception | None = None

    def again(self) -> Offered:
        """See `PendingOffer`.

        If a piece is refused after earlier ones were accepted, the confirmation reports it, as it does the
        failure of one that is on its way to a disk.
        """
        try:
            while self._pieces:
                if not self._next():
                    return self
        except Refused as refused:
            self.leave()
            if not self._taken:
                raise
            failed = Confirmation()
            failed.settle(refused.failure)
            self._taken.append((self._count - sum(count for count, _ in self._taken), failed))
        return joined(self._taken)

    def _next(self) -> bool:
        """Post the next piece, if that is possible now. Raises Refused."""
        topic = self._topic
        if topic.deleted:
            raise Refused.of(topic.gone)
        begin, piece = self._pieces[0]
        end = begin + piece.count
        heads = self._heads[begin:end]
        if not self._has_ids(piece.count):
            return False
        if self._held is None:
            self._held = self._room(piece.octets + octets_of(heads))
        if self._held is None:
            return False
        held, self._held = self._held, None
        self._pieces.popleft()
        self._taken.append((piece.count, topic.hand_over(piece, heads, self._origins[begin:end], held)))
        return True

    def _room(self, octets: int) -> int | None:
        """Return the granted octets; None while it waits."""
        topic = self._topic
        if self._waiting_publisher is None:
            if topic.publisher_queue.try_enter(octets):
                return octets
            self._waiting_publisher = topic.enqueue(octets, self.woken)
        waiting_publisher = self._waiting_publisher
        if not waiting_publisher.is_admitted:
            return None
        self._waiting_publisher = None
        topic.publisher_queue.go_on(waiting_publisher)
        return octets

    def _has_ids(self, count: int) -> bool:
        topic = self._topic
        problem, self._problem = self._problem, None
        if topic.has_ids(count):
            return True
        if problem is not None:
            raise Refused.of(topic.log_failure(problem)) from problem
        if not self._wants_ids:
            self._wants_ids = True
            topic.ids.want(topic, count, self._reserved)
        return False

    def _reserved(self, problem: Exception | None) -> None:
        """Continue after a reservation: there are ids, unless others took them, or a problem."""
        self._wants_ids = False
        self._problem = problem
        self.woken()

    def leave(self) -> None:
        """See `PendingOffer`."""
        self._pieces.clear()
        waiting_publisher, self._waiting_publisher = self._waiting_publisher, None
        if waiting_publisher is not None:
            self._topic.publisher_queue.leave(waiting_publisher)
        held, self._held = self._held, None
        if held is not None:
            self._topic.free(held)
