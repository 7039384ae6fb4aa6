"""The idempotent producers of posts that wait for their outcome, and which of these posts are late.

A post is *late* if it was made before the publisher of its producers learnt that an earlier one was not
stored. Stored now, its messages would make the earlier ones look repeated when their producer sends them
again. A late post is not stored either, and so the posts of its producers after it may be late, too.
"""

from collections.abc import Set as AbstractSet
from weakref import WeakValueDictionary


class WaitingProducer:
    """One producer of one topic, as long as posts of it wait."""

    __slots__ = ("__weakref__", "failures")

    def __init__(self) -> None:
        self.failures = 0
        """A number that grows when its posts made so far become late."""


class PostProducers:
    """The producers of one post."""

    __slots__ = ("_failures", "_producers", "names")

    def __init__(self, names: AbstractSet[bytes], producers: tuple[WaitingProducer, ...]) -> None:
        self.names = names
        self._producers = producers
        self._failures = tuple([producer.failures for producer in producers])

    def __len__(self) -> int:
        return len(self._producers)

    def are_late(self) -> bool:
        """Return whether a post of one of them has failed since this post was made."""
        producers = zip(self._producers, self._failures, strict=True)
        return any(producer.failures != failures for producer, failures in producers)

    def fail(self) -> None:
        """Make all posts late that these producers have made so far, because this post is not stored. Call it
        in the step in which its publisher is told: until then the publisher may make more.
        """
        for producer in self._producers:
            producer.failures += 1


NO_PRODUCERS = PostProducers(frozenset(), ())
"""The producers of most posts."""


class TopicProducers:
    """The producers of one topic with posts that wait. Only the posts keep their producers: nothing has to be
    called when they are settled.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, WaitingProducer] | None = None

    def of_post(self, names: AbstractSet[bytes]) -> PostProducers:
        """Return the producers with these names for a post that is made now."""
        if not names:
            return NO_PRODUCERS
        if self._known is None:
            self._known = WeakValueDictionary()
        known = self._known
        return PostProducers(names, tuple([known.setdefault(name, WaitingProducer()) for name in names]))
