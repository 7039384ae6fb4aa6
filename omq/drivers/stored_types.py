"""Maps the texts in the catalogue of a store to the types and levels of topics."""

from typing import assert_never

from omq.model import (
    Delivery,
    Persistent,
    Sync,
    Transient,
    read_stored_persistence,
    stored_persistence,
)
from omq_storage.levels import Level
from omq_storage.topics import TopicRecord

LEVELS = {Sync.STRONG: Level.STRONG, Sync.WEAK: Level.WEAK, Sync.ASYNC: Level.ASYNC}


class StoredTypes:
    """Implements `omq_storage.inspection.RecordInterpreter`."""

    def level_of(self, record: TopicRecord) -> Level | None:
        match read_stored_persistence(record.persistence):
            case Transient():
                return None
            case Persistent(sync):
                return LEVELS[sync]
            case other:
                assert_never(other)

    def has_position(self, record: TopicRecord) -> bool:
        return Delivery(record.delivery) is Delivery.ROUND_ROBIN

    def has_exchange(self, name: bytes) -> bool:
        """Return whether the server has this exchange without a record: amq.direct and its like."""
        return name.startswith(b"amq.")

    def unnamed(self, topic: int, level: Level, positioned: bool) -> TopicRecord:
        sync = next(sync for sync, known in LEVELS.items() if known is level)
        return TopicRecord(
            id=topic,
            name=b"recovered-%d" % topic,
            delivery=(Delivery.ROUND_ROBIN if positioned else Delivery.BROADCAST).value,
            persistence=stored_persistence(Persistent(sync)),
            declared=True,
        )
