"""The Errors that clients get for problems of the store. The details for the operator are in the log."""

import traceback
from typing import assert_never

from omq.drivers.reasons import Failure, Reason
from omq.logs import LogThrottle
from omq_storage.errors import Limit, StoreError, StoreFull

DEFECT = Failure(Reason.DEFECT, "a defect of the server, whose log has more")
"""The failure that clients get for an internal error of the server."""


def logged(problem: Exception, problems: LogThrottle, defects: LogThrottle) -> Failure:
    """Log a problem of the store, or another exception as a defect of the server. Return the failure for
    clients.
    """
    if isinstance(problem, StoreError):
        problems.add(problem)
        return for_clients(problem)
    defects.add("".join(traceback.format_exception(problem)))
    return DEFECT


def for_clients(problem: StoreError) -> Failure:
    """Return a failure whose sentence contains no path of the server."""
    if isinstance(problem, StoreFull):
        match problem.limit:
            case Limit.MAP:
                return Failure(Reason.NO_ROOM, "the store is full")
            case Limit.DISK:
                return Failure(Reason.NO_ROOM, "the disk is full")
            case other:
                assert_never(other)
    return Failure(Reason.STORE_FAILED, "the store failed, the server's log has more")
