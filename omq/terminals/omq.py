"""The omq terminal: protocol one on one connection (omq text; design, section 4).

Two tasks: one reads commands and acts on them, the other writes what there is to say. What there is to say:
answers in the order of the commands, pings, and messages of the subscriptions in turn.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import trio

from omq.access.clients import NOBODY, Clients
from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.channel import Channel, End, Refused
from omq.drivers.driver import Driver
from omq.drivers.feed import Feed
from omq.drivers.leases import Leases, Principal, Sink
from omq.drivers.memory import Memory
from omq.drivers.problems import for_clients
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.signal import Signal
from omq.protocol import types
from omq.protocol.frames import encode
from omq.protocol.lines import Event, LineReader, Parsed, PublishRun, TooLong
from omq.protocol.lines import Refused as BadLine
from omq.protocol.sentences import sentence
from omq.terminals.fetches import Fetches, stored_topic
from omq.terminals.forms import Frames
from omq.terminals.forwarding import Forwarder
from omq.terminals.intake import Intake
from omq.terminals.liveness import Liveness, Tick
from omq.terminals.permission import check_rights
from omq.terminals.replies import Replies
from omq.terminals.transport import Transport
from storage.batches import Batch, Bodies, joined
from storage.errors import StoreError

MOST_REPLIES = 1000
"""How many answers may wait to be given or sent before no more commands are read."""

MOST_REPLY_OCTETS = 32 << 10
"""How much memory they may take before no more commands are read: some answers are large."""

MOST_BLOCKS = 4096
"""How many blocks the answer to one Blocks lists: some 300 KiB."""

LONGEST_CONNECT = 4 << 10
"""Where clients are configured, the most octets of a line of somebody who is not known yet."""

UNKNOWN_CLIENT = b"Connect: no client has this name and secret"

GOODBYE_SECONDS = 2.0
"""How long a connection that the server ends may take to send what is left to say."""

log = logging.getLogger("omq.terminal")


class Subscription:
    """The terminal's side of one channel (see omq.drivers.channel.Subscriber)."""

    __slots__ = ("_closed", "_place", "_started", "_terminal", "channel", "topic")

    def __init__(self, terminal: "OmqTerminal", topic: types.Topic, place: Callable[[], None]) -> None:
        """`place` gives back its place among those of its client."""
        self._terminal = terminal
        self._place = place
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
        if not self._closed:
            self._closed = True
            self._place()

    def is_closed(self) -> bool:
        return self._closed

    def replaced(self, channel: Channel) -> None:
        self.channel = channel
        self._terminal.opened(channel)
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
        clients: Clients,
        memory: Memory,
        config: Config,
        received: bytes,
    ) -> None:
        self._transport = transport
        self._catalogue = catalogue
        self._leases = leases
        self._clients = clients
        self._client = NOBODY
        self._principal = Principal(transport.host(), self._report)
        self._config = config
        self._intake = Intake(transport, memory)
        self._received = received
        self._lines = LineReader(config.max_line_bytes)
        self._signal = Signal()
        self._replies = Replies(self._signal.set)
        self._replied = trio.lowlevel.ParkingLot()
        self._fetches = Fetches(catalogue, memory, self._fetched)
        self._subscriptions: dict[bytes, Subscription] = {}
        self._ready: dict[Subscription | Fetches, None] = {}
        self._sending: Subscription | None = None
        self._credits: dict[bytes, tuple[int, int]] = {}  # by name: the topic's id, and the credit
        self._connected = False
        self._connect_by = math.inf
        self._over = False
        self._finished = False
        self._finishing = False
        self._ended_by_peer = False
        self._reading = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._liveness = Liveness(config.ping_seconds, config.missed_pings)
        self._forwarder = Forwarder(transport, Frames(), memory.stalled, self._channels, self._scope.cancel)

    # -- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and write until the other side is done, or something ends the connection."""
        if self._clients.are_known:
            self._connect_by = trio.current_time() + self._config.handshake_seconds
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._fetches.run)
                    await self._read()
                if self._ended_by_peer:
                    await self._transport.say_end()
                else:
                    await self._transport.finish()
        except trio.BrokenResourceError:
            pass  # it did not wait for the end
        finally:
            for subscription in list(self._subscriptions.values()):
                self._close(subscription)
            if self._connected:
                self._client.connections.give()
            self._leases.end_with(self._principal)
            self._over = True
            self._replied.unpark_all()
            self._intake.close()
            # Nothing here is to point back at this: so what it holds is free at once, and need not be found
            # by a garbage collection, which keeps everybody waiting.
            self._fetches.stop()
            self._forwarder.stop()
            self._replies.clear()
            self._ready.clear()
            self._transport.close()

    def sweep(self, now: float) -> None:
        """Called about every second: see whether a ping is due, or the client is gone."""
        self._forwarder.look()
        if self._finished:
            # It cannot answer any more, but it can read.
            pace = self._client.sent
            waiting = pace is not None and not pace.is_open()
            if self._liveness.is_stuck(now, self._transport.sent, waiting=waiting):
                self._scope.cancel()
            return
        if self._intake.hinders(now):
            self.fail(b"Line: it took too long to complete while others wait for its memory")
            return
        if self._fetches.hinders(now):
            self.fail(self._fetches.complaint())
            return
        if not self._connected and now > self._connect_by:
            self.fail(b"Connect: the client did not make itself known in time")
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
        self._fetches.stop()
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

    def _fetched(self) -> None:
        """A Fetch has something to send, or is answered."""
        self._ready[self._fetches] = None
        self._signal.set()

    async def _write(self) -> None:
        try:
            while True:
                octets = self._replies.collect()
                self._replied.unpark_all()
                if self._liveness.take_ping():
                    octets += encode(types.Ping(self._liveness.clock()))
                if octets:
                    await self._forwarder.send(octets)
                elif self._ready and (self._client.sent is None or self._client.sent.is_open()):
                    turn = next(iter(self._ready))
                    del self._ready[turn]
                    if isinstance(turn, Fetches):
                        await self._send_fetched()
                    else:
                        await self._forward(turn)
                elif self._ready and self._client.sent is not None:
                    with trio.move_on_at(self._client.sent.until):
                        await self._signal.wait()
                elif self._finished and not self._replies and not self._fetches:
                    if self._finishing:
                        self._fetches.stop()
                        return
                    self._finish_channels()
                else:
                    await self._signal.wait()
        except trio.BrokenResourceError:
            # The client is gone. That is its right, and no news to anybody else.
            self._ended_by_peer = True
            self._scope.cancel()

    async def _send_fetched(self) -> None:
        """Give the Fetch commands their turn: one block."""
        if not self._fetches.ready:
            return
        await self._forwarder.send(*self._fetches.take())
        self._fetches.sent()
        if self._fetches.ready:
            self._ready[self._fetches] = None

    async def _forward(self, subscription: Subscription) -> None:
        """Give one subscription its turn: what its channel has at once, then the next one's."""
        channel = subscription.channel
        if subscription.is_closed() or channel is None or not channel.ready():
            return
        self._sending = subscription
        before = self._transport.sent
        topic = subscription.topic.topic
        try:
            gone = await self._forwarder.forward(topic, channel, lambda: not subscription.is_closed())
        except StoreError as problem:
            what = f"{for_clients(problem)}, the connection is closed"
            self.fail(sentence("Subscribe", topic, what))
            return
        finally:
            self._sending = None
            if self._client.sent is not None:
                self._client.sent.spend(self._transport.sent - before)
            if subscription.is_closed() and subscription.channel is not None:
                channel.close()
                subscription.channel = None
        if gone is not None and not subscription.is_closed():
            what = f"messages {gone.first} to {gone.last} are gone: {gone.reason}"
            await self._forwarder.send(encode(types.Error(sentence("Subscribe", topic, what))))
        if not subscription.is_closed() and channel.ready():
            self._ready[subscription] = None

    def _channels(self) -> list[Channel]:
        """Those that are open; one that is to be closed is, until what it is sending is sent."""
        subscriptions = set(self._subscriptions.values()) | ({self._sending} if self._sending else set())
        return [each.channel for each in subscriptions if each.channel is not None]

    def opened(self, channel: Channel) -> None:
        """There is a channel more."""
        if self._forwarder.is_stalled:
            channel.hold()

    def _close(self, subscription: Subscription) -> None:
        """End a subscription from this side, now or when what it is sending is sent."""
        self._subscriptions.pop(subscription.topic.topic, None)
        self._ready.pop(subscription, None)
        subscription.close()
        if subscription is not self._sending and subscription.channel is not None:
            subscription.channel.close()
            subscription.channel = None

    def ended(self, subscription: Subscription) -> None:
        """The topic was deleted, and the channel with it."""
        self._subscriptions.pop(subscription.topic.topic, None)
        self._ready.pop(subscription, None)
        subscription.close()
        subscription.channel = None
        self._credits.pop(subscription.topic.topic, None)
        self._replies.add(types.Unsubscribed(subscription.topic))

    # -- reading -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            with self._reading:
                while True:
                    if self._received and not await self._feed():
                        break
                    self._received = await self._receive()
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

    async def _receive(self) -> bytes:
        """What comes next; not before the client's octets a second allow it."""
        pace = self._client.received
        if pace is None:
            return await self._intake.receive()
        with self._liveness.excused():
            await trio.sleep_until(pace.until)
        received = await self._intake.receive(pace.piece)
        pace.spend(len(received))
        return received

    async def _feed(self) -> bool:
        """Act on what was received; False when the connection is to end."""
        received, self._received = self._received, b""
        alive = False
        for number, events in enumerate(self._lines.reads(received)):
            if number:
                # One connection's odd lines must not keep the others waiting.
                await trio.lowlevel.checkpoint()
            if not await self._act_on(events):
                return False
            alive = alive or bool(events)
        if alive:
            self._liveness.alive()
            self._intake.finished()
        self._intake.done()
        if not self._connected and self._clients.are_known and self._lines.buffered > LONGEST_CONNECT:
            self._replies.add(types.Error(UNKNOWN_CLIENT))  # nobody's id is so long
            return False
        with self._liveness.excused():
            await self._intake.hold(self._lines.buffered)
        return True

    async def _act_on(self, events: Sequence[Event]) -> bool:
        """False when the connection is to end."""
        runs: dict[bytes, list[Batch]] = {}
        for event in events:
            if not self._connected:
                if not await self._connect(event):
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

    async def _connect(self, event: PublishRun | Parsed | BadLine | TooLong) -> bool:
        """The first command must be Connect, with the version of the handshake, of a client that is known."""
        match event:
            case Parsed(types.Connect(version, id)):
                if version == types.VERSION_ONE:
                    return await self._identify(id)
                what = f"the handshake agreed on version {types.VERSION_ONE}"
                self._replies.add(types.Error(sentence("Connect", str(version).encode(), what)))
            case TooLong(error):
                self._replies.add(types.Error(error))
            case _:
                self._replies.add(types.Error(b"Connect: it must be the first command of a connection"))
        return False

    async def _identify(self, id: bytes) -> bool:
        peer = self._transport.peer()
        client = await self._clients.identify(id, self._transport.host(), peer)
        if client is None:
            self._replies.add(types.Error(UNKNOWN_CLIENT))
            return False
        if not await client.connections.take_soon():
            what = b"Connect: this client has its %d connections, the most it is configured for"
            self._replies.add(types.Error(what % (client.connections.most or 0)))
            return False
        self._connected = True
        self._client = self._principal.client = client
        # Behind a colon there is the secret, also where nobody asks for it.
        log.debug("%s is %r", peer, id.partition(b":")[0])
        return True

    async def _room_for_replies(self) -> None:
        while not self._over and (
            len(self._replies) + len(self._fetches) >= MOST_REPLIES
            or self._replies.octets >= MOST_REPLY_OCTETS
        ):
            await self._replied.park()

    async def _report(self, text: bytes) -> None:
        """News of a DMP connection whose lease was asked for here. It waits as the commands do."""
        await self._room_for_replies()
        self._replies.add(types.Error(text))

    async def _publish_all(self, runs: dict[bytes, list[Batch]]) -> None:
        if len(runs) > 1:
            await self._reserve(runs)
        for topic, batches in runs.items():
            await self._publish(topic, joined(batches))
        runs.clear()

    async def _reserve(self, runs: dict[bytes, list[Batch]]) -> None:
        """Reserve ids for all transient topics among these at once: one by one each would wait for the disk.

        For persistent ones the writer does the same.
        """
        counts: dict[Driver, int] = {}
        for topic, batches in runs.items():
            driver = self._catalogue.lookup(topic)
            if driver is not None and not driver.is_persistent and topic in self._client.rights.publish:
                counts[driver] = sum(batch.count for batch in batches)
        try:
            with self._liveness.excused():
                await self._catalogue.ids.reserve(counts)
        except StoreError as problem:
            log.debug("%s", problem)  # and each topic, which tries it alone next, tells its publisher

    async def _publish(self, topic: bytes, batch: Batch) -> None:
        await self._room_for_replies()
        limit = self._config.max_message_bytes
        try:
            if topic not in self._client.rights.publish:
                raise Refused("this client may not publish to it")
            if batch.longest > limit:
                await self._publish_those_within(topic, batch.bodies(), limit)
                return
            driver = self._catalogue.lookup(topic) or await self._driver(topic)
            with self._liveness.excused():
                confirmation = await driver.post(batch)
        except Refused as refused:
            what = str(refused) if batch.count == 1 else f"{batch.count} messages: {refused}"
            self._replies.refuse_publish(sentence("Publish", topic, what), batch.count)
            return
        self._replies.published(topic, batch.count, confirmation)

    async def _driver(self, topic: bytes) -> Driver:
        """What is behind a name, for this client. Raises Refused."""
        may_declare = topic in self._client.rights.declare
        return await self._catalogue.lookup_or_declare(topic, may_declare=may_declare)

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
        check_rights(self._client.rights, command)
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
                self._replies.look(self._topics)
            case types.Request(topic, n):
                await self._request(topic, n)
            case types.Received(topic, id):
                self._round_robin_channel(topic).received(id)
            case types.Put(sink):
                self._leases.check_room()
                driver = await self._driver(sink)
                self._lease(Sink(driver.topic))
            case types.Get(feed, replay):
                self._leases.check_room()
                driver = await self._driver(feed)
                place = self._subscriptions_place()
                try:
                    opened = Feed.open(driver, replay, place)
                except Refused:
                    place()
                    raise
                self._lease(opened)
            case types.Fetch():
                # It reads what was published before it; and nothing behind it waits for it.
                self._replies.after(partial(self._fetches.add, command))
            case types.Blocks(topic, first, count):
                self._replies.add(await self._list_blocks(topic, first, count))
            case _:
                assert_never(command)

    async def _list_blocks(self, topic: bytes, first: int, count: int) -> types.BlockList:
        driver = stored_topic(self._catalogue, topic, first, count)
        try:
            found = await driver.stored_blocks(first, count, MOST_BLOCKS)
        except StoreError as problem:
            raise Refused(for_clients(problem)) from problem
        return types.BlockList(
            tuple(types.BlockInfo(info.first, info.count, info.time, info.bytes) for info in found)
        )

    def _topics(self) -> types.TopicList:
        """Those that the client may know of."""
        sees = self._client.rights.sees
        return types.TopicList(tuple(info for info in self._catalogue.topics() if sees(info.topic)))

    def _subscriptions_place(self) -> Callable[[], None]:
        """A place for one more subscription or feed; what gives it back. Raises Refused."""
        places = self._client.subscriptions
        if not places.take():
            raise Refused(f"this client has its {places.most} subscriptions, the most it is configured for")
        return places.give

    def _lease(self, leased: Sink | Feed) -> None:
        self._replies.add(types.Leased(self._leases.grant(leased, self._principal)))

    async def _subscribe(self, topic: bytes, replay: types.Replay) -> None:
        if topic in self._subscriptions:
            raise Refused("this connection is subscribed already")
        driver = await self._driver(topic)
        place = self._subscriptions_place()
        subscription = Subscription(self, driver.topic, place)
        try:
            subscription.channel = driver.open(subscription, replay)
        except Refused:
            place()
            raise
        self.opened(subscription.channel)
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
