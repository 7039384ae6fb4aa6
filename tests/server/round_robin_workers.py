"""Subscribers of round-robin topics, with and without credit."""

from collections.abc import Sequence

from omq.protocol.omq.types import Subscribed

from .conversation import (
    Conversation,
    Host,
)


async def worker(host: Host, credit: int | None = None, receive_octets: int | None = None) -> Conversation:
    """Return a subscriber, with credit if any."""
    client = await host.connect(receive_octets)
    if credit is not None:
        await client.say(b"(Request t %d)" % credit)
    answer = await client.ask(b"(Subscribe t From_current)")
    assert isinstance(answer, Subscribed), answer
    return client


async def received(client: Conversation, ids: Sequence[int]) -> None:
    """Confirm messages, and wait until the server knows."""
    await client.say(*(b"(Received t %d)" % id for id in ids))
    await client.settle()
