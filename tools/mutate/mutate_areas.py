"""What can be mutated, and which tests are nearest to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Area:
    """A folder of modules, and the tests that should kill the mutants of each."""

    folder: str
    tests: tuple[str, ...]
    nearest: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tests by module (its path in the folder), which are run before the others: a mutant is dead with the
    first test that fails.
    """
    twins: frozenset[str] = frozenset()
    """The modules whose work the compiled codec does where there is one; it is off for them."""

    def modules(self, root: Path) -> list[str]:
        """Return its modules, as paths from the root of the project."""
        found = (root / self.folder).rglob("*.py")
        return sorted(str(path.relative_to(root)) for path in found if path.name != "__init__.py")

    def has(self, module: str) -> bool:
        """Return whether a module, given by its path, is one of this area."""
        return Path(module).is_relative_to(self.folder)

    def _name(self, module: str) -> str:
        return str(Path(module).relative_to(self.folder))

    def is_twin(self, module: str) -> bool:
        """Return whether the compiled codec does the work of this module."""
        return self._name(module) in self.twins

    def nearest_to(self, module: str) -> tuple[str, ...]:
        """Return the tests nearest to this module; all of the area where none are named."""
        return self.nearest.get(self._name(module), self.tests)

    def tests_of(self, module: str) -> tuple[str, ...]:
        """Return all its tests, the nearest to this module first."""
        first = self.nearest.get(self._name(module), ())
        return (*first, *(test for test in self.tests if test not in first))


