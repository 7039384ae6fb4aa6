"""Which answer belongs to which command: they come in the order of the commands."""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from omq.client.errors import Gap, OmqError
from omq.protocol.omq.sentences import sentence
from omq.protocol.omq.types import (
    BlockList,
    Blocks,
    Confirm,
    Confirmed,
    Declare,
    Declared,
    Delete,
    Deleted,
    Get,
    Leased,
    Put,
    Subscribe,
    Subscribed,
    TopicList,
    Topics,
    Unsubscribe,
    Unsubscribed,
)

if TYPE_CHECKING:
    from omq.client.connection import Sink

_GONE = re.compile(rb"messages ([0-9]+) to ([0-9]+) are gone: (.*)", re.DOTALL)

AnsweredCommand = Subscribe | Unsubscribe | Declare | Confirm | Delete | Topics | Blocks | Put | Get
Answer = Subscribed | Unsubscribed | Declared | Confirmed | Deleted | TopicList | BlockList | Leased


@dataclass(slots=True)
class Pending:
    """A command whose answer has not come, and the one who waits for it."""

    command: AnsweredCommand
    sink: "Sink | None"
    awaited: bool
    own: bool
    """For a Confirm: whoever waits for it published the message right before it."""
    published: int
    """The number of the last message published before it."""
    answered: trio.Event = field(default_factory=trio.Event)
    answer: Answer | OmqError | None = None

    @property
    def constructor(self) -> str:
        return type(self.command).__name__

    @property
    def argument(self) -> bytes | None:
        """What an Error names behind the constructor."""
        match self.command:
            case Topics():
                return None
            case Confirm(n):
                return b"%d" % n
            case Put(sink):
                return sink
            case Get(feed, _):
                return feed
            case command:
                return command.topic

    def refused_by(self, octets: bytes) -> bool:
        """Whether an Error of this text answers the command."""
        return octets.startswith(sentence(self.constructor, self.argument, ""))


def answers(command: AnsweredCommand | None, frame: Answer) -> bool:
    """Whether `frame` is an answer to `command`."""
    match command, frame:
        case (
            (Subscribe(name, _), Subscribed(topic))
            | (Unsubscribe(name), Unsubscribed(topic))
            | (Declare(name, _, _), Declared(topic))
            | (Delete(name), Deleted(topic))
        ):
            return name == topic.topic
        case Confirm(n), Confirmed(answered):
            return n == answered
        case (Topics(), TopicList()) | (Blocks(), BlockList()) | (Put() | Get(), Leased()):
            return True
        case _:
            return False


def gap_in(constructor: str, name: bytes, octets: bytes) -> Gap | None:
    """The gap in a topic that an Error tells of: `Subscribe TOPIC: messages A to B are gone: REASON`.

    For a feed the sentence begins with `Feed`.
    """
    start = sentence(constructor, name, "")
    if not octets.startswith(start):
        return None
    match = _GONE.fullmatch(octets, len(start))
    if match is None:
        return None
    return Gap(name, int(match[1]), int(match[2]), match[3].decode("utf-8", "backslashreplace"))


def unexpected(answer: Answer) -> RuntimeError:
    return RuntimeError(f"a {type(answer).__name__} got through to one who asked for something else")
