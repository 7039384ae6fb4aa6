"""The lifetime of a topic: until a client deletes it, or until its consumers or its owner have gone."""

from collections.abc import Callable

from msgspec import Struct

from omq.drivers.reasons import Reason, Refused, locked


class Ownership:
    """The topics of one connection, which are deleted when the connection ends."""

    __slots__ = ("_delete", "_held", "_is_over")

    def __init__(self) -> None:
        self._delete: dict[int, Callable[[], None]] = {}
        self._held: dict[int, Callable[[], None] | None] = {}
        """Topics to keep. After the end of the owner each has the function that deletes it."""
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
        self._held.pop(topic, None)

    def hold(self, topic: int) -> Callable[[], None]:
        """Keep a topic after the end of the owner. Call the returned function once to release it."""
        self._held[topic] = None

        def release() -> None:
            delete = self._held.pop(topic, None)
            if delete is not None:
                delete()

        return release

    def end(self, most: int | None = None) -> bool:
        """Delete the topics that are not held, at most `most` of them; the owner gets no more. Return
        whether some are left, for which this must be called again.
        """
        self._is_over = True
        while self._delete and most != 0:
            topic, delete = self._delete.popitem()
            if topic in self._held:
                self._held[topic] = delete
                continue
            delete()
            if most is not None:
                most -= 1
        return bool(self._delete)


class Durable(Struct, frozen=True):
    """The topic has a record in the catalogue: clients find it by its name, also after a restart."""

    with_last_consumer: bool = False
    """Whether the topic is deleted when its last consumer has gone. It needs at least one consumer for that.
    The catalogue does not store this: after a restart it is False.
    """


class Ephemeral(Struct, frozen=True):
    """Clients find the topic by its name, but it has no record in the catalogue: it needs no write to the
    disk, and ends with the server at the latest.
    """

    with_last_consumer: bool = False
    """Whether the topic is deleted with its last consumer, as with `Durable`."""
    owner: Ownership | None = None
    """The owner of the topic; None for a topic that all connections may use."""


Lifetime = Durable | Ephemeral

DURABLE = Durable()


def check_user(name: bytes, lifetime: Lifetime, user: Ownership | None) -> None:
    """Raise Refused if a topic with this name and lifetime belongs to another connection than the user's."""
    if isinstance(lifetime, Ephemeral) and lifetime.owner is not None and lifetime.owner is not user:
        raise locked(name, "it belongs to another connection")
