"""The first and the last state of a connection. Each terminal has others between them."""

from msgspec import Struct


class Greeting(Struct, frozen=True):
    """The state before the client of the connection is known."""

    by: float
    """The time by which the client must be known."""


class InputEnded(Struct, frozen=True):
    """The state in which nothing more is read. Waiting answers are sent if the connection still lasts."""
