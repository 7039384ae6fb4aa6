"""A feed: messages out, on a DMP connection (6-DMP, "Receiving messages" and "Heartbeating"; design, 5).

Two tasks: one writes envelopes and null messages, the other reads, to see when the client is done. Once the
feed is ready nothing but envelopes goes to the client, so what else there is to say goes to its principal.
"""

from typing import assert_never

import trio

from omq.access.repeats import Repeats
from omq.drivers.channel import Channel, Cut, Gone, Messages
from omq.drivers.feed import Feed
from omq.drivers.leases import Principal
from omq.drivers.problems import for_clients
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.signal import Signal
from omq.protocol import dmp_head, dmp_writer
from omq.protocol.dmp_envelopes import NULL_MESSAGE, NUMBER
from omq.protocol.dmp_head import Head
from omq.protocol.sentences import sentence
from omq.terminals.transport import Transport
from storage.blocks import FRAME_HEADER
from storage.errors import StoreError


class FeedService:
    """Serves one feed, from its ready response to the end of its connection."""

    def __init__(
        self, transport: Transport, feed: Feed, principal: Principal, null_seconds: float, untold: Repeats
    ) -> None:
        self._transport = transport
        self._feed = feed
        self._principal = principal
        self._untold = untold
        self._pace = principal.client.sent
        self._null_seconds = null_seconds
        # A message that came without a head has the topic for its key: a consumer of several feeds can tell
        # them apart, and in AMQP's terms that is a message to the default exchange.
        self._head = dmp_head.encode(Head(routing_key=feed.topic.topic))
        self._signal = Signal()
        self._finishing = False
        self._stopping = False

    async def serve(self, received: bytes) -> None:
        """Forward messages until the client is done or the topic is gone. `received` came with the lease.

        A client that goes away without a word ends it too: what it did not get goes to others.
        """
        ending = trio.CancelScope()
        self._feed.start(self._signal.set)
        try:
            with ending:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, ending, received)
                    await self._write()
                    ending.cancel()
        except* trio.BrokenResourceError:
            pass  # that is its right, and no news to anybody

    def sweep(self, now: float) -> None:
        """Nothing to look after: a client that reads nothing is passed over, as any slow subscriber is."""

    def shut_down(self) -> None:
        """The server stops."""
        self._stopping = True
        self._signal.set()

    # -- reading -------------------------------------------------------------------------------------------

    async def _listen(self, ending: trio.CancelScope, received: bytes) -> None:
        """Until the client is done; null messages are all it may send."""
        while True:
            if any(received):
                await self._report("503 INVALID a feed takes no messages")
                ending.cancel()
                return
            received = await self._transport.receive()
            if not received:
                break
        if self._feed.has_ended:
            return
        channel = self._feed.channel
        if isinstance(channel, RoundRobinChannel):
            # It may be closed rather than half-closed, and others can have what it was dealt.
            ending.cancel()
        else:
            channel.finish()
            self._finishing = True
            self._signal.set()

    # -- writing -------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        due = trio.current_time() + self._null_seconds
        while not self._stopping:
            now = trio.current_time()
            if now >= due:
                due = now + self._null_seconds
                await self._transport.send(NULL_MESSAGE)
            if self._feed.has_ended:
                await self._report("404 NOT-FOUND the topic was deleted")
                return
            channel = self._feed.channel
            is_ready = channel.ready()
            if is_ready and (self._pace is None or self._pace.is_open()):
                if not await self._forward(channel):
                    return
            elif self._finishing and not is_ready:
                return
            else:
                opens = self._pace.until if self._pace is not None and is_ready else due
                with trio.move_on_at(min(due, opens)):
                    await self._signal.wait()

    async def _forward(self, channel: Channel) -> bool:
        """Send what the channel has at once; False when the feed cannot go on."""
        try:
            taken = await channel.take()
        except StoreError as problem:
            await self._report(f"541 INTERNAL-ERROR {for_clients(problem)}")
            return False
        if self._feed.has_ended:
            return True
        match taken:
            case Messages():
                before = self._transport.sent
                try:
                    rest = await self._send(channel, taken)
                    del taken  # a stalled client keeps nothing but the rest of one message
                    if rest:
                        await self._transport.send(rest)
                finally:
                    if self._pace is not None:
                        self._pace.spend(self._transport.sent - before)
            case Gone(first, last, reason):
                await self._report(f"messages {first} to {last} are gone: {reason}")
            case None:
                pass
            case _:
                assert_never(taken)
        return True

    async def _send(self, channel: Channel, taken: Messages) -> bytes:
        """Send what was taken. What is still to be sent of one message, where the client stalled and the
        channel can give the others again.
        """
        envelopes = b"".join(map(self._envelopes, taken.cuts))
        before = self._transport.sent
        stalled = False
        try:
            if channel.can_take_again and not taken.is_little:
                stalled = not await self._transport.send_unless_stalled((envelopes,))
            else:
                await self._transport.send(envelopes)
        finally:
            octets = self._transport.sent - before
            if octets == len(envelopes):
                count, end = sum(len(cut.ids) for cut in taken.cuts), octets
            else:
                count, end = _whole_envelopes(envelopes, octets)
            channel.written(count + 1 if stalled and end > octets else count)
        return envelopes[octets:end] if stalled else b""

    def _envelopes(self, cut: Cut) -> bytes:
        """Each message with its own head, or with the one for messages without."""
        if not cut.block.has_heads:
            return dmp_writer.of_block(cut.block, cut.ids, self._head)
        ids = slice(0, cut.ids.stop - cut.ids.start, cut.ids.step)
        heads = cut.block.heads_from(cut.ids.start)[ids]
        bodies = [frame[FRAME_HEADER:] for frame in cut.block.slices(cut.ids.start)[ids]]
        return dmp_writer.for_feed(bodies, [head or self._head for head in heads])

    async def _report(self, what: str) -> None:
        if not await self._principal.report(sentence("Feed", self._feed.topic.topic, what)):
            self._untold.add(f"{self._transport.peer()}: feed {self._feed.topic.topic!r}: {what}")


def _whole_envelopes(envelopes: bytes, octets: int) -> tuple[int, int]:
    """How many of the envelopes lie whole within the first so many octets, and where the next one ends that
    is begun there.
    """
    count = end = 0
    while end < octets:
        end += NUMBER.size + NUMBER.unpack_from(envelopes, end)[0]
        count += end <= octets
    return count, end
