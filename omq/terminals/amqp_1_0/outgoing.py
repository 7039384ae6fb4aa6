"""A link on which the server sends: the terminal's side of a channel of the seam, and its turns to send."""

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
    EndReason,
    Flow,
    Modified,
    Outcome,
    Unavailable,
)
from omq.logs import quoted
from omq.protocol.amqp_1_0 import events, performatives
from omq.protocol.amqp_1_0.link import SendingLink
from omq.terminals.amqp_1_0.forms import Transfers
from omq.terminals.connection.sender import Sender
from omq_storage.errors import StoreError

C = TypeVar("C", bound=Channel)

Failed = Callable[[SendingLink, Failure], None]


class Outgoing(Generic[C]):
    """One link (`omq.drivers.seam.Subscriber`), and a source of its connection's sender."""

    is_exempt = False

    def __init__(
        self,
        link: SendingLink,
        topic: model.Topic,
        sender: Sender,
        place: Callable[[], None],
        failed: Failed,
        opened: Callable[[Sequence[SendingLink]], None],
        *,
        annotates: bool = False,
    ) -> None:
        """Create a consumer without a channel. `place` is called when it does not count as a subscription any
        more, perhaps several times; `failed` when it must be detached, with the reason; `opened` with links
        that may send now, and could not. `annotates`: its messages have their ids and times.
        """
        self.link = link
        self.topic = topic
        self.channel: C | None = None
        self.is_replay = False
        """Whether a gap in the messages must be told: the client asked for them by their ids."""
        self._form = Transfers(link, annotates=annotates)
        self._sender = sender
        self._place = place
        self._failed = failed
        self._opened = opened
        self._is_sending = False
        self._is_closed = False
        self._flowed = False
        """Whether the client stated its credit during a send."""

    @property
    def flow(self) -> Flow | None:
        return None

    def open(self, channel: C) -> None:
        """Give it its channel. It gets nothing before the client gives credit."""
        self.channel = channel
        channel.grant(0, CreditKind.COUNT)
        self._sender.forwarder.opened(channel)

    def credited(self) -> None:
        """Grant the credit that the client stated, after the current send if there is one."""
        if self._is_sending:
            self._flowed = True  # what is taken and not written would count twice
        elif self.channel is not None:
            self._grant(self.channel)

    def _grant(self, channel: C) -> None:
        channel.grant(self.link.credit, CreditKind.COUNT)
        if self.link.drain:
            channel.drain(self._drained)
        self.wake()

    def _drained(self, left: int) -> None:
        if self.link.is_attached:
            self.link.drained()
            self._sender.signal.set()

    def settle(self, ids: range, told: events.Outcome) -> None:
        """Settle messages as the client says."""
        if self.channel is not None:
            self.channel.settle(ids, outcome_of(told.state))

    def close(self) -> None:
        """End it: what is not settled returns to the topic, after the send that is under way."""
        self._place()
        self._is_closed = True
        if not self._is_sending:
            self._close_channel()

    def _close_channel(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()

    # -- the sender's side ---------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self._is_closed:
            self._sender.ready(self)

    def _may_send(self) -> bool:
        return not self._is_closed and self.link.is_attached and self.link.session.may_transfer

    async def take_turn(self) -> bool:
        channel = self.channel
        if channel is None or not self._may_send() or not channel.ready():
            return False
        self._is_sending = True
        self.link.session.begin_send()
        gone: Unavailable | None = None
        try:
            gone = await self._sender.forwarder.forward(
                self.topic.topic, channel, self._form, lambda: not self._is_closed
            )
        except StoreError as problem:
            failure = for_clients(problem)
            self._failed(self.link, Failure(failure.reason, f"{quoted(self.topic.topic)}: {failure.text}"))
            return False
        finally:
            self._is_sending = False
            self._opened(self.link.session.end_send())
            self._sent(channel)
        if gone is not None and self.is_replay:
            text = f"the messages {gone.first} to {gone.last} are not available: {gone.reason}"
            self._failed(self.link, Failure(Reason.NO_REPLAY, text))
        return self._may_send() and channel.ready()

    def _sent(self, channel: C) -> None:
        """Do what waited for the end of a send, which is over with or without success."""
        for ids in self._form.take_sent():
            channel.settle(ids, ACCEPTED)
        if self._is_closed:
            self._close_channel()
        elif self._flowed:
            self._flowed = False
            self._grant(channel)

    # -- the driver's side ---------------------------------------------------------------------------------

    def replaced(self, channel: C) -> None:
        self.open(channel)
        self.credited()

    def ended(self, end: EndReason) -> None:
        self.channel = None
        self._place()
        if not self._is_closed:
            self._is_closed = True
            self._failed(self.link, Failure(Reason.DELETED, "the topic was deleted"))


def outcome_of(state: performatives.State | None) -> Outcome:
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
