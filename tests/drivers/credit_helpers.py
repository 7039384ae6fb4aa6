"""Clients with credit, and topics with numbered messages."""

from served_drivers import (
    Client,
    post,
)

from omq.drivers.driver import Driver
from omq.drivers.seam import (
    CreditKind,
)


def draining(client: Client) -> list[int]:
    """Begin to drain a channel. Returns the list that gets what was left of the count, when it is done."""
    unused: list[int] = []
    client.channel.drain(unused.append)
    return unused


async def counting(driver: Driver, n: int) -> Client:
    client = Client(driver)
    client.channel.grant(n, CreditKind.COUNT)
    return client


async def numbered(driver: Driver, count: int) -> None:
    """Post the messages 1 to `count` of an empty topic, in several blocks."""
    await post(driver, *[b"x"] * (count // 2))
    for _ in range(count - count // 2):
        await post(driver, b"y")
