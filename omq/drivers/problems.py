"""The Errors that clients get for problems of the store. The details for the operator are in the log."""

from typing import assert_never

from omq.drivers.reasons import Failure, Reason
from omq_storage.errors import Limit, StoreError, StoreFull

DEFECT = Failure(Reason.DEFECT, "a defect of the server, whose log has more")
"""The failure that clients get for an internal error of the server."""


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
