"""A wake-up for one task: set from anywhere in the Trio thread, waited for by its owner."""

import trio


class Signal:
    """Set any number of times, it wakes its one waiter once. A set before the wait is not lost."""

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

    async def wait(self) -> None:
        """Return when it was set since the last wait."""
        if self.is_set:
            await trio.lowlevel.checkpoint()
        else:
            # A `trio.Event` would do the same with three more calls for each message.
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self.is_set = False

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED
