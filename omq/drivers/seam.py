"""The seam between terminals and drivers: channels, and what they carry (terminal-driver RFC, section 2.3).

A terminal opens a channel on a driver, grants it credit ("T: request new messages"), takes what the driver
forwards ("D: forward new message and ask for confirmation"), says how much of it was written ("T: message
forwarded to client"), and settles it as its client does. The types belong to no protocol: every terminal maps
its own commands to them.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.shared_window import SharedWindow
from omq.drivers.statistics import ChannelStatistics, Traffic
from omq_storage.blocks import Block
from omq_storage.numbers import Octets as Octets

if TYPE_CHECKING:
    from omq_storage._codec import Pass

LITTLE_OCTETS = 64 << 10
"""The octets that may be held for a stalled client, and that a channel returns at once for one."""

TAKE_OCTETS = 256 << 10
"""The octets that a live channel returns at once. Then the connection's other channels have their turn."""

MOST_SELECTIONS = 512
"""The greatest number of selections that a round-robin channel returns at once. If subscribers have little
room, each may be one message.
"""

SLOW_SECONDS = 1.0
"""The number of seconds of one send after which a client counts as slow, or as stalled."""


class MessageTruncated(Exception):
    """The rest of a message is not available any more, but its beginning was sent.

    The text gives the reason.
    """


class Selection(msgspec.Struct, frozen=True):
    """Some messages of a block, in order: at least one."""

    block: Block
    ids: range
    deliveries: int = 0
    """The number of times that they were delivered before. It is the same for all of them."""
    is_settled: bool = False
    """Whether their publisher does not need their outcome: they may be sent as settled."""

    def frames(self) -> Octets:
        """Return their joined frames; a view of the block if they are consecutive."""
        if self.ids.step == 1 and self.ids.stop == self.block.next:
            if self.ids.start == self.block.first:
                return self.block.frames
            return self.block.after(self.ids.start)
        if len(self.ids) == 1:
            return self.block.frame(self.ids.start)
        return self.block.gather(self.ids)

    def sent(self, octets: int) -> tuple[int, int]:
        """Return the number of its messages that are complete within the first `octets` octets of its frames,
        and the number of octets of the next message among them.
        """
        count = 0
        if self.ids.step == 1:
            count = self.block.messages_within(self.ids.start, octets)
            octets -= len(self.block.after(self.ids.start)) - len(self.block.after(self.ids.start + count))
        else:
            while count < len(self.ids) and (size := len(self.block.frame(self.ids[count]))) <= octets:
                octets -= size
                count += 1
        return count, octets


class TakenMessages(msgspec.Struct, frozen=True):
    """Messages to write, in order; the terminal chooses the form."""

    selections: tuple[Selection, ...]

    @property
    def is_little(self) -> bool:
        """Whether it is small enough to be held until a stalled client takes it."""
        octets = 0
        for selection in self.selections:
            octets += selection.block.held
            if octets > LITTLE_OCTETS:
                return False
        return True


class MessageOutline(msgspec.Struct, frozen=True):
    """The data of one message besides its body."""

    topic: int
    message: int
    time: int
    """When the server took the message, in microseconds since the epoch."""
    head: bytes
    size: int
    """Octets of the whole body."""
    deliveries: int = 0
    """The number of times that the message was delivered before."""
    is_settled: bool = False
    """See `Selection.is_settled`."""


class Piece(MessageOutline, frozen=True, kw_only=True):
    """A part of the body of one message that is not in memory as a whole."""

    begin: int
    """The index of the first of these octets in the body."""
    octets: bytes


class Unavailable(msgspec.Struct, frozen=True):
    """Messages `first` to `last` that are not available to this subscriber, and the reason."""

    first: int
    last: int
    reason: str


Taken = TakenMessages | Piece | Unavailable


class CreditKind(Enum):
    """The limit that the number of messages in a grant sets (terminal-driver RFC, section 3.5.1,
    "channel_request").
    """

    WINDOW = (
        "the number of messages that may be unsettled at a time: an omq Request, the prefetch of AMQP 0-9"
    )
    COUNT = "the number of messages that may still be delivered: the link credit of AMQP 1.0"


class Granted(msgspec.Struct, frozen=True):
    """The credit of a channel; None if credit of this kind does not limit it."""

    window: int | None = None
    count: int | None = None
    """The remaining count."""


class Accepted(msgspec.Struct, frozen=True):
    """The client is done with the message (terminal-driver RFC, section 3.5.1, "channel_confirm")."""


class Rejected(msgspec.Struct, frozen=True):
    """The client cannot process the message, and no other client could (terminal-driver RFC, section 3.5.1,
    "channel_failure"). The message is done.
    """


class Released(msgspec.Struct, frozen=True):
    """The client did not process the message: it is delivered again, to this client or to another one."""


class Modified(msgspec.Struct, frozen=True):
    """The message is delivered again, as after Released, but the delivery left traces."""

    delivery_failed: bool = False
    """Whether the message counts one delivery more from now on."""
    undeliverable_here: bool = False
    """Whether this channel does not get the message again."""


