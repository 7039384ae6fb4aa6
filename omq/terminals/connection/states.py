"""The first and the last state of a connection. Each terminal has others between them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Greeting:
    """It is not known whose connection it is."""

    by: float
    """The time by which it must be known."""


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing more is read. Answers that wait are sent if the connection still lasts."""
