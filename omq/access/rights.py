"""What a client may do with which topics."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """Some topics: by their whole names, or by how their names begin."""

    exact: frozenset[bytes]
    beginnings: tuple[bytes, ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "Names":
        """`prices` is one topic, `prices.*` is all whose names begin with `prices.`, and `*` is all."""
        return cls.of_octets(pattern.encode() for pattern in patterns)

    @classmethod
    def of_octets(cls, patterns: Iterable[bytes]) -> "Names":
        """The same for patterns of any octets."""
        octets = list(patterns)
        return cls(
            frozenset(pattern for pattern in octets if not pattern.endswith(b"*")),
            tuple(pattern[:-1] for pattern in octets if pattern.endswith(b"*")),
        )

    def __contains__(self, topic: bytes) -> bool:
        return topic in self.exact or topic.startswith(self.beginnings)


@dataclass(frozen=True, slots=True)
class Rights:
    """The topics with which each kind of thing may be done."""

    declare: Names
    publish: Names
    subscribe: Names
    delete: Names

    def sees(self, topic: bytes) -> bool:
        """Whether it may know that there is this topic: when it may do anything with it."""
        return (
            topic in self.subscribe or topic in self.publish or topic in self.declare or topic in self.delete
        )


_ALL = Names.of(["*"])

_NONE = Names.of([])

NOTHING = Rights(_NONE, _NONE, _NONE, _NONE)
"""What somebody may do who has not connected."""

EVERYTHING = Rights(_ALL, _ALL, _ALL, _ALL)
"""What anybody may do at a server that knows no clients."""
