"""The common part of transient topics whose long messages go to the spool as they arrive (see
`omq.drivers.spooled_uploads`).
"""

from abc import abstractmethod

from omq.drivers.driver import Driver
from omq.drivers.producers import PostProducers
from omq.drivers.reasons import RETYPED, Refused
from omq.drivers.sequences import Origin, producers_of
from omq.drivers.spooled_bodies import SpooledBody
from omq_storage.errors import StoreError
from omq_storage.fragments import Uploaded


class SpooledTopic(Driver):
    """One topic. If it is persistent, nothing here does anything."""

    def uploads_from(self, fragment_octets: int) -> int | None:
        """See `Driver.uploads_from`."""
        if self.is_persistent:
            return super().uploads_from(fragment_octets)
        if not self.resources.spool.limit:
            return None
        # A longer one would not fit into the share for the messages of stalled clients.
        return max(fragment_octets, self.resources.memory.stalled.limit)

    @property
    @abstractmethod
    def keeps_long(self) -> bool:
        """Whether a long message that begins now is kept: otherwise nothing of it goes to the spool."""

    @property
    @abstractmethod
    def waits_for_workers(self) -> bool:
        """Whether the publishers of long messages wait for the spool as long as workers of topics take."""

    @abstractmethod
    async def post_spooled(
        self,
        uploaded: Uploaded,
        body: SpooledBody | None,
        head: bytes,
        origin: Origin | None,
        producers: PostProducers,
    ) -> None:
        """Post a message whose `body` is on the spool, and belongs to the topic from then on; None if it was
        not kept when it began. Raises Refused.

        `producers`: that of the origin, as it was when its publisher posted the message.
        """

    async def _reserve_id(self) -> None:
        """Wait until an id may be assigned. Raise Refused."""
        if self.is_replaced:
            raise Refused.of(RETYPED)
        self._used = True
        while not self.deleted and not self.has_ids(1):
            try:
                await self.resources.ids.reserve({self: 1})
            except StoreError as problem:
                raise Refused.of(self.log_failure(problem)) from problem
        if self.deleted:
            raise Refused.of(self.gone)

    def _is_new(self, origin: Origin) -> bool:
        """Return whether a message of an idempotent producer is not repeated; note its number then."""
        sequences, (producer, number) = self.resources.memory.sequences, origin
        last = sequences.last(self.topic.id, producers_of([origin]))
        if number <= last.get(producer, -1):
            return False
        sequences.keep(self.topic.id, {producer: number})
        return True
