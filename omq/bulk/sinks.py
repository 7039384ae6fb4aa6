"""Publish to topics over DMP with confirmation, over plain sockets (docs/PROTOCOL.md, "DMP").

Every message carries its producer and a sequence number, so a sender can repeat messages whose outcome is
unknown without storing them twice.
"""

import logging
import time
from collections.abc import Iterator
from typing import assert_never

from omq.bulk.errors import ConnectionLost, ServerRefused, Unreachable
from omq.bulk.network import LOOK_SECONDS, Waiting, in_our_words
from omq.bulk.opening import open_wire
from omq.bulk.remote import RemoteServer, RetryPolicy
from omq.counted import counted
from omq.protocol.dmp.client import (
    ClientDialogue,
    ClientEvent,
    ConnectionDeclined,
    DialogueError,
    FeedOctets,
    Greeted,
    HeaderDeclined,
    Purpose,
    Ready,
    SinkResponse,
)
from omq.protocol.dmp.responses import stored_of

log = logging.getLogger("omq.bulk")

_READ_OCTETS = 4096


def send(server: RemoteServer, retry_policy: RetryPolicy, topic: bytes, envelopes: bytes, count: int) -> None:
    """Send `count` envelopes to a topic, and wait until the server confirms them.

    When the connection is lost, send them again, as often as `retry_policy` allows. Raises Unreachable and
    ServerRefused.
    """
    failures = 0
    while True:
        try:
            return _send(server, topic, envelopes, count)
        except ConnectionLost as lost:
            server.close()
            failures += 1
            if failures > retry_policy.retries:
                shown = topic.decode("utf-8", "backslashreplace")
                raise Unreachable(
                    f"{lost} ({counted(failures, 'attempt')}); "
                    f"{counted(count, 'message')} for {shown!r} may not be stored."
                ) from lost
            log.warning("%s; sending %s again", lost, counted(count, "message"))
            time.sleep(retry_policy.seconds)


def _send(server: RemoteServer, topic: bytes, envelopes: bytes, count: int) -> None:
    """Send the envelopes once. Raises ConnectionLost and ServerRefused."""
    with SinkConnection(server, topic) as sink:
        sink.send(envelopes)
        sink.finish(count)


class SinkConnection:
    """One open sink. The end of its block closes it; the outcome of unconfirmed messages is then unknown.

    Methods raise ConnectionLost and ServerRefused.
    """

    def __init__(self, server: RemoteServer, topic: bytes) -> None:
        principal = server.connected()
        lease = principal.put(topic)
        host, port = principal.peer()
        self._address = principal.address
        self._broke = f"The connection of a sink to {self._address} broke"
        self._shown = topic.decode("utf-8", "backslashreplace")
        self._dialogue = ClientDialogue(lease, Purpose.SINK)
        self._cut = False
        with in_our_words(self._broke):
            self._wire = open_wire(host, port, principal.security)
        # A server sends nothing to a sink before the end, and backpressure may block the sink for long: only
        # the server's pings on the principal's connection show that it is alive.
        self._principal = principal
        self._looked = time.monotonic()
        self._wire.use_timeouts(Waiting(principal.silence, principal.heard))
        self.send(self._dialogue.start())

    def __enter__(self) -> "SinkConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    @property
    def is_cut(self) -> bool:
        """Whether the server has closed the sink: `finish` raises the reason."""
        return self._cut

    def send(self, envelopes: bytes) -> None:
        """Send envelopes. If the server has closed the sink, do nothing: `finish` raises the reason."""
        if self._cut:
            return
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._principal.heard()
        with in_our_words(self._broke):
            try:
                self._wire.send(envelopes)
            except (BrokenPipeError, ConnectionResetError):
                log.debug("%s closed a sink before its end; its answer may give the reason", self._address)
                self._cut = True

    def finish(self, count: int) -> None:
        """Wait until the server confirms all `count` sent messages."""
        try:
            with in_our_words(self._broke):
                try:
                    self._wire.finish()
                except OSError:
                    self._cut = True
                for event in self._events():
                    if self._is_the_end(event, count):
                        return
        except DialogueError as error:
            raise ServerRefused(f"The server {self._address} does not speak DMP: {error}.") from error
        raise ConnectionLost(f"The server {self._address} closed a sink without an answer")

    def _events(self) -> Iterator[ClientEvent]:
        room = memoryview(bytearray(_READ_OCTETS))
        while count := self._wire.receive(room):
            yield from self._dialogue.feed(bytes(room[:count]))

    def _is_the_end(self, event: ClientEvent, count: int) -> bool:
        match event:
            case Greeted() | Ready():
                return False
            case SinkResponse(response) | ConnectionDeclined(response):
                if response.ok and stored_of(response) == count:
                    return True
                words = response.words.decode("utf-8", "backslashreplace")
                raise ServerRefused(
                    f"The server {self._address} said of a sink to {self._shown!r}: {response.code} {words}"
                )
            case HeaderDeclined() | FeedOctets():
                raise ServerRefused(f"The server {self._address} does not speak DMP.")
            case _:
                assert_never(event)
