"""Connections to which messages are pushed, for tests without sockets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omq.drivers.backlog import Backlog
from omq.drivers.driver import Driver
from omq.drivers.seam import Channel, EndReason, Octets, TakenMessages
from omq.drivers.tail import TailMemory
from omq.model import FromCurrent, Replay
from omq.protocol.omq.frames import FrameDecoder, MessageRun

if TYPE_CHECKING:
    from omq_storage._codec import Pass


NEW = FromCurrent()

MOST_ENTRIES = 3
"""The entries of a full backlog: few, so that it is full soon."""


@dataclass(eq=False)
class Connection:
    """A connection with several subscriptions. Its socket takes `room` octets, and then no more."""

    room: int = 1 << 30
    octets: bytearray = field(default_factory=bytearray)
    rest: bytes = b""
    ready: dict["Subscription", None] = field(default_factory=dict)
    calls: int = 0
    delivered: int = 0
    stalled_at: int | None = None
    ended: Callable[[bool], None] | None = None
    memory: TailMemory = field(default_factory=lambda: TailMemory(1 << 20))

    def __post_init__(self) -> None:
        self.backlog = Backlog(self.memory)

    @property
    def sent(self) -> int:
        return len(self.octets)

    @property
    def pushed(self) -> int:
        return self.backlog.end

    def is_clear(self) -> bool:
        return not self.rest and not self.ready and not self.backlog

    def try_send(self, parts: Sequence[Octets]) -> int:
        self.calls += 1
        octets = b"".join(parts)[: self.room]
        self.octets += octets
        self.room -= len(octets)
        return len(octets)

    def complete(self, rest: bytes, ended: Callable[[bool], None] | None = None) -> None:
        assert not self.rest
        self.rest = rest
        self.ended = ended

    def end_rest(self, *, has_left: bool) -> None:
        """Send the rest of a message, or never."""
        if has_left:
            self.octets += self.rest
        self.rest = b""
        ended, self.ended = self.ended, None
        if ended is not None:
            ended(has_left)

    def has_room(self) -> bool:
        return len(self.backlog) < MOST_ENTRIES

    def is_filled(self) -> bool:
        return False

    def push(self, passed: "Pass", lanes: Sequence[int]) -> None:
        taken = 0 if self.rest or self.backlog else self.try_send([passed.frames[lane] for lane in lanes])
        for lane in lanes:
            octets = len(passed.frames[lane])
            if taken < octets:
                self.backlog.add_frames(self, passed, lane, taken)
            else:
                self.delivered += passed.counts[lane]
            taken = max(0, taken - octets)

    async def drain(self) -> None:
        """Read as the client: first complete what was begun, then give each subscription a turn."""
        self.end_rest(has_left=True)
        octets = b"".join(self.backlog.parts(1000, self.backlog.end))
        self.backlog.sent(len(octets))
        self.octets += octets
        for subscription in list(self.ready):
            await subscription.pull()

    def got(self) -> dict[int, list[tuple[int, bytes]]]:
        """Return the messages that the client has got, by topic."""
        found: dict[int, list[tuple[int, bytes]]] = {}
        for run in FrameDecoder().feed(bytes(self.octets)):
            assert isinstance(run, MessageRun)
            found.setdefault(run.topic, []).extend(zip(run.ids, run.bodies, strict=True))
        return found


class Subscription:
    """One of them."""

    direct = None

    def __init__(self, connection: Connection, driver: Driver, replay: Replay = NEW) -> None:
        self.connection = connection
        self.ended_by: list[EndReason] = []
        self.channel = driver.open(self, replay)
        self.channel.attach(connection)

    def wake(self) -> None:
        self.connection.ready[self] = None

    def replaced(self, channel: Channel) -> None:
        raise AssertionError("no topic is given other types here")

    def ended(self, end: EndReason) -> None:
        self.ended_by.append(end)

    def follows(self, *, is_routed: bool) -> bool:
        """Return whether it has every message of its topic, perhaps in the backlog of its connection. Only
        routed messages may go behind a backlog.
        """
        takes = self.connection.has_room() if is_routed else self.connection.is_clear()
        return takes and not self.channel.statistics().behind

    async def pull(self) -> None:
        """Take everything there is."""
        while self.channel.ready():
            taken = await self.channel.take()
            assert isinstance(taken, TakenMessages)
            for selection in taken.selections:
                self.connection.octets += selection.frames()
            self.channel.written(sum(len(selection.ids) for selection in taken.selections))
        del self.connection.ready[self]
