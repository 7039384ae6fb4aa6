"""Connections that wait for room in topics, and whether they wait for themselves.

Room in a transient round-robin topic comes from its workers. A worker whose connection is not read, because
it waits for room itself, confirms nothing. Where all workers of a topic are in that state, and one of them is
the connection that asks, it would wait for ever. Such a circle may lead over several connections and topics.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from omq.drivers.seam import Channel, Subscriber


class Room(Protocol):
    """A topic in which room is made by those who work on its messages."""

    def subscribers(self) -> Iterable[tuple[Channel, Subscriber]]:
        """Its workers."""

    @property
    def is_wanted(self) -> bool:
        """Whether a publisher waits for room."""

    @property
    def wants_memory(self) -> bool:
        """Whether the first of them waits for memory that all such topics share."""


class Waits:
    """Which subscribers are not heard, and for room in which topics their connection waits."""

    def __init__(self) -> None:
        self._rooms: dict[Subscriber, Collection[Room]] = {}
        self.holders: dict[Room, None] = {}
        """The topics that hold some of the shared memory now."""

    @contextmanager
    def waiting(self, subscribers: Collection[Subscriber], rooms: Collection[Room]) -> Iterator[None]:
        """Within the block the connection of these subscribers waits for room in one of these topics, and
        acts on nothing that its client sends.
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
        """Whether a connection that waits for room in these topics waits for itself.

        `unheard` are its subscribers that can confirm nothing meanwhile, and `silent` those that are sent
        nothing meanwhile.

        This follows the topics to their workers, and workers that are not heard to the topics that they wait
        for. One worker that can go on is enough to wait for. A topic without workers is waited for too: one
        may come.
        """
        seen = dict.fromkeys(rooms)
        todo = list(seen)
        is_reached = False
        while todo:
            room = todo.pop()
            if not room.is_wanted:
                return False  # there is room, or something else is waited for, such as ids
            for maker in self.holders if room.wants_memory else (room,):
                for channel, subscriber in maker.subscribers():
                    if subscriber in silent:
                        is_reached = True
                        continue
                    if not channel.settles and not channel.statistics().is_held:
                        return False  # it is done with what is sent to it, whether it is heard or not
                    if subscriber in unheard:
                        is_reached = True
                        continue
                    waited = self._rooms.get(subscriber)
                    if waited is None:
                        return False
                    todo += [each for each in waited if each not in seen]
                    seen |= dict.fromkeys(waited)
        return is_reached
