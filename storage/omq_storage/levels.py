"""The three sync levels of persistent topics.  Each level has an LMDB environment of its own."""

from enum import Enum


class Level(Enum):
    """A sync level: when messages survive a power failure.  The values are the names of the directories."""

    STRONG = "strong"
    """Durable when ``append`` returns."""
    WEAK = "weak"
    """Written when ``append`` returns; durable after the next checkpoint, which comes every few seconds."""
    ASYNC = "async"
    """Like weak, with a longer time between checkpoints."""
