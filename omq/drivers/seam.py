"""The seam between terminals and drivers: channels, and what they carry (terminal-driver RFC, section 2.3).

A terminal opens a channel on a driver, takes what the driver forwards, and says how much of it was written.
"""

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

    def frames(self) -> Octets:
        """Their frames, one after another: the block's own octets where they lie together."""
        if self.ids.step == 1 and self.ids.stop == self.block.next:
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


@dataclass(frozen=True, slots=True)
class Gone:
    """Messages `first` to `last` can no longer be had by this subscriber, and why."""

    first: int
    last: int
    reason: str


Taken = Messages | Piece | Gone


class Rest(Enum):
    """Who has the rest of a message in whose middle a client stalled."""

    GIVEN_AGAIN = "the channel, which reads it again piece by piece"
    COUNTED = "the topic, which counts it among what it holds until the message is done"
    HELD = "nobody but who sends it"


class End(Enum):
    """Why a channel was ended by its driver rather than by its subscriber."""

    DELETED = "deleted"


class Subscriber(Protocol):
    """The terminal's side of a channel."""

    def wake(self) -> None:
        """There is something to take."""

    def replaced(self, channel: "Channel") -> None:
        """The topic was given other types while it was empty: go on with this channel."""

    def ended(self, end: End) -> None:
        """The topic is gone, and the channel with it."""


class Channel(Protocol):
    """The driver's side of a channel."""

    traffic: Traffic
    """The counters of its topic. `written` counts the messages; the terminal adds the octets that it sent."""
    rest: Rest
    """From `close` on HELD: what was taken before is all there will be."""

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

    def hold(self) -> None:
        """Nobody takes yet, or for now: keep the place, and leave to others what can be left to them."""

    def release(self) -> None:
        """From now on somebody takes."""

    def finish(self) -> None:
        """Give what is there now and nothing that comes later: the client has stopped listening."""

    def statistics(self) -> ChannelStatistics:
        """How far its subscriber is."""

    def close(self) -> None:
        """End the channel; what was dealt to it and not done goes to others."""