def _server(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/server/test_{name}.py" for name in names)


def _protocol(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/protocol/test_{name}.py" for name in names)


def _storage(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/storage/test_storage_{name}.py" for name in names)


def _amqp(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/amqp_0_9/test_{name}.py" for name in names)


QUEUES = (*_amqp("probe", "channels", "amqp_tools"), "tests/exchanges/test_dead_letters.py")
"""Tests of queues and exchanges by AMQP 0-9-1."""

DRIVERS = Area(
    "omq/drivers",
    ("tests/drivers", "tests/exchanges/test_dead_letters.py"),
    {
        "ages.py": _server("clocks"),
        "alarms.py": _server("stalled"),
        "alone.py": _server("round_robin", "stalled"),
        "backpressure.py": _server("broadcast", "stalled"),
        "broadcast.py": _server("broadcast", "topics", "stalled", "many_topics"),
        "broadcast_channel.py": _server("broadcast", "topics", "stalled", "many_topics"),
        "budget.py": _server("stalled", "round_robin"),
        "consumers.py": QUEUES,
        "dead_lettering.py": QUEUES,
        "dead_letters.py": QUEUES,
        "direct.py": _server("amqp_1_0", "amqp_1_0_relay"),
        "disuse.py": QUEUES,
        "ephemeral_queues.py": QUEUES,
        "expiring.py": QUEUES,
        "limited.py": QUEUES,
        "catalogue.py": _server("topics", "reservations", "damaged_keys", "untold", "full_disk"),
        "confirmation.py": _server("replies"),
        "driver.py": _server("broadcast", "topics", "trouble", "untold", "store_trouble", "backlog"),
        "entrance.py": _server("round_robin", "publishing_workers"),
        "feed.py": ("tests/access/test_topology.py", *_server("dmp_leases", "dmp_feeds"), *_amqp("direct")),
        "factory.py": (*_server("round_robin"), *QUEUES),
        "holdings.py": _server("round_robin"),
        "housekeeping.py": _server("trouble", "clocks", "persistence", "full_disk", "scarcity"),
        "leftovers.py": _server("topics", "full_disk"),
        "lifetime.py": QUEUES,
        "loading.py": _server("topics", "damaged_keys", "untold"),
        "memory.py": _server("stalled", "round_robin"),
        "offer.py": _server("publishing_workers"),
        "pieces.py": _server("stalled"),
        "places.py": _server("publishing_workers"),
        "priority_queue.py": QUEUES,
        "private_topics.py": QUEUES,
        "problems.py": _server("trouble"),
        "push.py": _server("many_topics"),
        "queue.py": QUEUES,
        "queue_options.py": QUEUES,
        "reservations.py": _server("reservations"),
        "round_robin.py": _server("round_robin", "stalled", "backlog"),
        "round_robin_channel.py": _server("round_robin", "stalled", "backlog"),
        "seam.py": _server("broadcast", "stalled"),
        "signal.py": _server("broadcast"),
        "stalled.py": _server("stalled"),
        "statistics.py": _server("statistics"),
        "store_calls.py": _server("topics", "full_disk"),
        "stored_types.py": _server("topics", "dmp_leases"),
        "tail.py": _server("broadcast", "stalled"),
        "unfinished.py": _server("bad_input", "dmp_sinks"),
        "uploads.py": _server("large_messages"),
        "waits.py": _server("publishing_workers"),
        "writer.py": _server("trouble", "topics", "persistence", "full_disk", "store_trouble"),
    },
)

ACCESS = Area(
    "omq/access",
    ("tests/access", *_server("clients", "management", "operations"), *_amqp("rights", "probe")),
    {
        "administration.py": _server("watching"),
        "attempts.py": _server("many_attempts"),
        "clients.py": _server("reloading", "many_attempts"),
        "control.py": _server("quotas", "dmp_leases", "reloading"),
        "direct.py": _server("amqp_1_0", "amqp_1_0_relay", "amqp_1_0_statistics"),
        "hashes.py": ("tests/access/test_hashes.py",),
        "leases.py": _server("dmp_leases"),
        "limits.py": _server("quotas", "reloading"),
        "management.py": (*_server("management"), *_amqp("amqp_tools")),
        "quotas.py": _server("quotas"),
        "session.py": (
            "tests/access/test_session.py",
            *_server("new_topics", "reservations", "path_of_a_publish"),
        ),
        "topology.py": _amqp("rights", "probe", "streams", "direct", "channels"),
        "watches.py": _server("watching", "reloading"),
    },
)

PROTOCOL = Area(
    "omq/protocol",
    ("tests/protocol",),
    {
        "amqp/fields.py": _protocol("dmp_fields"),
        "omq/commands.py": _protocol("commands"),
        "omq/converters.py": _protocol("commands", "topics"),
        "credentials.py": _protocol("credentials"),
        "http/requests.py": _server("http"),
        "http/websocket.py": _server("websocket"),
        "dmp/client.py": (*_protocol("dmp_dialogue"), "tests/client/test_dmp.py"),
        "dmp/envelopes.py": _protocol("dmp_envelopes"),
        "amqp/head.py": _protocol("dmp_fields"),
        "amqp/producer.py": _server("dmp_heads"),
        "omq/client.py": _protocol("client_session"),
        "silence.py": ("tests/client/test_silence.py",),
        "dmp/reader.py": _protocol("dmp_envelopes"),
        "dmp/responses.py": _protocol("dmp_dialogue"),
        "dmp/server.py": _protocol("dmp_dialogue"),
        "dmp/writer.py": _protocol("dmp_envelopes"),
        "omq/frames.py": _protocol("frames"),
        "handshake.py": (*_protocol("handshake"), *_server("handshake")),
        "omq/lines.py": (*_protocol("line_reader"), *_server("bad_input")),
        "amqp/properties.py": _protocol("dmp_fields"),
        "omq/sexp.py": _protocol("sexp"),
        "amqp/shortstr.py": _protocol("dmp_fields"),
        "omq/times.py": _protocol("times"),
        "tls.py": _protocol("tls_engine"),
        "omq/topics.py": (*_protocol("topics"), *_server("topics")),
    },
    frozenset({"dmp/envelopes.py", "dmp/reader.py", "dmp/writer.py", "omq/frames.py", "omq/lines.py"}),
)

STORAGE = Area(
    "storage/omq_storage",
    ("tests/storage",),
    {
        "backup.py": _storage("store", "identity"),
        "batches.py": ("tests/storage/test_codec_twins.py", *_storage("blocks")),
        "blocks.py": _storage("blocks"),
        "catalogue.py": (*_storage("catalogue"), *_server("damaged_keys", "reservations", "store_trouble")),
        "checkpoint.py": (*_storage("checkpoint"), *_server("persistence", "interrupted_starts")),
        "codec.py": ("tests/storage/test_codec_twins.py",),
        "database.py": (*_storage("environment"), *_server("store_trouble", "scarcity")),
        "environment.py": (*_storage("environment"), *_server("trouble", "store_trouble")),
        "identity.py": _storage("identity"),
        "inspection.py": _storage("repair", "identity"),
        "integrity.py": _storage("repair", "metas"),
        "lookup.py": (*_storage("environment", "pieces"), *_server("bulk_reading")),
        "merging.py": _storage("environment"),
        "metas.py": _storage("metas"),
        "misplaced.py": _storage("identity"),
        "numbers.py": _storage("blocks"),
        "pages.py": _storage("repair", "metas"),
        "pieces.py": _storage("pieces"),
        "plain.py": _storage("blocks"),
        "producers.py": _storage("producers"),
        "reader.py": ("tests/client/test_bulk.py", "tests/cli/test_store_command.py"),
        "reader_slots.py": _server("scarcity"),
        "records.py": (*_storage("runs"), *_server("stores_of_older_formats", "damaged_keys")),
        "repair.py": _storage("repair", "identity"),
        "runs.py": (*_storage("runs"), *_server("stores_of_older_formats")),
        "salvage.py": _storage("repair"),
        "spare.py": _server("full_disk"),
        "store.py": (*_storage("store"), *_server("stores_of_older_formats")),
    },
    frozenset({"blocks.py", "codec.py", "numbers.py", "plain.py"}),
)

AREAS = {"drivers": DRIVERS, "access": ACCESS, "protocol": PROTOCOL, "storage": STORAGE}
