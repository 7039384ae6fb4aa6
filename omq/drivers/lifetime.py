"""The lifetime of a topic: until a client deletes it, or until its consumers or its owner have gone."""

from collections.abc import Callable
from dataclasses import dataclass

from omq.drivers.reasons import Reason, Refused


class Ownership:
    """The private topics of one connection, which are deleted when the connection ends."""

    __slots__ = ("_delete", "_is_over")

    def __init__(self) -> None:
        self._delete: dict[int, Callable[[], None]] = {}
        self._is_over = False

    def check(self) -> None:
        """Raise Refused if the owner has ended."""
        if self._is_over:
            raise Refused(Reason.INVALID, "the connection that would own the topic has ended")

    def add(self, topic: int, delete: Callable[[], None]) -> None:
        """Add the topic with this id. `delete` deletes it."""
        self._delete[topic] = delete

    def discard(self, topic: int) -> None:
        """Remove a topic that is deleted."""
        self._delete.pop(topic, None)

    def end(self) -> None:
        """Delete the topics; the owner gets no more."""
        self._is_over = True
        while self._delete:
            _, delete = self._delete.popitem()
            delete()


@dataclass(frozen=True, slots=True)
class Durable:
    """The topic has a record in the catalogue: clients find it by its name, also after a restart."""

    with_last_consumer: bool = False
    """Whether the topic is deleted when its last consumer has gone. It needs at least one consumer for that.
    The catalogue does not store this: after a restart it is False.
    """


@dataclass(frozen=True, slots=True)
class Private:
    """The topic is found only through its driver, and not by its name. It has no record in the catalogue, is
    not listed, needs no write to the disk, and ends with the server at the latest.
    """

    with_last_consumer: bool = False
    """As with `Durable`."""
    owner: Ownership | None = None
    """Whose topic it is; None for a topic without an owner."""


Lifetime = Durable | Private

DURABLE = Durable()
