"""A topic to which messages are routed, for those who must not use its driver."""

from omq.model import Topic


class RoutedTopic:
    """The topic of a route as terminals have it: they hand it to `omq.access.routed_publishing`, which has
    the operations on it that a client may use.
    """

    __slots__ = ()

    topic: Topic
