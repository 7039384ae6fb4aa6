"""The omq terminal: protocol one on one connection (omq text; design, section 4).

Two tasks: one reads commands and acts on them, the other writes what there is to say. What there is to say:
answers in the order of the commands, pings, and messages of the subscriptions in turn.
"""

import logging
from collections.abc import Sequence
from typing import assert_never

import trio

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.channel import Channel, Cut, End, Gone, Messages, Octets, Refused
from omq.drivers.feed import Feed
from omq.drivers.leases import Leases, Principal, Sink
from omq.drivers.memory import Memory
from omq.drivers.problems import for_clients
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.signal import Signal
from omq.protocol import types
from omq.protocol.frames import encode, whole_frames
from omq.protocol.lines import Event, LineReader, Parsed, PublishRun, TooLong
from omq.protocol.lines import Refused as BadLine
from omq.protocol.sentences import sentence
from omq.terminals.intake import Intake
from omq.terminals.liveness import Liveness, Tick
from omq.terminals.replies import Replies
from omq.terminals.transport import Transport
from storage.batches import Batch, Bodies, joined
from storage.errors import StoreError

MOST_REPLIES = 1000
"""How many answers may wait to be given or sent before no more commands are read."""

GOODBYE_SECONDS = 2.0
"""How long a connection that the server ends may take to send what is left to say."""

log = logging.getLogger("omq.terminal")


class Subscription:
    """The terminal's side of one channel (see omq.drivers.channel.Subscriber)."""

    __slots__ = ("_closed", "_started", "_terminal", "channel", "topic")

    def __init__(self, terminal: "OmqTerminal", topic: types.Topic) -> None:
        self._terminal = terminal
        self.topic = topic
        self.channel: Channel | None = None
        self._started = False
        self._closed = False

    def wake(self) -> None:
        if self._started and not self._closed:
            self._terminal.ready(self)

    def start(self) -> None:
        """Subscribed is on its way: messages may follow."""
        self._started = True
        self.wake()

    def close(self) -> None:
        self._closed = True

    def is_closed(self) -> bool:
        return self._closed

    def replaced(self, channel: Channel) -> None:
        self.channel = channel
        self.wake()

    def ended(self, end: End) -> None:
        self._terminal.ended(self)


