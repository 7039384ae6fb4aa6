"""Finds the messages of idempotent producers in a post."""

from collections.abc import Sequence

import trio

from omq.drivers.sequences import Origin
from omq.protocol.amqp_1_0 import annotations
from omq.protocol.amqp_1_0.types import DecodeError

HEADS_IN_TURN = 16
"""The number of heads after which the other connections have their turn."""


async def read_origins(heads: Sequence[bytes]) -> tuple[list[Origin | None], dict[int, str]]:
    """Return the origin of the message with each of these heads, and the faults of the annotations by the
    index of the message.
    """
    origins: list[Origin | None] = []
    problems: dict[int, str] = {}
    for index, head in enumerate(heads):
        if index and not index % HEADS_IN_TURN:
            await trio.lowlevel.checkpoint()
        try:
            origins.append(annotations.origin(head))
        except DecodeError as problem:
            origins.append(None)
            problems[index] = str(problem)
    return origins, problems
