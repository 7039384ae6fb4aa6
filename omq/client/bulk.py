"""Read stored blocks in bulk with Fetch, on a separate connection, so that other traffic need not wait."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from omq.client.connections import Settings
from omq.client.conversation import Conversation, conversing, failure
from omq.client.errors import Gap, ProtocolError
from omq.protocol.omq.blocks import Block, DamagedBlock, unpack_sent
from omq.protocol.omq.client import BlockFetched, ClientSession, MessagesGone
from omq.protocol.omq.types import Fetch

LONGEST_FRAME = 1 << 31


class Blocks:
    """An iterator over the blocks of a Fetch: whole stored blocks, verified, in the order of their ids.

    It reports gaps between them to the `on_gap` of `connect`. Iterating raises ServerError when the server
    ends the Fetch, and ConnectionLost.
    """

    def __init__(
        self,
        conversation: Conversation,
        session: ClientSession[None],
        topic: bytes,
        on_gap: Callable[[Gap], None],
    ) -> None:
        self.next: int | None = None
        """The id of the next message, after the whole range was received."""
        self._conversation = conversation
        self._session = session
        self._topic = topic
        self._on_gap = on_gap

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Block:
        while self.next is None:
            match await self._conversation.event():
                case BlockFetched(_, value):
                    block = self._unpacked(value)
                    if block.count:
                        return block
                    self._session.end_fetch()
                    self.next = block.first
                case MessagesGone(_, _, first, last, why):
                    self._on_gap(Gap(self._topic, first, last, why))
                case other:
                    raise failure(other, "Fetch", self._topic)
        raise StopAsyncIteration

    @staticmethod
    def _unpacked(value: bytes | memoryview) -> Block:
        try:
            return unpack_sent(value)
        except DamagedBlock as error:
            raise ProtocolError(f"the server sent something that is no block: {error}") from error


@asynccontextmanager
async def fetching(settings: Settings, command: Fetch) -> AsyncIterator[Blocks]:
    """Run a Fetch on a connection that closes at the end of the block.

    Raises ConnectionFailed and HandshakeRefused.
    """
    session: ClientSession[None] = ClientSession(settings.id, LONGEST_FRAME)
    session.ask(command, None)
    async with conversing(settings, session) as conversation:
        yield Blocks(conversation, session, command.topic, settings.on_gap)
