"""Push for subscribers that have kept up: the task that has read or stored messages sends them itself.

A subscriber that has every message of a topic needs no tail, no wake-up and no other task. A read of many
transient topics, or a commit of many stored ones, collects what it pushes in one `Pushes`, and each
connection gets the messages of all its subscriptions with one system call.

Nothing waits between the first message that is collected and `Pushes.send`, so nothing can come in between.
What the socket of a connection does not take goes into the tails of its topics, as if it had come the other
way, and the subscriber pulls it from there when its connection has its turn. From then on the subscriber is
behind. Until it has caught up, later messages of its topic are pushed past it: to the others at once, and to
the tail for it.

The compiled codec pushes by routes and lanes (`Lanes`, `send_passed`). What a socket does not take of that
goes into the backlog of its connection, and the subscribers count as having it (`omq.drivers.backlog`). A
subscriber whose backlog is full falls behind where others of its topic have room.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from omq.drivers.seam import Octets, Outlet
from omq.model import Topic
from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, Block

if TYPE_CHECKING:
    from omq_storage._codec import Lane, Pass

MOST_FOLLOWERS = 64
"""The most subscribers that a topic is pushed to: each may cost a system call, and all of them are one step.
Where there are more, the task of each connection takes the messages, in turn with everything else.
"""

MOST_WORK = 512
"""The limit at which one `Pushes` should end: the sum of its topics and of the subscribers that they are
pushed to.
"""

MOST_STORED_WORK = 64
"""The same limit for messages that a commit has stored. Beyond it the task of each connection takes them."""


class Follower(Protocol):
    """A channel that was counted as having the messages that are pushed."""

    def fall_behind(self, position: int) -> None:
        """Move back to `position`: the subscriber has the messages below it only, and pulls the others."""


class Pusher(Protocol):
    """A driver."""

    topic: Topic

    def now(self) -> int:
        """Return the time in microseconds since the epoch."""

    def remember(self, block: Block) -> None:
        """Keep messages in the tail, because a subscriber has not got all of them."""

    def unsent(self, messages: int, octets: int) -> None:
        """Subtract N `messages` with N `octets` of frames that were counted as sent and were not."""


class RoutedPusher(Pusher, Protocol):
    """A driver with a route."""

    def fall_behind(self, outlet: Outlet, position: int) -> None:
        """Move the subscriber on this connection back to `position`: it has the messages below that only."""

    def routed_past(self, block: Block) -> None:
        """Keep messages that were routed, for the subscribers that do not have everything before them."""


class SentRun(Protocol):
    """Messages of one topic for one connection or several."""

    frames: Octets
    count: int
    """The number of the messages."""

    def fall_back(
        self, follower: Follower | None, sent: int
    ) -> tuple[int, bytes, Callable[[bool], None] | None]:
        """Let a follower pull the messages after the first `sent` octets. Return the number of messages that
        count as sent, the rest of the last one of them, and what `Outlet.complete` calls for that. There is
        no follower where only one subscriber gets them: the run knows it.
        """


class PushedRun:
    """Consecutive messages of one topic, with their ids."""

    __slots__ = ("_block", "_driver", "_is_kept", "_offsets", "_time", "count", "first", "frames")

    def __init__(
        self, driver: Pusher, first: int, count: int, frames: Octets, offsets: Octets, time: int | None = None
    ) -> None:
        """Create a run. `time`: that of the messages in the store; None if they are not stored."""
        self.frames = frames
        self.first = first
        self.count = count
        self._driver = driver
        self._offsets = offsets
        self._time = time
        self._block: Block | None = None  # until it is needed
        self._is_kept = False

    @classmethod
    def of(cls, driver: Pusher, block: Block) -> "PushedRun":
        """Return the messages of a stored block."""
        run = cls(driver, block.first, block.count, block.frames, block.offsets)
        run._block = block
        return run

    @property
    def block(self) -> Block:
        """These messages as a block."""
        if self._block is None:
            driver = self._driver
            time = driver.now() if self._time is None else self._time
            self._block = Block(driver.topic.id, self.first, self.count, time, self.frames, self._offsets)
        return self._block

    def keep(self) -> None:
        """Keep these messages in the tail of their topic."""
        if not self._is_kept:
            self._is_kept = True
            self._driver.remember(self.block)

    def fall_back(self, follower: Follower | None, sent: int) -> tuple[int, bytes, None]:
        """See `SentRun.fall_back`."""
        block = self.block
        position = self.first + block.messages_within(self.first, sent)
        rest = b""
        sent -= len(self.frames) - len(block.after(position))
        if sent:
            rest = bytes(block.frame(position)[sent:])
            position += 1
        if position < block.next:  # else only the rest of the last message is missing, which is a copy
            self.keep()
            self._driver.unsent(block.next - position, len(block.after(position)))
            assert follower is not None
            follower.fall_behind(position)
        return position - self.first, rest, None


class Worker(Protocol):
    """The channel of the worker."""

    def give_later(
        self, block: Block, ids: range, octets: int, begun: int | None
    ) -> Callable[[bool], None] | None:
        """Assign messages to it that were counted as sent, and were not. `octets`: those that were counted
        too much. `begun`: the octets of the body of the first message that were sent, if it was begun; then
        return what `Outlet.complete` calls.
        """


class DealtRun:
    """Messages of a stored block for one worker of a round-robin topic: all of them, or every Nth."""

    __slots__ = ("_block", "_ids", "_worker", "count", "frames")

    def __init__(self, worker: Worker, block: Block, ids: range) -> None:
        """Create a run of the messages with these ids, which have a common step."""
        self._worker = worker
        self._block = block
        self._ids = ids
        self.count = len(ids)
        self.frames: Octets = block.frames if self.count == block.count else block.gather(ids)

    def fall_back(self, follower: object, sent: int) -> tuple[int, bytes, Callable[[bool], None] | None]:
        """Let the worker have the messages after the first `sent` octets later. Return the number of messages
        that count as sent, and the rest of the last one of them.

        They stay with this worker: others may have later ones of the same block already.
        """
        end = count = 0
        while end < sent:
            end += len(self._block.frame(self._ids[count]))
            count += 1
        rest = bytes(memoryview(self.frames)[sent:end])
        unsent = len(self.frames) - end
        ended = None
        if rest:
            begun = len(self._block.frame(self._ids[count - 1])) - len(rest) - FRAME_HEADER
            ended = self._worker.give_later(self._block, self._ids[count - 1 :], unsent, max(0, begun))
        elif count < self.count:
            self._worker.give_later(self._block, self._ids[count:], unsent, None)
        return count, rest, ended


class PushLine:
    """The messages that are pushed to one connection."""

    __slots__ = ("_followers", "_outlet", "_parts", "_runs")

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._parts: list[Octets] = []
        self._runs: list[SentRun] = []
        self._followers: list[Follower | None] = []

    def add(self, run: SentRun, follower: Follower | None) -> None:
        """Send these messages, too."""
        self._parts.append(run.frames)
        self._runs.append(run)
        self._followers.append(follower)

    def send(self) -> None:
        """Send as many octets as the socket accepts now. The followers of the rest fall behind."""
        taken = 0
        try:
            taken = self._outlet.try_send(self._parts)
        finally:  # a defect ends the connection when its own task sends
            self._note(taken)

    def _note(self, taken: int) -> None:
        """Note that the first `taken` octets have left."""
        parts = self._parts
        whole = delivered = 0
        while whole < len(parts) and taken >= len(parts[whole]):
            taken -= len(parts[whole])
            delivered += self._runs[whole].count
            whole += 1
        for run, follower in zip(self._runs[whole:], self._followers[whole:], strict=True):
            count, rest, ended = run.fall_back(follower, taken)
            delivered += count
            if rest:
                self._outlet.complete(rest, ended)
            taken = 0
        self._outlet.delivered += delivered


class Pushes:
    """The messages that one read pushes. Call `send` in the same step of the task; then it is empty again."""

    __slots__ = ("lines", "octets", "work")

    def __init__(self) -> None:
        self.work = 0
        """The number of topics and subscribers that were collected, to be compared with MOST_WORK."""
        self.octets = 0
        """The octets of the stored messages that wait for `send`, for all connections together."""
        self.lines: dict[Outlet, PushLine | None] = {}

    def line(self, outlet: Outlet) -> PushLine | None:
        """Return the messages to push to this connection; None when nothing may be pushed to it now."""
        try:
            return self.lines[outlet]
        except KeyError:
            line = PushLine(outlet) if outlet.is_clear() else None
            self.lines[outlet] = line
            return line

    def send(self) -> None:
        """Send the collected messages, without waiting. If that fails for a connection, by a defect, the
        others get theirs all the same: they count as having them.
        """
        lines, self.lines, self.octets = self.lines, {}, 0
        defect: Exception | None = None
        for line in lines.values():
            if line is not None:
                try:
                    line.send()
                except Exception as problem:  # noqa: BLE001 - raised when all have their messages
                    defect = problem
        if defect is not None:
            try:
                raise defect
            finally:
                defect = None  # its traceback has this frame: the two would wait for the garbage collector


# -- pushes of the compiled codec ---------------------------------------------------------------------------


class Lanes:
    """The lanes of the compiled codec: one for each set of connections to which topics are pushed."""

    def __init__(self) -> None:
        self._lanes: WeakValueDictionary[tuple[int, ...], Lane] = WeakValueDictionary()
        self._only: WeakValueDictionary[int, Lane] = WeakValueDictionary()

    def to(self, outlets: AbstractSet[Outlet]) -> "Lane | None":
        """Return the lane to these connections; None where the plain codec is in use."""
        if not codec.COMPILED:
            return None
        # A lane refers to its connections, so no other ones get these numbers while it exists.
        key = tuple(sorted(map(id, outlets)))
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = codec.native.Lane(tuple(outlets))
        return lane

    def only(self, outlet: Outlet) -> "Lane | None":
        """Return the lane for messages that go to this connection and to no other one; None where the plain
        codec is in use.
        """
        if not codec.COMPILED:
            return None
        lane = self._only.get(id(outlet))
        if lane is None:
            lane = self._only[id(outlet)] = codec.native.Lane((outlet,), competes=True)
        return lane


ONLY = (0,)
"""The places of the only lane of a pass."""


def send_passed(passed: "Pass") -> None:
    """Send the messages of one pass over received lines for each connection, without waiting."""
    lanes = passed.lanes
    if len(lanes) == 1:
        for outlet in lanes[0].outlets:
            outlet.push(passed, ONLY)
    else:
        places: dict[Outlet, list[int]] = {}
        for place, lane in enumerate(lanes):
            for outlet in lane.outlets:
                places.setdefault(outlet, []).append(place)
        for outlet, own in places.items():
            outlet.push(passed, own)
    # Not before: tails that grow may let those fall behind whose backlog they push out.
    for route, first, count, frames, offsets in passed.kept():
        driver: RoutedPusher | None = route.owner
        assert driver is not None  # it was open
        driver.routed_past(Block(route.topic, first, count, driver.now(), frames, offsets))
