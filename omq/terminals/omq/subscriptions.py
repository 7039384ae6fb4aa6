"""The subscriptions of one omq connection: their channels, and their turns to send."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from omq import model
from omq.drivers.problems import for_clients
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import ACCEPTED, Channel, CreditKind, CursorChannel, EndReason, hand_over
from omq.protocol.omq import types
from omq.protocol.omq.frames import encode
from omq.protocol.omq.sentences import gone as words_of_gone
from omq.protocol.omq.sentences import sentence
from omq.terminals.connection.forms import Form
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.statistics import SubscriptionStatistics
from omq.terminals.omq.forms import Frames
from omq.terminals.omq.replies import Replies
from omq_storage.errors import StoreError


class OmqSubscription:
    """The terminal's side of a channel (`omq.drivers.seam.Subscriber`), and its turns to send."""

    __slots__ = ("_all", "_closed", "_release", "_started", "channel", "topic")

    is_exempt = False
    direct = None

    def __init__(self, all: "Subscriptions", topic: model.Topic, release: Callable[[], None]) -> None:
        """Create a subscription without a channel. `release` is called when the subscription is over: then it
        does not count any more.
        """
        self._all = all
        self._release = release
        self.topic = topic
        self.channel: Channel | None = None
        self._started = False
        self._closed = False

    def wake(self) -> None:
        if self._started and not self._closed:
            self._all.sender.ready(self)

    async def take_turn(self) -> bool:
        return await self._all.forward(self)

    @property
    def flow(self) -> CursorChannel | None:
        """Its messages, where those of several subscriptions can be sent together."""
        return self.channel.flow if self.channel is not None and self._all.may_send(self) else None

    @property
    def work(self) -> tuple[Channel, Form] | None:
        """See `MessageSource.work`."""
        channel = self.channel
        if channel is None or not channel.competes or not self._all.may_send(self):
            return None
        return channel, self._all.form

    @property
    def after(self) -> int:
        """The position in the backlog of the end of what must leave before its next message."""
        return 0 if self.channel is None else self.channel.after

    def start(self) -> None:
        """Allow messages: Subscribed is being sent, so they may follow."""
        self._started = True
        self._attach()
        self.wake()

    @property
    def is_started(self) -> bool:
        return self._started

    def _attach(self) -> None:
        channel = self.channel
        if self._started and channel is not None and self._all.may_send(self):
            channel.attach(self._all.sender)

    def retire(self) -> None:
        """See `omq.drivers.seam.Channel.retire`."""
        if self.channel is not None:
            self.channel.retire()

    def close(self) -> None:
        """End the subscription, and its channel now or at the end of the send that is under way."""
        if not self._closed:
            self._closed = True
            self._release()
        if not self._all.is_sending(self):
            self.close_channel()

    def close_channel(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()

    def is_closed(self) -> bool:
        return self._closed

    def replaced(self, channel: Channel) -> None:
        if self.channel is not None and channel.competes:
            hand_over(self.channel, channel)
        self.channel = channel
        self._all.sender.forwarder.opened(channel)
        self._attach()
        self.wake()

    def ended(self, end: EndReason) -> None:
        self._all.ended(self)


class _Credit(Struct, frozen=True):
    """A Request that came before its Subscribe. It takes memory like a subscription, and counts as one."""

    topic: int
    """The id of the topic. A later topic may have the same name."""
    credit: int
    release: Callable[[], None]
    """Called when it does not count any more; the subscription takes it over."""


class Subscriptions:
    """The subscriptions of one connection, by the names of their topics."""

    __slots__ = ("_by_name", "_credits", "_is_over", "_replies", "_sending", "form", "sender", "unreadable")

    def __init__(self, sender: Sender, replies: Replies) -> None:
        self.sender = sender
        self._replies = replies
        self.form: Form = Frames()
        """The form of their messages."""
        self._by_name: dict[bytes, OmqSubscription] = {}
        self._sending: OmqSubscription | None = None
        self._is_over = False
        """Whether no more messages are sent."""
        self.unreadable: bytes | None = None
        """The Error with which the connection ends, after a topic could not be read from its store."""
        # By the names of topics that are not subscribed yet; from the first one on.
        self._credits: dict[bytes, _Credit] | None = None

    # -- for commands --------------------------------------------------------------------------------------

    def check_free(self, topic: bytes) -> None:
        """Raise Refused if the connection is subscribed to this topic."""
        if topic in self._by_name:
            raise Refused(Reason.INVALID, "this connection is subscribed already")

    def make(self, topic: model.Topic, release: Callable[[], None]) -> OmqSubscription:
        """Return a subscription that has no channel yet. It calls `release` when it is over."""
        return OmqSubscription(self, topic, release)

    def add(self, subscription: OmqSubscription, channel: Channel) -> None:
        """Give a subscription its channel, and answer with Subscribed."""
        topic = subscription.topic
        subscription.channel = channel
        self.sender.forwarder.opened(channel)
        self._by_name[topic.topic] = subscription
        waiting = None if self._credits is None else self._credits.pop(topic.topic, None)
        if waiting is not None and waiting.topic == topic.id and channel.competes:
            channel.grant(waiting.credit, CreditKind.WINDOW)
        self._replies.add(types.Subscribed(topic), subscription.start)

    def unsubscribe(self, topic: bytes) -> None:
        """End a subscription, and answer with Unsubscribed. Raises Refused."""
        subscription = self._find(topic)
        self._close(subscription)
        self._replies.add(types.Unsubscribed(subscription.topic))

    def is_open(self, topic: bytes) -> bool:
        """Return whether the connection is subscribed to this topic."""
        return topic in self._by_name

    def release_of_credit(self, topic: bytes) -> Callable[[], None] | None:
        """Return the `release` of the early credit for this topic; None if there is none."""
        waiting = None if self._credits is None else self._credits.get(topic)
        return None if waiting is None else waiting.release

    def request(self, topic: bytes, credit: int) -> None:
        """Grant credit to an open subscription. Raises Refused."""
        self._round_robin_channel(topic).grant(credit, CreditKind.WINDOW)

    def request_early(self, topic: model.Topic, credit: int, release: Callable[[], None]) -> None:
        """Keep credit for a later subscription, which takes over `release`."""
        if self._credits is None:
            self._credits = {}
        self._credits[topic.topic] = _Credit(topic.id, credit, release)

    def received(self, topic: bytes, messages: Sequence[int]) -> Sequence[int]:
        """Confirm messages. Return those that are not waiting to be confirmed here. Raise Refused if none can
        be.
        """
        channel = self._round_robin_channel(topic)
        if not channel.settles:
            raise Refused(Reason.INVALID, "only a subscriber that sent a Request confirms messages")
        return [each for each in messages if not channel.settle(range(each, each + 1), ACCEPTED)]

    def _find(self, topic: bytes) -> OmqSubscription:
        subscription = self._by_name.get(topic)
        if subscription is None:
            raise Refused(Reason.INVALID, "this connection is not subscribed")
        return subscription

    def _round_robin_channel(self, topic: bytes) -> Channel:
        channel = self._find(topic).channel
        if channel is None or not channel.competes:
            raise Refused(Reason.INVALID, "only messages of a round-robin topic are confirmed")
        return channel

    # -- for the sender ------------------------------------------------------------------------------------

    async def forward(self, subscription: OmqSubscription) -> bool:
        """Send the messages that the channel of one subscription has ready; return whether it has more.

        Sets `unreadable` if they cannot be read. Raises trio.BrokenResourceError.
        """
        channel = subscription.channel
        if not self.may_send(subscription) or channel is None or not channel.ready():
            return False
        self._sending = subscription
        topic = subscription.topic.topic
        try:
            gone = await self.sender.forwarder.forward(
                topic, channel, self.form, lambda: self.may_send(subscription)
            )
        except StoreError as problem:
            what = f"{for_clients(problem)}, the connection is closed"
            self.unreadable = sentence("Subscribe", topic, what)
            return False
        finally:
            self._sending = None
            if subscription.is_closed():
                subscription.close_channel()
        if gone is not None and self.may_send(subscription):
            what = words_of_gone(gone.first, gone.last, gone.reason)
            await self.sender.forwarder.send([encode(types.Error(sentence("Subscribe", topic, what)))])
        return self.may_send(subscription) and channel.ready()

    def may_send(self, subscription: OmqSubscription) -> bool:
        """Return whether messages of this subscription may be sent."""
        return not self._is_over and not subscription.is_closed()

    def channels(self) -> Iterator[Channel]:
        """Yield the open channels; others may come and go meanwhile. A channel in the middle of a send stays
        open until it is sent.
        """
        subscriptions = list(self._by_name.values())
        sending = self._sending
        if sending is not None and self._by_name.get(sending.topic.topic) is not sending:
            subscriptions.append(sending)
        for each in subscriptions:
            if each.channel is not None:
                yield each.channel

    def workers(self) -> list[OmqSubscription]:
        """Return the subscriptions to round-robin topics."""
        return [each for each in self._by_name.values() if each.channel is not None and each.channel.competes]

    def unstarted(self) -> list[OmqSubscription]:
        """Return the subscriptions whose Subscribed is not sent yet, so they get no messages."""
        return [each for each in self._by_name.values() if not each.is_started]

    def __len__(self) -> int:
        return len(self._by_name)

    def statistics(self) -> list[SubscriptionStatistics]:
        """Return the statistics of the open subscriptions."""
        return [
            SubscriptionStatistics(each.topic, each.channel.statistics())
            for each in self._by_name.values()
            if each.channel is not None
        ]

    def open_channels(self) -> Iterator[tuple[model.Topic, Channel]]:
        """Yield the subscriptions that are open now: the topic and the channel of each."""
        for each in list(self._by_name.values()):
            if each.channel is not None:
                yield each.topic, each.channel

    def finish(self) -> Iterator[None]:
        """Send the messages that there are, and no later ones: tell one subscription in each step."""
        for subscription in list(self._by_name.values()):
            if subscription.channel is not None:
                subscription.channel.finish()
                yield

    def ending(self) -> Iterator[OmqSubscription]:
        """Send no more messages, and yield all subscriptions, which must be closed."""
        self._is_over = True
        subscriptions = list(self._by_name.values())
        self._by_name.clear()
        return iter(subscriptions)

    def free(self) -> Iterator[None]:
        """Drop early credit, in steps."""
        credits, self._credits = self._credits, None
        for waiting in (credits or {}).values():
            waiting.release()
            yield

    def is_sending(self, subscription: OmqSubscription) -> bool:
        """Return whether messages of this subscription are being sent."""
        return subscription is self._sending

    def _close(self, subscription: OmqSubscription) -> None:
        self._by_name.pop(subscription.topic.topic, None)
        subscription.close()

    # -- for channels --------------------------------------------------------------------------------------

    def ended(self, subscription: OmqSubscription) -> None:
        """Tell the client that it is unsubscribed: the topic was deleted, and its channel with it."""
        subscription.channel = None
        if subscription.is_closed():
            return  # by the client, while a message was being sent: that is answered
        self._by_name.pop(subscription.topic.topic, None)
        subscription.close()
        self._replies.add(types.Unsubscribed(subscription.topic))
