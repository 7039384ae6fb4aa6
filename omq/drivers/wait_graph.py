"""Finds connections that would wait for themselves: deadlocks of publishers that are workers too.

The workers of a transient round-robin topic make room in it by confirming messages. While the server does not
read the connection of a worker, because that waits for room itself, it receives no confirmations from it. If
this is so for all workers of a topic, including the connection that asks, the wait would never end. Such a
cycle can include several connections and topics.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from omq.drivers.seam import Channel, Subscriber


class WorkerChannel(Channel, Protocol):
    """The channel of a worker."""

    def outstanding_count(self) -> int:
        """Return the number of messages that the worker has, and that are not done."""


class Room(Protocol):
    """A topic whose workers make room in it."""

    def subscribers(self) -> Iterable[tuple[WorkerChannel, Subscriber]]:
        """Return its workers."""

    @property
    def are_all_assigned(self) -> bool:
        """Whether workers have all its messages: there is none for another worker."""

    @property
    def is_wanted(self) -> bool:
        """Whether a publisher waits for room."""

    @property
    def wants_memory(self) -> bool:
        """Whether the first of them waits for the memory that all such topics share."""


class WaitGraph:
    """The subscribers whose connections are not read, and the topics for whose room each of these waits."""

    def __init__(self) -> None:
        self._rooms: dict[Subscriber, Collection[Room]] = {}
        self.holders: dict[Room, None] = {}
        """The topics that hold a part of the shared memory now."""

    @contextmanager
    def waiting(self, subscribers: Collection[Subscriber], rooms: Collection[Room]) -> Iterator[None]:
        """Note within the block that the connection of these subscribers waits for room in one of these
        topics: the server does not read it.
        """
        self._rooms |= dict.fromkeys(subscribers, rooms)
        try:
            yield
        finally:
            for subscriber in subscribers:
                del self._rooms[subscriber]

    def are_circular(
        self, rooms: Iterable[Room], unheard: Collection[Subscriber], silent: Collection[Subscriber]
    ) -> bool:
        """Return whether a connection that waits for room in these topics would wait for itself.

        `unheard` are its subscribers that cannot confirm messages during the wait, and `silent` those that
        receive none during the wait.

        The search goes from each topic to its workers, and from a worker that is not read to the topics that
        it waits for. One worker that can make room is reason enough to wait. So is a topic without workers,
        because one may subscribe later. A worker cannot make room where it has no message, and there is none
        for it.
        """
        seen = dict.fromkeys(rooms)
        todo = list(seen)
        is_reached = False
        while todo:
            room = todo.pop()
            if not room.is_wanted:
                return False  # there is room, or the publisher waits for something else, such as ids
            for maker in self.holders if room.wants_memory else (room,):
                are_all_assigned = maker.are_all_assigned
                for channel, subscriber in maker.subscribers():
                    if subscriber in silent:
                        is_reached = True
                        continue
                    if are_all_assigned and subscriber not in unheard and not channel.outstanding_count():
                        continue
                    if not channel.settles and not channel.statistics().is_held:
                        return False  # its messages are done when they are sent
                    if subscriber in unheard:
                        is_reached = True
                        continue
                    waited = self._rooms.get(subscriber)
                    if waited is None:
                        return False
                    todo += [each for each in waited if each not in seen]
                    seen |= dict.fromkeys(waited)
        return is_reached
