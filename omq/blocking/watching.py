"""Rounds of a server's statistics, one after another."""

from omq.blocking.entered import EnteredItems
from omq.client import Round
from omq.client import Rounds as AsyncRounds


class Rounds(EnteredItems[AsyncRounds, Round]):
    """An iterator over the rounds of a Watch. `Client.watch` creates it; one thread at a time may use it.

    Iterating raises ServerError, ConnectionLost and ProtocolError. A caller that takes rounds slowly gets
    fewer: the server begins the next one when this one is read.
    """
