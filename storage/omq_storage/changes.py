"""The changes that one write transaction makes, for the journal."""

from collections.abc import Sequence

StoredChange = tuple[bytes, bytes, bytes | None]
"""The name of a table, a key, and its new value; None if the key was deleted."""

MOST_OCTETS = 512 << 10
"""The greatest number of octets of the keys and values of a record.  To write more takes longer than the
flush that it saves.
"""

MOST_CHANGES = 1024
"""The greatest number of changes of a record."""


class Changes:
    """The changes of one transaction, as long as a record of the journal can have them."""

    __slots__ = ("_changes", "_octets", "any")

    def __init__(self) -> None:
        self.any = False
        """Whether the transaction has changed something."""
        self._changes: list[StoredChange] | None = []
        self._octets = 0

    @property
    def recorded(self) -> Sequence[StoredChange] | None:
        """All changes in their order; None if they are more than a record can have."""
        return self._changes

    def add(self, table: bytes, key: bytes, value: bytes | None) -> None:
        """Record a key's new value, or that it was deleted."""
        self.any = True
        if self._changes is None:
            return
        self._octets += len(key) + (0 if value is None else len(value))
        if self._octets > MOST_OCTETS or len(self._changes) == MOST_CHANGES:
            self._changes = None
        else:
            self._changes.append((table, key, value))

    def add_many(self, table: bytes, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Record the new values of several keys."""
        if len(records) > MOST_CHANGES:
            self.any = True
            self._changes = None
        else:
            for key, value in records:
                self.add(table, key, value)
