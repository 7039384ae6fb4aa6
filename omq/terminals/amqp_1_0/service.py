"""Executes the transfers, dispositions, flows, attaches and ends of the client of an open connection.

The terminal gives each event to the service in order. The service knows nothing of the states of the
connection, except that its client is known.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import assert_never

import trio

from omq.access.session import Session
from omq.drivers.slices import Slices
from omq.protocol.amqp_1_0.events import (
    Aborted,
    Attaching,
    Credit,
    CreditUsed,
    Detached,
    Part,
    SessionEnded,
    SettledByPeer,
    StoredRun,
    WindowOpened,
)
from omq.terminals.amqp_1_0.attaching import Attacher
from omq.terminals.amqp_1_0.links import Links, QueueConsumers
from omq.terminals.connection.context import Context
from omq.terminals.connection.duplex import Duplex
from omq.terminals.connection.endings import Endings
from omq.terminals.connection.held import HeldPublishes

COPIED_IN_TURN = 128 << 10
"""The octets of messages in several frames after which the other connections have their turn."""

Immediate = StoredRun | Aborted | CreditUsed | Credit | WindowOpened
"""The events that are executed without a wait."""

Served = Immediate | SettledByPeer | Part | Attaching | Detached | SessionEnded
"""The events of an open connection that the service executes."""


class Service:
    """The service of one connection."""

    __slots__ = ("_at_once", "_copied", "_endings", "_excused", "links", "session")

    def __init__(
        self,
        session: Session,
        context: Context,
        duplex: Duplex,
        peer: str,
        endings: Endings,
        wake: Callable[[], None],
    ) -> None:
        """Create the service of a client. `endings` finishes links that are over. `wake` is called when there
        is something to send.
        """
        self.session = session
        self._at_once = context.at_once
        self._excused = duplex.excused
        self._endings = endings
        self._copied = 0
        """The octets of messages that were copied since others had their turn."""
        consumers = QueueConsumers()
        held = HeldPublishes(context.memory, session, consumers, duplex.nursery, duplex.excused)
        missed = partial(context.log_gap, peer)
        direct, sender = context.access.direct(session), duplex.sender
        attacher = Attacher(session, direct, context.config, sender, missed, held)
        self.links = Links(session, direct, attacher, sender, wake, consumers, held)

    async def execute(self, event: Served, slices: Slices) -> None:
        """Execute an event, in turn with other connections."""
        at_once, links = self._at_once, self.links
        if isinstance(event, SettledByPeer):
            await self._settle(event, slices)
        elif isinstance(event, Immediate):
            with at_once:
                self._execute_at_once(event)
        elif isinstance(event, Part) and event.is_whole:
            with at_once:
                problem = links.take_whole(event)
            self._copied += len(event.octets)
            if problem is not None:
                at_once.send()
                await links.fail(event.link, problem)
        else:
            at_once.send()
            await self._execute(event, slices)
        if self._copied >= COPIED_IN_TURN:
            self._copied = 0
            at_once.send()
            await trio.lowlevel.checkpoint()
        elif slices.is_over:
            at_once.send()
            await slices.step()

    async def _settle(self, told: SettledByPeer, slices: Slices) -> None:
        """Settle messages whose outcome a consumer told."""
        at_once = self._at_once
        for sent in told.sent:
            with at_once:
                self.links.settle(sent, told)
            if slices.is_over:
                at_once.send()
                await slices.step()

    def _execute_at_once(self, event: Immediate) -> None:
        links = self.links
        match event:
            case StoredRun():
                links.take_run(event)
            case Aborted(link):
                links.abort(link)
            case CreditUsed(link):
                links.renew(link)
            case Credit(link):
                links.credited(link)
            case WindowOpened(opened):
                links.opened(opened)
            case _:
                assert_never(event)

    async def _execute(self, event: Part | Attaching | Detached | SessionEnded, slices: Slices) -> None:
        """Execute an event for which something may be waited."""
        match event:
            case Part():
                await self.links.take(event)
                self._copied += len(event.octets)
            case Attaching(link):
                await self.links.flush()
                with self._excused:  # a topic is made on the disk
                    await self.links.attach(link)
                await slices.step()  # some take long
            case Detached(link):
                await self.links.flush()
                self.links.detached(link)
                await slices.step()
            case SessionEnded(links):
                await self.links.flush()
                self._endings.add(self.links.end(links))
                await self._endings.finish()
            case _:
                assert_never(event)

    # -- ends ----------------------------------------------------------------------------------------------

    async def end_all(self, free: Iterator[None]) -> None:
        """End all links: the client says nothing more. `free` frees the rest of its sessions."""
        await self.links.flush()
        self._endings.add(self.links.end_all(free))
        await self._endings.finish()

    async def finish(self) -> None:
        """Wait until all that the client has published is posted: the connection is closed."""
        await self.links.flush()
        await self.links.post_held()
