"""DMP envelopes, as single messages and as runs.

    u32 size | head | u8 options | u24 body length | body          size counts everything after itself

Source: 6-DMP, "Message envelope and format"; numbers are big-endian. 4-DMP has `u32 body length` instead of
the options and the shorter length: the same octets when the options are 0 and the body is under 16 MiB.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.head import PLAIN_HEAD, Head
from omq_storage.batches import Batch

NULL_MESSAGE = b"\x00\x00\x00\x00"
"""A heartbeat without further meaning (6-DMP, "Heartbeating")."""

IMMEDIATE = 1
MANDATORY = 2
"""The two bits of the options octet."""

NUMBER = Struct(">I")
"""An envelope's size, its options with the body's length, or 4-DMP's body length."""

AFTER_HEAD = 4
"""The size of the options and the body's length, in octets."""

LONGEST_6_DMP_BODY = 2**24 - 1
"""The longest body whose length fits beside an options octet. A longer body requires options of 0."""


_PLAIN = Head()


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message with its head and options."""

    body: bytes
    head: Head = _PLAIN
    mandatory: bool = False
    immediate: bool = False


@dataclass(frozen=True, slots=True)
class EnvelopeRun:
    """Consecutive envelopes of one connection, in the order of the wire.

    `heads[i]` and `options[i]` belong to `bodies[i]`. For speed, `heads` is empty if every head is
    `PLAIN_HEAD`, and `options` is empty if all options are 0. Consecutive equal heads are mostly the same
    object. The caller owns the lists.
    """

    bodies: list[bytes]
    heads: list[bytes]
    options: list[int]

    def __len__(self) -> int:
        return len(self.bodies)

    def envelopes(self) -> Iterator[Envelope]:
        """Iterate over single envelopes with parsed heads."""
        octets, head = PLAIN_HEAD, _PLAIN
        for index, body in enumerate(self.bodies):
            if self.heads and self.heads[index] != octets:
                octets = self.heads[index]
                head = stored_head.decode(octets)
            options = self.options[index] if self.options else 0
            yield Envelope(body, head, bool(options & MANDATORY), bool(options & IMMEDIATE))


@dataclass(frozen=True, slots=True)
class EnvelopeBatch:
    """An `EnvelopeRun` with the bodies as a batch that can be posted."""

    batch: Batch
    heads: list[bytes]
    options: list[int]

    def __len__(self) -> int:
        return self.batch.count


@dataclass(frozen=True, slots=True)
class LongEnvelope:
    """An envelope whose body is not held: the fields before the body, and the beginning of the body."""

    head: bytes
    options: int
    size: int
    """Octets of the whole body."""
    body: bytes
    """The octets of the body that have come."""


class EnvelopeError(ValueError):
    """The octets are not valid envelopes; the connection cannot be read further.

    The text gives the number of the envelope, counted from 1 on its connection, and the error. `before` holds
    the envelopes that the same `feed` had read before, `batch` those of the same `feed_batch`.
    """

    def __init__(self, text: str, before: EnvelopeRun, batch: EnvelopeBatch | None = None) -> None:
        super().__init__(text)
        self.before = before
        self.batch = batch


@lru_cache(maxsize=64)
def beginning(head_length: int) -> Struct:
    """Return the layout of an envelope with options of 0 up to its body: size, head, body length."""
    return Struct(f">I{head_length}sI")
