"""The three sync levels a persistent topic can have; each has an LMDB environment of its own."""

from enum import Enum


class Level(Enum):
    """How soon a stored message is safe from a power failure.  The values name the directories."""

    STRONG = "strong"
    """On disk when ``append`` returns."""
    WEAK = "weak"
    """Written when ``append`` returns, on disk after the next checkpoint, every few seconds."""
    ASYNC = "async"
    """As weak, with a longer time between checkpoints."""