Outcome = Accepted | Rejected | Released | Modified
"""The outcome of a delivered message (AMQP 1.0, part 3, section 3.4, "Delivery State")."""

ACCEPTED = Accepted()
REJECTED = Rejected()
RELEASED = Released()

MOST_DELIVERIES = 255
"""The greatest count of deliveries that is stored."""


class RemainderHolder(Enum):
    """The holder of the rest of a message after its client stalled in the middle of it."""

    GIVEN_AGAIN = "the channel, which reads it again piece by piece"
    COUNTED = "the topic, which counts it among what it holds until the message is done"
    HELD = "only its sender"


class EndReason(Enum):
    """The reason why a driver ended a channel."""

    DELETED = "deleted"


class Outlet(Protocol):
    """A connection that sends Message frames at once, from any task."""

    stalled_at: int | None
    """The value of `sent` when publishers found that it did not grow for a while. None if they did not find
    this.
    """

    delivered: int
    """The number of messages sent at once so far, without those that `push` keeps for later."""

    @property
    def sent(self) -> int:
        """The number of octets of any kind that the connection has taken so far."""

    @property
    def pushed(self) -> int:
        """The position of the end of the octets that were pushed so far. Octets that are sent another way,
        and came later, wait until these have left.
        """

    def is_clear(self) -> bool:
        """Return whether it has nothing to send, is not sending, and its rate limit is open."""

    def has_room(self) -> bool:
        """Return whether `push` may be called: not too much of earlier pushes is left. Channels may have
        more.
        """

    def is_filled(self) -> bool:
        """Return whether it has no room because of earlier pushes alone, and its client takes something."""

    def push(self, passed: "Pass", lanes: Sequence[int]) -> None:
        """Send the octets that a pass collected for these lanes, now or when the socket accepts them."""

    def try_send(self, parts: Sequence[Octets]) -> int:
        """Send the octets that the socket takes now; return their number. A connection that broke takes
        nothing, and ends by itself.
        """

    def complete(self, rest: bytes, ended: Callable[[bool], None] | None = None) -> None:
        """Send the rest of a message whose beginning the socket took, before anything else. `ended` is called
        with True when it has left, or with False when the connection ends before.
        """


class CursorChannel(Protocol):
    """A channel whose messages may be sent in any portions, without taking them: they can be given again.

    While credit limits the channel, `at_hand` gives nothing; `passed` counts credit granted meanwhile.
    """

    @property
    def position(self) -> int:
        """The id of the next message to send."""

    @property
    def after(self) -> int:
        """As that of its channel: see `Channel.after`."""

    def ready(self) -> bool:
        """Return whether there is something to send, as `Channel.ready` does."""

    def at_hand(self, octets: int) -> Sequence[Block]:
        """Return blocks in memory from `position` on, about N `octets` of them, without taking them.
        Nothing where there are none, or where `take` must be used.
        """

    def passed(self, position: int, octets: int) -> None:
        """Note that the messages below `position` are on their way: N `octets` since the last call."""


class DirectSender(Protocol):
    """Sends a message which its topic has not taken into its memory."""

    def may_send_now(self) -> bool:
        """Return whether `send_now` may be called: no other octets must leave before the message."""

    def send_now(self, block: Block) -> bool:
        """Send the only message of a block, in this task. Return False if nothing of it was sent, which
        changes nothing. Otherwise it counts as written, and the subscriber has what the socket did not take.
        """


class Subscriber(Protocol):
    """The terminal's side of a channel."""

    @property
    def direct(self) -> DirectSender | None:
        """Another way to send its messages, where there is one."""

    def wake(self) -> None:
        """Wake the subscriber: there is something to take."""

    def replaced(self, channel: "Channel") -> None:
        """Continue with this channel: the topic got other types while it was empty.

        It has no credit yet. A subscriber that had granted some grants it again, see `hand_over`.
        """

    def ended(self, end: EndReason) -> None:
        """End the subscriber: the topic was deleted, and the channel ended."""


