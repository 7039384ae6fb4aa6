"""The words that stand in the store's catalogue, and what they mean."""

from typing import assert_never

from omq.model import Delivery, Persistence, Persistent, Sync, Transient
from omq_storage.catalogue import TopicRecord
from omq_storage.levels import Level

LEVELS = {Sync.STRONG: Level.STRONG, Sync.WEAK: Level.WEAK, Sync.ASYNC: Level.ASYNC}


def persistence_text(persistence: Persistence) -> str:
    """As the store's catalogue keeps it: `Transient`, or the name of the sync level."""
    match persistence:
        case Transient():
            return "Transient"
        case Persistent(sync):
            return sync.value
        case _:
            assert_never(persistence)


def persistence_from_text(text: str) -> Persistence:
    """Raises ValueError for a text that `persistence_text` never writes."""
    return Transient() if text == "Transient" else Persistent(Sync(text))


class OurWords:
    """What `omq_storage.inspection.Words` asks for."""

    def level_of(self, record: TopicRecord) -> Level | None:
        match persistence_from_text(record.persistence):
            case Transient():
                return None
            case Persistent(sync):
                return LEVELS[sync]
            case other:
                assert_never(other)

    def has_position(self, record: TopicRecord) -> bool:
        return Delivery(record.delivery) is Delivery.ROUND_ROBIN

    def unnamed(self, topic: int, level: Level, positioned: bool) -> TopicRecord:
        sync = next(sync for sync, known in LEVELS.items() if known is level)
        return TopicRecord(
            id=topic,
            name=b"recovered-%d" % topic,
            delivery=(Delivery.ROUND_ROBIN if positioned else Delivery.BROADCAST).value,
            persistence=persistence_text(Persistent(sync)),
            declared=True,
        )
