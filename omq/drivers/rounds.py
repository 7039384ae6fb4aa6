"""Periodic work, which continues after a round that failed."""

import logging
import traceback
from collections.abc import Awaitable, Callable

import trio

from omq.logs import LogThrottle
from omq_storage.errors import StoreError


async def repeat(
    log: logging.Logger, what: str, seconds: float, act: Callable[[], Awaitable[object]]
) -> None:
    """Call `act` every `seconds`, until cancelled.

    Log what `act` raises as a problem of `what`, and continue with the next round: a lack of descriptors, of
    room or of anything else must not end the server, which does not depend on a single round.
    """
    problems = LogThrottle.of_problem(log, what)
    due = trio.current_time() + seconds
    while True:
        await trio.sleep_until(due)
        due = max(due + seconds, trio.current_time())
        try:
            await act()
        except (StoreError, OSError) as problem:
            problems.add(problem)
        except Exception:  # noqa: BLE001 - a defect, which the log shows; the server continues
            problems.add(f"a defect of the server\n{traceback.format_exc()}")
