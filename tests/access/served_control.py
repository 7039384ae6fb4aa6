"""The common part of tests of access: the sessions of a server without its sockets, with a real store."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from omq import watching
from omq.access.administered_server import AdministeredServer
from omq.access.control import AccessControl
from omq.access.hashes import SecretHash
from omq.access.session import Session
from omq.config import ClientConfig, Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.memory import Memory
from omq.drivers.seam import Channel, EndReason
from omq.model import Topic
from omq_storage.store import Store


class NoServer:
    """Nothing here watches or controls a server."""

    def totals(self, watchers: int) -> watching.Server:
        raise AssertionError

    def warnings(self, after: int) -> tuple[watching.Line, ...]:
        raise AssertionError

    def connections(self, first: int) -> Iterator[watching.ConnectionInfo | None]:
        raise AssertionError

    def subscribers(self, topic: Topic) -> Iterator[watching.SubscriberInfo | None]:
        raise AssertionError

    def disconnect(self, connection: int, by: bytes) -> bool:
        raise AssertionError


class Subscriber:
    """The terminal's side of a channel."""

    direct = None

    def __init__(self, topic: Topic, closed: Callable[[], None]) -> None:
        self.topic = topic
        self.closed = closed
        self.has_ended = False

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: EndReason) -> None:
        self.has_ended = True


_SECRET = SecretHash(1, 1, 1, bytes(16), hashlib.scrypt(b"s", salt=bytes(16), n=2, r=1, p=1, dklen=32))


def known(name: str, max_connections: int | None = None, **rights: list[str]) -> ClientConfig:
    """Return a client with these rights, whose secret is s."""
    return ClientConfig(name=name, secret=str(_SECRET), max_connections=max_connections, **rights)


@asynccontextmanager
async def control(
    path: Path, administered: AdministeredServer | None = None, **settings: object
) -> AsyncIterator[AccessControl]:
    """Yield the access to a server, by default to one without configured clients."""
    config = Config(store=str(path), **settings)  # type: ignore[arg-type]  # the names decide the types
    with Store.open(path, map_size=1 << 28) as store:
        async with trio.open_nursery() as nursery:
            memory = Memory(1 << 26)
            catalogue = Catalogue(config, store, memory, nursery)
            for writer in catalogue.writers.values():
                nursery.start_soon(writer.run)
            await catalogue.open_stored()
            yield AccessControl(config, catalogue, memory, administered or NoServer())
            nursery.cancel_scope.cancel()


async def connected(access: AccessControl, id: bytes = b"tester") -> Session:
    """Return a session of a client of this host."""
    return await access.connect(id, "127.0.0.1", "127.0.0.1:1")


@asynccontextmanager
async def session(path: Path, id: bytes = b"tester", **settings: object) -> AsyncIterator[Session]:
    """Yield a session of a server, by default of one without configured clients."""
    async with control(path, **settings) as access:
        opened = await connected(access, id)
        yield opened
        opened.close()
