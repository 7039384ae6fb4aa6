"""Messages that will become a block: everything except ids, topic and time, which the writer adds.

A batch is either a list of bodies, or the frames that the compiled codec has made of received octets.  In the
second form no message is a Python object of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, FRAMES_LIMIT, Block, encode
from omq_storage.heads import encode_heads

if TYPE_CHECKING:
    from omq_storage._codec import Frames, Spans


BLOCK_MESSAGES = 4096
BLOCK_OCTETS = 512 << 10
"""The size of a full block: large enough for fast scans, small enough to be sent at once."""

LARGE_OCTETS = 1 << 20
"""A batch of this size takes so long to copy that a thread should do it. The compiled codec lets others run
meanwhile.
"""


class Batch(ABC):
    """Messages in order.  A batch never changes.  Batches with the same bodies are equal."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # equal batches may differ in type

    count: int
    """The number of messages."""
    octets: int
    """The size of their frames: the bodies and 17 octets for each message."""
    longest: int
    """The size of the longest body in octets; 0 for an empty batch."""

    @abstractmethod
    def encode(self, topic: int, first: int, time: int, heads: Sequence[bytes] = ()) -> Block:
        """Return the block of all messages. Raises what `omq_storage.blocks.encode` raises."""

    @abstractmethod
    def stamped(self, topic: int, first: int) -> tuple[bytes, bytes]:
        """Return the frames and the offsets of that block."""

    @abstractmethod
    def part(self, begin: int, end: int) -> "Batch":
        """Return the messages at these indexes. Raises ValueError unless 0 <= begin <= end <= count."""

    @abstractmethod
    def bodies(self) -> Sequence[bytes]:
        """Return the bodies."""

    def __eq__(self, other: object) -> bool:
        return list(self.bodies()) == list(other.bodies()) if isinstance(other, Batch) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.bodies())!r})"


class Bodies(Batch):
    """A batch that is a list of bodies. The caller must not change the list afterwards."""

    __slots__ = ("_bodies", "count", "longest", "octets")

    def __init__(self, bodies: Sequence[bytes], sizes: tuple[int, int] | None = None) -> None:
        """Create a batch of these bodies. `sizes`: `octets` and `longest`, if the caller has
        determined them.
        """
        self._bodies = bodies
        self.count = len(bodies)
        if sizes is None:
            lengths = list(map(len, bodies))
            sizes = sum(lengths) + FRAME_HEADER * self.count, max(lengths, default=0)
        self.octets, self.longest = sizes

    def encode(self, topic: int, first: int, time: int, heads: Sequence[bytes] = ()) -> Block:
        return encode(topic, first, self._bodies, time, heads)

    def stamped(self, topic: int, first: int) -> tuple[bytes, bytes]:
        return codec.frames_of(topic, first, self._bodies)

    def part(self, begin: int, end: int) -> Batch:
        if not 0 <= begin <= end <= self.count:
            raise ValueError(f"{begin} to {end} is not within 0 to {self.count}.")
        return Bodies(self._bodies[begin:end])

    def bodies(self) -> Sequence[bytes]:
        return self._bodies


class Framed(Batch):
    """A batch that the compiled codec holds as frames.

    The first `encode` writes ids and topic into these frames in place, without a copy.
    """

    __slots__ = ("count", "frames", "longest", "octets")

    def __init__(self, frames: "Frames", longest: int) -> None:
        self.frames = frames
        self.count = frames.count
        self.octets = frames.octets
        self.longest = longest

    def encode(self, topic: int, first: int, time: int, heads: Sequence[bytes] = ()) -> Block:
        side = encode_heads(heads, self.count) if heads else None
        return Block(topic, first, self.count, time, *self.stamped(topic, first), None, side)

    def stamped(self, topic: int, first: int) -> tuple[bytes, bytes]:
        # If the numbers are wrong, the plain function raises the exact error.
        return self.frames.stamped(topic, first) or codec.frames_of(topic, first, self.bodies())

    def part(self, begin: int, end: int) -> Batch:
        if begin == 0 and end == self.count:
            return self
        return Framed(self.frames.part(begin, end), self.longest)

    def bodies(self) -> Sequence[bytes]:
        return self.frames.bodies()


