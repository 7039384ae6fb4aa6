"""A model of what channels give, which the drivers are compared with: tests/drivers/test_seam_machine.py.

A model says of each message whether a channel may give it now. It leaves open what depends on the pace of
others, such as which worker is dealt a message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from served_drivers import Client, ReceivedMessage

from omq.drivers.seam import (
    MOST_DELIVERIES,
    Accepted,
    Modified,
    Outcome,
    Piece,
    Rejected,
    Released,
)
from omq_storage.blocks import FRAME_HEADER

FOREVER = 1 << 63


@dataclass
class Log:
    """The messages that a topic has taken, and the producers that it remembers."""

    messages: dict[int, ReceivedMessage] = field(default_factory=dict)
    posts: list[int] = field(default_factory=list)
    """The first id of each post."""
    next: int = 1
    sequences: dict[bytes, int] = field(default_factory=dict)

    def add(
        self, bodies: Sequence[bytes], heads: Sequence[bytes], origins: Sequence[tuple[bytes, int] | None]
    ) -> None:
        """Take a post over: without the messages that are repeated."""
        self.posts.append(self.next)
        for index, body in enumerate(bodies):
            origin = origins[index] if origins else None
            if origin is not None:
                if origin[1] <= self.sequences.get(origin[0], -1):
                    continue
                self.sequences[origin[0]] = origin[1]
            self.messages[self.next] = ReceivedMessage(self.next, body, heads[index] if heads else b"")
            self.next += 1

    def octets_from(self, message: int) -> int:
        """Return the octets of memory that the post with this message and the later ones take."""
        begin = max(first for first in self.posts if first <= message)
        later = (got for id, got in self.messages.items() if id >= begin)
        return sum(len(got.body) + len(got.head) + FRAME_HEADER for got in later)


@dataclass(eq=False)
class Member:
    """A client, and what the model knows of its channel."""

    client: Client
    name: int
    taken: list[ReceivedMessage] = field(default_factory=list)
    """Messages taken at once: it is not said yet how many of them left."""
    piece: Piece | None = None
    """A piece taken: likewise."""
    begun: tuple[ReceivedMessage, int] | None = None
    """A message, and how many octets of its body have left."""
    is_held: bool = False
    is_suspended: bool = False
    """Whether it keeps what it does not take, until it gives it back."""
    is_finished: bool = False
    end: int = FOREVER
    """It gets no message from this id on."""
    is_cancelled: bool = False
    position: int = 0
    """Broadcast: the next id that it gets."""
    window: int | None = None
    count: int | None = None
    """The rest of its count."""
    is_draining: bool = False
    settles: bool = False
    """Whether a message is unsettled from its delivery until the member settles it."""
    unsettled: set[int] = field(default_factory=set)
    """Broadcast, with a window: what it got and has not settled."""
    most: int = FOREVER
    """Round-robin: how many messages it may have unsettled."""
    newest: int = 0
    """Round-robin: the newest message that it got in the order of the ids."""
    undeliverable: set[int] = field(default_factory=set)
    """Round-robin: what it does not get again."""

    @property
    def may_take(self) -> bool:
        return not self.taken and self.piece is None

    @property
    def unwritten(self) -> list[int]:
        """The messages that it got and has not said to be written."""
        return [got.id for got in self.taken] + ([self.begun[0].id] if self.begun is not None else [])

    def delivered(self, count: int) -> None:
        """Count N (`count`) messages that are written."""
        if self.count is not None:
            self.count = max(0, self.count - count)


class Broadcast:
    """Every member gets every message from its position on, in order, once."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def gives(self, member: Member, got: Iterable[ReceivedMessage]) -> None:
        """Check that a channel may give these messages now."""
        for each in got:
            assert each.id == member.position < self.limit(member)
            assert each == self.log.messages[each.id]
            assert each.deliveries == 0
            member.position = each.id + 1
            if member.window is not None:
                member.unsettled.add(each.id)
            member.taken.append(each)

    def limit(self, member: Member) -> int:
        """Return the id before which it may give messages."""
        limit = member.end
        if member.count is not None:
            limit = min(limit, member.position - len(member.unwritten) + member.count)
        if member.window is not None:
            limit = min(limit, member.position + member.window - len(member.unsettled))
        return limit

    def left(
        self, member: Member, got: Sequence[ReceivedMessage], count: int, *, begun: bool = False
    ) -> None:
        """Record that the first N (`count`) of these messages left. If a part of the next one left (`begun`),
        it stays with the member, and its settlement, too. The others are given again.
        """
        again = got[count + begun :]
        member.position -= len(again)
        member.unsettled -= {each.id for each in again}

    def grants_window(self, member: Member) -> None:
        """Count all messages that it gets from now on as unsettled."""
        member.unsettled |= set(member.unwritten)

    def check(self, members: Iterable[Member], next_id: int) -> None:
        """Check that members that lack messages below `next_id`, those taken over, have something to take."""
        for member in members:
            if member.may_take and member.begun is None:
                is_ready = member.client.channel.ready()
                assert is_ready == (member.position < min(self.limit(member), next_id))
                if not is_ready and not member.is_held:
                    assert not member.is_draining


