"""Refusals and failures of requests: a reason for programs, and a sentence for people.

Every terminal maps the reasons to codes of its own: DMP to response codes, AMQP to reply codes.
"""

from collections import Counter
from enum import Enum

from msgspec import Struct

from omq import refusal_words
from omq.logs import quoted


class Reason(Enum):
    """The reason. The values describe it for the client that made the request."""

    NOT_FOUND = "there is no such topic"
    DELETED = "the topic was deleted meanwhile"
    DIFFERS = "the topic exists with other types"
    FORBIDDEN = "this client has no right to it"
    QUOTA = "a configured limit is reached"
    TOO_LARGE = "a message is larger than the server takes"
    INVALID = "the request makes no sense, or not now"
    IN_USE = "it has a consumer, and this one or the new one is exclusive"
    LOCKED = "it belongs to another connection"
    NO_REPLAY = "the topic cannot be replayed from there"
    NO_ROOM = "the store has no room"
    OVERFLOW = "the queue has its greatest length"
    TOPIC_FULL = "the topic has no room, and waiting would never end"
    STORE_FAILED = "the store failed"
    EARLIER = "something that was sent before failed"
    DEFECT = "the server has a defect"


class Failure(Struct, frozen=True):
    """A failure: its reason and its sentence."""

    reason: Reason
    text: str
    """One sentence for clients, without a full stop."""
    amqp: str = ""
    """The sentence of RabbitMQ for it, where there is one: clients of AMQP 0-9-1 compare it with that."""

    def __str__(self) -> str:
        return self.text


DELETED = Failure(Reason.DELETED, refusal_words.TOPIC_DELETED)
RETYPED = Failure(Reason.DIFFERS, "the topic was declared with other types meanwhile")
NO_TOPIC = Failure(Reason.NOT_FOUND, refusal_words.NO_TOPIC)
NO_QUEUE = Failure(Reason.DIFFERS, "it is a broadcast topic, and no queue")
NO_CLIENT = Failure(Reason.FORBIDDEN, refusal_words.NO_CLIENT)
NOT_REPLAYED = Failure(Reason.NO_REPLAY, "a transient topic cannot be replayed")

IN_VIRTUAL_HOST = "in vhost '/'"
"""The words of RabbitMQ that tell where a queue or an exchange is."""


refusals: "Counter[Reason]" = Counter()
"""The number of requests refused so far for each reason, by all servers of this process."""


class Refused(Exception):
    """A driver refuses a request. The message is one sentence for the client."""

    def __init__(self, reason: Reason, text: str, amqp: str = "") -> None:
        super().__init__(text)
        self.failure = Failure(reason, text, amqp)
        refusals[reason] += 1

    @classmethod
    def of(cls, failure: Failure) -> "Refused":
        """Return the exception for a failure."""
        return cls(failure.reason, failure.text, failure.amqp)

    @property
    def reason(self) -> Reason:
        return self.failure.reason


class Inequivalent(Refused):
    """A declaration differs from what exists. The sentence has both values."""

    def __init__(self, what: str, argument: str, received: str, current: str) -> None:
        """Describe one argument that differs: `what` is a queue or an exchange with its name, and the values
        are as a client reads them.
        """
        values = f"received {received} but current is {current}"
        differs = f"inequivalent arg '{argument}' for {what}"
        super().__init__(Reason.DIFFERS, f"{differs}: {values}", f"{differs} {IN_VIRTUAL_HOST}: {values}")


def missing(kind: str, name: bytes) -> Refused:
    """Return the refusal for a name of a `kind`, queue or exchange, that does not exist."""
    named = f"{kind} {quoted(name)}"
    return Refused(Reason.NOT_FOUND, f"there is no {named}", f"no {named} {IN_VIRTUAL_HOST}")


def in_use(kind: str, name: bytes) -> Refused:
    """Return the refusal to delete what is in use."""
    named = f"{kind} {quoted(name)}"
    return Refused(Reason.INVALID, f"{named} in use", f"{named} {IN_VIRTUAL_HOST} in use")


def locked(name: bytes, why: str) -> Refused:
    """Return the refusal of a queue that belongs to one connection, or shall do."""
    amqp = (
        f"cannot obtain exclusive access to locked queue {quoted(name)} {IN_VIRTUAL_HOST}. It could be "
        "originally declared on another connection or the exclusive property value does not match that of "
        "the original declaration."
    )
    return Refused(Reason.LOCKED, why, amqp)
