"""The base of all drivers: the messages of one topic (terminal-driver RFC, section 3.5.1)."""

import logging
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import trio
from msgspec import Struct

from omq.drivers.ages import Ages
from omq.drivers.alarms import Alarms
from omq.drivers.confirmation import CONFIRMED, Confirmation
from omq.drivers.dead_letters import DeadLetterDelivery
from omq.drivers.errands import Errands
from omq.drivers.lifetime import DURABLE, Lifetime
from omq.drivers.memory import Memory
from omq.drivers.offer import Offered
from omq.drivers.pending_offers import PendingPersistentOffer, PendingTransientOffer
from omq.drivers.posts import Post
from omq.drivers.problems import logged
from omq.drivers.producers import NO_PRODUCERS, PostProducers, TopicProducers
from omq.drivers.publisher_queue import PublisherQueue, PublisherQueues, RoomAnswer, WaitingPublisher
from omq.drivers.push import Lanes, Pushes
from omq.drivers.queue_options import DEFAULT, QueueOptions
from omq.drivers.reasons import DELETED, IN_VIRTUAL_HOST, RETYPED, Failure, Reason, Refused
from omq.drivers.reservations import Reservations
from omq.drivers.routed_topic import RoutedTopic
from omq.drivers.seam import Channel, EndReason, Subscriber
from omq.drivers.sequences import Origin, Origins, producers_of, without_repeated
from omq.drivers.spool import Spool
from omq.drivers.stored_reads import StoredReads
from omq.drivers.tail import Tail
from omq.drivers.wait_graph import Room
from omq.drivers.writer import Writer
from omq.logs import LogThrottle, quoted
from omq.model import Persistence, Replay, Topic
from omq_storage.batches import Batch
from omq_storage.blocks import FRAMES_LIMIT, Block
from omq_storage.environment import Extent, Position
from omq_storage.fragments import Fragmented, Uploaded
from omq_storage.heads import octets_of
from omq_storage.routes import Route

log = logging.getLogger("omq.driver")

MERGE_BACK = 1 << 16
"""The number of messages before the end of a topic at which the search for small blocks begins when it is
opened.
"""


class Resources(Struct, frozen=True):
    """The parts that all drivers of a server share."""

    memory: Memory
    readers: trio.CapacityLimiter
    listers: trio.CapacityLimiter
    """The limit for lists of stored blocks: work in Python, which slows down all other threads."""
    ids: Reservations
    alarms: Alarms
    errands: Errands
    lanes: Lanes
    stall_seconds: float
    """The number of seconds that publishers wait for the fastest subscriber while its connection takes
    nothing.
    """
    spool_seconds: float
    """The number of seconds that long messages wait for room on the spool while nothing moves there."""
    unused: Callable[["Driver", Callable[[], bool]], None]
    """Called when a topic must be deleted because no client uses it, with a function that returns whether
    this is still true.
    """
    dead_letters: DeadLetterDelivery
    spills: Writer
    """Writes the messages of transient queues that the memory has no room for."""
    spool: Spool
    """Has messages of transient broadcast topics that the memory has no room for."""


class InitialState(Struct, frozen=True):
    """The initial state of a driver: the catalogue's record, and the stored messages."""

    topic: Topic
    persistence: Persistence
    writer: Writer | None
    """The store's side of a persistent topic, None for a transient one."""
    resources: Resources
    next_id: int
    reserved: int
    extent: Extent
    position: Position | None
    retention: tuple[int | None, float | None]
    """The limits of retention in octets and in seconds; None for no limit."""
    time: int = 0
    """Microseconds since the epoch of the last stored message."""
    stored_before_cursor: int = 0
    """The number of stored messages below the cursor of the position."""
    lost: range = range(0)
    """The ids that a power failure took, as far as they are known."""
    lifetime: Lifetime = DURABLE
    options: QueueOptions = DEFAULT
    """The options of a queue."""


