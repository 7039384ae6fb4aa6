"""A round-robin topic whose messages reach its workers without the dealer.

Where each worker has everything that was assigned to it, and only their order decides who gets the next
message, no dealer is necessary:

- Messages of a transient topic are given to the connections of the workers by the compiled codec, while it
  parses the lines of a publisher. The route of the topic has the workers in their order
  (`omq_storage.routes`). What a socket does not take goes into the backlog of its connection, and comes back
  to the topic if the client stalls or leaves (`omq.drivers.backlog`).
- Messages of a persistent topic are collected for the store by the codec, and pushed by the task that has
  stored them (`omq.drivers.push`). What a socket does not take is assigned to its worker, as the dealer does.

Everything else needs the dealer: a worker that comes or leaves, one with credit, a publisher that waits for
room, a message that comes another way. It stops the routing to the workers, and the messages that follow are
sent behind those that were routed. The routing begins again with the next message after all of them are done.
"""

from collections.abc import Callable, Sequence

from omq.drivers.browsing import BrowsingChannel
from omq.drivers.driver import InitialState
from omq.drivers.limited import Measured
from omq.drivers.offer import Offered
from omq.drivers.posts import StoredValue
from omq.drivers.publisher_queue import WaitingPublisher
from omq.drivers.push import MOST_STORED_WORK, DealtRun, Pushes
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin import MOST_AT_ONCE
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import TAKE_OCTETS, Subscriber, Unavailable
from omq.model import Replay
from omq_storage.batches import Batch
from omq_storage.blocks import Block
from omq_storage.fragments import Fragmented
from omq_storage.runs import Run


