"""What runs between a terminal and a driver: channels (terminal-driver RFC, section 2.3).

A terminal opens a channel on a driver, takes what the driver forwards, and says how much of it was written.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from storage.blocks import Block

Octets = bytes | memoryview

LITTLE_OCTETS = 64 << 10
"""What may be held for a stalled client, and what a channel gives at once to one that was stalled."""

SLOW_SECONDS = 1.0
"""How long a client may take for what is sent to it at once, before it counts as slow, or as stalled."""


class Refused(Exception):
    """The driver cannot do what was asked; the message is one sentence for the client."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Some messages of a block, in order: at least one."""

    block: Block
    ids: range

    def frames(self) -> Octets:
        """Their frames, one after another: the block's own octets where they lie together."""
        if self.ids.step == 1 and self.ids.stop == self.block.next:
            return self.block.after(self.ids.start)
        return self.block.gather(self.ids)

    def sent(self, octets: int) -> tuple[int, Octets]:
        """How many of its messages lie whole within the first so many octets of its frames, and what is
        missing of the next one when that is begun: in octets of its own, unless the block has no other.
        """
        if self.ids.step == 1:
            count = self.block.messages_within(self.ids.start, octets)
            octets -= len(self.block.after(self.ids.start)) - len(self.block.after(self.ids.start + count))
        else:
            count = 0
            while count < len(self.ids) and (size := len(self.block.frame(self.ids[count]))) <= octets:
                octets -= size
                count += 1
        if not octets or count == len(self.ids):
            return count, b""
        rest = self.block.frame(self.ids[count])[octets:]
        return count, rest if self.block.count == 1 else bytes(rest)


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages to write, in order, in whatever form the terminal writes them."""

    cuts: tuple[Cut, ...]

    @property
    def is_little(self) -> bool:
        """Whether it may be held until a stalled client takes it."""
        return sum(cut.block.held for cut in self.cuts) <= LITTLE_OCTETS


@dataclass(frozen=True, slots=True)
class Gone:
    """Messages `first` to `last` can no longer be had by this subscriber, and why."""

    first: int
    last: int
    reason: str


Taken = Messages | Gone


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

    can_take_again: bool
    """Whether `take` gives again what was not written, so that nobody has to hold it for a stalled client."""

    def ready(self) -> bool:
        """Whether `take` has something to give without waiting for a publisher."""

    async def take(self) -> Taken | None:
        """The next thing to write, None when there was nothing after all."""

    def written(self, count: int) -> None:
        """How many of the last Messages taken are on their way: all, or fewer when it broke or stalled."""

    def hold(self) -> None:
        """Nobody takes yet: keep the place, and leave to others what can be left to them."""

    def release(self) -> None:
        """From now on somebody takes."""

    def finish(self) -> None:
        """Give what is there now and nothing that comes later: the client has stopped listening."""

    def close(self) -> None:
        """End the channel; what was dealt to it and not done goes to others."""
