"""The transfers that the server sends in a session: those that its window allows, and those that wait for it.

Source: AMQP 1.0, part 2, section 2.5.6, "Session Flow Control".
"""

from collections import deque
from collections.abc import Mapping
from typing import Protocol

import msgspec

from omq.protocol.amqp_1_0 import serials
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.performatives import Flow


class TransferPeer(Protocol):
    """The methods that a window needs of its connection."""

    def put_transfer(self, octets: bytes) -> None:
        """Add a transfer that the connection sends, before it is counted."""

    @property
    def waiting(self) -> int:
        """The octets of transfers that wait for the windows of all sessions."""

    def waits(self, octets: int) -> None:
        """Count octets of transfers that wait for a window; a negative number for some that waited."""

    def flushable(self, window: "OutgoingWindow") -> None:
        """Call `flush` of this window when there is room for more octets."""

    def ended(self, sender: SendingLink, message: int) -> None:
        """Note that a settled message has left with its last transfer, which waited."""

    def block(self) -> None:
        """Note that a message did not begin, because transfers of others wait."""

    def unblocked(self) -> tuple[SendingLink, ...]:
        """Return the links that may send now because nothing waits any more."""


class WaitingTransfer(msgspec.Struct, frozen=True):
    """A transfer that waits for the window."""

    sender: SendingLink
    octets: bytes
    """Its octets; none where the link states its credit instead."""
    ends: int | None = None
    """The settled message whose last transfer it is; None if there is none."""


class OutgoingWindow:
    """The transfers of one session to the client."""

    __slots__ = (
        "_is_blocked",
        "_is_sending",
        "_links",
        "_peer",
        "_remote_window",
        "_waiting",
        "_was_freed",
        "next_id",
    )

    def __init__(
        self, peer: TransferPeer, remote_window: int, links: Mapping[int, SendingLink | ReceivingLink]
    ) -> None:
        """Create the window of a session with these `links`. Its client has stated it as `remote_window`."""
        self._peer = peer
        self._links = links
        self.next_id = 0
        """The transfer-id of the next transfer."""
        self._remote_window = remote_window
        # From the first one on: an empty deque takes 700 octets.
        self._waiting: deque[WaitingTransfer] | None = None
        """Transfers of messages that are begun."""
        self._is_blocked = False
        """Whether a message longer than the window did not begin, because others of the connection wait."""
        self._is_sending = False
        self._was_freed = False
        """Whether all that waited was dropped during a send: then other links may send after it."""

    @property
    def room(self) -> int:
        """The number of transfers that may leave now; 0 while others wait."""
        return 0 if self._waiting else max(self._remote_window, 0)

    @property
    def may_transfer(self) -> bool:
        """Whether transfers may be sent now."""
        return self._remote_window > 0 and not self._waiting and not self._is_blocked

    def flowed(self, flow: Flow) -> None:
        """Take the window that the client states."""
        # Transfers that the client had not received when it said this use up the window that it states.
        seen = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        in_flight = serials.difference(self.next_id, seen)
        self._remote_window = flow.incoming_window - in_flight
        self._is_blocked = False  # the window may be wide enough now

    def transferred(self, count: int) -> None:
        """Count transfer frames that are about to be sent; a negative number for some that were not."""
        self.next_id = serials.add(self.next_id, count)
        self._remote_window -= count

    def begin_send(self) -> None:
        """Begin a send of a link. What waits for the window stays until `end_send`, because it stands behind
        what is being sent, and may be forgotten.
        """
        self._is_sending = True

    def end_send(self) -> tuple[SendingLink, ...]:
        """End the send. Return the links that may send now, and could not before it."""
        self._is_sending = False
        self.look_flushable()
        return self.unblocked()

    @property
    def may_flush(self) -> bool:
        """Whether `flush` has something to do."""
        if self._waiting:
            return self._remote_window > 0 or not self._waiting[0].octets
        return self._was_freed

    def look_flushable(self) -> None:
        """Let the connection call `flush` if that has something to do."""
        if self.may_flush:
            self._peer.flushable(self)

    def flush(self, room: int) -> tuple[SendingLink, ...]:
        """Send about `room` octets of the waiting transfers, as far as the window allows. Return the links
        that may send now because nothing waits any more.
        """
        if self._is_sending:
            return ()
        self._was_freed = False
        while room > 0 and self._waiting and self.may_flush:
            each = self._waiting.popleft()
            if not each.octets:
                each.sender.tell()
                continue
            self._peer.put_transfer(each.octets)
            self._peer.waits(-len(each.octets))
            self.transferred(1)
            room -= len(each.octets)
            if each.ends is not None:
                self._peer.ended(each.sender, each.ends)
        return self.senders() if self.may_transfer else ()

    def senders(self) -> tuple[SendingLink, ...]:
        """Return the links of the session on which the server sends."""
        return tuple(each for each in self._links.values() if isinstance(each, SendingLink))

    def may_begin(self, frames: int) -> bool:
        """Return whether a message of N `frames` may begin.

        The transfers that the window does not allow wait in memory. So a message that is longer than the
        window begins only while nothing waits on the whole connection.
        """
        if self.may_transfer and frames > self._remote_window and self._peer.waiting:
            self._is_blocked = True
            self._peer.block()
        return self.may_transfer

    def unblock(self) -> tuple[SendingLink, ...]:
        """Return the links if one of them could not begin a message: nothing waits on the connection any
        more.
        """
        was_blocked, self._is_blocked = self._is_blocked, False
        return self.senders() if was_blocked and self.may_transfer else ()

    def unblocked(self) -> tuple[SendingLink, ...]:
        """Return the links of all sessions that may send now because nothing waits any more."""
        return self._peer.unblocked()

    def wait(self, sender: SendingLink, octets: bytes, ends: int | None = None) -> None:
        """Send a transfer of a message that is begun when the client takes it: its window is closed now.
        `ends`: the settled message whose last transfer it is, if it is one.
        """
        if sender.is_attached:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append(WaitingTransfer(sender, octets, ends))
            self._peer.waits(len(octets))

    def forget(self, sender: SendingLink, count: int) -> None:
        """Drop the last transfers that wait, all of this link; those of a detached link are gone already.

        Links that wait to state their credit go on waiting: they may have come behind these transfers.
        """
        waiting = self._waiting
        if waiting is None:
            return
        told: list[WaitingTransfer] = []
        while count and sender.is_attached:
            each = waiting.pop()
            if each.octets:
                self._peer.waits(-len(each.octets))
                count -= 1
            else:
                told.append(each)
        waiting.extend(reversed(told))

    def tell(self, sender: SendingLink) -> None:
        """Let a link state its credit after its transfers that wait."""
        if self._waiting:
            self._waiting.append(WaitingTransfer(sender, b""))
        else:
            sender.tell()

    def drop(self, gone: SendingLink) -> None:
        """Drop the waiting transfers of a detached link.

        A transfer that aborts a begun delivery is not sent: the window may be closed, and the detach ends the
        delivery anyway.
        """
        if self._waiting:
            kept = deque(each for each in self._waiting if each.sender is not gone)
            self._peer.waits(-sum(len(each.octets) for each in self._waiting if each.sender is gone))
            self._was_freed = self._is_sending and not kept
            self._waiting = kept

    def drop_all(self) -> None:
        """Drop all waiting transfers: the session is over."""
        self._peer.waits(-sum(len(each.octets) for each in self._waiting or ()))
        self.free()

    def free(self) -> None:
        """Free the memory of a session that is over, with its connection: there nothing counts any more."""
        self._waiting = None
        self._was_freed = False
