"""Stores the messages that the compiled codec has collected for one transaction: see native/commits.pxi."""

from typing import TYPE_CHECKING

from omq_storage.database import Writing
from omq_storage.errors import StoreError
from omq_storage.records import BLOCKS, EXTENTS, INDEX

if TYPE_CHECKING:
    from omq_storage._codec import StoreCommit

TOPICS_AT_ONCE = 256
"""The number of topics for which the codec makes the records in one step. It keeps the interpreter's lock
meanwhile.
"""


def put_commit(transaction: Writing, commit: "StoreCommit") -> None:
    """Store the blocks of all topics of a commit, and the new extent of each topic.

    Raises StoreError when the messages of a topic do not lie after its stored ones, or the record of these
    is damaged. The posts of the commit must then be stored topic by topic.
    """
    commit.begin()
    for begin in range(0, len(commit), TOPICS_AT_ONCE):
        end = begin + TOPICS_AT_ONCE
        extents = transaction.get_many(EXTENTS, commit.topic_keys(begin, end))
        records = commit.records(begin, end, extents)
        if records is None:
            raise StoreError("A topic of this commit has other stored messages than expected.")
        for table, found in zip((BLOCKS, INDEX, EXTENTS), records, strict=True):
            transaction.put_many(table, found)
