"""The seam between terminals and drivers: channels, and what they carry (terminal-driver RFC, section 2.3).

A terminal opens a channel on a driver, grants it credit ("T: request new messages"), takes what the driver
forwards ("D: forward new message and ask for confirmation"), says how much of it was written ("T: message
forwarded to client"), and settles it as its client does. The types belong to no protocol: every terminal maps
its own commands to them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from omq.drivers.statistics import ChannelStatistics, Traffic
from omq_storage.blocks import Block

Octets = bytes | memoryview

LITTLE_OCTETS = 64 << 10
"""What may be held for a stalled client, and what a channel gives at once to one that was stalled."""

SLOW_SECONDS = 1.0
"""How long a client may take for what is sent to it at once, before it counts as slow, or as stalled."""


class Torn(Exception):
    """The rest of a message cannot be had any more, and its beginning is sent; the message says why."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Some messages of a block, in order: at least one."""

    block: Block
    ids: range
    deliveries: int = 0
    """How often they were delivered before. It is the same number for all of them."""

    def frames(self) -> Octets:
        """Their frames, one after another: the block's own octets where they lie together."""
        if self.ids.step == 1 and self.ids.stop == self.block.next:
            if self.ids.start == self.block.first:
                return self.block.frames
            return self.block.after(self.ids.start)
        if len(self.ids) == 1:
            return self.block.frame(self.ids.start)
        return self.block.gather(self.ids)

    def sent(self, octets: int) -> tuple[int, int]:
        """How many of its messages lie whole within the first so many octets of its frames, and how many
        octets of the next one do.
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


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages to write, in order, in whatever form the terminal writes them."""

    cuts: tuple[Cut, ...]

    @property
    def is_little(self) -> bool:
        """Whether it may be held until a stalled client takes it."""
        octets = 0
        for cut in self.cuts:
            octets += cut.block.held
            if octets > LITTLE_OCTETS:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Piece:
    """Some octets of the body of one message, which is not held whole."""

    topic: int
    message: int
    head: bytes
    size: int
    """Octets of the whole body."""
    begin: int
    """Where in the body they lie."""
    octets: bytes
    deliveries: int = 0
    """How often the message was delivered before."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Messages `first` to `last` can no longer be had by this subscriber, and why."""

    first: int
    last: int
    reason: str


Taken = Messages | Piece | Gone


class Credit(Enum):
    """What a number of messages that a terminal grants bounds (terminal-driver RFC, section 3.5.1,
    "channel_request").
    """

    WINDOW = "how many messages may be unsettled at a time: an omq Request, the prefetch of AMQP 0-9"
    COUNT = "how many more messages may be delivered: the link credit of AMQP 1.0"


@dataclass(frozen=True, slots=True)
class Granted:
    """The credit of a channel: None where no credit of this kind bounds it."""

    window: int | None = None
    count: int | None = None
    """What is left of it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is done with the message (terminal-driver RFC, section 3.5.1, "channel_confirm")."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The client cannot process the message, and nobody else could (terminal-driver RFC, section 3.5.1,
    "channel_failure"). The message is done.
    """


@dataclass(frozen=True, slots=True)
class Released:
    """The client did not process the message: it is delivered again, to this client or to another one."""


@dataclass(frozen=True, slots=True)
class Modified:
    """As Released, but the delivery left traces."""

    delivery_failed: bool = False
    """The message counts one delivery more from now on."""
    undeliverable_here: bool = False
    """This channel does not get the message again."""


Outcome = Accepted | Rejected | Released | Modified
"""What became of a message that was delivered (AMQP 1.0, part 3, section 3.4, "Delivery State")."""

ACCEPTED = Accepted()
REJECTED = Rejected()
RELEASED = Released()

MOST_DELIVERIES = 255
"""Where the count of a message's deliveries stops."""


class Rest(Enum):
    """Who has the rest of a message in whose middle a client stalled."""

    GIVEN_AGAIN = "the channel, which reads it again piece by piece"
    COUNTED = "the topic, which counts it among what it holds until the message is done"
    HELD = "nobody but who sends it"


class End(Enum):
    """Why a channel was ended by its driver rather than by its subscriber."""

    DELETED = "deleted"


class Outlet(Protocol):
    """A connection that takes Message frames at once, whichever task has them."""

    def is_clear(self) -> bool:
        """Whether it has nothing to send, is not sending, and its rate limit is open."""

    def try_send(self, parts: Sequence[Octets]) -> int:
        """Send what the socket takes now; return how many octets it took. A connection that broke takes
        nothing, and ends by itself.
        """

    def complete(self, rest: bytes) -> None:
        """Send the rest of a message whose beginning the socket took, before anything else."""


