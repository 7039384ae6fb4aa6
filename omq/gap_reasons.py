"""The reasons why messages of a topic are not available, in the words of docs/PROTOCOL.md, "Gaps"."""

from omq_storage.errors import DamagedBlock
from omq_storage.records import Extent, missing_ids

NOT_KEPT = "they are no longer kept"
"""The topic's retention deleted the messages."""

ONE_NOT_KEPT = "it is no longer kept"
"""The same of one message."""

LOST = "they were lost before they were durable"
"""A power failure lost the messages, or the ids were never used. No reader could ever read them."""

TOO_SLOW = "the subscriber was too slow"
"""The messages of a transient topic were only in memory, or on the spool."""


def damage(damaged: DamagedBlock) -> str:
    """Return the reason for the messages of a damaged block."""
    return f"the store is damaged there ({damaged.why})"


def too_large(octets: int, holder: str) -> str:
    """Return the reason for one message that is too large for this holder, such as a block."""
    return f"it has {octets} octets, too many for {holder}"


def missing(extent: Extent, lost: range, position: int, following: int) -> tuple[range, str]:
    """Return the ids from `position` on that have no message for one reason, and the reason. The arguments
    are those of `missing_ids`.
    """
    ids, were_lost = missing_ids(extent, lost, position, following)
    return ids, LOST if were_lost else NOT_KEPT