class OmqTerminal:
    """One connection after its handshake. `serve` returns when it is over, whatever the reason."""

    def __init__(
        self,
        transport: Transport,
        catalogue: Catalogue,
        leases: Leases,
        memory: Memory,
        config: Config,
        received: bytes,
    ) -> None:
        self._transport = transport
        self._catalogue = catalogue
        self._leases = leases
        self._principal = Principal(transport.host(), self._report)
        self._config = config
        self._intake = Intake(transport, memory)
        self._received = received
        self._lines = LineReader(config.max_line_bytes)
        self._signal = Signal()
        self._replies = Replies(self._signal.set)
        self._replied = trio.lowlevel.ParkingLot()
        self._subscriptions: dict[bytes, Subscription] = {}
        self._ready: dict[Subscription, None] = {}
        self._sending: Subscription | None = None
        self._credits: dict[bytes, tuple[int, int]] = {}  # by name: the topic's id, and the credit
        self._connected = False
        self._over = False
        self._finished = False
        self._finishing = False
        self._ended_by_peer = False
        self._reading = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._liveness = Liveness(config.ping_seconds, config.missed_pings)

    # -- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and write until the other side is done, or something ends the connection."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
                if not self._ended_by_peer:
                    await self._transport.finish()
        finally:
            for subscription in list(self._subscriptions.values()):
                self._close(subscription)
            self._leases.end_with(self._principal)
            self._over = True
            self._replied.unpark_all()
            self._intake.close()
            self._transport.close()

    def sweep(self, now: float) -> None:
        """Called about every second: see whether a ping is due, or the client is gone."""
        if self._finished:
            # It cannot answer any more, but it can read.
            if self._liveness.is_stuck(now, self._transport.sent):
                self._scope.cancel()
            return
        if self._intake.hinders(now):
            self.fail(b"Line: it took too long to complete while others wait for its memory")
            return
        match self._liveness.tick(now):
            case Tick.NOTHING:
                pass
            case Tick.PING:
                self._signal.set()
            case Tick.DEAD:
                missed = self._config.missed_pings
                self.fail(b"Ping: %d in a row were not answered, the connection is closed" % missed)
            case other:
                assert_never(other)

    def fail(self, text: bytes) -> None:
        """End the connection with an Error, after the answers that are ready."""
        self._replies.add(types.Error(text))
        self.shut_down()

    def shut_down(self) -> None:
        """End the connection: no more commands, and no more messages, but the answers that are due."""
        for subscription in list(self._subscriptions.values()):
            self._close(subscription)
        self._reading.cancel()
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + GOODBYE_SECONDS)

    def _finish(self) -> None:
        """Nothing more comes in: answer what came, then end."""
        self._finished = True
        self._signal.set()

    def _finish_channels(self) -> None:
        """Everything is answered, what this connection published included: the rest is what there is now."""
        self._finishing = True
        for subscription in self._subscriptions.values():
            assert subscription.channel is not None
            subscription.channel.finish()

    # -- writing -------------------------------------------------------------------------------------------

    def ready(self, subscription: Subscription) -> None:
        """A subscription has something to take."""
        self._ready[subscription] = None
        self._signal.set()

    async def _write(self) -> None:
        try:
            while True:
                octets = self._replies.collect()
                self._replied.unpark_all()
                if self._liveness.take_ping():
                    octets += encode(types.Ping(self._liveness.clock()))
                if octets:
                    await self._transport.send(octets)
                elif self._ready:
                    subscription = next(iter(self._ready))
                    del self._ready[subscription]
                    await self._forward(subscription)
                elif self._finished and not self._replies:
                    if self._finishing:
                        return
                    self._finish_channels()
                else:
                    await self._signal.wait()
        except trio.BrokenResourceError:
            # The client is gone. That is its right, and no news to anybody else.
            self._ended_by_peer = True
            self._scope.cancel()

    async def _forward(self, subscription: Subscription) -> None:
        """Give one subscription its turn: what its channel has at once, then the next one's."""
        channel = subscription.channel
        if subscription.is_closed() or channel is None or not channel.ready():
            return
        try:
            taken = await channel.take()
        except StoreError as problem:
            log.error("%r cannot be read: %s", subscription.topic.topic, problem)
            what = f"{for_clients(problem)}, the connection is closed"
            self.fail(sentence("Subscribe", subscription.topic.topic, what))
            return
        if subscription.is_closed():
            return
        match taken:
            case Messages(cuts):
                self._sending = subscription
                parts = [cut.frames() for cut in cuts]
                before = self._transport.sent
                try:
                    await self._transport.send_together(parts)
                finally:
                    self._sending = None
                    channel.written(_whole_messages(cuts, parts, self._transport.sent - before))
                    if subscription.is_closed():
                        channel.close()
            case Gone(first, last, reason):
                what = f"messages {first} to {last} are gone: {reason}"
                text = sentence("Subscribe", subscription.topic.topic, what)
                await self._transport.send(encode(types.Error(text)))
            case None:
                pass
            case _:
                assert_never(taken)
        if not subscription.is_closed() and channel.ready():
            self._ready[subscription] = None

    def _close(self, subscription: Subscription) -> None:
        """End a subscription from this side, now or when what it is sending is sent."""
        self._subscriptions.pop(subscription.topic.topic, None)
        self._ready.pop(subscription, None)
        subscription.close()
        if subscription is not self._sending and subscription.channel is not None:
            subscription.channel.close()

    def ended(self, subscription: Subscription) -> None:
        """The topic was deleted, and the channel with it."""
        self._subscriptions.pop(subscription.topic.topic, None)
        self._ready.pop(subscription, None)
        subscription.close()
        self._credits.pop(subscription.topic.topic, None)
        self._replies.add(types.Unsubscribed(subscription.topic))

    # -- reading -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            with self._reading:
                while True:
                    if self._received and not await self._feed():
                        break
                    self._received = await self._intake.receive()
                    if not self._received:
                        self._ended_by_peer = True
                        if self._lines.buffered:
                            text = sentence("Bad sexp", None, "the connection ended in the middle of a line")
                            self._replies.add(types.Error(text))
                        break
        except trio.BrokenResourceError:
            self._ended_by_peer = True
            self._scope.cancel()
        self._finish()

    async def _feed(self) -> bool:
        """Act on what was received; False when the connection is to end."""
        received, self._received = self._received, b""
        alive = False
        for number, events in enumerate(self._lines.reads(received)):
            if number:
                await (
                    trio.lowlevel.checkpoint()
                )  # one connection's odd lines must not keep the others waiting
            if not await self._act_on(events):
                return False
            alive = alive or bool(events)
        if alive:
            self._liveness.alive()
            self._intake.finished()
        self._intake.done()
        with self._liveness.excused():
            await self._intake.hold(self._lines.buffered)
        return True

    async def _act_on(self, events: Sequence[Event]) -> bool:
        """False when the connection is to end."""
        runs: dict[bytes, list[Batch]] = {}
        for event in events:
            if not self._connected:
                if not self._connect(event):
                    return False
                continue
            match event:
                case PublishRun(topic, batch):
                    # Order matters within a topic only: one read makes one post for each.
                    runs.setdefault(topic, []).append(batch)
                    continue
                case _:
                    await self._publish_all(runs)
            match event:
                case Parsed(command):
                    await self._room_for_replies()
                    await self._act(command)
                case BadLine(error, publish):
                    await self._room_for_replies()
                    if publish:
                        self._replies.refuse_publish(error)
                    else:
                        self._replies.add(types.Error(error))
                case TooLong(error):
                    self._replies.add(types.Error(error))
                    return False
                case _:
                    assert_never(event)
        await self._publish_all(runs)
        return True

    def _connect(self, event: PublishRun | Parsed | BadLine | TooLong) -> bool:
        """The first command must be Connect, with the version of the handshake."""
        match event:
            case Parsed(types.Connect(version, id)):
                if version == types.VERSION_ONE:
                    self._connected = True
                    log.debug("%s is %r", self._transport.peer(), id)
                    return True
                what = f"the handshake agreed on version {types.VERSION_ONE}"
                self._replies.add(types.Error(sentence("Connect", str(version).encode(), what)))
            case TooLong(error):
                self._replies.add(types.Error(error))
            case _:
                self._replies.add(types.Error(b"Connect: it must be the first command of a connection"))
        return False

    async def _room_for_replies(self) -> None:
        while len(self._replies) >= MOST_REPLIES and not self._over:
            await self._replied.park()

    async def _report(self, text: bytes) -> None:
        """News of a DMP connection whose lease was asked for here. It waits as the commands do."""
        await self._room_for_replies()
        self._replies.add(types.Error(text))

    async def _publish_all(self, runs: dict[bytes, list[Batch]]) -> None:
        for topic, batches in runs.items():
            await self._publish(topic, joined(batches))
        runs.clear()

    async def _publish(self, topic: bytes, batch: Batch) -> None:
        await self._room_for_replies()
        limit = self._config.max_message_bytes
        try:
            if batch.longest > limit:
                await self._publish_those_within(topic, batch.bodies(), limit)
                return
            driver = self._catalogue.lookup(topic) or await self._catalogue.lookup_or_declare(topic)
            with self._liveness.excused():
                confirmation = await driver.post(batch)
        except Refused as refused:
            what = str(refused) if batch.count == 1 else f"{batch.count} messages: {refused}"
            self._replies.refuse_publish(sentence("Publish", topic, what))
            return
        self._replies.published(topic, batch.count, confirmation)

    async def _publish_those_within(self, topic: bytes, bodies: Sequence[bytes], limit: int) -> None:
        fitting = [body for body in bodies if len(body) <= limit]
        if fitting:
            await self._publish(topic, Bodies(fitting))
        for body in bodies:
            if len(body) > limit:
                what = f"a message has at most {limit} octets, this one {len(body)}"
                self._replies.refuse_publish(sentence("Publish", topic, what))

    # -- commands ------------------------------------------------------------------------------------------

    async def _act(self, command: types.Command) -> None:
        try:
            await self._perform(command)
        except Refused as refused:
            constructor, argument = _subject(command)
            self._replies.add(types.Error(sentence(constructor, argument, str(refused))))

    async def _perform(self, command: types.Command) -> None:
        """Raises Refused."""
        match command:
            case types.Connect():
                raise Refused("this connection is connected already")
            case types.Publish(topic, body):
                await self._publish(topic, Bodies([body]))
            case types.Subscribe(topic, replay):
                await self._subscribe(topic, replay)
            case types.Unsubscribe(topic):
                self._unsubscribe(topic)
            case types.Ack():
                pass  # a sign of life, which every command is
            case types.Declare(topic, delivery, persistence):
                driver = await self._catalogue.declare(topic, delivery, persistence)
                self._replies.add(types.Declared(driver.topic))
            case types.Confirm(n):
                self._replies.confirm(n)
            case types.Delete(topic):
                self._replies.add(types.Deleted(await self._catalogue.delete(topic)))
            case types.Topics():
                self._replies.look(lambda: types.TopicList(self._catalogue.topics()))
            case types.Request(topic, n):
                await self._request(topic, n)
            case types.Received(topic, id):
                self._round_robin_channel(topic).received(id)
            case types.Put(sink):
                self._leases.check_room()
                driver = await self._catalogue.lookup_or_declare(sink)
                self._lease(Sink(driver.topic))
            case types.Get(feed, replay):
                self._leases.check_room()
                driver = await self._catalogue.lookup_or_declare(feed)
                self._lease(Feed.open(driver, replay))
            case types.Fetch() | types.Blocks():
                raise Refused("this server does not serve stored blocks yet")
            case _:
                assert_never(command)

    def _lease(self, leased: Sink | Feed) -> None:
        self._replies.add(types.Leased(self._leases.grant(leased, self._principal)))

    async def _subscribe(self, topic: bytes, replay: types.Replay) -> None:
        if topic in self._subscriptions:
            raise Refused("this connection is subscribed already")
        driver = await self._catalogue.lookup_or_declare(topic)
        subscription = Subscription(self, driver.topic)
        subscription.channel = driver.open(subscription, replay)
        self._subscriptions[topic] = subscription
        of_topic, credit = self._credits.get(topic, (None, 0))
        if of_topic == driver.topic.id and isinstance(subscription.channel, RoundRobinChannel):
            subscription.channel.request(credit)
        self._replies.add(types.Subscribed(driver.topic), subscription.start)

    def _unsubscribe(self, topic: bytes) -> None:
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            raise Refused("this connection is not subscribed")
        self._close(subscription)
        self._credits.pop(topic, None)
        self._replies.add(types.Unsubscribed(subscription.topic))

    async def _request(self, topic: bytes, n: int) -> None:
        """Credit for the subscription there is, or for the one that follows."""
        if n < 0:
            raise Refused("credit cannot be negative")
        driver = await self._catalogue.find(topic)
        if driver is None:
            raise Refused("there is no such topic")
        if driver.delivery is not types.Delivery.ROUND_ROBIN:
            raise Refused("only a round-robin topic gives credit")
        credit = min(n, self._config.max_credit)
        self._credits[topic] = driver.topic.id, credit
        if topic in self._subscriptions:
            self._round_robin_channel(topic).request(credit)

    def _round_robin_channel(self, topic: bytes) -> RoundRobinChannel:
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            raise Refused("this connection is not subscribed")
        if not isinstance(subscription.channel, RoundRobinChannel):
            raise Refused("only messages of a round-robin topic are confirmed")
        return subscription.channel


def _whole_messages(cuts: Sequence[Cut], parts: Sequence[Octets], octets: int) -> int:
    """How many messages lie whole within the first so many octets of the parts."""
    count = 0
    for cut, part in zip(cuts, parts, strict=True):
        if octets < len(part):
            return count + whole_frames(memoryview(part)[:octets])
        octets -= len(part)
        count += len(cut.ids)
    return count


def _subject(command: types.Command) -> tuple[str, bytes | None]:
    """A command's constructor and first argument: how the Error that answers it begins."""
    match command:
        case types.Topics():
            return "Topics", None
        case types.Ack():
            return "Ack", None
        case types.Connect(version, _):
            return "Connect", str(version).encode()
        case types.Confirm(n):
            return "Confirm", str(n).encode()
        case types.Put(name) | types.Get(name, _):
            return type(command).__name__, name
        case _:
            return type(command).__name__, command.topic
