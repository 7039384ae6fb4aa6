"""The queues of publishers that wait for room in topics. Free room wakes only the publishers that get it.

A `PublisherQueue` belongs to one topic and admits its publishers in the order in which they came. The
`PublisherQueues` are the topics whose first publisher waits for memory that all topics share. They take
turns, one publisher each.
"""

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import assert_never


class RoomAnswer(Enum):
    """The answer of a topic to a publisher that needs room."""

    TAKEN = "the octets are counted"
    TOPIC_FULL = "the topic is full; it tries again when it holds less, or when a worker has room"
    MEMORY_FULL = "the memory that all topics share is spent"
    ALL_FULL = "a worker is idle, but even the memory that such topics may use beyond their share is spent"


class WaitingPublisher:
    """A waiting publisher."""

    __slots__ = ("admitted", "is_admitted", "octets")

    def __init__(self, octets: int, admitted: Callable[[], None]) -> None:
        self.octets = octets
        self.admitted = admitted
        self.is_admitted = False


class PublisherQueues:
    """The topics whose first publisher waits for the shared memory."""

    def __init__(self) -> None:
        self._wanted: OrderedDict[PublisherQueue, None] = OrderedDict()
        self._others: OrderedDict[PublisherQueue, None] = OrderedDict()
        self.promised = 0
        """The octets of admitted publishers of these topics that have not posted yet."""

    def __bool__(self) -> bool:
        return bool(self._wanted or self._others)

    def is_empty(self) -> bool:
        """Return whether no topic waits for the shared memory."""
        return not self

    def has(self, publisher_queue: "PublisherQueue") -> bool:
        """Return whether this topic waits for the shared memory."""
        return publisher_queue in self._wanted or publisher_queue in self._others

    def wait(self, publisher_queue: "PublisherQueue", answer: RoomAnswer) -> None:
        """Put a topic into the queue that its answer selects. If it is there already, it keeps its place."""
        line, other = self._others, self._wanted
        if answer is RoomAnswer.ALL_FULL:
            line, other = other, line
        other.pop(publisher_queue, None)
        line.setdefault(publisher_queue)

    def join(self, publisher_queue: "PublisherQueue") -> None:
        """Record that this topic may have room for its first publisher now: `look` tries it in its turn."""
        if publisher_queue not in self._wanted:
            self._others.setdefault(publisher_queue)

    def leave(self, publisher_queue: "PublisherQueue") -> None:
        """Remove this topic from the queues for the shared memory."""
        self._wanted.pop(publisher_queue, None)
        self._others.pop(publisher_queue, None)

    def look(self) -> None:
        """Admit the first publishers, as far as the free memory suffices.

        Topics with an idle worker come first: they may use memory that the others may not.
        """
        for line in (self._wanted, self._others):
            while line:
                publisher_queue = next(iter(line))
                if not publisher_queue.admit_first(in_turn=True):
                    if next(iter(line), None) is publisher_queue:
                        break  # not enough memory for it; it keeps its place before the others
                elif publisher_queue in line:
                    line.move_to_end(publisher_queue)


class PublisherQueue:
    """The waiting publishers of one topic."""

    def __init__(
        self,
        take: Callable[[int, bool], RoomAnswer],
        give: Callable[[int], None],
        publisher_queues: PublisherQueues,
    ) -> None:
        """Create an empty line of publishers. `take` counts N octets if there is room; its second argument
        tells whether it is this topic's turn to get shared memory. `give` takes back octets of a publisher
        that gave up.
        """
        self._take = take
        self._give = give
        self._publisher_queues = publisher_queues
        self._publishers: OrderedDict[WaitingPublisher, None] = OrderedDict()
        self.admitted = 0
        """The number of admitted publishers that have not posted yet."""

    @property
    def waiting(self) -> int:
        """The number of waiting publishers."""
        return len(self._publishers)

    @property
    def is_wanted(self) -> bool:
        """Whether a publisher waits for admission."""
        return bool(self._publishers)

    def try_enter(self, octets: int) -> bool:
        """Count `octets` if there is room for them now, and no publisher waits."""
        return not self._publishers and self._take(octets, False) is RoomAnswer.TAKEN

    def enqueue(self, octets: int, admitted: Callable[[], None]) -> WaitingPublisher:
        """Wait for room behind all waiting publishers. `admitted` is called when the octets are counted,
        unless that happens within this call, and when the topic is deleted.
        """
        waiting_publisher = WaitingPublisher(octets, _nothing)
        self._publishers[waiting_publisher] = None
        if len(self._publishers) == 1:
            self.admit_first(in_turn=False)
        waiting_publisher.admitted = admitted
        return waiting_publisher

    def go_on(self, waiting_publisher: WaitingPublisher) -> None:
        """Record that an admitted publisher posts its messages now."""
        assert waiting_publisher.is_admitted
        self._settle(waiting_publisher)

    def leave(self, waiting_publisher: WaitingPublisher) -> None:
        """Remove a publisher that gives up, even if it has just been admitted, and admit those behind it that
        fit now.
        """
        if waiting_publisher.is_admitted:
            self._settle(waiting_publisher)
            self._give(waiting_publisher.octets)
            return
        self._publishers.pop(waiting_publisher, None)
        if not self._publishers:
            self._publisher_queues.leave(self)
        self.look()
        self._publisher_queues.look()

    def _settle(self, waiting_publisher: WaitingPublisher) -> None:
        self.admitted -= 1
        self._publisher_queues.promised -= waiting_publisher.octets

    def look(self) -> None:
        """Admit the first publishers, as far as there is room."""
        while self._publishers and self.admit_first(in_turn=False):
            pass

    def admit_first(self, *, in_turn: bool) -> bool:
        """Admit the first publisher if there is room for it. Return whether there was."""
        if not self._publishers:
            self._publisher_queues.leave(self)
            return False
        waiting_publisher = next(iter(self._publishers))
        answer = self._take(waiting_publisher.octets, in_turn)
        match answer:
            case RoomAnswer.TAKEN:
                del self._publishers[waiting_publisher]
                waiting_publisher.is_admitted = True
                self.admitted += 1
                self._publisher_queues.promised += waiting_publisher.octets
                waiting_publisher.admitted()
                if not self._publishers:
                    self._publisher_queues.leave(self)
                return True
            case RoomAnswer.TOPIC_FULL:
                self._publisher_queues.leave(self)
            case RoomAnswer.MEMORY_FULL | RoomAnswer.ALL_FULL:
                self._publisher_queues.wait(self, answer)
            case _:
                assert_never(answer)
        return False

    def freed(self) -> None:
        """Admit publishers of all topics as long as they fit, in turns, because this topic holds less now."""
        if self._publishers:
            self._publisher_queues.join(self)
        self._publisher_queues.look()
        if self._publishers:
            self.look()

    def close(self) -> None:
        """Wake all waiting publishers of a topic that was deleted, and admit none any more."""
        self._publisher_queues.leave(self)
        publishers, self._publishers = self._publishers, OrderedDict()
        for waiting_publisher in publishers:
            waiting_publisher.admitted()


def _nothing() -> None:
    """Do nothing, in place of `admitted` until `enqueue` returns: a publisher that is admitted at once is not
    called.
    """
