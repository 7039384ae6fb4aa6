"""The topics that are found by their names: their drivers, and the records of those that the store has."""

import dataclasses
from collections.abc import Mapping

from omq.config import Config
from omq.drivers.driver import Driver, InitialState, Resources
from omq.drivers.drivers_by_name import DriversByName
from omq.drivers.factory import DriverFactory
from omq.drivers.lifetime import DURABLE, Durable
from omq.drivers.loading import Loaded
from omq.drivers.queue_options import DEFAULT, PERSISTENT
from omq.drivers.slices import Slices
from omq.drivers.stored_types import LEVELS
from omq.drivers.writer import Writer
from omq.model import Delivery, Persistent, Topic, read_stored_persistence
from omq.watching import Limits
from omq_storage.levels import Level
from omq_storage.routes import Routes
from omq_storage.topics import TopicRecord

UNLIMITED = Limits(None, None)


class TopicsByName:
    """The topics of one server."""

    def __init__(
        self, config: Config, writers: Mapping[Level, Writer], resources: Resources, factory: DriverFactory
    ) -> None:
        self._config = config
        self._retentions = config.retentions()
        self._writers = writers
        self._resources = resources
        self._factory = factory
        self.drivers = DriversByName()
        self.routes = Routes()
        """The routes of the topics that may be found by their names now."""
        self.records: dict[int, TopicRecord] = {}
        """The records by topic id. Ephemeral topics have none."""

    def add(self, loaded: Loaded, lifetime: Durable = DURABLE) -> Driver:
        """Open the driver of a topic that the store has. It is found by its name from now on."""
        driver = self.open(loaded, lifetime)
        self.put(loaded.record, driver)
        return driver

    def put(self, record: TopicRecord, driver: Driver) -> None:
        """Let this driver be found by the name of its topic, which has this record."""
        self.drivers[record.name] = driver
        self.routes[record.name] = driver.route
        self.records[record.id] = record

    def open(self, loaded: Loaded, lifetime: Durable) -> Driver:
        """Return a new driver of a topic that the store has. Nobody finds it yet."""
        record, options = loaded.record, loaded.options
        persistence = read_stored_persistence(record.persistence)
        if options is not None:
            lifetime = Durable(with_last_consumer=options.auto_delete)
        else:
            options = PERSISTENT if isinstance(persistence, Persistent) else DEFAULT
            if lifetime.with_last_consumer:
                options = dataclasses.replace(options, auto_delete=True)
        opening = InitialState(
            topic=Topic(record.id, record.name),
            persistence=persistence,
            writer=self._writers[LEVELS[persistence.sync]] if isinstance(persistence, Persistent) else None,
            resources=self._resources,
            next_id=max(1, loaded.next_id),
            reserved=record.reserved,
            extent=loaded.extent,
            position=loaded.position,
            retention=self.retention(record),
            time=loaded.time,
            stored_before_cursor=loaded.stored_before_cursor,
            lost=loaded.lost,
            lifetime=lifetime,
            options=options,
        )
        return self._factory.create(opening, Delivery(record.delivery))

    def retention(self, record: TopicRecord) -> tuple[int | None, float | None]:
        """Return the limits of a topic in octets and in seconds: those that a client has set, or else those
        of the configuration.
        """
        if record.retention is None:
            return self._configured(record.name)
        octets, milliseconds = record.retention
        return octets, None if milliseconds is None else milliseconds / 1000

    def lower_limits(self, name: bytes, limits: Limits) -> Limits | None:
        """Return these limits, or those of the configuration where they are lower; None for no limits."""
        if limits == UNLIMITED:
            return None
        octets, seconds = self._configured(name)
        ms = None if seconds is None else round(seconds * 1000)
        return Limits(_lower(limits.octets, octets), _lower(limits.ms, ms))

    def _configured(self, name: bytes) -> tuple[int | None, float | None]:
        return self._retentions.get(name) or self._config.retention()

    async def reload(self, config: Config) -> None:
        """Apply the limits of retention of another configuration."""
        self._config = config
        self._retentions = config.retentions()
        slices = Slices()
        for driver in self.drivers.in_turn():
            record = self.records.get(driver.topic.id)
            if record is not None:
                driver.retain(*self.retention(record))
            await slices.step()


def _lower(limit: int | None, other: int | None) -> int | None:
    limits = [each for each in (limit, other) if each is not None]
    return min(limits, default=None)
