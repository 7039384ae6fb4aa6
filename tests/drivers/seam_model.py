"""A model of what channels give, which the drivers are compared with: tests/drivers/test_seam_machine.py.

A model says of each message whether a channel may give it now. It leaves open what depends on the pace of
others, such as which worker is dealt a message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from served_drivers import Client, Got

from omq.drivers.seam import Piece
from omq_storage.blocks import FRAME_HEADER

FOREVER = 1 << 63


@dataclass
class Log:
    """The messages that a topic has taken, and the producers that it remembers."""

    messages: dict[int, Got] = field(default_factory=dict)
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
            self.messages[self.next] = Got(self.next, body, heads[index] if heads else b"")
            self.next += 1

    def octets_from(self, message: int) -> int:
        """What the posts from that of a message on take in memory."""
        begin = max(first for first in self.posts if first <= message)
        later = (got for id, got in self.messages.items() if id >= begin)
        return sum(len(got.body) + len(got.head) + FRAME_HEADER for got in later)


@dataclass(eq=False)
class Member:
    """A client, and what the model knows of its channel."""

    client: Client
    name: int
    taken: list[Got] = field(default_factory=list)
    """Messages taken at once: it is not said yet how many of them left."""
    piece: Piece | None = None
    """A piece taken: likewise."""
    begun: tuple[Got, int] | None = None
    """A message of whose body so many octets left."""
    is_held: bool = False
    is_finished: bool = False
    end: int = FOREVER
    """It gets no message from this id on."""
    position: int = 0
    """Broadcast: the next id that it gets."""
    credit: int | None = None
    most: int = FOREVER
    """Round-robin: how many messages it may have unconfirmed."""
    newest: int = 0
    """Round-robin: the newest message that it got in the order of the ids."""

    @property
    def may_take(self) -> bool:
        return not self.taken and self.piece is None


class Broadcast:
    """Every member gets every message from its position on, in order, once."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def gives(self, member: Member, got: Iterable[Got]) -> None:
        """Check that a channel may give these messages now."""
        for each in got:
            assert each.id == member.position < member.end
            assert each == self.log.messages[each.id]
            member.position += 1

    def left(self, member: Member, got: Sequence[Got], count: int) -> None:
        """So many of these messages left; the others are given again."""
        member.position -= len(got) - count

    def gives_again(self, member: Member, got: Got) -> None:
        """It stays with the member, in whose middle it stalled."""
        self.gives(member, [got])

    def check(self, members: Iterable[Member], next_id: int) -> None:
        """Whoever has not got all messages below `next_id`, those taken over, has something to take."""
        for member in members:
            if member.may_take and member.begun is None:
                end = min(member.end, next_id)
                assert member.client.channel.ready() == (member.position < end)


class RoundRobin:
    """Every message goes to one member: again to another one only where the first is not done with it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.owners: dict[int, Member] = {}
        """Who has a message: it was taken, and is not done."""
        self.done: set[int] = set()
        self.unseen: dict[int, Member] = {}
        """Who confirmed a message before all of it had left: it may see it again."""
        self.late: set[int] = set()
        """What may come behind messages with higher ids, as somebody had it before."""
        self.durable: set[int] = set()
        """What was done when positions were saved."""

    def has(self, member: Member) -> list[int]:
        return [id for id, owner in self.owners.items() if owner is member]

    def gives(self, member: Member, got: Iterable[Got]) -> None:
        for each in got:
            assert each == self.log.messages[each.id]
            assert each.id < member.end
            assert each.id not in self.owners, "somebody else has it"
            if self.unseen.get(each.id) is member:
                continue
            assert each.id not in self.done, "it is done"
            if each.id not in self.late:
                assert each.id > member.newest
                member.newest = each.id
            self.owners[each.id] = member
        if member.credit is not None:
            assert len(self.has(member)) <= member.most

    def left(self, member: Member, got: Sequence[Got], count: int) -> None:
        for each in got[:count]:
            if member.credit is None:
                self.finish(each.id)
            self.unseen.pop(each.id, None)
        for each in got[count:]:
            self.owners.pop(each.id, None)
            self.late.add(each.id)

    def gives_again(self, member: Member, got: Got) -> None:
        self.gives(member, [got])

    def finish(self, message: int) -> None:
        """A message is done."""
        self.owners.pop(message, None)
        self.done.add(message)

    def returns(self) -> None:
        """What some channel was dealt and did not give may go to others: late."""
        self.late |= self.log.messages.keys() - self.owners.keys() - self.done

    def closed(self, member: Member) -> None:
        for message in self.has(member):
            del self.owners[message]
        self.unseen = {id: owner for id, owner in self.unseen.items() if owner is not member}
        self.returns()

    def check(self, members: Iterable[Member], next_id: int) -> None:
        """While somebody has room and nobody has anything to take, no message waits."""
        members = list(members)
        for member in members:
            if member.credit is not None and not self.has(member) and not member.client.channel.ready():
                member.most = member.credit
        if any(member.client.channel.ready() for member in members):
            return
        able = [
            member
            for member in members
            if not member.is_held
            and not member.is_finished
            and member.may_take
            and member.begun is None
            and (member.credit is None or len(self.has(member)) < member.credit)
        ]
        if able:
            there = {id for id in self.log.messages if id < next_id}
            assert there <= self.owners.keys() | self.done
