"""The objects of a connection are free as soon as it is over: no garbage collection has to find them.

A collection keeps everybody waiting, and until it comes what is held stays held.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from omq.drivers.broadcast_channel import BroadcastChannel
from omq.drivers.direct import DirectNode
from omq.drivers.direct_channel import DirectChannel
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.protocol.amqp_0_9.server import ServerConnection
from omq.protocol.amqp_1_0.connection import AmqpConnection
from omq.protocol.amqp_1_0.link import Link
from omq.protocol.amqp_1_0.session import Session
from omq.terminals.amqp_0_9.channel import AmqpChannel
from omq.terminals.amqp_0_9.consumers import Consumer
from omq.terminals.amqp_0_9.terminal import AmqpTerminal
from omq.terminals.amqp_1_0.outgoing import Outgoing
from omq.terminals.amqp_1_0.producing import Producing
from omq.terminals.amqp_1_0.terminal import Amqp1Terminal
from omq.terminals.connection.transport import Transport
from omq.terminals.dmp.terminal import DmpTerminal
from omq.terminals.omq.subscriptions import OmqSubscription, Subscriptions
from omq.terminals.omq.terminal import OmqTerminal

KINDS = (
    OmqTerminal,
    DmpTerminal,
    OmqSubscription,
    Subscriptions,
    AmqpTerminal,
    ServerConnection,
    AmqpChannel,
    Consumer,
    Amqp1Terminal,
    AmqpConnection,
    Session,
    Link,
    Outgoing,
    Producing,
    Transport,
    BroadcastChannel,
    RoundRobinChannel,
    DirectChannel,
    DirectNode,
)


@contextmanager
def uncollected() -> Iterator[Callable[[], list[object]]]:
    """Collect nothing meanwhile. Yield a function that returns what is left of connections since.

    Other tests of this process may keep connections, for example in the traceback of a failure.
    """
    gc.collect()
    gc.disable()
    before = {id(each): each for each in _kinds()}
    try:
        yield lambda: [each for each in _kinds() if id(each) not in before]
    finally:
        gc.enable()


def _kinds() -> list[object]:
    return [found for found in gc.get_objects() if isinstance(found, KINDS)]
