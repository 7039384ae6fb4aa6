"""Sends what several subscriptions have in memory with one system call.

Where a connection is subscribed to many topics, each of them often has a few messages only. One by one they
would take a system call and a turn of the sender each. So a subscription shares its turn with those that
are next. What is gathered is in memory and can be given again: what the socket does not take now is as if
it had never been tried, except for the rest of the message that is begun. So nothing waits here, and
nothing is held.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from omq.drivers.seam import Flow, Octets
from omq.terminals.connection.sender import Sender, Source
from omq.terminals.connection.transport import MOST_PARTS
from omq_storage.blocks import Block

MOST_OCTETS = 256 << 10
LEAST_OCTETS = 16 << 10
"""How much is gathered: more than the socket took the last time, since the rest is gathered again."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one subscription has of one block."""

    source: Source
    flow: Flow
    block: Block
    position: int
    frames: Octets


class Gathering:
    """Gathers for one connection."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._room = MOST_OCTETS

    def send(self, first: Source) -> bool:
        """Send what this subscription has, and those whose turns follow, as far as the socket takes it now.
        Return whether anything was sent: if not, the subscription must have its turn alone.
        """
        shares = list(self._gather(first))
        if not shares:
            return False
        taken = self._sender.try_send([share.frames for share in shares])
        self._room = min(MOST_OCTETS, max(LEAST_OCTETS, 2 * taken))
        left = taken
        whole = 0  # octets of the shares of one flow that are sent, and that it is not told of yet
        for share, following in zip_longest(shares, shares[1:]):
            octets = len(share.frames)
            if left < octets:
                self._send_part(share, left)
                break
            left -= octets
            whole += octets
            if following is not None and following.flow is share.flow and left >= len(following.frames):
                continue  # a flow is told once: it looks at all subscribers of its topic then
            share.flow.passed(share.block.next, whole)
            whole = 0
            if share.source is not first and not share.flow.ready():
                self._sender.served(share.source)
        return taken > 0

    def _send_part(self, share: Share, octets: int) -> None:
        """So many octets of a share were sent: the rest of the message that they end in must follow."""
        if not octets:
            return
        position = share.position + share.block.messages_within(share.position, octets)
        begun = octets - (len(share.frames) - len(share.block.after(position)))
        if begun:
            rest = bytes(share.block.frame(position)[begun:])
            self._sender.complete(rest)
            octets += len(rest)
            position += 1
        share.flow.passed(position, octets)

    def _gather(self, first: Source) -> Iterator[Share]:
        room = self._room
        parts = MOST_PARTS
        for source in chain((first,), self._sender.waiting()):
            flow = source.flow
            if flow is None:
                return
            blocks = flow.at_hand(room)
            if not blocks and (flow.ready() or source is first):
                return  # it needs a turn of its own
            for block in blocks:
                position = max(block.first, flow.position)
                frames = block.frames if position == block.first else block.after(position)
                yield Share(source, flow, block, position, frames)
                room -= len(frames)
                parts -= 1
                if room <= 0 or not parts:
                    return
