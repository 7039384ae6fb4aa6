"""A round-robin topic with a length limit: in messages, and in octets of their bodies."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import trio

from omq.drivers.confirmation import Confirmation
from omq.drivers.dead_letters import Death
from omq.drivers.driver import InitialState
from omq.drivers.expiring import ExpiringDriver
from omq.drivers.offer import Offered
from omq.drivers.overflow import PendingRefusal, counted, followed_by, refusal
from omq.drivers.queue_options import Overflow, QueueOptions
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.sequences import Origins
from omq.drivers.sizes import Sizes, body_octets
from omq.drivers.turned_away import TurnedAway
from omq_storage.batches import Batch
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.fragments import Fragmented
from omq_storage.heads import octets_of
from omq_storage.runs import Run, united

MEASURED_BLOCKS = 256
"""The greatest number of blocks that are measured in one step."""

MOST_DROPPED = 64
"""The greatest number of returned messages that one call of `_shorten` drops."""


class Measured(NamedTuple):
    """The sizes of the messages of a queue."""

    sizes: Sizes
    below: int
    """The id below which the messages are measured."""


class LimitedDriver(ExpiringDriver):
    """One topic, with the limits of its options."""

    def __init__(self, opening: InitialState) -> None:
        self._sizes: Sizes | None = None
        super().__init__(opening)
        # Messages that are accepted and not stored yet, where publishes may be rejected, and their octets.
        self._posting = self._posting_octets = 0
        self._turned_away: TurnedAway | None = None

    async def prepare(self, options: QueueOptions, measured: Measured | None = None) -> Measured | None:
        """Measure the messages in steps, if `change` needs their sizes for these options. Begin after the
        messages that were `measured` already, if any. After that, `change` measures only the messages that
        have arrived since. Raises StoreError.
        """
        if options.max_octets is None or self._sizes is not None:
            return None
        sizes, begin = measured or Measured(Sizes(), self._first_kept())
        while begin < self.next_id and not self.deleted:
            end = self.next_id
            stored: list[tuple[range, int]] = []
            if self._has_blocks_in_store:
                sized = partial(self.environment.sizes, self.topic.id)
                stored = await self.stored_blocks(begin, end - begin, MEASURED_BLOCKS, sized)
            else:
                await trio.lowlevel.checkpoint()
            begin = self._measure(sizes, begin, end, stored)
        return Measured(sizes, begin)

    def change(self, options: QueueOptions, measured: Measured | None = None) -> None:
        """Give the queue options that differ in those of `CHANGEABLE` only. `measured` is what `prepare`
        returned for them.
        """
        super().change(options)
        if options.max_octets is None:
            self._sizes = None
        elif self._sizes is None:
            self._sizes = self._stored_sizes(measured)
        if self._excess():
            self._shorten()

    def offer(self, batch: Batch, heads: Sequence[bytes] = (), origins: Origins = ()) -> Offered:
        """See `Driver.offer`. A queue may refuse the messages that exceed its length."""
        if self.options.overflow is Overflow.DROP_HEAD or not self._has_limits():
            return super().offer(batch, heads, origins)
        room = self._room_for(batch)
        if room >= batch.count:
            return self._counting(super().offer(batch, heads, origins), batch)
        full = Failure(Reason.OVERFLOW, "the queue has its greatest length")
        if (
            self.options.overflow is Overflow.REJECT_PUBLISH_DLX
            and self.options.dead_letter_exchange is not None
        ):
            return self._turn_away(batch, heads, origins, full)
        if not room:
            raise Refused.of(full)
        part = self._part(batch, room, heads, origins)
        return followed_by(part, room, batch.count - room, refusal(full))

    def _turn_away(self, batch: Batch, heads: Sequence[bytes], origins: Origins, full: Failure) -> Offered:
        """Take the first messages of a post, and send the others to the dead-letter exchange."""
        if self.deleted:
            raise Refused.of(self.gone)
        if self._turned_away is None:
            self._turned_away = TurnedAway(self, self.resources.dead_letters)
        octets = batch.octets + octets_of(heads)
        on_the_way = self.resources.dead_letters.turned_away
        if not on_the_way.try_take(octets):
            return PendingRefusal(
                partial(self._turn_away_now, batch, heads, origins, full), on_the_way, octets
            )
        return self._turn_away_now(batch, heads, origins, full)

    def _turn_away_now(
        self, batch: Batch, heads: Sequence[bytes], origins: Origins, full: Failure
    ) -> Offered:
        """Do so with the octets of the post taken from those that may be on their way."""
        assert self._turned_away is not None
        octets = batch.octets + octets_of(heads)
        on_the_way = self.resources.dead_letters.turned_away
        room = self._room_for(batch)
        try:
            part = self._part(batch, room, heads, origins) if room else None
        except BaseException:  # Refused, or a defect: nothing is on its way then
            on_the_way.give(octets)
            raise
        if room == batch.count:
            on_the_way.give(octets)
            assert part is not None
            return part
        rest = self._turned_away.add(batch.part(room, batch.count), heads[room:], octets, full)
        return rest if part is None else followed_by(part, room, batch.count - room, rest)

    def _part(self, batch: Batch, room: int, heads: Sequence[bytes], origins: Origins) -> Offered:
        first = batch.part(0, room)
        return self._counting(super().offer(first, heads[:room], origins[:room]), first)

    def _counting(self, offered: Offered, batch: Batch) -> Offered:
        """Count messages on their way into the queue, until they are there: those of several publishers may
        wait for memory at a time.
        """
        if isinstance(offered, Confirmation) and offered.settled:
            return offered
        count, octets = batch.count, _body_octets(batch)
        self._posting += count
        self._posting_octets += octets
        return counted(offered, partial(self._posted, count, octets))

    def _posted(self, count: int, octets: int) -> None:
        self._posting -= count
        self._posting_octets -= octets

    def _room_for(self, batch: Batch) -> int:
        """Return the number of messages of a post that the queue may still have. Those that consumers have
        room for do not count, except for one that is longer than the queue may be.
        """
        waiting = self.ready + self._posting
        taken = 0 if waiting else self._taken_at_once(batch.count)
        room = batch.count
        if self.options.max_length is not None:
            room = min(room, self.options.max_length - waiting + taken)
        if self._sizes is not None and self.options.max_octets is not None:
            left = self.options.max_octets - self._sizes.octets - self._posting_octets
            if _body_octets(batch) > left:
                room = min(room, _fitting(batch, left, self.options.max_octets, taken))
        return max(0, room)

    def _taken_at_once(self, most: int) -> int:
        """Return the number of messages that consumers have room for, or one not below N (`most`)."""
        while not (able := self._ask(most)) and self._has_unasked():
            pass
        return sum(channel.room(1) for channel in able)

    def _keep(self, block: Block) -> None:
        if self._sizes is not None:
            self._sizes.arrived(block.first, block.count, body_octets(block))
            if self._sizes.have_grown:
                self._sizes.forget_below(self.lowest_undone())
        super()._keep(block)
        if self._excess():
            self._shorten()

    def _keep_large(self, message: Fragmented) -> None:
        """See `Driver._keep_large`. It began to arrive before the queue had a limit."""
        if self._sizes is not None:
            self._sizes.arrived(message.first, 1, message.size)
        super()._keep_large(message)
        if self._excess():
            self._shorten()

    def _has_limits(self) -> bool:
        return self.options.max_length is not None or self.options.max_octets is not None

    def _excess(self) -> int:
        """Return the number of messages that exceed the length (see `ExpiringDriver._excess`). If no message
        was returned or set aside, these are the next ones to be assigned.
        """
        if self.options.overflow is not Overflow.DROP_HEAD:
            return 0  # only returning messages can be too many
        length, octets = self.options.max_length, self.options.max_octets
        excess = 0 if length is None else self.ready - length
        if octets is not None and self._sizes is not None and self._sizes.octets > octets and self.ready:
            beyond = self._sizes.after(self._cursor, self._sizes.octets - octets) - self._cursor
            excess = max(1, excess, beyond)
        return max(0, excess)

    def _shorten(self) -> None:
        """Drop the oldest messages that are ready until the queue has its greatest length. If there
        is much to do, or some ids have no message, the dealer does the rest.
        """
        for _ in range(MOST_DROPPED):
            excess = self._excess()
            if not excess:
                return
            if self._aside:
                self._take_from_aside()
            if self._returned:
                deliveries = self._returned.deliveries
                self._dispose(Death.MAXLEN, [Run(self._pop_returned(), 1, 1, deliveries)])
            elif self._cursor >= self.next_id:
                return  # the messages that still count as ready were damaged
            elif self._cursor + self._undealt < self.next_id:
                break  # the dealer reads which ids have a message
            else:
                self._pass_over(self._cursor + excess, Death.MAXLEN)
        if self._excess():
            self.is_perishable = True
            self._signal.set()

    async def _watch_head(self) -> None:
        """See `RoundRobinDriver._watch_head`."""
        while self._returned and self._excess():
            self._shorten()
            await trio.lowlevel.checkpoint()
        await super()._watch_head()

    def _stored_sizes(self, measured: Measured | None) -> Sizes:
        """Return the sizes of the messages; those of stored ones as the store has them."""
        sizes, begin = measured or Measured(Sizes(), self._first_kept())
        while begin < self.next_id:
            stored: list[tuple[range, int]] = []
            if self._has_blocks_in_store:
                environment = self.environment
                infos = environment.blocks(self.topic.id, begin, MEASURED_BLOCKS)
                stored = environment.sizes(self.topic.id, infos)
            begin = self._measure(sizes, begin, self.next_id, stored)
        sizes.octets = 0
        sizes.add(range(self._cursor, self.next_id))
        sizes.add_runs(united([*self._returned.runs(), *self._aside.runs()]))
        return sizes

    @property
    def _has_blocks_in_store(self) -> bool:
        return self.is_persistent or self.has_spilled

    def _first_kept(self) -> int:
        """Return an id below which there is no message."""
        if self.is_persistent:
            return self.extent.oldest(self.next_id)
        return self.next_id if self._holdings.first is None else self._holdings.first

    def _measure(self, sizes: Sizes, begin: int, end: int, stored: Sequence[tuple[range, int]]) -> int:
        """Add the sizes of the next blocks from one id up to another: some in memory, and these, of which the
        store may have more if they are MEASURED_BLOCKS. Return the id up to which all are measured.
        """
        held = self._holdings.blocks_from(begin, MEASURED_BLOCKS)
        if len(stored) == MEASURED_BLOCKS:
            end = min(end, stored[-1][0].stop)
        if len(held) == MEASURED_BLOCKS:
            end = min(end, held[-1].next)
        found = [(block.first, block.next, body_octets(block)) for block in held]
        for ids, octets in stored:
            # Housekeeping may have merged it meanwhile with blocks that are measured already.
            first = max(begin, ids.start)
            found.append((first, ids.stop, octets * (ids.stop - first) // len(ids)))
        for first, after, octets in sorted(found):
            if first < end:
                sizes.arrived(first, after - first, octets)
        return max([end, *(after for first, after, _ in found if first < end)])

    def _advance(self, cursor: int) -> None:
        if self._sizes is not None:
            self._sizes.take(range(self._cursor, cursor))
        super()._advance(cursor)

    def _pop_returned(self, count: int = 1) -> int:
        message = super()._pop_returned(count)
        if self._sizes is not None:
            self._sizes.take(range(message, message + count))
        return message

    def _pop_aside(self) -> int:
        message = super()._pop_aside()
        if self._sizes is not None:
            self._sizes.take(range(message, message + 1))
        return message

    def returned(self, messages: Iterable[Run]) -> None:
        """See `RoundRobinDriver.returned`. Messages that were returned too often are dead letters."""
        messages = self._within_limit(messages)
        if self._sizes is not None and not self.deleted:
            messages = list(messages)
            self._sizes.add_runs(messages)
        super().returned(messages)
        if self._sizes is not None and self._sizes.have_grown:
            self._sizes.forget_below(self.lowest_undone())
        if self._excess():
            self._shorten()

    def purge(self) -> int:
        """Delete the messages that are ready. Return their number."""
        count = self.ready
        if self._aside:
            self._take_from_aside()
        runs = list(self._returned.runs())
        self._returned.clear()
        self._count()
        if runs:
            self.settled(runs)
        self._pass_over(self.next_id)
        if self._sizes is not None:
            self._sizes.octets = 0
        return count


def _body_octets(batch: Batch) -> int:
    return batch.octets - FRAME_HEADER * batch.count


def _fitting(batch: Batch, left: int, most: int, taken: int) -> int:
    """Return the number of the first messages of a post for which there are N octets (`left`) of N (`most`).
    The first N (`taken`) of them go to consumers at once.
    """
    sizes = [_body_octets(batch)] if batch.count == 1 else map(len, batch.bodies())
    for index, size in enumerate(sizes):
        if index >= taken:
            left -= size
        if size > most or left < 0:
            return index
    return batch.count
