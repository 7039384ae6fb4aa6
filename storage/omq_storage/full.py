"""Deletions in an environment that may be full, where they must find room for the pages that they write."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from omq_storage.database import MapUse, Writing
from omq_storage.errors import Limit, StoreFull

REDUCTION = 64
"""The divisor of the limits of one transaction for a deletion that did not find room for the pages that it
writes.
"""
GROWTH = 8 << 20
"""Octets by which the map grows for a deletion that did not find a free page."""
SPARE = 256 << 10
"""Octets of the map that must be unused after a deletion."""

T = TypeVar("T")


def delete_when_full(
    delete: Callable[[Writing, int], T],
    writing: Callable[[], AbstractContextManager[Writing]],
    checkpoint: Callable[[], None],
    reopen: Callable[[int], None],
    room: Callable[[], MapUse],
) -> T:
    """Run a deletion in one transaction, also in a full environment.

    LMDB writes the pages that a deletion changes to free pages, before it frees any page.  A full environment
    has none.  So a deletion that fails for want of room is tried again:

    1. after a checkpoint, which frees the pages that only the previous checkpoint needed;
    2. with a larger map, if the map is full; or with a smaller portion, if the disk is: ``delete`` gets the
       divisor of its usual portion.

    ``reopen`` opens the environment again, with a map larger by some octets.  No other call may write
    meanwhile.  Raises StoreFull when the disk has no room for the smaller portion either.
    """

    def attempt(divisor: int = 1) -> T:
        with writing() as transaction:
            return delete(transaction, divisor)

    try:
        result = attempt()
    except StoreFull:
        checkpoint()
        try:
            result = attempt()
        except StoreFull as full:
            if full.limit is Limit.MAP:
                reopen(GROWTH)
            result = attempt(REDUCTION)
    use = room()
    if use.map_size - use.used < SPARE:
        # LMDB reuses the freed pages not in the next commit but in the one after it, because the older meta
        # page still refers to them. If this commit took the last free pages, the next one would find none and
        # fail, and no later commit could ever succeed.
        reopen(SPARE)
    return result
