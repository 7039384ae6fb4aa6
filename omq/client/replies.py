"""Commands that wait for an answer."""

from dataclasses import dataclass, field

import anyio

from omq.client.errors import OmqError
from omq.client.receiving import Receiver
from omq.protocol.omq.client import AnsweredCommand, AnswerFrame


@dataclass(slots=True)
class Pending:
    """A command without an answer yet, and the task that waits for it."""

    command: AnsweredCommand
    sink: Receiver | None
    awaited: bool
    own: bool
    """Whether the task that waits for a Confirm published the message directly before it."""
    published: int
    """The number of the last message published before it."""
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: AnswerFrame | OmqError | None = None

    def settle(self, answer: AnswerFrame | OmqError) -> None:
        """Give the answer to the waiting task, unless it already got ReplyBlocked."""
        if self.answer is None:
            self.answer = answer
        self.answered.set()


def unexpected(answer: AnswerFrame) -> RuntimeError:
    return RuntimeError(f"a {type(answer).__name__} got through to one who asked for something else")
