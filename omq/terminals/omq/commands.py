"""Execute the commands of an omq connection, through the session of its client."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import assert_never

import trio

from omq import model
from omq.access.administration import Administration
from omq.access.control import AccessControl
from omq.access.leases import Principal
from omq.access.leasing import Leasing
from omq.access.management import Management
from omq.access.provisioning import Provisioning
from omq.access.session import Session, TooLarge, too_large
from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Reason, Refused
from omq.drivers.slices import Slices
from omq.management import subject
from omq.model import Delivery, Persistence
from omq.protocol.omq import types
from omq.protocol.omq.events import Event, Parsed
from omq.protocol.omq.sentences import sentence
from omq.terminals.connection.held import HeldPublishes
from omq.terminals.connection.liveness import LivenessPause
from omq.terminals.omq.fetches import Fetches
from omq.terminals.omq.long_answers import LongAnswers
from omq.terminals.omq.replies import Replies
from omq.terminals.omq.subscriptions import Subscriptions
from omq.terminals.omq.watching import Watching
from omq_storage.batches import Batch, Bodies, joined

RECEIVED_IN_STEP = 32
"""The number of messages that are confirmed between two looks at the clock."""


_NONE_DELETED: dict[bytes, model.Topic] = {}


class Commands:
    """The executor of one connection. It executes one command after another."""

    __slots__ = (
        "_access",
        "_deleted",
        "_excused",
        "_fetches",
        "_held",
        "_host",
        "_long_answers",
        "_principal",
        "_replies",
        "_session",
        "_subscriptions",
        "_watching",
    )

    def __init__(
        self,
        session: Session,
        access: AccessControl,
        host: str,
        replies: Replies,
        long_answers: LongAnswers,
        fetches: Fetches,
        subscriptions: Subscriptions,
        held: HeldPublishes,
        watching: Watching,
        excused: LivenessPause,
    ) -> None:
        """Create the commands of a connection, whose client is at this host. Within `excused` the liveness
        check does not count the silence of the client. Always call `end` when the connection is over.
        """
        self._session = session
        self._access = access
        self._watching = watching
        self._host = host
        self._principal: Principal | None = None  # from the first lease on
        self._replies = replies
        self._long_answers = long_answers
        self._fetches = fetches
        self._subscriptions = subscriptions
        self._held = held
        self._excused = excused
        self._deleted = _NONE_DELETED
        """The topics that Deletes to be executed next have deleted, by name."""

    # Made for each command, because most connections never have one.

    @property
    def _management(self) -> Management:
        return self._access.management(self._session)

    @property
    def _leasing(self) -> Leasing:
        if self._principal is None:
            self._principal = Principal(self._host, self._session.name, self._replies.report)
        return self._access.leasing(self._session, self._principal)

    @property
    def _provisioning(self) -> Provisioning:
        return self._access.provisioning(self._session)

    @property
    def _administration(self) -> Administration:
        return self._access.administration(self._session)

    async def end(self) -> None:
        """End the leases of the connection that are not used, because it is over."""
        if self._principal is not None:
            await self._access.leases.end_with(self._principal)

    async def room(self) -> None:
        """Wait until there is room for one more answer."""
        if self._replies.is_full:
            await self._held.wait_for_all()  # answers wait for those of the Publishes before them
            await self._replies.room()

    # -- publishing ----------------------------------------------------------------------------------------

    async def publish_all(self, runs: dict[bytes, list[Batch]]) -> None:
        """Publish the messages of one read, grouped by topic; empty `runs`."""
        # Held messages came before, perhaps for the same topics.
        rest: dict[bytes, Sequence[Batch]] = dict(runs) if self._held.lines else await self._push(runs)
        if len(rest) > 1:
            provisioning = self._provisioning
            with self._excused:
                are_new = await provisioning.make_missing(rest)
                have_ids = await provisioning.reserve_ids(rest)
            if (are_new or have_ids) and not self._held.lines:
                rest = await self._push(rest)
        # Each is freed as it is published: thousands at once would take long.
        slices = Slices()
        for topic in list(rest):
            batch = joined(rest.pop(topic))
            runs.pop(topic, None)
            await self._publish(topic, batch)
            if rest:
                await slices.step()
        runs.clear()

    async def _push(self, runs: Mapping[bytes, Sequence[Batch]]) -> dict[bytes, Sequence[Batch]]:
        """Push messages to those who can take them, in turn with the other connections; return the others."""
        rest: dict[bytes, Sequence[Batch]] = {}
        waiting = iter(runs.items())
        while not self._session.push(waiting, rest):
            await trio.lowlevel.checkpoint()
        return rest

    async def _publish(self, topic: bytes, batch: Batch) -> None:
        if self._replies.is_full:
            await self.room()
        try:
            confirmation = await self._post(topic, batch)
        except TooLarge as refused:
            await self._publish_those_within(topic, batch.bodies(), refused.limit)
        except Refused as refused:
            what = str(refused) if batch.count == 1 else f"{batch.count} messages: {refused}"
            self._replies.refuse_publish(sentence("Publish", topic, what), batch.count)
        else:
            self._replies.published(topic, batch.count, confirmation)
            if self._held.is_too_much:
                await self._held.wait_for_room()

    async def _post(self, topic: bytes, batch: Batch) -> Confirmation:
        """Post messages to a topic, or hold them until it has room. Raises Refused."""
        session, held = self._session, self._held
        if topic in held.lines:
            session.check_offer(topic, batch)
            return held.hold(topic, batch)
        while (offered := session.offer(topic, batch)) is None:
            with self._excused:
                await session.find_or_make(topic)
        if isinstance(offered, Confirmation):
            return offered
        if held.may_hold(offered):
            return held.hold(topic, batch, offered)
        with self._excused:
            return await offered.taken()

    async def _publish_those_within(self, topic: bytes, bodies: Sequence[bytes], limit: int) -> None:
        fitting = [body for body in bodies if len(body) <= limit]
        if fitting:
            await self._publish(topic, Bodies(fitting))
        for body in bodies:
            if len(body) > limit:
                what = too_large(limit, len(body))
                self._replies.refuse_publish(sentence("Publish", topic, what))

    # -- other commands ------------------------------------------------------------------------------------

    async def look_ahead(self, events: Iterator[Event]) -> int:
        """Make the new topics of the Declares with which these events begin, in one commit, or delete the
        topics of such Deletes. Return the number of these commands: each must be executed, and answers for
        its topic.
        """
        names: list[bytes] = []
        types_of_all: tuple[Delivery, Persistence] | None = None
        is_deletion = False
        for event in events:
            match event:
                case Parsed(types.Declare(topic, delivery, persistence)) if not is_deletion and (
                    types_of_all in (None, (delivery, persistence))
                ):
                    types_of_all = delivery, persistence
                    names.append(topic)
                case Parsed(types.Delete(topic)) if types_of_all is None:
                    is_deletion = True
                    names.append(topic)
                case _:
                    break
        if len(names) > 1:
            with self._excused:
                if types_of_all is not None:
                    await self._provisioning.make_all(names, *types_of_all)
                else:
                    self._deleted = await self._provisioning.delete_all(names)
        return len(names)

    async def act(self, command: types.Command) -> None:
        """Execute a command, and answer it or say why it is refused."""
        try:
            with self._excused:  # it may take long, and the Acks of the client are not read meanwhile
                await self._perform(command)
        except Refused as refused:
            constructor, argument = _subject(command)
            self._replies.add(types.Error(sentence(constructor, argument, str(refused))))

    async def received(self, topic: bytes, ids: Sequence[int]) -> None:
        """Confirm messages; answer each that cannot be confirmed."""
        await self.room()
        slices = Slices()
        for start in range(0, len(ids), RECEIVED_IN_STEP):
            some = ids[start : start + RECEIVED_IN_STEP]
            try:
                unknown = self._subscriptions.received(topic, some)
            except Refused as refused:
                what = [str(refused)] * len(some)
            else:
                what = [f"message {id} is not waiting to be confirmed here" for id in unknown]
            for each in what:
                await self.room()
                self._replies.add(types.Error(sentence("Received", topic, each)))
            await slices.step()

    async def _perform(self, command: types.Command) -> None:
        """Execute a command. Raise Refused."""
        session = self._session
        match command:
            case types.Connect():
                raise Refused(Reason.INVALID, "this connection is connected already")
            case types.Publish(topic, body):
                await self._publish(topic, Bodies([body]))
            case types.Subscribe(topic, replay):
                await self._subscribe(topic, replay)
            case types.Unsubscribe(topic):
                self._subscriptions.unsubscribe(topic)
            case types.Ack():
                pass  # like every command it shows that the client is alive
            case types.Declare(topic, delivery, persistence):
                self._replies.add(types.Declared(await session.declare(topic, delivery, persistence)))
            case types.Confirm(n):
                self._replies.confirm(n)
            case types.Delete(topic):
                deleted = self._deleted.pop(topic, None) or await session.delete(topic)
                self._replies.add(types.Deleted(deleted))
            case types.Topics():
                self._replies.make(partial(self._long_answers.topics, session.rights))
            case types.Request(topic, n):
                await self._request(topic, n)
            case types.Received(topic, id):
                await self.received(topic, [id])
            case types.Put(sink):
                self._replies.add(types.Leased(await self._leasing.lease_sink(sink)))
            case types.Get(feed, replay):
                self._replies.add(types.Leased(await self._leasing.lease_feed(feed, replay)))
            case types.Fetch(topic):
                # It reads the messages that were published before it, and no later command waits for it.
                self._replies.after(partial(self._fetches.add, command, session.archive(topic)))
            case types.Manage(request):
                await self._replies.add_list(types.Managed(await self._management.perform(request)))
            case types.Watch(period):
                self._watching.watch(self._administration, period)
            case types.Connections(first):
                found = await self._administration.connections(first)
                await self._replies.add_list(types.ConnectionList(found))
            case types.Subscribers(topic):
                furthest = await self._administration.subscribers(topic)
                await self._replies.add_list(types.SubscriberList(furthest))
            case types.Disconnect(connection):
                self._replies.add(types.Done(self._administration.disconnect(connection)))
            case types.Purge(topic):
                self._replies.add(types.Done(await self._administration.purge(topic)))
            case types.Retain(topic, retention):
                await self._administration.retain(topic, retention)
                self._replies.add(types.Done(1))
            case types.Blocks(topic, first, count):
                archive = session.archive(topic)
                archive.find(first, count)
                self._replies.make(partial(self._long_answers.blocks, command, archive))
            case _:
                assert_never(command)

    async def _subscribe(self, topic: bytes, replay: model.Replay) -> None:
        subscriptions = self._subscriptions
        subscriptions.check_free(topic)
        credit = subscriptions.release_of_credit(topic)
        opened = await self._session.open(topic, replay, subscriptions.make, credit)
        subscriptions.add(*opened)
        self._held.look()

    async def _request(self, topic: bytes, n: int) -> None:
        info = await self._session.look_up(topic)
        if n < 0:
            raise Refused(Reason.INVALID, "credit cannot be negative")
        if info.delivery is not model.Delivery.ROUND_ROBIN:
            raise Refused(Reason.INVALID, "only a round-robin topic gives credit")
        subscriptions = self._subscriptions
        credit = self._session.window(n)
        if subscriptions.is_open(topic):
            subscriptions.request(topic, credit)
        else:
            release = subscriptions.release_of_credit(topic) or self._session.hold_subscription()
            subscriptions.request_early(model.Topic(info.id, topic), credit, release)


def _subject(command: types.Command) -> tuple[str, bytes | None]:
    """Return the constructor and first argument of a command, with which the Error that answers it begins."""
    match command:
        case types.Topics():
            return "Topics", None
        case types.Ack():
            return "Ack", None
        case types.Connect(version, _):
            return "Connect", str(version).encode()
        case types.Confirm(n) | types.Watch(n) | types.Connections(n) | types.Disconnect(n):
            return type(command).__name__, str(n).encode()
        case types.Manage(request):
            return "Manage", subject(request)
        case types.Put(name) | types.Get(name, _):
            return type(command).__name__, name
        case _:
            return type(command).__name__, command.topic
