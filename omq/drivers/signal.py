"""A wake-up for one task: any code in the Trio thread may set it, its owner waits for it."""

from collections.abc import Awaitable

import trio


class Signal:
    """Wakes its one waiter. Several calls of `set` wake it once, and a call before the wait is not lost."""

    __slots__ = ("_waiter", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        """Whether it was set since the last wait."""
        self._waiter: trio.lowlevel.Task | None = None

    def set(self) -> None:
        self.is_set = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            trio.lowlevel.reschedule(waiter)

    def clear(self) -> None:
        """Forget earlier calls of `set`: the waiter looks at everything after this that they told of."""
        self.is_set = False

    async def wait(self) -> None:
        """Wait until it is set; return at once if it was set since the last wait."""
        await self.waiting()
        self.is_set = False

    def waiting(self) -> Awaitable[object]:
        """Return the wait, to be awaited at once, for a task that calls `clear` after it. A coroutine around
        it would take 200 octets for each connection that is idle.
        """
        if self.is_set:
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits it
        # A `trio.Event` would need three more calls for each message.
        self._waiter = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._abort)  # noqa: ASYNC105 - the caller awaits it

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED
