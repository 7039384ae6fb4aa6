"""Long messages that come in several frames: their bodies go to their places in the frame that is stored.

To join the parts of a message of 60 MiB, and to cut its body out, would keep all other connections waiting
for tens of milliseconds, and take its memory three times. So if the first part of a message shows how long
its only data section or value is, nothing that takes long is left for the end.
"""

from typing import NamedTuple

from omq.protocol.amqp_1_0 import lifetimes, sections, stored
from omq.protocol.amqp_1_0.sections import Section, SectionPlace
from omq.protocol.amqp_1_0.stored import MOST_AROUND, BodyKind
from omq.protocol.amqp_1_0.types import DecodeError
from omq_storage.batches import Assembly, Batch, Bodies

LONG_OCTETS = 256 << 10
"""The octets of a body from which on it is worth the effort."""

_OPENING = 8
"""The octets of a section before its contents: a descriptor, a constructor, and the length."""


class StoredBatch(NamedTuple):
    """A message as it is stored: one batch."""

    head: bytes
    batch: Batch


class Beginning(NamedTuple):
    """The contents of the body of a long message, as its first part shows them."""

    form: BodyKind
    content: int
    """The index of the first octet of the contents of the body."""
    size: int
    """The octets of these contents."""

    @property
    def octets(self) -> int:
        """The octets that the message has at least."""
        return self.content + self.size


class LongOpening:
    """The octets of a long message before the contents of its body."""

    def __init__(self, beginning: Beginning, octets: bytes) -> None:
        """Take them from the octets of the first part of the message."""
        self.octets = octets[: beginning.content]
        self._form = beginning.form

    def _sections(self) -> list[SectionPlace]:
        return sections.find(self.octets[:-_OPENING])

    def has_too_much(self, after: bytes) -> bool:
        """Return whether a stored head may have no room for them and for the octets after the body."""
        return len(self.octets) + len(after) > MOST_AROUND

    def head(self, after: bytes) -> bytes | None:
        """Return the stored head of the message with these octets after its body; None if only all of it can
        be stored together. Raises `DecodeError`.
        """
        places = self._sections()
        before = stored.kept(self.octets, places)
        if len(before) + len(after) > MOST_AROUND or not _may_be_kept(after):
            return None
        expiration = lifetimes.expiration(self.octets, places)
        return stored.stored_as(self._form, before, b"", after, expiration).head

    def to(self) -> bytes:
        """Return the field `to` of the properties, as it is encoded. Raises `DecodeError`."""
        return sections.to(self.octets[:-_OPENING], self._sections())


class LongMessage:
    """A long message that comes in parts, and is held."""

    def __init__(self, beginning: Beginning, octets: bytes) -> None:
        """Begin a message with the octets of its first part."""
        self._opening = LongOpening(beginning, octets)
        self._size = self._left = beginning.size
        self._body = Assembly(beginning.size)
        self._after = bytearray()
        self.add(octets[beginning.content :])

    @property
    def opening(self) -> bytes:
        """The octets of the message before the contents of its body."""
        return self._opening.octets

    @property
    def octets(self) -> int:
        """The octets that the message has at least, also those that did not come yet."""
        return len(self._opening.octets) + self._size + len(self._after)

    def add(self, octets: bytes) -> None:
        """Take the next octets of the message."""
        body = octets[: self._left]
        self._body.add(body)
        self._left -= len(body)
        self._after += octets[len(body) :]

    def stored(self) -> StoredBatch:
        """Return the stored form of the message, which is complete. Raises `DecodeError`."""
        batch, after = self._complete(), bytes(self._after)
        head = self._opening.head(after)
        if head is None:
            (body,) = batch.bodies()
            made = stored.store(self._opening.octets + body + after)
            return StoredBatch(made.head, Bodies([made.body]))
        return StoredBatch(head, batch)

    def to(self) -> bytes:
        """Return the field `to` of the properties, as it is encoded. Raises `DecodeError`."""
        return self._opening.to()

    def _complete(self) -> Batch:
        """Return the body. Raises `DecodeError` if the message ended before it was complete."""
        if self._left:
            raise DecodeError(f"the last {self._left} octets of a body of {self._size} are missing")
        return self._body.batch()


def _may_be_kept(after: bytes) -> bool:
    """Return whether these octets are a footer, or nothing."""
    return not after or [place.section for place in sections.find(after)] == [Section.FOOTER]


def read_beginning(octets: bytes) -> Beginning | None:
    """Return the beginning that the first part of a message shows; None if that is not enough, or the message
    not long.
    """
    try:
        body = sections.body_at(octets)
    except DecodeError:
        return None  # the fault is found when the message is complete
    end = body + _OPENING
    if body < 0 or len(octets) < end or octets[body : body + 2] != b"\x00\x53":
        return None
    form, size = stored.form_of(octets[body + 2], octets[body + 3]), int.from_bytes(octets[body + 4 : end])
    if form is None or octets[body + 3] < stored.WIDE_CONTENT or size < LONG_OCTETS:
        return None
    return Beginning(form, end, size)
