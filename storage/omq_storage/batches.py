"""Messages on their way into a block: all but ids, topic and time, which come when it is written.

A list of bodies is a batch, and so are frames that the compiled codec made of received octets: then no
message is ever an object of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, Block, encode
from omq_storage.heads import encode_heads

if TYPE_CHECKING:
    from omq_storage._codec import Frames, Spans


class Batch(ABC):
    """Messages in their order; never changed. Those with the same bodies are equal."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    count: int
    """How many they are."""
    octets: int
    """What their frames take, 17 octets each besides the bodies."""
    longest: int
    """Octets of the longest body, 0 without any."""

    @abstractmethod
    def encode(self, topic: int, first: int, time: int, heads: Sequence[bytes] = ()) -> Block:
        """The block of all of them, with their heads. Errors as those of `omq_storage.blocks.encode`."""

    @abstractmethod
    def part(self, begin: int, end: int) -> "Batch":
        """Those at these indexes. ValueError when they are not 0 <= begin <= end <= count."""

    @abstractmethod
    def bodies(self) -> Sequence[bytes]:
        """The bodies, each by itself."""

    def __eq__(self, other: object) -> bool:
        return list(self.bodies()) == list(other.bodies()) if isinstance(other, Batch) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.bodies())!r})"


class Bodies(Batch):
    """A batch that is a list; whoever made it of a list does not change that any more."""

    __slots__ = ("_bodies", "count", "longest", "octets")

    def __init__(self, bodies: Sequence[bytes]) -> None:
        lengths = list(map(len, bodies))
        self._bodies = bodies
        self.count = len(lengths)
        self.octets = sum(lengths) + FRAME_HEADER * self.count
        self.longest = max(lengths, default=0)

    def encode(self, topic: int, first: int, time: int, heads: Sequence[bytes] = ()) -> Block:
        return encode(topic, first, self._bodies, time, heads)

    def part(self, begin: int, end: int) -> Batch:
        if not 0 <= begin <= end <= self.count:
            raise ValueError(f"{begin} to {end} is not within 0 to {self.count}.")
        return Bodies(self._bodies[begin:end])

    def bodies(self) -> Sequence[bytes]:
        return self._bodies


class Framed(Batch):
    """A batch that the compiled codec holds as frames.

    It is stamped with ids and topic where it lies, the first time it is encoded: nothing is copied any more.
    """

    __slots__ = ("count", "frames", "longest", "octets")

    def __init__(self, frames: "Frames", longest: int) -> None:
        self.frames = frames
        self.count = frames.count
        self.octets = frames.octets
        self.longest = longest

    def encode(self, topic: int, first: int, time: int, heads: Sequence[bytes] = ()) -> Block:
        stamped = self.frames.stamped(topic, first)
        if stamped is None:
            return encode(
                topic, first, self.bodies(), time, heads
            )  # which says what is wrong with the numbers
        side = encode_heads(heads, self.count) if heads else None
        return Block(topic, first, self.count, time, *stamped, None, side)

    def part(self, begin: int, end: int) -> Batch:
        return Framed(self.frames.part(begin, end), self.longest)

    def bodies(self) -> Sequence[bytes]:
        return self.frames.bodies()


def batch(spans: "Spans") -> Batch:
    """What the compiled codec found, as a batch."""
    frames = spans.frames()
    # What is too large for one block is left to whoever cuts it.
    return Bodies(spans.bodies()) if frames is None else Framed(frames, spans.longest)


def joined(batches: Sequence[Batch]) -> Batch:
    """All of them as one."""
    if len(batches) == 1:
        return batches[0]
    if codec.COMPILED and any(isinstance(part, Framed) for part in batches):
        parts = [frames for part in batches if (frames := _frames(part)) is not None]
        whole = codec.native.joined(parts) if len(parts) == len(batches) else None
        if whole is not None:
            return Framed(whole, max(part.longest for part in batches))
    return Bodies([body for part in batches for body in part.bodies()])


def _frames(part: Batch) -> "Frames | None":
    return part.frames if isinstance(part, Framed) else codec.native.prepare(part.bodies())
