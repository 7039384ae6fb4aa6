"""A sink: publishes to one topic on a connection of its own."""

from collections.abc import Iterable
from functools import partial
from typing import BinaryIO, Protocol, runtime_checkable

from omq.blocking.entered import EnteredContext
from omq.blocking.portal import BATCH_MESSAGES, BATCH_OCTETS
from omq.client import Properties
from omq.client import Sink as AsyncSink
from omq.client.bodies import batches, joined


@runtime_checkable
class Readable(Protocol):
    """A binary file, or what reads like one."""

    def read(self, size: int, /) -> bytes: ...


class Sink(EnteredContext[AsyncSink]):
    """Publishes to one topic. `Client.sink` creates it; any number of threads may use it.

    The server confirms all messages once, at the end: by `close`, or by leaving the block without an
    exception. Methods raise SinkFailed when the server has ended the sink, and ConnectionLost when its
    connection ended in another way: then it is unknown which messages are stored.
    """

    @property
    def topic(self) -> bytes:
        """The topic's name."""
        return self._opened.topic

    @property
    def next(self) -> int:
        """The sequence number of the next message, for a sink with a producer."""
        return self._opened.next

    @property
    def sent(self) -> int:
        """The number of messages sent."""
        return self._opened.sent

    @property
    def stored(self) -> int | None:
        """The number of messages stored; None until the server has answered."""
        return self._opened.stored

    @property
    def notices(self) -> tuple[str, ...]:
        """The server's last notices about sinks of this topic, such as a message that nobody took."""
        return tuple(self._opened.notices)

    def publish(
        self,
        body: bytes,
        *,
        exchange: bytes = b"",
        routing_key: bytes = b"",
        properties: Properties | None = None,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        """Send a message. Waits only while the send queue is full. Use `publish_many` for many messages.

        Raises ValueError for a head that does not fit into an envelope.
        """
        publish = partial(
            self._opened.publish,
            exchange=exchange,
            routing_key=routing_key,
            properties=properties,
            mandatory=mandatory,
            immediate=immediate,
        )
        self._portal.call(publish, body)

    def publish_from(
        self,
        pieces: Iterable[bytes] | BinaryIO,
        length: int,
        *,
        exchange: bytes = b"",
        routing_key: bytes = b"",
        properties: Properties | None = None,
    ) -> None:
        """Send one message whose body comes in pieces of any size, or from a binary file, `length` octets
        together. The client holds 2 MiB of it at most, besides the last piece, and the server does not hold
        all of it either if the topic is persistent.

        `pieces` is iterated over, or read to its end, in the calling thread. It may use this client, but not
        publish with this sink or close it: other threads that do wait meanwhile. If it raises an exception or
        has another length, or Ctrl-C interrupts this, the message cannot be completed: the sink ends with a
        ConnectionLost, and nothing of the message is stored. Then this raises that exception, ValueError or
        KeyboardInterrupt.

        Raises ValueError for a head or a length that does not fit into an envelope.
        """
        message = partial(
            self._opened.message,
            length,
            exchange=exchange,
            routing_key=routing_key,
            properties=properties,
        )
        if isinstance(pieces, Readable):  # whose lines would be of any size
            pieces = iter(partial(pieces.read, BATCH_OCTETS), b"")
        self._portal.send_all(message, joined(pieces, BATCH_OCTETS, BATCH_MESSAGES))

    def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        exchange: bytes = b"",
        routing_key: bytes = b"",
        properties: Properties | None = None,
    ) -> int:
        """Send many messages that differ only in their bodies, much faster than with one call of `publish`
        for each. `bodies` is iterated over in the calling thread. Returns the number of messages.
        """
        publish = partial(
            self._opened.publish_many, exchange=exchange, routing_key=routing_key, properties=properties
        )
        return sum(
            self._portal.call(publish, batch) for batch in batches(bodies, BATCH_OCTETS, BATCH_MESSAGES)
        )

    def close(self) -> int:
        """Wait until the server confirms all messages, and close the connection.

        Returns the number of stored messages, which equals the number of sent ones. A second call has the
        same outcome.
        """
        self._leave()
        if self.stored is None:  # its block was left by an exception
            return self._portal.call(self._opened.close)
        return self.stored
