"""Routes the Publish lines of a connection to many topics at once: the compiled codec looks the topics up,
and gives the messages their ids.
"""

from typing import TYPE_CHECKING

from omq.access.session import Session, SessionContext
from omq.drivers.broadcast import BroadcastDriver
from omq.drivers.push import send_passed
from omq.drivers.routed import RoutedPost
from omq.drivers.writer import Writer
from omq_storage import codec

if TYPE_CHECKING:
    from omq_storage._codec import Lane, Pass, Route, Spans, StoreLane

ROUTED_OCTETS = 64 << 10
"""The octets of the memory for posts for which a connection waits before it routes more messages to a store.
"""


class LineRouting:
    """The routing of one connection, with the rights of its client. Call `close` when the connection ends."""

    __slots__ = (
        "_catalogue",
        "_client",
        "_granted",
        "_kept",
        "_may_publish",
        "_most",
        "_posted",
        "_tails",
    )

    def __init__(self, session: Session, shared: SessionContext) -> None:
        self._client = session.identity.client
        self._may_publish = session.may_publish
        self._most = shared.max_message_bytes
        self._catalogue = shared.catalogue
        self._posted = shared.posted
        self._tails = shared.tails
        self._granted = 0
        """Octets that were taken from the memory for posts, for the next messages that are routed."""
        self._kept = 0
        """Octets of the next messages that are routed which may be kept for subscribers that are behind."""

    def close(self) -> None:
        """Give the memory back that was taken for messages which do not come."""
        granted, self._granted = self._granted, 0
        if granted:
            self._posted.give(granted)

    def route(
        self, lines: bytes, position: int, most: int
    ) -> tuple[list[tuple[bytes, "Spans"]], int, "Pass", list[RoutedPost]]:
        """Send the messages of the Publish lines from `position` on to the subscribers of their topics that
        have kept up, and keep them for the others; or post them to the stores of their topics. Return the
        other messages by their topics, where this stopped, what was sent, and what was posted.

        Where a store has no room, it stops: await `room_to_route`, and go on from there. Where messages must
        be kept for subscribers that are behind, and have no room, await `room_to_keep`.
        """
        allowed = None if b"" in self._client.rights.publish.beginnings else self._may_publish
        posted, granted = self._posted, self._granted
        room = granted + posted.free
        kept, self._kept = self._kept, 0
        passed = codec.native.Pass(self._catalogue.routes, allowed, self._most, room, self._tails, kept)
        dealt, position = codec.native.deal_lines(lines, position, most, passed)
        if passed.lanes:
            send_passed(passed)
        posts = []
        for lane, part in passed.parts:
            post = RoutedPost(part)
            posted.force(post.held)  # it is within the room, but for the last message
            writer: Writer = lane.owner
            writer.submit_routed(post)
            posts.append(post)
        if granted:
            self._granted = 0
            posted.give(granted)
        return dealt, position, passed, posts

    async def room_to_push(self, filled: "Lane") -> None:
        """Wait until one of these connections has room for messages that are pushed, or none moves."""
        await self._catalogue.waiting_publishers.room(filled.outlets)

    async def room_to_route(self, lacking: "StoreLane") -> None:
        """Wait until this store and the memory for posts have room for messages that are routed."""
        writer: Writer = lacking.owner
        await writer.routed.room()
        if not self._granted:
            await self._posted.take(ROUTED_OCTETS)
            self._granted = ROUTED_OCTETS

    async def room_to_keep(self, short: "Route") -> None:
        """Wait until this topic may keep messages for subscribers that are behind: those of the next pass."""
        driver: BroadcastDriver | None = short.owner
        if driver is not None:  # otherwise the topic was deleted
            await driver.room_to_keep(ROUTED_OCTETS)
        self._kept = ROUTED_OCTETS