class RoutedQueueDriver(QueueDriver):
    """One topic."""

    _are_plain = False
    _are_even = False
    """Whether all workers were found to be even (`RoundRobinChannel.is_even`), and none has changed since."""

    def __init__(self, opening: InitialState) -> None:
        super().__init__(opening)
        self.route.owner = self
        self.route.is_watched = self.is_persistent  # with or without subscribers it counts what is ready
        self._aim()

    # -- the route -----------------------------------------------------------------------------------------

    def _aim(self) -> None:
        """Open the route of a persistent topic, or let the codec ask for that of a transient one (`aim`)
        before it routes the next message.
        """
        if self.writer is not None:
            lane = self.writer.routed.lane
            if lane is None or self.deleted or not self._may_route or not self._are_plain:
                self.route.close()
            else:
                self.route.open_store(lane)
        elif self._passing:
            if not all(channel.is_even for channel in self._passing):
                self._stop_routing()
        elif not (self.assigned or self.route.is_due or self.deleted) and (
            self._may_have_outlets and not self._is_undealt()
        ):
            self.route.open_later()

    @property
    def _may_have_outlets(self) -> bool:
        """Whether the first worker has a connection that may be pushed to: consumers of AMQP have none."""
        first = next(iter(self._channels), None)
        return first is not None and first.outlet is not None

    def aim(self) -> None:
        """Open the route of a transient topic to its workers, if each message may go to any of them."""
        lanes = self.resources.lanes
        queue = self.publisher_queue
        may_wait = self.spills_next or queue.is_wanted or queue.admitted
        workers = [] if may_wait else self._workers(self.next_id)
        only = [lane for each in workers if each.outlet is not None and (lane := lanes.only(each.outlet))]
        if only and len(only) == len(workers):
            self._passing = workers
            self.route.open_workers(tuple(only))
        else:
            self.route.close()

    def _workers(self, message: int) -> list[RoundRobinChannel]:
        """Return the workers, the next one first; none if not only their order decides who gets this message,
        the first of the newest ones. If there are some, note that the topic has no other message.
        """
        # This is done for each block that is stored: attributes are read where they spare a call.
        if self._assigned_below != message or self.assigned or self._returned.octets or self._aside.octets:
            return []
        if self.deleted or not self._are_plain or self._browsers or self._retirement.channels:
            return []
        count = len(self._channels)
        if count > MOST_AT_ONCE or self.resources.memory.unconfirmed.is_closed:
            return []
        workers = self._takers.in_turn() if count > 1 else list(self._channels)
        if not self._are_even:
            if len(workers) != count or not all(each.is_even for each in workers):
                return []
            self._are_even = True
        self.is_perishable = False  # there is no message that could expire
        return workers

    def _stop_routing(self, cursor: int | None = None) -> None:
        """Let the dealer assign the messages of a transient topic from now on: from `cursor` on, or the next
        ones.
        """
        if self.writer is not None:
            return
        if passing := self._passing:
            turn = self.route.turn
            self._cursor = self.next_id if cursor is None else cursor
            for channel in passing:
                channel.stop_following()
            self._takers.turn_after(passing[turn - 1])
        if self.route.is_due or self.route.is_open:
            self.route.close()

    def took_back(self, block: Block) -> None:
        """Assign messages again that were routed to a connection and have not left."""
        if not self.deleted:
            self._stop_routing()
            self.unsent(block.count, len(block.frames))
            self._force(block.held)
            self._holdings.put_back(block)
            self.returned([Run(block.first, 1, (1 << block.count) - 1)])

    # -- what stops it -------------------------------------------------------------------------------------

    def change(self, options: QueueOptions, measured: Measured | None = None) -> None:
        """See `QueueDriver.change`."""
        self._stop_routing()
        super().change(options, measured)
        self._are_plain = options.are_plain
        self._aim()

    def _open(self, subscriber: Subscriber, replay: Replay, priority: int) -> RoundRobinChannel:
        self._are_even = False
        self._stop_routing()
        return super()._open(subscriber, replay, priority)

    def enqueue(self, octets: int, admitted: Callable[[], None]) -> WaitingPublisher:
        """See `Driver.enqueue`. Later messages do not pass those of a publisher that waits."""
        self._stop_routing()
        return super().enqueue(octets, admitted)

    def spill(self, batch: Batch, heads: Sequence[bytes] = ()) -> Offered:
        """See `SpillingDriver.spill`. The messages get their ids on their way to the disk."""
        self._stop_routing()
        return super().spill(batch, heads)

    def browse(self, subscriber: Subscriber) -> BrowsingChannel:
        """See `QueueDriver.browse`."""
        self._stop_routing()
        return super().browse(subscriber)

    def _remove(self, channel: RoundRobinChannel) -> None:
        self._are_even = False
        self._stop_routing()
        super()._remove(channel)
        self._aim()

    def cannot_take(self, channel: RoundRobinChannel) -> None:
        """See `CompetingDriver.cannot_take`."""
        self._are_even = False
        self._stop_routing()
        super().cannot_take(channel)

    def can_take(self, channel: RoundRobinChannel | None = None) -> None:
        """See `CompetingDriver.can_take`."""
        super().can_take(channel)
        self._are_even = False
        if self.writer is None:
            self._aim()

    def _advance(self, cursor: int) -> None:
        if self._passing:
            self._stop_routing()
        super()._advance(cursor)

    def _keep(self, block: Block) -> None:
        self._stop_routing(block.first)
        super()._keep(block)

    def _keep_large(self, message: Fragmented) -> None:
        self._stop_routing(message.first)
        super()._keep_large(message)

    def _report(self, gone: Unavailable) -> None:
        self._are_even = False
        super()._report(gone)

    # -- what is stored ------------------------------------------------------------------------------------

    def routed(self, first: int, values: Sequence[StoredValue], pushes: Pushes) -> None:
        """Deal messages that were routed to the store (`omq.drivers.posts.RoutedDriver`)."""
        for begin, count, time, frames, offsets in values:
            block = Block(self.topic.id, begin, count, time, frames, offsets)
            if len(values) > 1 or not self._push_stored(block, pushes):
                self._keep(block)

    def _push_stored(self, block: Block, pushes: Pushes) -> bool:
        """Push the messages of a block to the workers, in turn, if the sockets of all may take them."""
        assert self.writer is not None
        octets = pushes.octets + len(block.frames)
        if octets > TAKE_OCTETS or not self._may_have_outlets:
            return False  # it would take long, or is not possible
        if pushes.work + min(block.count, len(self._channels)) >= MOST_STORED_WORK:
            return False
        first, end = block.first, block.first + block.count
        workers = self._workers(first)[: block.count]
        lines = [line for each in workers if each.outlet is not None and (line := pushes.line(each.outlet))]
        if not workers or len(lines) < len(workers):
            return False
        for turn, (line, worker) in enumerate(zip(lines, workers, strict=True)):
            line.add(DealtRun(worker, block, range(first + turn, end, len(lines))), None)
        pushes.octets = octets
        pushes.work += 1 + len(workers)
        self.traffic.messages_out += block.count
        self.traffic.octets_out += len(block.frames)
        if len(self._channels) > 1:
            self._takers.turn_after(workers[(block.count - 1) % len(workers)])
        self._assigned_below = end
        self._moves += 1
        positions = self.writer.changed_positions
        if self not in positions.drivers:
            positions.add(self)
        if self.tail.octets:
            self.tail.forget_below(end)
        return True
