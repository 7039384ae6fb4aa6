"""Read blocks from a server that may be lost and found again: its addresses, retries, and reconnections."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from omq.bulk.access import TOPIC_DELETED, Gap, Span, StoredTopic, why_unreadable
from omq.bulk.credentials import NO_CREDENTIALS, Credentials
from omq.bulk.errors import ConnectionLost, NoSuchTopic, Unreachable
from omq.bulk.remote_connection import RemoteConnection
from omq.counted import counted
from omq.model import BlockInfo
from omq.protocol.silence import SILENCE_SECONDS
from omq.server_address import Address, parse_url
from omq_storage.blocks import Block

log = logging.getLogger("omq.bulk")


IDLE_SECONDS = 30.0
"""The client reconnects if it has not used a connection for this time."""

T = TypeVar("T")


def parse_servers(text: str) -> tuple[Address, ...]:
    """Parse the addresses in `HOST:PORT,HOST:PORT`, or with TLS in `omqs://HOST:PORT,omqs://HOST:PORT`; an
    IPv6 address is in brackets.

    Raises ValueError. Its text does not repeat anything that may contain a secret.
    """
    if "@" in text:
        raise ValueError("an address has the form HOST:PORT or omqs://HOST:PORT; options name the client")
    found = tuple(_address(part.strip()) for part in text.split(","))
    if len({address.tls for address in found}) > 1:
        # An attacker who blocks the address with TLS would get the credentials at the one without.
        raise ValueError("all addresses must be of the form omqs://HOST:PORT, or none")
    return found


def _address(text: str) -> Address:
    try:
        return parse_url(text if "://" in text else f"omq://{text}")
    except ValueError:
        raise ValueError(
            f"{text!r} is no address of the form HOST:PORT, omq://HOST:PORT or omqs://HOST:PORT"
        ) from None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The timeout after which a server counts as lost, the number of retries, and the pause between them."""

    retries: int = 3
    seconds: float = 1.0
    silence: float = SILENCE_SECONDS
    """Seconds of silence after which the connection is lost."""

    def run(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds. Raises Unreachable after the last retry, and its other errors."""
        for left in range(self.retries, -1, -1):
            try:
                return attempt()
            except ConnectionLost as lost:
                if not left:
                    raise Unreachable(f"{lost} ({counted(self.retries + 1, 'attempt')})") from lost
                log.warning("%s; trying again", lost)
                time.sleep(self.seconds)
        raise AssertionError("the last attempt returns or raises")


class RemoteServer:
    """Implements `omq.bulk.access.Access`."""

    def __init__(
        self,
        addresses: tuple[Address, ...],
        retry_policy: RetryPolicy,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._addresses = addresses
        self._retry_policy = retry_policy
        self._credentials = credentials
        self.shows_all = credentials.id is None
        self._connection: RemoteConnection | None = None
        self._used = 0.0

    def __enter__(self) -> "RemoteServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call reconnects."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connected(self) -> RemoteConnection:
        """Return the connection; connect if there is none.

        Raises ConnectionLost, ServerRefused and BadOptions.
        """
        now = time.monotonic()
        if self._connection is not None and now - self._used > IDLE_SECONDS:
            # The server's pings were not answered meanwhile.
            self.close()
        self._used = now
        if self._connection is None:
            self._connection = connect(self._addresses, self._credentials, self._retry_policy.silence)
        return self._connection

    def ask(self, ask: Callable[[RemoteConnection], T]) -> T:
        """Call `ask` with a connection and return its result; repeat it when the connection is lost.

        Raises Unreachable, ServerRefused and BadOptions.
        """

        def attempt() -> T:
            try:
                return ask(self.connected())
            except ConnectionLost:
                self.close()
                raise

        return self._retry_policy.run(attempt)

    def topics(self) -> dict[str, StoredTopic]:
        found: dict[str, StoredTopic] = {}
        for info in self.ask(lambda connection: connection.topics()):
            try:
                name = info.topic.decode()
            except UnicodeDecodeError:
                continue
            problem = why_unreadable(info.delivery, info.persistence)
            found[name] = StoredTopic(
                info.id, name, max(1, info.oldest), info.next, info.bytes, info.persistence, problem
            )
        return found

    def block_at(self, topic: StoredTopic, message: int, end: int) -> BlockInfo | None:
        # Ask for one message first, because the answer for a range lists all its blocks.
        for count in (1, end - message):
            ask = partial(RemoteConnection.blocks, topic=topic.name, first=message, count=count)
            try:
                found = self.ask(ask)
            except NoSuchTopic:
                return None
            if found:
                return found[0]
        return None

    def fetch(
        self,
        topic: StoredTopic,
        start: int,
        end: int,
        use: Callable[[Block, range], T],
        ahead: Sequence[Span] = (),
    ) -> Iterator[T | Gap]:
        position = start
        failures = 0
        while position < end:
            try:
                for found in self.connected().fetch(topic, position, end, ahead):
                    failures = 0
                    if isinstance(found, Gap):
                        position = found.next
                        yield found
                    else:
                        messages = range(position, min(end, found.next))
                        position = messages.stop
                        yield use(found, messages)
            except NoSuchTopic:
                self.close()
                if position < end:
                    yield Gap(position, end - 1, TOPIC_DELETED)
                return
            except ConnectionLost as lost:
                self.close()
                failures += 1
                if failures > self._retry_policy.retries:
                    raise Unreachable(
                        f"{lost} ({failures} attempts); message {position} of {topic.name!r} is the next one."
                    ) from lost
                log.warning("%s; continuing to read %r at message %d", lost, topic.name, position)
                time.sleep(self._retry_policy.seconds)


def connect(addresses: tuple[Address, ...], credentials: Credentials, silence: float) -> RemoteConnection:
    """Connect to the first address that answers. Raises ConnectionLost, ServerRefused and BadOptions."""
    problems = []
    for address in addresses:
        try:
            return RemoteConnection(address, credentials, silence)
        except ConnectionLost as lost:
            problems.append(str(lost))
    raise ConnectionLost("; ".join(problems))