class Driver(StoredReads, RoutedTopic):
    """One topic."""

    resources: Resources

    def __init__(self, opening: InitialState) -> None:
        self.topic = opening.topic
        self.persistence = opening.persistence
        self.writer = opening.writer
        self.resources = opening.resources
        self.route = Route(opening.topic.id, opening.next_id, opening.reserved, opening.time)
        """Its numbers. Only a topic whose messages can be routed opens it."""
        self._may_route = True
        self._extent = opening.extent
        self.lost = opening.lost
        self.retention = (None, None)
        self.ages: Ages | None = None
        """The ages of the messages, if there is a limit in seconds."""
        self.retain(*opening.retention)
        memory = opening.resources.memory
        self.tail = Tail(memory.tails, memory.tail_octets, is_stored=self.is_persistent)
        self.deleted = False
        self.gone = DELETED
        """The failure of messages that come when the topic is `deleted`, or has another driver."""
        self.is_replaced = False
        """Whether the topic is being given other types: nothing may be posted or opened here."""
        self.lifetime = opening.lifetime
        self._exclusive: Channel | None = None
        self.failures = 0
        self.producers = TopicProducers()
        self.rejections = 0
        self.traffic = self.route
        # The progress of housekeeping: the id up to which it has looked, and the id at which merging
        # continues.
        self.tidied = self.next_id
        self.merge_from = max(1, self.extent.first, self.next_id - MERGE_BACK)
        self._used = False
        # The objects that a topic owns refer to it weakly: no garbage collection has to find topics that were
        # deleted.
        this = weakref.proxy(self)
        self.publisher_queue = PublisherQueue(
            lambda octets, in_turn: this._take_room(octets, in_turn),
            lambda octets: this.free(octets),
            self._publisher_queues(memory),
        )
        problem = partial(LogThrottle.of_problem, log, topic=opening.topic.topic)
        name = quoted(opening.topic.topic)
        self._unreserved = problem(f"{name}: no ids could be reserved")
        self._defects = problem(f"{name}: a post failed by a defect of the server")
        self._unreadable = problem(f"{name} cannot be read")

    def retain(self, octets: int | None, seconds: float | None) -> None:
        """Set the limits of retention; housekeeping applies them."""
        self.retention = (octets, seconds)
        if seconds is None:
            self.ages = None
        elif self.ages is None:
            self.ages = Ages(self.next_id, seconds)
        else:
            self.ages.change(seconds)

    @property
    def next_id(self) -> int:
        """The id of the next message."""
        return self.route.next_id

    @next_id.setter
    def next_id(self, id: int) -> None:
        self.route.next_id = id

    @property
    def reserved(self) -> int:
        """The bound of the ids that may be assigned."""
        return self.route.reserved

    @reserved.setter
    def reserved(self, bound: int) -> None:
        self.route.reserved = bound

    @property
    def extent(self) -> Extent:
        """The ids, the number and the octets of the stored messages of the topic."""
        changed = self.route.take_extent()
        if changed is not None:
            self._extent = Extent(*changed)
        return self._extent

    @extent.setter
    def extent(self, extent: Extent) -> None:
        self.route.take_extent()  # it is older
        self._extent = extent

    @property
    def is_persistent(self) -> bool:
        return self.writer is not None

    @property
    def has_spilled(self) -> bool:
        """Whether the topic is transient, and messages of it were written to the store."""
        return False

    @property
    def is_empty(self) -> bool:
        """Whether the topic never had a message: only then may it still get other types."""
        return self.next_id == 1 and not self._used and not self.route.is_used

    # -- in: post ------------------------------------------------------------------------------------------

    async def post(self, batch: Batch, heads: Sequence[bytes] = (), origins: Origins = ()) -> Confirmation:
        """Offer messages, and wait for room if there is none. See `offer`."""
        offered = self.offer(batch, heads, origins)
        return offered if isinstance(offered, Confirmation) else await offered.taken()

    def offer(self, batch: Batch, heads: Sequence[bytes] = (), origins: Origins = ()) -> Offered:
        """Accept messages, or queue them for room; never wait. The confirmation is
        settled when they have the persistence of the topic.

        A transient topic settles it at once: it only promises that the driver has the messages.

        `heads`: empty, or one for each message: octets that are stored with the message beside its frame,
        empty for a message without a head.

        `origins`: empty, or one for each message, None for a message without one. A message whose sequence
        number is not above the last one of its producer is repeated: it counts as confirmed, and is dropped.
        When messages with origins cannot be stored, everything of the same producers that was offered before
        their confirmation reported the failure (`failure` or `refused`) fails too. The publisher must offer
        nothing more for these producers until it has sent the failed messages again.

        Raises Refused, and ValueError for any other number of heads or origins.
        """
        for extras, what in ((heads, "heads"), (origins, "origins")):
            if extras and len(extras) != batch.count:
                raise ValueError(f"there are {len(extras)} {what} for {batch.count} messages")
        if self.is_replaced:
            raise Refused.of(RETYPED)
        self._used = True
        if self.writer is None and not heads and not origins:
            pushes = Pushes()
            if self.try_push(batch, pushes):
                pushes.send()
                return CONFIRMED
        octets = batch.octets
        if heads:
            octets += octets_of(heads)
        if self.writer is not None:
            producers = self.producers.of_post(producers_of(origins)) if origins else NO_PRODUCERS
            post = Post(self, batch, octets, Confirmation(), heads, origins, producers)
            if self.resources.memory.posted.try_take(octets):
                self.writer.submit(post)
                return post.confirmation
            return PendingPersistentOffer(self.writer.submit, self.resources.memory.posted, post)
        if batch.count > 1 and batch.octets >= self.most():
            return PendingTransientOffer(self, batch, heads, origins).again()
        if self.deleted:
            raise Refused.of(self.gone)
        if not self.has_ids(batch.count) or not self.publisher_queue.try_enter(octets):
            return self._without_room(batch, heads, origins)
        return self.hand_over(batch, heads, origins, octets)

    def pass_on(self, batch: Batch, heads: Sequence[bytes]) -> bool:
        """Send one message to a subscriber at once, so that it is done, and need not be kept. Return False if
        that is not possible now, and nothing has happened: `offer` it. Raises Refused.
        """
        return False

    def uploads_from(self, fragment_octets: int) -> int | None:
        """Return the length from which on the body of a message may be uploaded
        (`omq.drivers.spooled_uploads.begin_upload`): `fragment_octets` where it is stored in fragments. None:
        all messages are held in memory until they are posted.
        """
        return fragment_octets if self.is_persistent else None

    async def post_uploaded(
        self, message: Uploaded, head: bytes, origin: Origin | None, producers: PostProducers
    ) -> Confirmation:
        """Post a message whose body is stored; wait for room in the queue of posts. Only for a persistent
        topic. The confirmation is settled as that of `offer`. Raises Refused.

        `producers`: that of the origin, as it was when its publisher posted the message.
        """
        assert self.writer is not None, "a transient topic has no store"
        if self.is_replaced:
            raise Refused.of(RETYPED)
        self._used = True
        heads = (head,) if head else ()
        origins = () if origin is None else (origin,)
        octets = message.octets + len(head)
        post = Post(self, message, octets, Confirmation(), heads, origins, producers)
        await self.resources.memory.posted.take(octets)
        self.writer.submit(post)
        return post.confirmation

    def _without_room(self, batch: Batch, heads: Sequence[bytes], origins: Origins) -> Offered:
        """Return the answer to messages of a transient topic without room, or ids. Raises Refused."""
        return PendingTransientOffer(self, batch, heads, origins).again()

    def try_push(self, batch: Batch, pushes: Pushes) -> bool:
        """Accept messages: add them to the pushes to the subscribers that have everything before them, and
        keep them for the others. Where there are only others, or something else prevents it, return False,
        and nothing has happened: `offer` them.
        """
        return False

    def has_ids(self, count: int) -> bool:
        """Return whether the next `count` ids may be assigned: see `StoreCatalogue.reserve`."""
        route = self.route
        return route.next_id + count <= route.reserved

    def hand_over(self, batch: Batch, heads: Sequence[bytes], origins: Origins, octets: int) -> Confirmation:
        """Accept messages of a transient topic, for which there are room and ids. Return their confirmation.
        Raises Refused.

        `octets`: what was counted for them when they were admitted.
        """
        kept = 0
        try:
            last: dict[bytes, int] = {}
            if origins:
                last = self.resources.memory.sequences.last(self.topic.id, producers_of(origins))
                batch, heads = without_repeated(batch, heads, origins, last)
            if batch.count:
                block = batch.encode(self.topic.id, self.next_id, self.now(), heads)
                self.next_id = block.next
                self._count_in(block)
                self._keep(block)
                kept = block.held
                if last:
                    self.resources.memory.sequences.keep(self.topic.id, last)
        except Exception as problem:  # a defect fails this post, and not the connection from which it came
            raise Refused.of(self.log_failure(problem)) from problem
        finally:
            self.free(octets - kept)  # of none, too: a broadcast topic admits its next publisher then
        return CONFIRMED

    def log_failure(self, problem: Exception) -> Failure:
        """Log a problem with a post, and return the failure for its publisher."""
        return logged(problem, self._unreserved, self._defects)

    @property
    def ids(self) -> Reservations:
        return self.resources.ids

    def now(self) -> int:
        """Return the time in microseconds since the epoch; it never decreases within a topic."""
        route = self.route
        route.time = max(route.time, time.time_ns() // 1000)
        return route.time

    def stored(self, blocks: Sequence[Block | Fragmented], extent: Extent, pushes: Pushes) -> None:
        """Make blocks that the writer has stored available to subscribers. `extent` is the new stored extent
        of the topic.
        """
        self.extent = extent
        for block in blocks:
            self.next_id = block.next
            self._count_in(block)
            if self.deleted:
                continue  # by a task that ended the topic while the commit was in its thread: nobody reads it
            if isinstance(block, Fragmented):
                self._keep_large(block)
            elif len(blocks) > 1 or not self._push_stored(block, pushes):
                self._keep(block)

    def _push_stored(self, block: Block, pushes: Pushes) -> bool:
        """Push the only block that a commit has stored to the subscribers that have everything before it, and
        keep it for the others. Return False, and do nothing, where there are only others, or something else
        prevents it.
        """
        return False

    def _count_in(self, block: Block | Fragmented) -> None:
        self.traffic.messages_in += block.count
        self.traffic.octets_in += block.held

    def unsent(self, messages: int, octets: int) -> None:
        """Subtract N `messages` with N `octets` of frames that were counted as sent and were not."""
        self.traffic.messages_out -= messages
        self.traffic.octets_out -= octets

    def allow_routing(self, is_allowed: bool) -> None:
        """Route no messages while it is not allowed: see `StoredDriver`."""
        if self._may_route is not is_allowed:
            self._may_route = is_allowed
            self._aim()

    def _aim(self) -> None:
        """Open the route if messages can be routed now, and else close it."""
        self.route.close()

    @abstractmethod
    def _keep(self, block: Block) -> None:
        """Add the newest block, and wake the subscribers that wait for it."""

    @abstractmethod
    def _keep_large(self, message: Fragmented) -> None:
        """Wake the subscribers that wait for a new message in fragments; it stays in the store."""

    @property
    def room(self) -> Room | None:
        """This topic, if its workers make room for its publishers."""
        return None

    def most(self) -> int:
        """Return the approximate number of octets that a transient topic accepts at once."""
        return FRAMES_LIMIT

    def _publisher_queues(self, memory: Memory) -> PublisherQueues:
        """Return the topics among which this one is when its publishers wait for shared memory."""
        return memory.publisher_queues

    @abstractmethod
    def _take_room(self, octets: int, in_turn: bool) -> RoomAnswer:
        """Count `octets` of a post to a transient topic if there is room for them: see `PublisherQueue`."""

    @abstractmethod
    def free(self, octets: int) -> None:
        """Free octets that `_take_room` has counted."""

    def enqueue(self, octets: int, admitted: Callable[[], None]) -> WaitingPublisher:
        """Wait for room in a transient topic: see `PublisherQueue`."""
        return self.publisher_queue.enqueue(octets, admitted)

    # -- out: channels -------------------------------------------------------------------------------------

    def open(
        self, subscriber: Subscriber, replay: Replay, *, exclusive: bool = False, priority: int = 0
    ) -> Channel:
        """Open a channel for a subscriber. Raises Refused.

        With `exclusive` the subscriber is the only one: it is refused while there are others, and others are
        refused until its channel is cancelled or closed. A consumer of a queue gets messages only while none
        with a higher `priority` has room for them; other topics ignore the priority.
        """
        if self._exclusive is not None:
            raise self._in_exclusive_use("the topic has an exclusive subscriber")
        if exclusive and self.has_consumers():
            raise self._in_exclusive_use("the topic has other subscribers")
        channel = self._open(subscriber, replay, priority)
        if exclusive:
            self._exclusive = channel
        return channel

    def _in_exclusive_use(self, text: str) -> Refused:
        amqp = f"queue {quoted(self.topic.topic)} {IN_VIRTUAL_HOST} in exclusive use"
        return Refused(Reason.IN_USE, text, amqp)

    @abstractmethod
    def _open(self, subscriber: Subscriber, replay: Replay, priority: int) -> Channel:
        """Open a channel. Raises Refused."""

    def is_exclusive(self, channel: Channel) -> bool:
        """Return whether this channel has the topic alone."""
        return channel is self._exclusive

    @abstractmethod
    def has_consumers(self) -> bool:
        """Return whether a channel is open that is not cancelled."""

    def _left(self, channel: Channel) -> None:
        """Note that a channel is cancelled or closed: it is not exclusive any more, and the topic may be
        unused.
        """
        if channel is self._exclusive:
            self._exclusive = None
        if self.lifetime.with_last_consumer and self._is_left():
            self.resources.unused(self, self._is_left)

    def _is_left(self) -> bool:
        return not (self.deleted or self.has_consumers())

    @abstractmethod
    def has_taker(self) -> bool:
        """Return whether a subscriber can take a message now."""

    @abstractmethod
    def subscribers(self) -> Iterable[tuple[Channel, Subscriber]]:
        """Return the open channels."""

    @abstractmethod
    def check_replay(self, first: int) -> None:
        """Raise Refused unless stored messages can be read from this id on."""

    def end(self) -> Iterator[None]:
        """End the channels of a topic that was deleted, in steps: there may be thousands."""
        self.deleted = True
        self.route.close()
        self.route.owner = None
        while (first := next(iter(self.subscribers()), None)) is not None:
            channel, subscriber = first
            channel.close()
            subscriber.ended(EndReason.DELETED)
            yield
        self.tail.clear()
        self.publisher_queue.close()
