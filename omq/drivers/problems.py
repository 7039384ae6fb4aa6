"""What clients are told of the store's problems: the operator's details stay in the log."""

from typing import assert_never

from omq.drivers.reasons import Failure, Reason
from omq_storage.errors import Limit, StoreError, StoreFull

DEFECT = Failure(Reason.DEFECT, "a defect of the server, whose log has more")
"""What clients are told where something failed that cannot fail."""


def for_clients(problem: StoreError) -> Failure:
    """A failure whose sentence has none of the server's paths."""
    if isinstance(problem, StoreFull):
        match problem.limit:
            case Limit.MAP:
                return Failure(Reason.NO_ROOM, "the store is full")
            case Limit.DISK:
                return Failure(Reason.NO_ROOM, "the disk is full")
            case other:
                assert_never(other)
    return Failure(Reason.STORE_FAILED, "the store failed, the server's log has more")
