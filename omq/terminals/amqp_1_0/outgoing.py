"""A link on which the server sends: the terminal's side of a channel of the seam, and its turns to send.

A long message is sent a piece at a time, and other links have their turns between two pieces. While the
window of the session is closed, the rest of the message stays where its channel has it. A detach ends the
delivery that is begun, and its message goes back to the topic.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, assert_never

from omq import model
from omq.drivers.problems import for_clients
from omq.drivers.reasons import Failure, Reason
from omq.drivers.seam import (
    ACCEPTED,
    REJECTED,
    RELEASED,
    Channel,
    CreditKind,
    CursorChannel,
    EndReason,
    Modified,
    Outcome,
    Unavailable,
)
from omq.logs import quoted
from omq.protocol.amqp_1_0 import events, performatives
from omq.protocol.amqp_1_0.link import SendingLink
from omq.terminals.amqp_1_0.forms import Transfers
from omq.terminals.connection.remainders import Unfinished
from omq.terminals.connection.sender import Sender
from omq_storage.errors import StoreError

C = TypeVar("C", bound=Channel)

Failed = Callable[[SendingLink, Failure], None]

Missed = Callable[[bytes, Unavailable], None]
"""Logs that a consumer misses messages of a topic."""


class Outgoing(Generic[C]):
    """One link (`omq.drivers.seam.Subscriber`), and a source of its connection's sender."""

    is_exempt = False
    work = None
    after = 0
    direct = None

    def __init__(
        self,
        link: SendingLink,
        topic: model.Topic,
        sender: Sender,
        release: Callable[[], None],
        failed: Failed,
        opened: Callable[[Sequence[SendingLink]], None],
        missed: Missed,
        *,
        annotates: bool = False,
    ) -> None:
        """Create a consumer without a channel. `release` is called when it does not count as a subscription
        any more, perhaps several times; `failed` when it must be detached, with the reason; `opened` with
        links that may send now, and could not; `missed` with a gap that the client is not told. `annotates`:
        its messages have their ids and times.
        """
        self.link = link
        self.topic = topic
        self.channel: C | None = None
        self.is_replay = False
        """Whether a gap in the messages must be told: the client asked for them by their ids."""
        self._form = Transfers(link, annotates=annotates)
        self._sender = sender
        self._release = release
        self._failed = failed
        self._opened = opened
        self._missed = missed
        self._is_sending = False
        self._is_closed = False
        self._flowed = False
        """Whether the client stated its credit during a send."""
        self._begun: tuple[C, Unfinished] | None = None
        """The rest of the message that is begun, and its channel."""

    @property
    def flow(self) -> CursorChannel | None:
        return None

    def open(self, channel: C) -> None:
        """Give it its channel. It gets nothing before the client gives credit."""
        self.channel = channel
        channel.grant(0, CreditKind.COUNT)
        self._sender.forwarder.opened(channel)

    def credited(self) -> None:
        """Grant the credit that the client stated, after the current message if one is being sent."""
        if self._is_sending or self._begun is not None:
            self._flowed = True  # messages that are taken and not written would count twice
        elif self.channel is not None:
            self._grant(self.channel)

    def _grant(self, channel: C) -> None:
        channel.grant(self.link.credit, CreditKind.COUNT)
        if self.link.drain:
            channel.drain(self._drained)
        self.wake()

    def _drained(self, left: int) -> None:
        """Give the rest of the credit back, unless the client has stated another one since, which is granted
        next.
        """
        if self.link.is_attached and not self._flowed:
            self.link.drained()
            self._sender.signal.set()

    def settle(self, ids: range, told: events.SettledByPeer) -> None:
        """Settle messages as the client says."""
        if self.channel is not None:
            self.channel.settle(ids, outcome_of(told.state))

    def has_left(self, message: int) -> None:
        """Note that all of a settled message has left, after it waited for the window of the session."""
        if self.channel is not None:
            self.channel.settle(range(message, message + 1), ACCEPTED)

    def retire(self) -> None:
        """See `omq.drivers.seam.Channel.retire`. The link is detached, so it sends nothing more, either."""
        if self.channel is not None:
            self.channel.retire()

    def close(self) -> None:
        """End the link: unsettled messages return to the topic, after the piece that is being sent."""
        self._release()
        self._is_closed = True
        if not self._is_sending:
            self._close_channel()

    def _close_channel(self) -> None:
        begun, self._begun = self._begun, None
        channel, self.channel = self.channel, None
        if begun is not None:
            self._sender.forwarder.paused.drop(begun[1])
        if channel is not None:
            channel.close()

    # -- the sender's side ---------------------------------------------------------------------------------

    def wake(self) -> None:
        if self._is_wanted():
            self._sender.ready(self)

    def _may_send(self) -> bool:
        return self._is_wanted() and self.link.session.outgoing.may_transfer

    def _has_more(self, channel: C) -> bool:
        if self._begun is None:
            return channel.ready()
        return self._form.may_go_on()

    async def take_turn(self) -> bool:
        channel, rest = (self.channel, None) if self._begun is None else self._begun
        if channel is None or not self._may_send() or not self._has_more(channel):
            return False
        self._is_sending = True
        self.link.session.outgoing.begin_send()
        self._begun = None
        sent: Unavailable | Unfinished | None = None
        try:
            sent = await self._send(channel, rest)
        except StoreError as problem:
            failure = for_clients(problem)
            self._failed(self.link, Failure(failure.reason, f"{quoted(self.topic.topic)}: {failure.text}"))
            return False
        finally:
            self._is_sending = False
            if isinstance(sent, Unfinished):
                self._begun = channel, sent
            self._opened(self.link.session.outgoing.end_send())
            self._sent(channel)
        if isinstance(sent, Unavailable) and not self._is_closed:
            if self.is_replay:
                text = f"the messages {sent.first} to {sent.last} are not available: {sent.reason}"
                self._failed(self.link, Failure(Reason.NO_REPLAY, text))
            else:
                self._missed(self.topic.topic, sent)
        if self._may_send() and self._has_more(channel):
            return True
        if self._begun is not None:
            self._sender.forwarder.paused.leave(self._begun[1])
        return False

    async def _send(self, channel: C, rest: Unfinished | None) -> Unavailable | Unfinished | None:
        """Send the messages that the channel has ready, or the next piece of a message that has begun."""
        forwarder = self._sender.forwarder
        if rest is not None:
            return await forwarder.go_on(self.topic.topic, channel, rest, self._form.piece)
        return await forwarder.forward_piece(
            self.topic.topic, channel, self._form, self._is_wanted, self._form.piece
        )

    def _is_wanted(self) -> bool:
        return not self._is_closed and self.link.is_attached

    def _sent(self, channel: C) -> None:
        """Finish the work that waited for the end of a send, whether the send succeeded or not."""
        for ids in self._form.take_sent():
            channel.settle(ids, ACCEPTED)
        if self._is_closed:
            self._close_channel()
        elif self._flowed and self._begun is None and self.channel is not None:
            self._flowed = False
            self._grant(self.channel)

    # -- the driver's side ---------------------------------------------------------------------------------

    def replaced(self, channel: C) -> None:
        self.open(channel)
        self.credited()

    def ended(self, end: EndReason) -> None:
        self.channel = None
        self._release()
        if not self._is_closed:
            self._is_closed = True
            self._failed(self.link, Failure(Reason.DELETED, "the topic was deleted"))


def outcome_of(state: performatives.DeliveryState | None) -> Outcome:
    """Return the outcome for a delivery state. A client that settles without one has not said that it is done
    with the message.
    """
    match state:
        case performatives.Accepted():
            return ACCEPTED
        case performatives.Rejected():
            return REJECTED
        case performatives.Released() | performatives.Received() | None:
            return RELEASED
        case performatives.Modified(failed, undeliverable):
            return Modified(failed, undeliverable)
        case _:
            assert_never(state)
