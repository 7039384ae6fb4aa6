"""The rights of a client to topics."""

from collections.abc import Iterable
from enum import Enum
from typing import assert_never

from msgspec import Struct


class Names(Struct, frozen=True):
    """A set of topics, given by whole names and by prefixes."""

    exact: frozenset[bytes]
    beginnings: tuple[bytes, ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "Names":
        """Parse patterns: `prices` is one topic, `prices.*` all with the prefix `prices.`, and `*` all
        topics.
        """
        return cls.of_octets(pattern.encode() for pattern in patterns)

    @classmethod
    def of_octets(cls, patterns: Iterable[bytes]) -> "Names":
        """Do as `of` for patterns that need not be UTF-8."""
        octets = list(patterns)
        return cls(
            frozenset(pattern for pattern in octets if not pattern.endswith(b"*")),
            tuple(pattern[:-1] for pattern in octets if pattern.endswith(b"*")),
        )

    def __contains__(self, topic: bytes) -> bool:
        return topic in self.exact or topic.startswith(self.beginnings)

    @property
    def are_all(self) -> bool:
        """Whether every topic is in the set, because `*` is one of its patterns."""
        return b"" in self.beginnings


class Right(Enum):
    """A right to a topic, in the words of a refusal. WATCH and ADMINISTER of all topics (`*`) also cover the
    server itself.
    """

    DECLARE = "declare"
    PUBLISH = "publish to"
    SUBSCRIBE = "subscribe to"
    DELETE = "delete"
    WATCH = "watch"
    ADMINISTER = "administer"


class Rights(Struct, frozen=True):
    """The topics to which a client has each right."""

    declare: Names
    publish: Names
    subscribe: Names
    delete: Names
    watch: Names
    administer: Names

    def of(self, right: Right) -> Names:
        """Return the topics to which the client has this right."""
        match right:
            case Right.DECLARE:
                return self.declare
            case Right.PUBLISH:
                return self.publish
            case Right.SUBSCRIBE:
                return self.subscribe
            case Right.DELETE:
                return self.delete
            case Right.WATCH:
                return self.watch
            case Right.ADMINISTER:
                return self.administer
            case other:
                assert_never(other)

    def sees(self, topic: bytes) -> bool:
        """Return whether the client may know that the topic exists: when it has any right to it."""
        return (
            topic in self.subscribe
            or topic in self.publish
            or topic in self.declare
            or topic in self.delete
            or topic in self.watch
            or topic in self.administer
        )


_ALL = Names.of(["*"])

EVERYTHING = Rights(_ALL, _ALL, _ALL, _ALL, _ALL, _ALL)
"""The rights of all clients of a server without configured ones."""