class RoundRobin:
    """Every message goes to one member: again to another one only where the first is not done with it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.owners: dict[int, Member] = {}
        """The owner of each message that was taken, and is not done."""
        self.done: set[int] = set()
        self.unseen: dict[int, Member] = {}
        """The member that confirmed a message before all of it had left: it may see it again."""
        self.late: set[int] = set()
        """The messages that may come behind messages with higher ids, as somebody had them before."""
        self.deliveries: dict[int, int] = {}
        """The number of times that messages were delivered and came back, for those that were."""
        self.durable: set[int] = set()
        """The messages that were done when positions were saved."""
        self.durable_deliveries: dict[int, int] = {}
        """The number of deliveries of messages at that time, as if all that had some were lost."""

    def has(self, member: Member) -> list[int]:
        return [id for id, owner in self.owners.items() if owner is member]

    def gives(self, member: Member, got: Iterable[ReceivedMessage]) -> None:
        for each in got:
            assert each == self.log.messages[each.id]
            assert each.id < member.end
            assert each.id not in self.owners, "somebody else has it"
            if self.unseen.get(each.id) is member:
                continue
            assert each.id not in self.done, "it is done"
            assert each.id not in member.undeliverable
            assert each.deliveries == self.deliveries.get(each.id, 0)
            if each.id not in self.late:
                assert each.id > member.newest
                member.newest = each.id
            self.owners[each.id] = member
        member.taken += got
        if member.window is not None:
            assert len(self.has(member)) <= member.most

    def left(
        self, member: Member, got: Sequence[ReceivedMessage], count: int, *, begun: bool = False
    ) -> None:
        for each in got[:count]:
            if not member.settles:
                self.finish(each.id)
            self.unseen.pop(each.id, None)
        for each in got[count + begun :]:
            self.owners.pop(each.id, None)
            self.late.add(each.id)

    def settle(self, member: Member, message: int, outcome: Outcome) -> None:
        """Settle a message of a member that has one."""
        match outcome:
            case Accepted() | Rejected():
                self.finish(message)
                if message in member.unwritten:
                    self.unseen[message] = member
            case Released() | Modified():
                if isinstance(outcome, Modified):
                    if outcome.delivery_failed:
                        self.failed(message)
                    if outcome.undeliverable_here:
                        member.undeliverable.add(message)
                del self.owners[message]
                self.returns()
            case other:
                assert_never(other)

    def failed(self, message: int) -> None:
        """Count a message that was delivered in vain."""
        self.deliveries[message] = min(MOST_DELIVERIES, self.deliveries.get(message, 0) + 1)

    def lost(self) -> dict[int, int]:
        """Return the numbers of deliveries of the messages if the members lose all that they have."""
        kept, self.deliveries = self.deliveries, self.deliveries.copy()
        for message in self.owners:
            self.failed(message)
        found, self.deliveries = self.deliveries, kept
        return found

    def save(self) -> None:
        """Save the positions."""
        self.durable = set(self.done)
        self.durable_deliveries = self.lost()

    def finish(self, message: int) -> None:
        """Note that a message is done."""
        self.owners.pop(message, None)
        self.done.add(message)

    def returns(self) -> None:
        """Count messages as late that some channel was dealt and did not give: they may go to others."""
        self.late |= self.log.messages.keys() - self.owners.keys() - self.done

    def closed(self, member: Member) -> None:
        for message in self.has(member):
            self.failed(message)
            del self.owners[message]
        self.unseen = {id: owner for id, owner in self.unseen.items() if owner is not member}
        self.returns()

    def check(self, members: Iterable[Member], next_id: int) -> None:
        """Check that no message waits while a member has room and none has anything to take."""
        members = list(members)
        for member in members:
            is_idle = not (self.has(member) or member.is_suspended or member.client.channel.ready())
            if member.window is not None and is_idle:
                member.most = member.window
        if any(member.client.channel.ready() or member.is_suspended for member in members):
            return
        able = [
            member
            for member in members
            if not member.is_held
            and not member.is_finished
            and not member.is_cancelled
            and member.may_take
            and member.begun is None
            and (member.window is None or len(self.has(member)) < member.window)
            and (member.count is None or member.count)
        ]
        for member in able:
            there = {id for id in self.log.messages if id < next_id}
            assert there <= self.owners.keys() | self.done | member.undeliverable
        for member in members:
            if member.may_take and member.begun is None and not member.is_held:
                assert not member.is_draining
