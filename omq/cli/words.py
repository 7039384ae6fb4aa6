"""The names of topic types on the command line."""

from collections.abc import Mapping

from omq.model import Delivery, Persistence, Persistent, Sync, Transient

DELIVERIES = {"broadcast": Delivery.BROADCAST, "round-robin": Delivery.ROUND_ROBIN}
PERSISTENCES: dict[str, Persistence] = {
    "transient": Transient(),
    "strong": Persistent(Sync.STRONG),
    "weak": Persistent(Sync.WEAK),
    "async": Persistent(Sync.ASYNC),
}


def word(words: Mapping[str, Delivery | Persistence], value: Delivery | Persistence) -> str:
    """The name of a type in one of the tables above."""
    return next(word for word, meaning in words.items() if meaning == value)
