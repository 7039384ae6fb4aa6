"""The first command of a connection, a valid Connect, and what the connection has from then on."""

from dataclasses import dataclass

from omq.access.line_routing import LineRouting
from omq.access.session import Session
from omq.protocol.handshake import VERSION_ONE
from omq.protocol.omq import types
from omq.protocol.omq.events import Event, Parsed, TooLong
from omq.protocol.omq.sentences import sentence
from omq.terminals.connection.held import HeldPublishes
from omq.terminals.omq.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """The client of a connection, from its Connect on."""

    session: Session
    routing: LineRouting
    held: HeldPublishes
    pipeline: Pipeline


def id_in(event: Event) -> bytes | types.Error:
    """Return the id in the first command of a connection; or the Error that ends the connection."""
    match event:
        case Parsed(types.Connect(version, id)):
            if version == VERSION_ONE:
                return id
            what = f"the handshake agreed on version {VERSION_ONE}"
            return types.Error(sentence("Connect", str(version).encode(), what))
        case TooLong(error):
            return types.Error(error)
        case _:
            return types.Error(sentence("Connect", None, "it must be the first command of a connection"))
