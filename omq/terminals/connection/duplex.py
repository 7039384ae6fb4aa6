"""The two directions of a connection: one task reads from the client, another one sends.

The AMQP terminals run this loop, and execute the input themselves. The omq terminal has a loop of its own:
its connections continue after the end of their input until everything is answered, and it uses more tasks to
make answers. DMP connections use one direction at a time.
"""

from typing import Protocol

import trio

from omq.access.session import Session
from omq.terminals.connection.admission import ReadAdmission
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.last_outcomes import LastOutcomes
from omq.terminals.connection.liveness import LivenessPause
from omq.terminals.connection.sender import Sender, SendingTerminal
from omq.terminals.connection.statistics import ConnectionStatistics, HeldOctets, Kind

MOST_READ = 256 << 10
"""The octets of one read. Those of long messages are copied, and others wait for that."""


WRITER_NAME = "writer of an AMQP connection"
"""The name of the tasks that write: one string for all, otherwise Trio makes one for each."""


class Endpoint(SendingTerminal, Protocol):
    """The interface of the terminal for this loop."""

    async def feed(self, received: bytes) -> bool:
        """Execute received octets. Return False if nothing more must be read."""

    def stop_reading(self, *, is_evicted: bool) -> None:
        """Let `has_ended` become true when the waiting octets are sent: nothing more is read. `is_evicted`
        says whether the reason is that others need the memory that an incomplete message holds.
        """


class Duplex:
    """Both directions of one connection. Nothing that it owns points back to the terminal, except the sender
    while it runs.
    """

    __slots__ = (
        "_context", "_known", "_reading", "_received", "_transport", "admission", "excused",
        "is_closed_by_peer", "last_outcomes", "nursery", "scope", "sender",
    )  # fmt: skip

    def __init__(self, arrival: Arrival, context: Context, received: bytes) -> None:
        """Create the two directions of a connection from which these octets were received."""
        self._context = context
        memory = context.memory
        self._transport = transport = arrival.transport
        self._known = arrival.known
        self._received = received
        self._reading = trio.CancelScope()
        self.nursery = arrival.nursery
        """The nursery of the tasks of the connection."""
        self.scope = arrival.scope
        """Cancel it to cut the connection off."""
        self.excused = LivenessPause()
        """The times in which the server does not read the connection, so that its client is not silent."""
        self.is_closed_by_peer = False
        """Whether the other side has ended the protocol, and is to close the socket before this side."""
        self.last_outcomes = LastOutcomes()
        """Waits for the outcomes of what was published when the server ends the connection."""
        self.admission = ReadAdmission(transport, memory, self._reading, self.excused, MOST_READ)
        self.sender = Sender(transport, memory.stalled, memory.tails, context.pace, self.scope, context.begin)

    async def serve(self, endpoint: Endpoint) -> None:
        """Read and send until the client is done, or something ends the connection. Always call `close`
        when its tasks have ended.
        """
        self.nursery.start_soon(self.sender.run, endpoint, self.nursery, name=WRITER_NAME)
        try:
            with self._reading:
                received, self._received = self._received, b""
                while not received or await endpoint.feed(received):
                    del received  # an idle connection holds nothing
                    received = self.admission.completed(await self.admission.receive())
                    if not received:
                        break
        except trio.BrokenResourceError:
            self.scope.cancel()
        self.admission.close()
        self.last_outcomes.give_up()
        endpoint.stop_reading(is_evicted=self.admission.is_evicted)
        await self.sender.ended()
        await self._transport.finish(after_peer=self.is_closed_by_peer)

    def admit(self, session: Session) -> None:
        """Note that the client is known, and apply its rate limits to sending. `limit_reading` is for the
        other direction.
        """
        self._known()
        del self._known  # it is needed once, and holds some memory
        self.sender.limit(session.rates.answered, session.rates.sent)

    def log_connected(self, session: Session, what: str = "") -> None:
        """Log that a client has connected, as `Context.log_connected` does."""
        self._context.log_connected(self._transport.peer(), session.name, what)

    async def limit_reading(self, session: Session) -> None:
        """Apply the client's rate limit to reading. What was read before counts, and is waited for."""
        await self.admission.limit(session.rates.received, self._transport.received)

    def statistics(
        self,
        kind: Kind,
        client: bytes | None,
        *,
        messages_in: int,
        unconfirmed: int,
        waiting_answers: int,
        subscriptions: int,
        answers: int,
        publishes: int = 0,
    ) -> ConnectionStatistics:
        """Return the statistics of the connection. `answers`: the octets of waiting answers.
        `publishes`: those of messages without room.
        """
        forwarder = self.sender.forwarder
        return ConnectionStatistics.of(
            self._transport,
            kind,
            client,
            messages_in=messages_in,
            messages_out=self.sender.messages,
            unconfirmed=unconfirmed,
            waiting_answers=waiting_answers,
            subscriptions=subscriptions,
            is_sending=forwarder.is_sending,
            stalled_seconds=forwarder.stalled_seconds,
            held=HeldOctets(
                reading=self.admission.reading,
                unfinished=self.admission.unfinished,
                answers=answers,
                publishes=publishes,
            ),
        )

    def close(self) -> None:
        """Release the memory of the octets that were read, and close the socket."""
        self.admission.close()
        self._transport.close()
