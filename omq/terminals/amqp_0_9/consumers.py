"""A consumer: the terminal's side of a channel of the seam, and its turns to send.

A basic.get is one, too, but for one message at a time: see `omq.terminals.amqp_0_9.getting`.
"""

from collections.abc import Callable

import trio

from omq import model
from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.immediate_sends import AT_ONCE_OCTETS
from omq.drivers.problems import for_clients
from omq.drivers.seam import Channel, CreditKind, CursorChannel, DirectSender, EndReason, Selection
from omq.drivers.shared_window import SharedWindow
from omq.logs import quoted
from omq.terminals.amqp_0_9.contents import Contents
from omq.terminals.amqp_0_9.forms import ConsumerForm
from omq.terminals.connection.sender import Sender
from omq_storage.blocks import Block
from omq_storage.errors import StoreError

TellUnreadable = Callable[["Consumer", str], None]


class Consumer:
    """One consumer (`omq.drivers.seam.Subscriber`), and a source of its connection's sender."""

    __slots__ = (
        "_closed", "_contents", "_ended", "_finished", "_in_turn", "_release", "_sender", "_started",
        "_unreadable", "_woken", "channel", "form", "is_paused", "no_ack", "order", "shared", "tag", "topic",
        "window",
    )  # fmt: skip

    is_exempt = False
    work = None
    after = 0

    def __init__(
        self,
        tag: bytes,
        topic: model.Topic,
        sender: Sender,
        contents: Contents,
        form: ConsumerForm,
        woken: Callable[["Consumer"], None],
        release: Callable[[], None],
        ended: Callable[["Consumer"], None],
        unreadable: TellUnreadable,
        *,
        no_ack: bool,
    ) -> None:
        """Create a consumer without a channel. `woken` is called when there may be messages: `send_soon` or
        `send_at_once` follows. `release` is called when it does not count as a subscription any more, `ended`
        when its queue was deleted, and `unreadable` when its queue cannot be read from the store, with the
        reason.
        """
        self.tag = tag
        self.topic = topic
        self.no_ack = no_ack
        self.form = form
        self.channel: Channel | None = None
        self.is_paused = False
        """Whether the client has turned the flow off."""
        self.window: int | None = None
        self.shared: SharedWindow | None = None
        """The window that all consumers of its channel share."""
        self.order: DeliveryOrder | None = None
        """The order in which this consumer and others of its channel get the messages of their queue."""
        self._sender = sender
        self._contents = contents
        self._in_turn = False
        self._woken = woken
        self._release = release
        self._ended = ended
        self._unreadable = unreadable
        self._started = False
        self._closed = False
        self._finished: trio.Event | None = None

    @property
    def flow(self) -> CursorChannel | None:
        return None

    @property
    def direct(self) -> DirectSender:
        return self

    def open(self, channel: Channel) -> None:
        """Give it its channel."""
        self.channel = self.form.source = channel
        self._sender.forwarder.opened(channel)
        if self.is_paused:
            channel.hold()

    def grant(self, window: int) -> None:
        """Let at most `window` messages be unacknowledged at a time."""
        self.window = window
        if self.channel is not None and not self.no_ack:
            self.channel.grant(window, CreditKind.WINDOW)

    def share(self, window: SharedWindow | None) -> None:
        """Let a window that all consumers of the channel share limit this one, too; None: no longer. A full
        one stops consumers without acknowledgements, too, whose messages do not count in it.
        """
        self.shared = window
        if self.channel is not None:
            self.channel.share(window)

    def follow(self, order: DeliveryOrder | None) -> None:
        """Get messages in this order; None: no other consumer of the channel gets messages of the queue."""
        self.order = order
        if self.channel is not None:
            self.channel.follow(order)

    def start(self) -> None:
        """Allow messages: the client is about to be told the tag, so they may follow."""
        self._started = True
        if self.channel is not None and self.channel.ready():  # without messages it takes no turn
            self.wake()

    def pause(self, paused: bool) -> None:
        """Turn the flow of messages off or on."""
        if paused == self.is_paused:
            return
        self.is_paused = paused
        if self.channel is None:
            return
        if paused:
            self.channel.hold()
        elif not self._sender.forwarder.is_stalled:
            self.channel.release()
            self.wake()

    async def finish(self, most: int) -> None:
        """Send the messages that are on their way to it, and N (`most`) at most of those that its queue has
        for it now. It gets no others. `cancel` must follow.
        """
        channel = self.channel
        if channel is None or self.is_paused or self._sender.forwarder.is_stalled:
            return
        finished = self._finished = trio.Event()
        channel.drain(lambda _: finished.set(), most)
        if not finished.is_set():
            await finished.wait()

    def cancel(self) -> None:
        """Deliver nothing more. Messages that are not acknowledged stay with it until its channel closes."""
        if self.channel is not None:
            self.channel.cancel()
        self._leave()

    @property
    def has_started(self) -> bool:
        """Whether the client was told its tag, or is about to be."""
        return self._started

    @property
    def has_unacknowledged(self) -> bool:
        """Whether messages are not acknowledged yet."""
        return self.channel is not None and self.channel.statistics().unsettled > 0

    def retire(self) -> None:
        """See `omq.drivers.seam.Channel.retire`."""
        if self.channel is not None:
            self.channel.retire()

    def close(self) -> None:
        """End the consumer: unacknowledged messages return to the queue, after a message that has begun. If
        the connection ends, that message does not go on.
        """
        self._leave()
        self._closed = True
        self._stop_waiting()
        if not self._in_turn:
            self._end()

    def _end(self) -> None:
        """Close the channel of a consumer that is closed, unless a message must go on."""
        if self._contents.is_abandoned:
            self._contents.leave(self)
        if not self._is_begun:
            self._close_channel()

    def _stop_waiting(self) -> None:
        """Let `finish` wait no more: the channel of the seam has ended."""
        if self._finished is not None:
            self._finished.set()

    def _leave(self) -> None:
        release, self._release = self._release, _nothing
        release()

    def _close_channel(self) -> None:
        channel, self.channel = self.channel, None
        self.form.source = None  # its subscriber is this consumer
        if channel is not None:
            channel.close()

    # -- the sender's side ---------------------------------------------------------------------------------

    def wake(self) -> None:
        if self._started and not self._is_over:
            self._woken(self)

    def send_soon(self) -> None:
        """Let the sending task send the ready messages."""
        self._sender.ready(self)

    def send_at_once(self) -> None:
        """Send the ready messages in this task, if they are few. The sending task sends the rest.

        The sender may send at once, so no message is begun: a source that has begun one is ready.
        """
        channel = self.form.source
        if channel is None or not self._may_send(channel):
            return
        if selections := channel.take_at_once(AT_ONCE_OCTETS):
            self._sender.forward_at_once(channel, self.form, selections)
        if self._may_send(channel):
            self.send_soon()

    # -- a message that its queue does not keep: see `omq.drivers.seam.DirectSender` -------------------------

    def may_send_now(self) -> bool:
        # Without `_is_over`: this is asked for each message.
        contents = self._contents
        if not self._started or self._closed or contents.is_over or self.is_paused or not contents.is_clear:
            return False
        return self.channel is not None and self._sender.may_send_at_once()

    def send_now(self, block: Block) -> bool:
        assert self.channel is not None
        selections = (Selection(block, range(block.first, block.next)),)
        octets = self._sender.send_whole(self.form.whole(selections))
        self.channel.traffic.octets_out += octets
        return octets > 0

    async def take_turn(self) -> bool:
        channel = self.form.source
        if channel is None or not (self._is_begun or self._may_send(channel)):
            return False
        self._in_turn = True
        try:
            # A client cannot be told that messages are gone.
            if not await self._contents.send(
                self, self.topic.topic, channel, self.form, lambda: not self._is_over
            ):
                return False
        except StoreError as problem:
            self._unreadable(self, f"{quoted(self.topic.topic)}: {for_clients(problem)}")
            return False
        finally:
            self._in_turn = False
            if self._closed:
                self._end()
        return self._is_begun or self._may_send(channel)

    @property
    def _is_begun(self) -> bool:
        return self._contents.is_begun_by(self)

    @property
    def _is_over(self) -> bool:
        return self._closed or self._contents.is_over

    def _may_send(self, channel: Channel) -> bool:
        return not self._is_over and not self.is_paused and self.channel is channel and channel.ready()

    # -- the driver's side ---------------------------------------------------------------------------------

    def replaced(self, channel: Channel) -> None:
        self._stop_waiting()
        self.open(channel)
        channel.follow(self.order)
        self.share(self.shared)
        if self.window is not None:
            self.grant(self.window)
        self.wake()

    def ended(self, end: EndReason) -> None:
        self.channel = None
        self._stop_waiting()
        self._leave()
        if not self._closed:
            self._closed = True
            self._ended(self)
        if not self._in_turn:
            self._end()


def _nothing() -> None:
    """Do nothing: the consumer does not count as a subscription any more."""
