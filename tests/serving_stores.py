"""A real server in a process of its own, for the synchronous client, for replays and for Spark."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from certificates import Authority
from server_command import RunningServer, running_server

from omq.access.hashes import hash_of
from omq.client import connect
from omq.client.connecting import Connecting

PATIENCE = 240
"""The time limit for an expected event in seconds: Java may have to start first."""


@dataclass
class Secured:
    """The connection of the tests to a server that requires TLS and known clients."""

    settings: str
    id: bytes
    ca: Path


HASH = str(hash_of(b"sesame"))

CLIENTS = f"""
[[clients]]
name = "reader"
secret = "{HASH}"
subscribe = ["prices", "much"]

[[clients]]
name = "feeder"
secret = "{HASH}"
declare = ["out.*"]
publish = ["out.*", "prices"]

[[clients]]
name = "test"
secret = "{HASH}"
subscribe = ["*"]
"""


def secured(authority: Authority, more: str = "", clients: str = CLIENTS) -> Secured:
    """Return TLS settings, and clients; without these every client may do everything."""
    shown = authority.issue("127.0.0.1", "server")
    return Secured(
        f'tls_cert = "{shown.cert}"\ntls_key = "{shown.key}"\n{more}\n{clients}',
        b"test:sesame",
        authority.file,
    )


@dataclass
class Serving:
    """A running server and its store."""

    running: RunningServer
    store: Path
    security: Secured | None = None

    @property
    def address(self) -> str:
        return self.running.address

    @property
    def url(self) -> str:
        return f"omq{'' if self.security is None else 's'}://{self.address}"

    def _connect(self) -> Connecting:
        if self.security is None:
            return connect(self.url)
        return connect(self.url, id=self.security.id, ca=self.security.ca)

    def publish(self, topic: str, bodies: Sequence[bytes], *, sink: bool = False) -> None:
        """Publish and confirm."""
        trio.run(self._publish, topic, bodies, sink)

    async def _publish(self, topic: str, bodies: Sequence[bytes], sink: bool) -> None:
        async with self._connect() as client:
            if sink:
                async with client.sink(topic) as opened:
                    await opened.publish_many(bodies)
            else:
                await client.publish_many(topic, bodies)
                await client.confirm()

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic, which creates it if it does not exist, and leave again."""
        trio.run(self._subscribe, topic)

    async def _subscribe(self, topic: str) -> None:
        async with self._connect() as client, client.subscribe(topic):
            pass

    def messages(self, topic: str) -> int:
        """Return the number of messages of a topic; 0 if it does not exist."""
        return trio.run(self._messages, topic)

    async def _messages(self, topic: str) -> int:
        async with self._connect() as client:
            return sum(info.messages for info in await client.topics() if info.topic == topic.encode())

    def wait_for(self, topic: str, enough: Callable[[int], bool]) -> int:
        """Wait until a topic has enough messages, and return their number."""
        return trio.run(self._wait_for, topic, enough)

    async def _wait_for(self, topic: str, enough: Callable[[int], bool]) -> int:
        with trio.fail_after(PATIENCE):
            while not enough(messages := await self._messages(topic)):  # noqa: ASYNC110 - the server is elsewhere
                await trio.sleep(0.01)
        return messages

    def merge(self, topic: str) -> None:
        """Have the server merge all messages of a topic into one block, and add one: what grows is merged."""
        messages = self.messages(topic)
        self.publish(topic, [b"one more"])
        trio.run(self._wait_for_block, topic, messages)

    async def _wait_for_block(self, topic: str, messages: int) -> None:
        async with self._connect() as client:
            with trio.fail_after(PATIENCE):
                while (await client.blocks(topic, 1, 1))[0].count < messages:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.01)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        trio.run(self._delete, topic)

    async def _delete(self, topic: str) -> None:
        async with self._connect() as client:
            await client.delete(topic)

    def kill(self) -> None:
        """Kill the process."""
        self.running.process.kill()
        self.running.process.wait()


@contextmanager
def serving(
    store: Path, settings: str = "", port: int = 0, security: Secured | None = None
) -> Iterator[Serving]:
    """Yield a server on this store until the block is left."""
    listen = "--listen" if security is None else "--listen-tls"
    if security is not None:
        settings = f"{settings}\n{security.settings}"
    configuration = store.with_name(store.name + ".toml")
    configuration.write_text(settings)
    options = ("--store", str(store), "--config", str(configuration), listen, f"127.0.0.1:{port}")
    with running_server(*options, "--log-level", "error") as running:
        yield Serving(running, store, security)
