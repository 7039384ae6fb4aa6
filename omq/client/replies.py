"""Who waits for the answer to a command."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from omq.client.errors import OmqError
from omq.protocol.omq.client import Answer, AnsweredCommand

if TYPE_CHECKING:
    from omq.client.connection import Sink


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

    def settle(self, answer: Answer | OmqError) -> None:
        """Give the answer to the one who waits. After ReplyBlocked that one was answered already."""
        if self.answer is None:
            self.answer = answer
        self.answered.set()


def unexpected(answer: Answer) -> RuntimeError:
    return RuntimeError(f"a {type(answer).__name__} got through to one who asked for something else")
