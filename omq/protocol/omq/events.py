"""The events of the lines that a client sends: commands, runs of messages, and lines that are no command."""

from collections.abc import Sequence

from msgspec import Struct

from omq.protocol.omq.types import Command
from omq_storage.batches import Batch


class PublishRun(Struct, frozen=True):
    """Publish commands of one topic, with only Publish commands of other topics between them."""

    topic: bytes
    batch: Batch


class ReceivedRun(Struct, frozen=True):
    """Received commands of one topic that follow one another, as clients print them."""

    topic: bytes
    ids: Sequence[int]


class Parsed(Struct, frozen=True):
    """Any other command."""

    command: Command


class BadLine(Struct, frozen=True):
    """A line that is not a command, and the sentence that answers it.

    `publish`: whether the line begins like a Publish: then the next Confirm must fail.
    """

    error: bytes
    publish: bool


class TooLong(Struct, frozen=True):
    """A line longer than allowed, and the sentence to send before the close. No event follows."""

    error: bytes


Event = PublishRun | ReceivedRun | Parsed | BadLine | TooLong
