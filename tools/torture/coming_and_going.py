"""Workers that come and go: each leaves at random, with messages that it has not settled."""

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import trio

C = TypeVar("C")


async def come_and_go(
    connect: Callable[[], AbstractAsyncContextManager[C]],
    work: Callable[[C], Awaitable[None]],
    server_gone: tuple[type[Exception], ...],
    chance: random.Random,
) -> None:
    """Run one worker after another until the server is gone.

    `server_gone`: what `connect` and `work` raise then, alone or in a group.
    """
    is_over = False
    while not is_over:
        lifetime = 10.0 if chance.random() < 0.5 else chance.random() * 0.3
        try:
            with trio.move_on_after(lifetime):  # then it leaves without a word
                async with connect() as client:
                    await work(client)
        except* server_gone:
            is_over = True
        await trio.sleep(0.01)
