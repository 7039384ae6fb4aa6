"""The server's offer to a client: the mechanisms of SASL, and what its open states."""

import socket

from omq.protocol.amqp_1_0 import encoding, types
from omq.protocol.amqp_1_0.connection import Offer
from omq.version import VERSION

IDLE_SECONDS = 60.0
"""The idle-time-out that the server states. A client is gone after twice as long without an octet."""

CAPABILITIES = ("ANONYMOUS-RELAY",)

PROPERTIES = encoding.write(
    types.Map(
        (
            (types.Symbol("product"), "omq"),
            (types.Symbol("version"), VERSION),
            # Clients with a JMS interface put these before the names of queues and topics.
            (types.Symbol("queue-prefix"), "queue://"),
            (types.Symbol("topic-prefix"), "topic://"),
        )
    )
)


def offer(*, needs_sasl: bool, is_certified: bool) -> Offer:
    """Return the offer to a client, which must authenticate if it `needs_sasl`, and whose certificate is that
    of a client if it `is_certified`.
    """
    mechanisms = ("PLAIN",) if needs_sasl else ("ANONYMOUS", "PLAIN")
    if is_certified:
        mechanisms = ("EXTERNAL", *mechanisms)
    container = f"omq-{socket.gethostname()}"
    return Offer(container, mechanisms, needs_sasl, int(IDLE_SECONDS * 1000), CAPABILITIES, PROPERTIES)
