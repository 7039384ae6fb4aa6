"""The bodies of the large messages of one environment.

A body is written in fragments before it belongs to a message, and then read piece by piece: see
``omq_storage.fragments`` and ``omq_storage.pieces``.  The transactions that write and delete fragments are
those of the environment.
"""

from threading import Lock

from omq_storage.database import Database
from omq_storage.errors import DamagedBlock, Limit, StoreFull
from omq_storage.fragments import FRAGMENT_TABLES, LOOSE, Fragmented, body_of, last_body
from omq_storage.pieces import LargeMessage, VerifiedBodies, open_message, read_piece, verify_fragments


class LargeBodies:
    """The bodies that are being written, and those of messages.  Any call may come from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Those that are being written.
        self._begun: set[int] = set()
        self._last: int | None = None
        self._lock = Lock()
        self._verified = VerifiedBodies()

    # -- written -------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Return the number for a body that is about to be written with ``Environment.put_fragments``.

        ``Environment.append`` with a ``Fragmented`` makes it a message.  Call ``abandon`` if that does not
        happen.

        Raises StoreFull in an old store whose disk had no room yet for the tables of fragments.
        """
        if not self.have_tables():
            path = self._database.path
            raise StoreFull(Limit.DISK, f"There was no room for the tables of large messages in {path}.")
        with self._lock:
            if self._last is None:
                with self._database.reading() as transaction:
                    self._last = last_body(transaction)
            self._last += 1
            self._begun.add(self._last)
            return self._last

    def abandon(self, body: int) -> None:
        """Give up a body that nobody writes any more. If it is no message, ``Environment.sweep`` deletes
        it.
        """
        with self._lock:
            self._begun.discard(body)

    def became_message(self, body: int) -> None:
        """Note that a body is that of a message now, and not written any more."""
        self.abandon(body)
        self._verified.add(body)

    def begun(self) -> frozenset[int]:
        """Return those that are being written."""
        with self._lock:
            return frozenset(self._begun)

    def have_tables(self) -> bool:
        """Return whether the tables for fragments exist: an old store on a full disk has none yet."""
        with self._database.reading() as transaction:
            return all(map(transaction.has, FRAGMENT_TABLES))

    def are_loose(self) -> bool:
        """Return whether there are any that belong to no message, the begun ones among them."""
        if not self.have_tables():
            return False
        with self._database.reading() as transaction:
            return transaction.cursor(LOOSE).first()

    def loose(self, message: Fragmented) -> bytes:
        """Return all of a body whose fragments are stored and that is no message yet.  Raises DamagedBlock.

        ``message``: its description, whose id means nothing.
        """
        with self._database.viewing() as get:
            return b"".join(body_of(get, message))

    # -- read ----------------------------------------------------------------------------------------------

    def open_message(self, topic: int, message: int) -> LargeMessage | None:
        """Verify a message for reading piece by piece.  Return None when it is not stored any more.

        Raises DamagedBlock and NewerFormat when its block cannot be read.
        """
        while True:
            found = open_message(self._database, topic, message)
            if (
                found is None
                or not isinstance(found.place, Fragmented)
                or self._verified.has(found.place.body)
            ):
                return found
            try:
                verify_fragments(self._database, found.place)
            except DamagedBlock:
                if open_message(self._database, topic, message) == found:
                    raise  # otherwise it was deleted meanwhile
            else:
                self._verified.add(found.place.body)

    def read_piece(self, message: LargeMessage, begin: int, octets: int) -> bytes | None:
        """Return a copy of a part of its body; see ``pieces.read_piece``."""
        try:
            return read_piece(self._database, message, begin, octets)
        except DamagedBlock:
            if isinstance(message.place, Fragmented):
                self._verified.discard(message.place.body)  # the next task that opens it learns of it at once
            raise
