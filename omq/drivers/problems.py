"""What clients are told of the store's problems: the operator's details stay in the log."""

from typing import assert_never

from omq_storage.errors import Limit, StoreError, StoreFull

DEFECT = "a defect of the server, whose log has more"
"""What clients are told where something failed that cannot fail."""


def for_clients(problem: StoreError) -> str:
    """A sentence without the server's paths."""
    if isinstance(problem, StoreFull):
        match problem.limit:
            case Limit.MAP:
                return "the store is full"
            case Limit.DISK:
                return "the disk is full"
            case other:
                assert_never(other)
    return "the store failed, the server's log has more"
