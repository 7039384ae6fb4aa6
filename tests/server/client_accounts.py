"""Configured clients of a server under test, and connections of them."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from quietness import pass_time
from trio.testing import MockClock

from omq.access.hashes import hash_of
from omq.config import ClientConfig

from .conversation import (
    VERSION_ONE,
    Conversation,
    Host,
)

SECRET = "hush-4711"
HASH = str(hash_of(SECRET.encode()))

UNKNOWN = b"Connect: no client has this name and secret"


def client(name: str, **settings: Any) -> ClientConfig:
    """Return a `[[clients]]` table; where no rights are given, with all of them."""
    rights = {right: ["*"] for right in ("declare", "publish", "subscribe", "delete")}
    if settings.keys() & rights.keys():
        rights = {}
    return ClientConfig(name=name, secret=HASH, **(rights | settings))


async def open_as(host: Host, name: str, secret: str = SECRET) -> Conversation:
    """Return a connection that has said who it is."""
    conversation = await host.open()
    await conversation.send(VERSION_ONE + b'(Connect 1 "%s:%s")\n' % (name.encode(), secret.encode()))
    assert await conversation.octets(8) == VERSION_ONE
    return conversation


async def enter(host: Host, name: str, secret: str = SECRET) -> Conversation:
    """Return a connection that has said who it is, and was let in."""
    conversation = await open_as(host, name, secret)
    await conversation.confirm()
    return conversation


@asynccontextmanager
async def passing(clock: MockClock) -> AsyncIterator[None]:
    """Let much time pass within the block. What is in it must not be in a hurry."""

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_time, clock, math.inf, 0.5)
        yield
        nursery.cancel_scope.cancel()
