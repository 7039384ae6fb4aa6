"""The first and the last state of a connection. Each terminal has others between them."""

from msgspec import Struct


class Greeting(Struct, frozen=True):
    """It is not known whose connection it is."""

    by: float
    """The time by which it must be known."""


class InputEnded(Struct, frozen=True):
    """Nothing more is read. Answers that wait are sent if the connection still lasts."""
