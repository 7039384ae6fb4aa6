"""The states of a connection of the omq protocol, between those that connections of all protocols have."""

from msgspec import Struct

from omq.terminals.connection.states import Greeting, InputEnded
from omq.terminals.omq.greeting import ConnectedClient


class Serving(Struct, frozen=True):
    """The client is known, and its commands are read."""

    client: ConnectedClient


class Stopping(Struct, frozen=True):
    """The server ends the connection. The command that is being executed is the last one."""


class Answering(Struct, frozen=True):
    """Nothing more is read. The commands that were read are answered."""

    is_hurried: bool
    """Whether the server ends the connection. Then the rate limit does not delay the last answers."""


class Finishing(Struct, frozen=True):
    """Everything is answered. The subscriptions get the messages that are there, and no later ones."""

    are_told: bool
    """Whether all subscriptions know this: there may be thousands."""


State = Greeting | Serving | Stopping | Answering | Finishing | InputEnded
"""The states of a connection.

                   Connect              input ended              all answered
    Greeting ------------------> Serving ----------> Answering ---------------> Finishing ---> InputEnded
        |                           |                    ^
        |        fail, shut_down    |                    | the reader has stopped
        +---------------------------+---> Stopping ------+

Input also ends at a line that is too long, and at a first command that is not Connect, so Greeting can lead
to Answering. A connection that breaks is InputEnded at once. `fail` and `shut_down` of the terminal make
Answering hurried, and in Finishing they end the subscriptions.
"""
