"""The last outcomes on a connection that the server ends: those of what the client has published.

The server executes nothing more then, and waits some time for what is on its way to a store. So a client
seldom sends again what is stored already.
"""

from collections.abc import Awaitable, Callable

import trio

from omq.drivers.confirmation import Confirmation

CONFIRMING_SECONDS = 1.0
"""The greatest number of seconds for which a connection that the server ends waits for the outcomes of what
was published. With GOODBYE_SECONDS of `set_closing_deadline` they are the time that a server that stops gives
its connections.
"""


class LastOutcomes:
    """Waits for them on one connection."""

    __slots__ = ("_is_over", "_waiting", "executed", "is_executing")

    def __init__(self) -> None:
        self.is_executing = False
        """Whether octets are being executed, so that some of the publishes in them may not be posted yet. The
        connection sets it, and then sets `executed`: no call is made for each read.
        """
        self.executed: trio.Event | None = None
        """Must be set when they are executed; None while nobody waits for that."""
        self._waiting: trio.CancelScope | None = None
        self._is_over = False

    async def wait(self, outcomes: Callable[[], Awaitable[object]]) -> None:
        """Wait some time for the end of what is being executed, and then until `outcomes` returns, because
        the outcomes are known.
        """
        with trio.move_on_after(CONFIRMING_SECONDS) as self._waiting:
            if self._is_over:
                return
            if self.is_executing:
                self.executed = trio.Event()
                await self.executed.wait()
            await outcomes()

    def give_up(self) -> None:
        """Wait no longer: nothing more can be told."""
        self._is_over = True
        if self._waiting is not None:
            self._waiting.cancel()


async def settled(confirmation: Confirmation) -> None:
    """Wait until a post is settled."""
    if not confirmation.settled:
        is_settled = trio.Event()
        confirmation.listen(is_settled.set)
        await is_settled.wait()
