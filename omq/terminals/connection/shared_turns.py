"""The turns that several sources of one connection share.

Where a connection is subscribed to many topics, each of them often has a few messages only. One by one they
would take a system call and a turn each. So a source shares its turn with those that are next. What they
send together is in memory and can be given again: what the socket does not take now is as if it had never
been tried, except for the rest of the message that is begun. So nothing waits there, and nothing is held.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Protocol

from msgspec import Struct

from omq.drivers.seam import Channel, CursorChannel, Octets, Selection
from omq.terminals.connection.forms import Form
from omq.terminals.connection.remainders import begin_after
from omq_storage.blocks import Block

MOST_SHARED_OCTETS = 256 << 10
LEAST_SHARED_OCTETS = 16 << 10
"""Bounds of the octets that the sources of a turn send together: more than the socket took the last time,
since the rest is gathered again.
"""

MOST_SHARES = 48
"""The greatest number of blocks that the sources of a turn send together: each takes some 20 microseconds."""


MOST_SHARED_SELECTIONS = 128
"""The greatest number of selections of work that they send together. Where workers have fallen behind there
may be hundreds of each topic, which are a message or two each, and take some 2 microseconds.
"""


class MessageSource(Protocol):
    """Has something to send, from time to time."""

    @property
    def is_exempt(self) -> bool:
        """Whether it has waited for the rate limit itself."""

    @property
    def flow(self) -> CursorChannel | None:
        """Its messages, where they may be sent together with those of other sources."""

    @property
    def work(self) -> tuple[Channel, Form] | None:
        """Its channel, where subscribers compete for the messages, and may be sent them together with those
        of other sources; and the form of its messages.
        """

    @property
    def after(self) -> int:
        """The position in the backlog of the end of the octets that must leave before its next message."""

    async def take_turn(self) -> bool:
        """Send the ready messages, and return whether there are more. Raises trio.BrokenResourceError."""


class SharedOutlet(Protocol):
    """The connection."""

    delivered: int
    """The number of messages sent at once so far."""

    def try_send(self, parts: Sequence[Octets]) -> int:
        """Send the octets that the socket takes now; return their number."""

    def complete(self, rest: bytes, ended: Callable[[bool], None] | None = None) -> None:
        """Send the rest of a message before anything else: see `omq.drivers.seam.Outlet`."""


class BlockShare(Struct, frozen=True):
    """The messages of one source from one block."""

    source: MessageSource
    flow: CursorChannel
    block: Block
    position: int
    frames: Octets


class WorkShare(Struct, frozen=True):
    """The messages that one source has taken from its channel."""

    source: MessageSource
    channel: Channel
    form: Form
    selections: Sequence[Selection]
    parts: Sequence[Octets]
    octets: int
    """The octets of the parts."""


class SharedTurns:
    """The octets that the next shared turn of one connection may have."""

    __slots__ = ("_octets",)

    def __init__(self) -> None:
        self._octets = MOST_SHARED_OCTETS

    def give(
        self, first: MessageSource, ready: dict[MessageSource, None], left: float, outlet: SharedOutlet
    ) -> bool:
        """Send the messages of this source, and of those that are `ready` and follow, as far as the socket
        accepts them now. Return whether anything was sent: if not, the source must have its turn alone.

        Remove the others that have nothing more. `left`: the position in the backlog up to which all octets
        have left.
        """
        if first.flow is not None:
            return self._give_flows(first, ready, left, outlet)
        if ready and first.work is not None:
            return self._give_work(first, ready, left, outlet)
        return False

    # -- of broadcast topics -------------------------------------------------------------------------------

    def _give_flows(
        self, first: MessageSource, ready: dict[MessageSource, None], left: float, outlet: SharedOutlet
    ) -> bool:
        shares = list(self._gather(first, ready, left))
        if not shares:
            return False
        taken = self._send([share.frames for share in shares], outlet)
        rest = taken
        whole = 0  # octets of the shares of one flow that are sent, and that it is not told of yet
        for share, following in zip_longest(shares, shares[1:]):
            octets = len(share.frames)
            if rest < octets:
                _send_part(share, rest, outlet)
                break
            rest -= octets
            whole += octets
            outlet.delivered += share.block.next - share.position
            if following is not None and following.flow is share.flow and rest >= len(following.frames):
                continue  # a flow is told once: it looks at all subscribers of its topic then
            share.flow.passed(share.block.next, whole)
            whole = 0
            if share.source is not first and not share.flow.ready():
                del ready[share.source]
        return taken > 0

    def _send(self, parts: Sequence[Octets], outlet: SharedOutlet) -> int:
        taken = outlet.try_send(parts)
        self._octets = min(MOST_SHARED_OCTETS, max(LEAST_SHARED_OCTETS, 2 * taken))
        return taken

    def _gather(
        self, first: MessageSource, ready: dict[MessageSource, None], left: float
    ) -> Iterator[BlockShare]:
        room = self._octets
        parts = MOST_SHARES
        for source in (first, *islice(ready, MOST_SHARES)):
            flow = source.flow
            if flow is None or flow.after > left:
                return
            blocks = flow.at_hand(room)
            if not blocks:
                if source is first or flow.ready():
                    return  # it needs a turn of its own
                del ready[source]  # otherwise each turn would look at thousands that have nothing
            for block in blocks:
                position = max(block.first, flow.position)
                frames = block.frames if position == block.first else block.after(position)
                yield BlockShare(source, flow, block, position, frames)
                room -= len(frames)
                parts -= 1
                if room <= 0 or not parts:
                    return

    # -- of round-robin topics -----------------------------------------------------------------------------

    def _give_work(
        self, first: MessageSource, ready: dict[MessageSource, None], left: float, outlet: SharedOutlet
    ) -> bool:
        shares = list(self._take_work(first, ready, left))
        if not shares:
            return False
        taken = self._send([part for share in shares for part in share.parts], outlet)
        rest = taken
        for share in shares:
            octets = min(rest, share.octets)
            note_sent(share.channel, share.form, share.selections, share.parts, octets, outlet)
            rest -= octets
            if share.source is not first and not share.channel.ready():
                ready.pop(share.source, None)
        return taken > 0

    def _take_work(
        self, first: MessageSource, ready: dict[MessageSource, None], left: float
    ) -> Iterator[WorkShare]:
        room, most = self._octets, MOST_SHARED_SELECTIONS
        for source in (first, *islice(ready, MOST_SHARES - 1)):
            if source.work is None or source.after > left:
                return
            channel, form = source.work
            selections = channel.take_at_once(room, most)
            if not selections:
                if source is first or channel.ready():
                    return  # it needs a turn of its own
                del ready[source]
                continue
            parts = form.whole(selections)
            octets = sum(map(len, parts))
            yield WorkShare(source, channel, form, selections, parts, octets)
            room -= octets
            most -= len(selections)
            if room <= 0 or not most:
                return


def _send_part(share: BlockShare, octets: int, outlet: SharedOutlet) -> None:
    """Note that N `octets` of a share were sent: the rest of the message they end in must follow."""
    if not octets:
        return
    position = share.position + share.block.messages_within(share.position, octets)
    begun = octets - (len(share.frames) - len(share.block.after(position)))
    if begun:
        rest = bytes(share.block.frame(position)[begun:])
        outlet.complete(rest)
        octets += len(rest)
        position += 1
    outlet.delivered += position - share.position
    share.flow.passed(position, octets)


def note_sent(
    channel: Channel,
    form: Form,
    selections: Sequence[Selection],
    parts: Sequence[Octets],
    octets: int,
    outlet: SharedOutlet,
) -> None:
    """Note that the first N `octets` of messages were sent that a channel has given (`Channel.take_at_once`)
    and a form has framed. The other messages go back to the channel, except for the rest of the one that is
    begun: it follows before anything else.
    """
    count, begun_octets = form.sent(selections, parts, octets)
    if begun_octets:
        _, begun, body = begin_after(form, selections, count, begun_octets)
        rest = b"".join(begun.framed(body))
        outlet.complete(rest, channel.begun_at_once(count, begun.body))
        octets += len(rest)
        count += 1
    else:
        channel.written(count)
    outlet.delivered += count
    channel.traffic.octets_out += octets


def has_more(source: MessageSource) -> bool:
    """Return whether a source that has shared its turn has more to send."""
    if source.flow is not None:
        return source.flow.ready()
    return source.work is not None and source.work[0].ready()
