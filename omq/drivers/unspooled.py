"""Leaves subscribers of transient broadcast topics behind that take nothing, where the server has no spool.

Without a spool, the tails forget their oldest messages when the memory is full, and no publisher waits for
that. But each message of all topics of a stalled subscriber would wait in a tail for it, and none would be
pushed to the others. So it is left behind, as with a spool (`omq.drivers.spooler`), when its connection takes
nothing for `spool_seconds` while more than half of the memory is used.
"""

import logging
import traceback
from math import inf

import trio

from omq.drivers.backlog import Backlog
from omq.drivers.scheduled_time import MOST_COUNTED
from omq.drivers.signal import Signal
from omq.drivers.spoolable import StallWatch
from omq.drivers.tail import TailMemory
from omq.logs import LogThrottle

log = logging.getLogger("omq.spool")


class Unspooled:
    """Looks for such subscribers while the memory is short. `run` is its task."""

    def __init__(self, tails: TailMemory, seconds: float) -> None:
        """Look among the subscribers that need these tails for those that take nothing for N `seconds`."""
        self._tails = tails
        self._seconds = seconds
        self._watch = StallWatch(seconds)
        self._signal = Signal()
        self._most_used = tails.limit // 2
        self.asked_from: float = self._most_used
        self._defects = LogThrottle.of_problem(log, "a defect of the server")

    # -- for tails and publishers: see omq.drivers.tail.TailEvictor ------------------------------------------

    def ask(self) -> None:
        self.asked_from = inf
        self._signal.set()

    def room(self) -> int:
        return self._tails.limit

    def must_wait(self, octets: int, *, is_behind: bool, again: bool) -> bool:
        return False

    # -- the task ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Leave subscribers behind until cancelled."""
        self._tails.relief = self
        while True:
            await self._signal.wait()
            while self._tails.unstored > self._most_used:
                try:
                    await self._look()
                except Exception:  # noqa: BLE001 - a defect, which the log shows; the server continues
                    self._defects.add(traceback.format_exc())
                    await trio.sleep(self._seconds)
            self.asked_from = self._most_used

    async def _look(self) -> None:
        """Leave behind whom to leave, and wait until there may be another one."""
        for each in self._tails.users():
            if isinstance(each, Backlog) and not self._watch.moves(each):
                each.forget(each.octets, 0)
        await self._tails.leave_behind(self._watch)
        until = trio.current_time() + self._seconds
        while self._tails.unstored > self._most_used and trio.current_time() < until:
            await trio.sleep(MOST_COUNTED)
            if await self._watch.look_again():
                break