class Channel(Protocol):
    """The driver's side of a channel."""

    competes: bool
    """Whether each message of the topic goes to one subscriber only (round-robin): messages that this one
    does not take go to others, and messages that it accepts are done.
    """

    traffic: Traffic
    """The counters of its topic. `written` counts the messages; the terminal adds the octets that it sent."""

    rest: RemainderHolder
    """The holder of the rest of a message; HELD after `close`, when nothing more can be taken."""

    settles: bool
    """Whether messages stay unsettled until `settle`: from the first grant of a window on, and if
    subscribers compete from the first grant of any credit on. Before that, writing settles them.
    """

    @property
    def flow(self) -> CursorChannel | None:
        """Another way to its messages, where there is one."""

    @property
    def after(self) -> int:
        """The octets of its outlet, as `Outlet.pushed` counts them, that must leave before its next message;
        0 without an outlet.
        """

    def attach(self, outlet: Outlet) -> None:
        """Attach the channel to its outlet: the subscriber takes messages from now on, and later messages may
        be pushed to it. Only for a connection whose messages are Message frames of omq.
        """

    def ready(self) -> bool:
        """Return whether `take` has something to return without waiting for a publisher."""

    async def take(self) -> Taken | None:
        """Return the next thing to write; None if there is nothing.

        A Piece is the next one of the message that is begun. Raises MessageTruncated when that is not
        available any more, and omq_storage.errors.StoreError.
        """

    def take_at_once(self, octets: int, most: int = MOST_SELECTIONS) -> Sequence[Selection]:
        """Take messages as `take` does, without waiting, and not more than N `octets` in M selections
        (`most`). Nothing where there are none, or where `take` must be used.
        """

    def written(self, count: int, begun: int | None = None) -> None:
        """Report the number of messages of the last take that were sent: all, or fewer if the connection
        broke or stalled. The others are returned again, to this subscriber or to others.

        `begun`: the number of octets of the next message's body that were sent; the caller continues
        with the rest of it, or reports with another `written(1)` that it was sent, too.
        """

    def begun_at_once(self, count: int, begun: int) -> Callable[[bool], None] | None:
        """Report that N (`count`) messages of the last take were sent, and `begun` octets of the body of the
        next one, whose rest leaves before anything else. Return what must be called then with True, or with
        False when the connection ends before. None: the message counts as sent.
        """

    def grant(self, n: int, kind: CreditKind) -> None:
        """Grant credit of one kind: from now on the channel returns no more than `n` allows. It replaces what
        was granted of this kind; credit of the other kind still limits the channel, too.

        A lower window takes nothing back. A lower count takes back what is not taken. What is taken and not
        written yet uses up the count when it is written. A new count ends a `drain`. A negative `n` counts
        as 0.
        """

    def granted(self) -> Granted:
        """Return the current credit."""

    def share(self, window: SharedWindow | None) -> None:
        """Let a window that other channels share limit this one, too; None: no longer. Only messages that
        must be settled count in it.

        It has an effect only where subscribers compete for the messages of a topic.
        """

    def follow(self, order: DeliveryOrder | None) -> None:
        """Give messages in this order together with other channels of the connection; None: no longer.

        It has an effect only where subscribers compete for the messages of a topic.
        """

    def wait_for(self, message: int) -> None:
        """Begin with a message of a broadcast topic that is not there yet. Call it before anything else.

        It has no effect where subscribers compete: they cannot choose their messages.
        """

    def drain(self, drained: Callable[[int], None], most: int | None = None) -> None:
        """Return the messages that there are now, up to the count, and then set the count to 0.

        `drained` is called once, when all these messages are written, with the rest of the count,
        which is 0 from then on. It is not called when the channel is closed before.

        With `most`, first set the count to N (`most`) besides the messages that are on their way, and keep to
        it although writing may settle them. Then `close` or `cancel` must follow.
        """

    def settle(self, ids: range, outcome: Outcome) -> int:
        """Settle messages, in any order, whose ids increase with any step. Return the number of those that
        were unsettled here; the others are ignored: they were settled before, or never delivered here.

        The messages of a broadcast topic belong to all its subscribers: there an outcome only returns
        credit. A message that is not written yet may be settled too.
        """

    def cancel(self) -> None:
        """Deliver nothing more. Unsettled messages stay with the subscriber until they are settled, or until
        the channel is closed. Messages that were taken may still be written.
        """

    def retire(self) -> None:
        """Deliver nothing more, because `close` follows soon. The messages that the channel has stay with it
        until then, and leave its `follow` order.

        The channels of an end retire first, all of them, and are closed one after another later. Others get
        their messages when all channels of the topic that have retired are closed: in order, and each once.
        """

    def hold(self) -> None:
        """Pause: no connection takes from the channel now.

        Keep its position, and leave its messages to others if possible.
        """

    def suspend(self) -> None:
        """Pause as `hold` does, but keep the messages until `give_back`, which follows soon. `take` returns
        none of them before `release`.

        The channels of a connection are suspended first, all of them, and give back one after another later.
        Others get their messages when all suspended channels of the topic have given back: in order.
        """

    def give_back(self) -> bool:
        """Leave messages to others, if the channel is suspended, and not released or closed since: as many as
        one step has time for. Return whether it must be called again.
        """

    def release(self) -> None:
        """End the pause."""

    def finish(self) -> None:
        """Return the messages that there are now, and no later ones: the client has closed its
        sending side.
        """

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot of the channel."""

    def close(self) -> None:
        """End the channel; its outstanding messages go to others. Those that were sent, or may
        have been, count one delivery more.
        """


def hand_over(old: Channel, new: Channel) -> None:
    """Grant a channel the credit of the one that it replaces."""
    credit = old.granted()
    if credit.window is not None:
        new.grant(credit.window, CreditKind.WINDOW)
    if credit.count is not None:
        new.grant(credit.count, CreditKind.COUNT)
