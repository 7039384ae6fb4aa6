"""A round-robin topic that, if it is transient, has its long messages on the spool until they are done."""

from functools import partial

import trio

from omq.drivers.holdings import OnSpool
from omq.drivers.posts import LATE
from omq.drivers.producers import PostProducers
from omq.drivers.reasons import Refused
from omq.drivers.sequences import Origin
from omq.drivers.spilling import SpillingDriver
from omq.drivers.spooled_bodies import SpooledBody
from omq.drivers.spooled_topics import SpooledTopic
from omq_storage.blocks import FRAME_HEADER
from omq_storage.fragments import Uploaded
from omq_storage.pieces import LargeMessage


class SpooledWorkDriver(SpooledTopic, SpillingDriver):
    """One topic."""

    @property
    def keeps_long(self) -> bool:
        return True

    @property
    def waits_for_workers(self) -> bool:
        return True

    async def post_spooled(
        self,
        uploaded: Uploaded,
        body: SpooledBody | None,
        head: bytes,
        origin: Origin | None,
        producers: PostProducers,
    ) -> None:
        """See `SpooledTopic.post_spooled`. Nothing waits for the workers here: the room of the spool limits
        the long messages.
        """
        assert body is not None, "it is always kept"
        while True:
            await self._reserve_id()
            if producers.are_late():
                raise Refused.of(LATE)
            if self._spill is None or not self.spills_next:
                self._take_long(uploaded, body, head, origin)
                return
            # Those on their way to the disk get their ids there. It follows when the last one of them has
            # its id: after that step there may be others again.
            turn = _Turn(producers)
            self._spill.when_arrived(partial(self._take_in_turn, turn, uploaded, body, head, origin))
            try:
                await turn.is_over.wait()
            except BaseException:
                if turn.is_taken:  # in the step in which the wait was cancelled: the body is the queue's own
                    body.shared()  # and the caller drops one
                raise
            finally:
                turn.is_wanted = False
            if turn.is_taken:
                return

    def _take_in_turn(
        self, turn: "_Turn", uploaded: Uploaded, body: SpooledBody, head: bytes, origin: Origin | None
    ) -> None:
        may_take = turn.is_wanted and not turn.producers.are_late()
        if may_take and not self.deleted and self.has_ids(1):
            self._take_long(uploaded, body, head, origin)
            turn.is_taken = True
        turn.is_over.set()

    def _take_long(self, uploaded: Uploaded, body: SpooledBody, head: bytes, origin: Origin | None) -> None:
        if origin is not None and not self._is_new(origin):
            body.drop()
            return
        message = uploaded.message(self.topic.id, self.next_id, self.now(), head)
        self._count_in(message)
        self.next_id = message.next
        on_spool = OnSpool(message, body, FRAME_HEADER + len(head))
        self._force(on_spool.held)
        self._holdings.append_on_spool(on_spool)
        self._keep_large(message)

    async def look_at(self, message: int) -> LargeMessage | None:
        """See `StoredReads.look_at`."""
        on_spool = self._holdings.on_spool(message)
        if on_spool is None:
            return None if self._is_in_memory_only else await super().look_at(message)
        on_spool.body.verify()
        found = on_spool.message
        return LargeMessage(found.topic, message, found.time, found.own_head, found.size, found)

    async def read_piece(self, message: LargeMessage, begin: int, octets: int) -> bytes | None:
        """See `StoredReads.read_piece`."""
        on_spool = self._holdings.on_spool(message.id)
        if on_spool is None:
            return None if self._is_in_memory_only else await super().read_piece(message, begin, octets)
        return await on_spool.body.read(on_spool.message, begin, octets)

    @property
    def _is_in_memory_only(self) -> bool:
        """Whether no store has any of its messages."""
        return not self.is_persistent and not self.has_spilled


class _Turn:
    """The turn of a long message behind others that are on their way to the disk."""

    def __init__(self, producers: PostProducers) -> None:
        self.producers = producers
        self.is_over = trio.Event()
        self.is_wanted = True
        self.is_taken = False
