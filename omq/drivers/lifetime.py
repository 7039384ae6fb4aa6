"""How long a topic is there: until somebody deletes it, or until what it is for has ended."""

from collections.abc import Callable
from dataclasses import dataclass

from omq.drivers.reasons import Reason, Refused


class Ownership:
    """What one connection owns. It is deleted when the connection ends."""

    __slots__ = ("_delete", "_is_over")

    def __init__(self) -> None:
        self._delete: dict[int, Callable[[], None]] = {}
        self._is_over = False

    def check(self) -> None:
        """Raises Refused when the owner has ended."""
        if self._is_over:
            raise Refused(Reason.INVALID, "the connection that would own the topic has ended")

    def add(self, topic: int, delete: Callable[[], None]) -> None:
        """Own the topic of this id."""
        self._delete[topic] = delete

    def discard(self, topic: int) -> None:
        """The topic is deleted."""
        self._delete.pop(topic, None)

    def end(self) -> None:
        """The owner ends: delete what it owns."""
        self._is_over = True
        while self._delete:
            _, delete = self._delete.popitem()
            delete()


@dataclass(frozen=True, slots=True)
class Durable:
    """In the catalogue, and found by its name, also after a restart."""

    with_last_consumer: bool = False
    """Whether it is deleted when its last consumer has gone, of which there was at least one. The catalogue
    does not keep this: after a restart it is as if it were not so.
    """


@dataclass(frozen=True, slots=True)
class Private:
    """Known to those who were given its driver, and to nobody else. It costs no write to the disk: there is
    no record of it, it is not listed, and it is gone when the server ends.
    """

    with_last_consumer: bool = False
    """As with `Durable`."""
    owner: Ownership | None = None
    """Who owns it; None for a topic that lasts until it is deleted."""


Lifetime = Durable | Private

DURABLE = Durable()
