"""Messages to topics over DMP, confirmed, with plain sockets (docs/PROTOCOL.md, "DMP").

Every message names its producer and its number, so that what is in doubt is sent again without being stored
again.
"""

import logging
import re
import socket
import time
from collections.abc import Iterator

from omq.protocol.dmp_client import (
    Answered,
    ClientDialogue,
    ClientEvent,
    Declined,
    DialogueError,
    Greeted,
    HeaderDeclined,
    Purpose,
    Ready,
    Received,
)
from storage.spark.errors import Refused, Unreachable
from storage.spark.remote import ANSWER_SECONDS, CONNECT_SECONDS, ConnectionLost, Patience, Server

log = logging.getLogger("omq.spark")

_READ_OCTETS = 4096
_STORED = re.compile(rb"\b([0-9]+) messages stored\b")


def send(server: Server, patience: Patience, topic: bytes, envelopes: bytes, count: int) -> None:
    """Send `count` envelopes to a topic, and wait until they are as safe as it declares.

    When the server is lost they are sent again, as often as `patience` has it. Raises Unreachable and
    Refused.
    """
    failures = 0
    while True:
        try:
            return _send(server, topic, envelopes, count)
        except ConnectionLost as lost:
            server.close()
            failures += 1
            if failures > patience.retries:
                shown = topic.decode("utf-8", "backslashreplace")
                raise Unreachable(
                    f"{lost} ({failures} attempts); {count} messages for {shown!r} may not be stored."
                ) from lost
            log.warning("%s; sending %d messages again", lost, count)
            time.sleep(patience.seconds)


def _send(server: Server, topic: bytes, envelopes: bytes, count: int) -> None:
    """Raises ConnectionLost and Refused."""
    principal = server.connected()
    lease = principal.put(topic)
    address = principal.peer()
    try:
        with socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS) as connection:
            connection.settimeout(ANSWER_SECONDS)
            dialogue = ClientDialogue(lease, Purpose.SINK)
            try:
                connection.sendall(dialogue.start())
                connection.sendall(envelopes)
                connection.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                log.debug("%s closed a sink early, and may say why", address)
            for event in _events(connection, dialogue):
                match event:
                    case Greeted() | Ready():
                        pass
                    case Answered(response) | Declined(response):
                        stored = _STORED.search(response.words)
                        if response.ok and stored is not None and int(stored[1]) == count:
                            return
                        words = response.words.decode("utf-8", "backslashreplace")
                        shown = topic.decode("utf-8", "backslashreplace")
                        raise Refused(
                            f"The server {address} said of a sink to {shown!r}: {response.code} {words}"
                        )
                    case HeaderDeclined() | Received():
                        raise Refused(f"The server {address} does not speak DMP.")
    except DialogueError as error:
        raise Refused(f"The server {address} does not speak DMP: {error}.") from error
    except OSError as error:
        raise ConnectionLost(
            f"The connection of a sink to {address} broke: {error.strerror or error}"
        ) from error
    raise ConnectionLost(f"The server {address} closed a sink without an answer")


def _events(connection: socket.socket, dialogue: ClientDialogue) -> Iterator[ClientEvent]:
    while data := connection.recv(_READ_OCTETS):
        yield from dialogue.feed(data)