class Flow(Protocol):
    """A channel whose messages may be sent in any portions, without taking them: they can be given again, and
    there is no credit to count.
    """

    position: int
    """The id of the next message to send."""

    def attach(self, outlet: Outlet) -> None:
        """The subscriber takes messages from now on: what comes next may be pushed to it."""

    def ready(self) -> bool:
        """As `Channel.ready`."""

    def at_hand(self, octets: int) -> Sequence[Block]:
        """Return blocks in memory from `position` on, about so many octets of them, without taking them.
        Nothing where there are none, or where `take` must be used.
        """

    def passed(self, position: int, octets: int) -> None:
        """The messages below `position` are on their way, so many octets of them since the last call."""


class Subscriber(Protocol):
    """The terminal's side of a channel."""

    def wake(self) -> None:
        """There is something to take."""

    def replaced(self, channel: "Channel") -> None:
        """The topic was given other types while it was empty: go on with this channel.

        It has no credit yet. A subscriber that had granted some grants it again, see `hand_over`.
        """

    def ended(self, end: End) -> None:
        """The topic is gone, and the channel with it."""


class Channel(Protocol):
    """The driver's side of a channel."""

    competes: bool
    """Whether each message of the topic goes to one subscriber only (round-robin): what this one does not
    take goes to others, and what it accepts is done.
    """

    traffic: Traffic
    """The counters of its topic. `written` counts the messages; the terminal adds the octets that it sent."""

    rest: Rest
    """From `close` on HELD: what was taken before is all there will be."""

    settles: bool
    """Whether messages stay unsettled until `settle`: from the first grant of a window on, and where
    subscribers compete from the first grant of any credit on. Before that, writing them settles them.
    """

    @property
    def flow(self) -> Flow | None:
        """Another way to its messages, where there is one."""

    def ready(self) -> bool:
        """Whether `take` has something to give without waiting for a publisher."""

    async def take(self) -> Taken | None:
        """The next thing to write, None when there was nothing after all.

        A Piece is the next one of the message that is begun. Raises Torn when there is one and cannot be had,
        and omq_storage.errors.StoreError.
        """

    def written(self, count: int, begun: int | None = None) -> None:
        """How many messages are on their way of what was taken last: all, or fewer when it broke or stalled.
        The others are given again, to this subscriber or to others.

        `begun`: the next one is begun, and so many octets of its body are on their way; who takes goes on
        with the rest of it, or says with another `written(1)` that it is on its way too.
        """

    def grant(self, n: int, kind: Credit) -> None:
        """Grant credit of one kind: from now on the channel gives no more than `n` allows. It replaces what
        was granted of this kind; credit of the other kind still bounds the channel too.

        A lower window takes nothing back. A lower count takes back what is not taken. What is taken and not
        written yet uses up the count when it is written. A new count ends a `drain`. A negative `n` counts
        as 0.
        """

    def granted(self) -> Granted:
        """Return the credit there is."""

    def drain(self, drained: Callable[[int], None]) -> None:
        """Give what there is now, as far as the count goes, and take the rest of the count back.

        `drained` is called once, when everything that was given is written: with what was left of the count,
        which is 0 from then on. It is not called when the channel is closed before.
        """

    def settle(self, ids: range, outcome: Outcome) -> int:
        """Settle messages, in any order, whose ids rise with any step; return how many of them were unsettled
        here. The others are ignored: they were settled before, or never delivered here.

        The messages of a broadcast topic belong to all its subscribers: there an outcome only gives back
        credit. A message that is not written yet may be settled too.
        """

    def cancel(self) -> None:
        """Deliver nothing more. What is unsettled stays with the subscriber until it is settled, or until the
        channel is closed. What is taken may still be written.
        """

    def hold(self) -> None:
        """Nobody takes yet, or for now: keep the place, and leave to others what can be left to them."""

    def release(self) -> None:
        """From now on somebody takes."""

    def finish(self) -> None:
        """Give what is there now and nothing that comes later: the client has stopped listening."""

    def statistics(self) -> ChannelStatistics:
        """How far its subscriber is."""

    def close(self) -> None:
        """End the channel; what was dealt to it and not done goes to others. What of that was sent, or may
        have been, counts one delivery more.
        """


def hand_over(old: Channel, new: Channel) -> None:
    """Grant a channel the credit of the one that it replaces."""
    credit = old.granted()
    if credit.window is not None:
        new.grant(credit.window, Credit.WINDOW)
    if credit.count is not None:
        new.grant(credit.count, Credit.COUNT)
