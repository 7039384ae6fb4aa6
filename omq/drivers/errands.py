"""Long work that nobody waits for, in slices of one task: for example the wake-ups of many subscribers."""

import logging
import traceback
from collections import deque
from collections.abc import Iterator

from omq.drivers.signal import Signal
from omq.drivers.slices import Slices
from omq.logs import LogThrottle

log = logging.getLogger("omq.driver")


class Errands:
    """The pieces of work that have begun; each does one step in turn. `run` is the task."""

    def __init__(self) -> None:
        self._begun: deque[Iterator[None]] = deque()
        self._signal = Signal()
        self._defects = LogThrottle.of_problem(log, "work that nobody waits for")

    def begin(self, steps: Iterator[None]) -> None:
        """Do this work soon. None of it is done before this returns."""
        self._begun.append(steps)
        self._signal.set()

    async def run(self) -> None:
        """Do the work that has begun, until cancelled."""
        while True:
            await self._signal.wait()
            slices = Slices()
            while self._begun:
                self._step()
                await slices.step()

    def _step(self) -> None:
        """Do one step of the work whose turn it is. `run` itself would hold the last work while it waits."""
        steps = self._begun.popleft()
        try:
            next(steps)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - a defect, which the log shows; the other work continues
            self._defects.add(f"a defect of the server\n{traceback.format_exc()}")
            return
        self._begun.append(steps)
