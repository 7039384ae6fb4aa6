"""The commands that a client sends without waiting for answers: those of one read are executed together where
this changes no order that the client can see.
"""

from collections.abc import Sequence
from itertools import islice
from typing import assert_never

from omq.drivers.slices import Slices
from omq.protocol.omq import types
from omq.protocol.omq.events import BadLine, Event, Parsed, PublishRun, ReceivedRun, TooLong
from omq.terminals.omq.commands import Commands
from omq.terminals.omq.replies import Replies
from omq_storage.batches import Batch

RUNS_IN_TURN = 64
"""The number of runs of messages that are collected before other tasks may run."""


class Pipeline:
    """Executes the events of one read after another. The messages of one read are one post for each topic,
    Declares in a row make their topics in one commit, and Deletes in a row delete theirs.
    """

    __slots__ = ("_replies", "commands", "is_over", "published")

    def __init__(self, commands: Commands, replies: Replies) -> None:
        self.commands = commands
        self._replies = replies
        self.published = 0
        """The number of messages that the client has published so far. Who routes lines adds those."""
        self.is_over = False
        """Whether nothing more is executed, because the server ends the connection."""

    async def execute(self, events: Sequence[Event]) -> bool:
        """Execute the events of one read in their order. Return False if the connection must end."""
        commands = self.commands
        runs: dict[bytes, list[Batch]] = {}
        prepared = 0  # the events before this one need no look ahead
        slices = Slices()
        for number, event in enumerate(events):
            if self.is_over:
                return False  # this task stops at its next checkpoint
            match event:
                case PublishRun(topic, batch):
                    # Order matters only within a topic, so one read makes one post for each topic.
                    runs.setdefault(topic, []).append(batch)
                    self.published += batch.count
                    if number % RUNS_IN_TURN == RUNS_IN_TURN - 1:
                        await slices.step()
                    continue
                case _:
                    await commands.publish_all(runs)
            match event:
                case ReceivedRun(topic, ids):
                    await commands.received(topic, ids)
                case Parsed(command):
                    if number >= prepared and isinstance(command, (types.Declare, types.Delete)):
                        prepared = number + await commands.look_ahead(islice(events, number, None))
                    await commands.room()
                    await commands.act(command)
                    await slices.step()
                case BadLine(error, publish):
                    await commands.room()
                    if publish:
                        self.published += 1
                        self._replies.refuse_publish(error)
                    else:
                        self._replies.add(types.Error(error))
                case TooLong(error):
                    self._replies.add(types.Error(error))
                    return False
                case _:
                    assert_never(event)
        if runs and not self.is_over:
            await commands.publish_all(runs)
        return True
