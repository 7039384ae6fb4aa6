"""The numbers of one topic that every message changes, in plain Python, as in native/routes.pxi.

The compiled codec takes messages from received lines straight to the frames for their subscribers, or to the
stored values of a commit, and changes these numbers itself (`Pass`, `StoreCommit`). The plain codec does not:
there is no other difference.
"""

from typing import TYPE_CHECKING

from omq_storage import codec

__all__ = ["PlainRoute", "PlainRoutes", "Route", "Routes"]

if TYPE_CHECKING:
    from omq_storage._codec import Lane, Route, Routes, StoreLane


class PlainRoute:
    """The next message id of a topic, the bound of its reserved ids, the time of its last message in
    microseconds since the epoch, and its counters.

    While it is open, `Pass` may give ids to messages of the topic and send them to the connections of `lane`,
    or collect them for a store.
    """

    __slots__ = (
        "is_due",
        "is_kept",
        "is_open",
        "is_used",
        "is_watched",
        "messages_in",
        "messages_out",
        "next_id",
        "octets_in",
        "octets_out",
        "owner",
        "reserved",
        "time",
        "topic",
        "turn",
    )

    def __init__(self, topic: int, next_id: int, reserved: int, time: int = 0) -> None:
        self.topic = topic
        self.next_id = next_id
        self.reserved = reserved
        self.time = time
        self.messages_in = 0
        self.octets_in = 0
        self.messages_out = 0
        self.octets_out = 0
        self.is_open = False
        self.is_due = False
        """Whether its owner opens or closes it (`aim`) before the next message is routed."""
        self.is_kept = False
        """Whether the messages must be kept, too, for subscribers that are behind."""
        self.is_used = False
        """Whether messages of it were collected for a store. They get their ids when it is committed."""
        self.is_watched = False
        """Whether the topic has subscribers, so its driver needs the blocks that are stored. What was
        collected before the route was closed may be stored afterwards: this is true of a closed route, too.
        """
        self.turn = 0
        """The place of the worker that gets the next message: see `open_workers`."""
        self.owner: object = None
        """The driver of the topic; None when the topic is deleted."""

    def open(self, lane: "Lane | None", *, is_kept: bool = False) -> None:
        """Send new messages to the connections of `lane`, None for none of them: these subscribers have
        everything. Where others do not, the messages must be kept for them, too.
        """
        self.is_open = True
        self.is_due = False
        self.is_kept = is_kept

    def open_workers(self, workers: "tuple[Lane, ...]") -> None:
        """Send each new message to the connection of one of these lanes, in turn."""
        self.open(None)
        self.turn = 0

    def open_store(self, store: "StoreLane") -> None:
        """Collect new messages for a store."""
        self.is_open = True
        self.is_due = self.is_kept = False

    def close(self) -> None:
        """Have messages offered to the driver of the topic."""
        self.is_open = self.is_due = self.is_kept = False

    def open_later(self) -> None:
        """Have the owner open or close the route before the next message is routed: its `aim` is called."""
        self.close()
        self.is_due = True

    def take_extent(self) -> tuple[int, int, int, int] | None:
        """Return the stored extent of the topic, the numbers of `omq_storage.records.Extent`, if a commit has
        changed it since the last call.
        """
        return None


class PlainRoutes(dict[bytes, PlainRoute]):
    """The routes of the topics that may be found by their names now. A route has one name."""


if not TYPE_CHECKING:
    Route = codec.native.Route if codec.COMPILED else PlainRoute
    Routes = codec.native.Routes if codec.COMPILED else PlainRoutes
