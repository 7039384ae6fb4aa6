"""Write transactions of the level Strong, which are durable when they end: see ``omq_storage.journal``."""

from collections.abc import Iterator
from contextlib import contextmanager

from omq_storage.checkpoint import Checkpoints
from omq_storage.database import Database, Writing
from omq_storage.errors import StoreError
from omq_storage.identity import LevelIdentity
from omq_storage.journal import Journal, records_after


class JournaledCommits:
    """Makes the commits of one open environment durable, by its journal or by a checkpoint.

    The owner makes sure that one call runs at a time.
    """

    replayed: int
    """The number of commits that the last start before did not complete, and that were made again."""

    def __init__(self, database: Database, checkpoints: Checkpoints, identity: LevelIdentity | None) -> None:
        """Make the commits again that the journal has and the environment has not.

        Raises StoreError, and OSError when the journal cannot be read.
        """
        self._database = database
        self._checkpoints = checkpoints
        self.replayed = 0
        for record in records_after(database.path, database.room().transaction, identity):
            with database.writing() as transaction:
                for table, key, value in record.changes:
                    if value is None:
                        transaction.delete(table, key)
                    else:
                        transaction.put(table, key, value)
            self.replayed += 1
        checkpoints.take()
        self._journal = Journal(database.path, identity, checkpoints.durable, checkpoints.journals)

    @property
    def has_commits(self) -> bool:
        """Whether there were commits since the last checkpoint.  LMDB can reuse the pages that they freed
        only after the next one.
        """
        return self._database.room().transaction != self._checkpoints.durable

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether somebody should call ``checkpoint``, so that no commit must."""
        return self._journal.is_checkpoint_due

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Run the block in a write transaction, which is durable when this ends.

        Raises StoreError.  Then nothing of the transaction is stored, unless a checkpoint was necessary and
        failed: the environment refuses all further writes in that case, because none may survive without this
        one.
        """
        is_written = False
        try:
            with self._database.recorded_writing() as transaction:
                yield transaction
                if transaction.has_changed and transaction.changes is not None:
                    is_written = self._journal.write(transaction.number, transaction.changes)
        except BaseException:  # Ctrl-C, too
            self._retract()
            raise
        if is_written:
            self._journal.keep()
        elif transaction.has_changed:
            try:
                self.checkpoint()
            except StoreError as error:
                self._database.refuse_writes(str(error))
                raise

    def checkpoint(self) -> None:
        """Take a checkpoint, which frees the journal of the commits so far.  Other threads may write
        meanwhile.

        Raises StoreError.
        """
        self._checkpoints.take()
        self._note_checkpoint()

    def identify(self, identity: LevelIdentity) -> None:
        """Write this identity into all further records.  A checkpoint that has it was taken."""
        self._journal.identify(identity)
        self._note_checkpoint()

    def renew(self, growth: int) -> None:
        """Close and open the environment, see ``Checkpoints.renew``."""
        self._checkpoints.renew(growth)
        self._note_checkpoint()

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _note_checkpoint(self) -> None:
        self._journal.checkpointed(self._checkpoints.durable, self._checkpoints.journals)

    def _retract(self) -> None:
        """Erase the record of a failed transaction, if it was written."""
        try:
            self._journal.retract()
        except OSError as error:
            # The next start would store what its publisher was refused, in the place of later messages.
            path = self._database.path
            self._database.refuse_writes(
                f"The journal of {path} could not be changed, so nothing more is written there: {error}."
            )