def batch(spans: "Spans") -> Batch:
    """Return the messages that the compiled codec found as a batch."""
    frames = spans.frames()
    # Messages that are too large for one block stay bodies: the driver splits them into several blocks.
    return Bodies(spans.bodies()) if frames is None else Framed(frames, spans.longest)


class Assembly:
    """One message whose body arrives in parts, however small they are.

    With the compiled codec each part is copied to its place in the frame when it arrives. So nothing that
    takes long is left for the end, and the message takes no memory twice.
    """

    def __init__(self, size: int) -> None:
        """Create an empty body of N (`size`) octets. The memory for all of it is allocated, but not
        used yet.
        """
        self._size = self._left = size
        self._body = bytearray()
        is_framed = codec.COMPILED and size + FRAME_HEADER < FRAMES_LIMIT
        self._frame = codec.native.FrameInParts(size) if is_framed else None

    def add(self, octets: bytes) -> None:
        """Take the next octets of the body. Raises ValueError if they are too many."""
        if len(octets) > self._left:
            raise ValueError(f"{len(octets)} octets do not fit into the last {self._left} of the body.")
        self._left -= len(octets)
        if self._frame is None:
            self._body += octets
        else:
            self._frame.add(octets)

    def batch(self) -> Batch:
        """Return the message. Raises ValueError unless its body is complete."""
        if self._left:
            raise ValueError(f"{self._left} octets of the body are missing.")
        if self._frame is None:
            return Bodies([bytes(self._body)])
        return Framed(self._frame.frames(), self._size)


def joined(batches: Sequence[Batch]) -> Batch:
    """Return all batches as one."""
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


def blocks_of(
    topic: int,
    first: int,
    time: int,
    batches: Iterable[tuple[Batch, Sequence[bytes], int]],
    limit: int = FRAMES_LIMIT,
) -> list[Block]:
    """Return all messages as blocks with consecutive ids from `first` on; small batches share a block.

    Each batch comes with its heads (none, or one for each message) and the octets of both.  `limit`: each
    block has fewer octets of frames than this, unless it is a single message.
    """
    blocks: list[Block] = []
    waiting: list[Batch] = []
    heads: list[bytes] = []  # no longer than needed: the heads of the last messages may be missing
    count = octets = 0
    next_id = first

    def close() -> None:
        nonlocal next_id, count, octets
        whole = joined(waiting)
        if heads:
            heads.extend([b""] * (count - len(heads)))
        for start in range(0, count, BLOCK_MESSAGES):
            part = whole if count <= BLOCK_MESSAGES else whole.part(start, min(count, start + BLOCK_MESSAGES))
            for begin, piece in pieces_within(part, limit):
                of_piece = heads[start + begin : start + begin + piece.count]
                blocks.append(piece.encode(topic, next_id, time, of_piece))
                next_id += piece.count
        waiting.clear()
        heads.clear()
        count = octets = 0

    for batch, of_batch, size in batches:
        if waiting and (octets + size > BLOCK_OCTETS or count + batch.count > BLOCK_MESSAGES):
            close()
        if of_batch:
            heads += [b""] * (count - len(heads))
            heads += of_batch
        waiting.append(batch)
        count += batch.count
        octets += size
    close()
    return blocks


def pieces_within(batch: Batch, limit: int) -> list[tuple[int, Batch]]:
    """Split a batch into pieces of fewer than `limit` octets of frames, or of one message, each with the
    index of its first message: one long message and later ones may be more than a block can have.
    """
    if batch.octets < limit or batch.count == 1:
        return [(0, batch)]
    half = batch.count // 2
    first, second = batch.part(0, half), batch.part(half, batch.count)
    return [
        *pieces_within(first, limit),
        *((half + begin, piece) for begin, piece in pieces_within(second, limit)),
    ]
