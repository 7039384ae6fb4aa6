"""The numbers of one topic that every message changes, in plain Python, as in native/routes.pxi.

The compiled codec takes messages from received lines straight to the frames for their subscribers, and
changes these numbers itself (`Pass`). The plain codec does not: there is no other difference.
"""

from typing import TYPE_CHECKING

from omq_storage import codec

__all__ = ["PlainRoute", "Route"]

if TYPE_CHECKING:
    from omq_storage._codec import Lane, Route


class PlainRoute:
    """The next message id of a topic, the bound of its reserved ids, and its counters.

    While it is open, `Pass` may give ids to messages of the topic and send them to the connections of `lane`.
    """

    __slots__ = (
        "is_open",
        "messages_in",
        "messages_out",
        "next_id",
        "octets_in",
        "octets_out",
        "owner",
        "reserved",
        "topic",
    )

    def __init__(self, topic: int, next_id: int, reserved: int) -> None:
        self.topic = topic
        self.next_id = next_id
        self.reserved = reserved
        self.messages_in = 0
        self.octets_in = 0
        self.messages_out = 0
        self.octets_out = 0
        self.is_open = False
        self.owner: object = None
        """The driver of the topic; None when the topic is deleted."""

    def open(self, lane: "Lane | None") -> None:
        """Send what comes to the connections of `lane`, None for none of them: all subscribers have
        everything.
        """
        self.is_open = True

    def close(self) -> None:
        """Have messages offered to the driver of the topic."""
        self.is_open = False


if not TYPE_CHECKING:
    Route = codec.native.Route if codec.COMPILED else PlainRoute
