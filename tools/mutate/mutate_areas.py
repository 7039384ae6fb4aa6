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
    """The modules whose work the compiled codec does where there is one; their tests also run without it."""

    def modules(self, root: Path) -> list[str]:
        """Return its modules, as paths from the root of the project."""
        found = (root / self.folder).rglob("*.py")
        return sorted(str(path.relative_to(root)) for path in found if path.name != "__init__.py")

    def has(self, module: str) -> bool:
        """Return whether a module, given by its path, is one of this area."""
        return Path(module).is_relative_to(self.folder)

    def _name(self, module: str) -> str:
        return str(Path(module).relative_to(self.folder))

    def codecs(self, module: str) -> tuple[bool, ...]:
        """Return the codecs with which its tests must run: first the plain one (True) if this module does its
        work, then the compiled one (False).
        """
        return (True, False) if self._name(module) in self.twins else (False,)

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


def _drivers(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/drivers/test_{name}.py" for name in names)


def _amqp(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/amqp_0_9/test_{name}.py" for name in names)


DEAD_LETTERS = (
    "tests/exchanges/test_dead_letters.py",
    "tests/exchanges/test_dead_letters_on_their_way.py",
)

QUEUES = (*_amqp("probe", "channels", "amqp_tools"), *DEAD_LETTERS)
"""Tests of queues and exchanges by AMQP 0-9-1."""

DRIVERS = Area(
    "omq/drivers",
    ("tests/drivers", *DEAD_LETTERS),
    {
        "ages.py": (*_drivers("timers"), *_server("clocks")),
        "alarms.py": (*_drivers("timers"), *_server("stalled")),
        "piecewise.py": (
            *_drivers("contract_of_outcomes"),
            *_server("round_robin", "round_robin_store", "stalled"),
        ),
        "backpressure.py": (
            *_drivers("tails", "slow_subscribers"),
            *_server("broadcast", "stalled", "spool"),
        ),
        "broadcast.py": (
            *_drivers("contract_of_broadcast", "contract_of_posts"),
            *_server("broadcast", "topics", "stalled", "many_topics"),
        ),
        "broadcast_channel.py": (
            *_drivers("contract_of_broadcast", "slow_subscribers", "contract_of_credit"),
            *_server("broadcast", "topics", "stalled", "many_topics", "spool"),
        ),
        "budget.py": (*_drivers("budgets"), *_server("stalled", "round_robin", "round_robin_store")),
        "consumers.py": QUEUES,
        "dead_lettering.py": (*QUEUES, *_drivers("spilling")),
        "dead_letters.py": QUEUES,
        **{
            f"{name}.py": (
                *_drivers("direct_nodes"),
                *_server("amqp_1_0_nodes", "amqp_1_0_relay", "amqp_1_0_statistics"),
            )
            for name in ("direct", "direct_channel")
        },
        "queue_expiry.py": (*_drivers("queue_expiry"), *QUEUES),
        "ephemeral_queues.py": QUEUES,
        "expiring.py": (*_drivers("queue_expirations"), *QUEUES),
        "limited.py": (*_drivers("queue_lengths", "queue_sizes"), *QUEUES),
        "catalogue.py": (
            *_drivers("crowds_gone", "cancelled_changes"),
            *_server("topics", "reservations", "damaged_keys", "untold", "full_disk"),
        ),
        "competing.py": (
            *_drivers("dealing", "contract_of_round_robin", "waiting_publishers"),
            *_server("sender", "framed_messages", "round_robin", "round_robin_store", "stalled", "backlog"),
        ),
        "confirmation.py": (*_drivers("confirmations"), *_server("replies")),
        "driver.py": (
            *_drivers("contract_of_posts", "contract_of_broadcast", "offers"),
            *_server("broadcast", "topics", "trouble", "untold", "store_trouble", "backlog"),
        ),
        "publisher_queue.py": (
            *_drivers("publisher_queues"),
            *_server("round_robin", "round_robin_store", "publishing_workers"),
        ),
        "fragment_commits.py": _server("large_messages"),
        "feed.py": ("tests/access/test_topology.py", *_server("dmp_leases", "dmp_feeds"), *_amqp("direct")),
        "factory.py": (*_drivers("queues"), *_server("round_robin", "round_robin_store"), *QUEUES),
        "holdings.py": (
            *_drivers("contract_of_round_robin", "dealing"),
            *_server("round_robin", "round_robin_store"),
        ),
        "housekeeping.py": (
            *_drivers("housekeeping"),
            *_server("trouble", "clocks", "persistence", "full_disk", "scarcity"),
        ),
        "orphaned_blocks.py": _server("topics", "full_disk"),
        "lifetime.py": (*_drivers("lifetimes"), *QUEUES),
        "loading.py": _server("topics", "damaged_keys", "untold"),
        "memory.py": (*_drivers("shares"), *_server("stalled", "round_robin", "round_robin_store")),
        "offer.py": (*_drivers("offers"), *_server("publishing_workers")),
        "pieces.py": _server("stalled"),
        "pending_offers.py": (*_drivers("offers"), *_server("publishing_workers")),
        "priority_queue.py": (*_drivers("priority_queues"), *QUEUES),
        "private_topics.py": QUEUES,
        "problems.py": (*_drivers("reasons", "defective_posts"), *_server("trouble")),
        "push.py": (*_drivers("pushes"), *_server("many_topics")),
        "queue.py": (*_drivers("queues"), *QUEUES),
        "queue_options.py": QUEUES,
        "reservations.py": (*_drivers("budgets"), *_server("reservations")),
        "round_robin.py": (
            *_drivers("dealing", "contract_of_round_robin"),
            *_server("sender", "framed_messages", "round_robin", "round_robin_store", "stalled", "backlog"),
        ),
        "round_robin_channel.py": (
            *_drivers("dealing", "contract_of_round_robin"),
            *_server("round_robin", "round_robin_store", "stalled", "backlog"),
        ),
        "seam.py": (*_drivers("selections"), *_server("broadcast", "stalled")),
        "gathering.py": _drivers("gathered_posts"),
        "slices.py": _drivers("housekeeping"),
        "stored_reads.py": (
            *_drivers("message_times", "contract_of_broadcast"),
            *_server("persistence", "store_trouble"),
        ),
        "signal.py": (*_drivers("timers"), *_server("broadcast")),
        "stalled.py": (*_drivers("shares"), *_server("stalled")),
        "statistics.py": (*_drivers("statistics"), *_server("statistics")),
        "store_calls.py": _server("topics", "full_disk"),
        "stored_types.py": _server("topics", "dmp_leases"),
        "tail.py": (*_drivers("tail", "tails"), *_server("broadcast", "stalled")),
        "unfinished.py": (*_drivers("shares"), *_server("bad_input", "bad_behaviour", "dmp_sinks")),
        "uploads.py": (*_drivers("contract_of_posts"), *_server("large_messages")),
        "backlog.py": _drivers("backlogs", "pushes"),
        "credit.py": _drivers("contract_of_credit", "contract_of_drains"),
        "cursor_limit.py": _drivers("contract_of_credit", "contract_of_drains", "contract_of_broadcast"),
        "dealt_times.py": _drivers("dealt_times"),
        "direct_memory.py": _drivers("direct_nodes"),
        "excerpts.py": _drivers("slow_subscribers", "selections", "tail"),
        "histogram.py": (*_drivers("statistics"), *_server("metrics")),
        "making.py": (*_drivers("cancelled_changes", "queues"), *_server("topics")),
        "overflow.py": _drivers("queue_lengths"),
        "message_expiry.py": _drivers("queue_expirations"),
        "posts.py": _drivers("contract_of_posts", "defective_posts", "turns_in_commits"),
        "purging.py": (*_amqp("probe"), *_server("management")),
        "reasons.py": _drivers("reasons"),
        "replaying.py": _drivers("replaying", "contract_of_broadcast"),
        "rounds.py": _drivers("timers", "housekeeping"),
        "routed.py": (*_drivers("turns_in_commits"), *_server("routed_posts")),
        "sequences.py": _drivers("sequences", "idempotent_posts"),
        "settling.py": _drivers("settled_sets", "contract_of_outcomes"),
        "shared_window.py": (
            *_drivers("contract_of_credit", "contract_of_drains"),
            *_amqp("probe", "channels"),
        ),
        "sizes.py": _drivers("queue_sizes", "queue_lengths"),
        "spill.py": _drivers("spilling"),
        "spilling.py": _drivers("spilling"),
        "spool.py": (*_drivers("spooled", "spool_pages"), *_server("spool")),
        "spool_pages.py": _drivers("spool_pages", "spooled"),
        "spoolable.py": (*_drivers("spooler"), *_server("spool")),
        "spooled.py": (*_drivers("spooled"), *_server("spool")),
        "spooler.py": (*_drivers("spooler"), *_server("spool")),
        "spooling.py": _server("spool"),
        "times.py": _drivers("message_times", "contract_of_broadcast"),
        "topic_commit.py": (
            *_drivers("sequences", "idempotent_posts", "turns_in_commits"),
            *_server("persistence", "full_disk", "store_trouble"),
        ),
        "topic_changes.py": (*_drivers("queue_options", "cancelled_changes"), *_server("topics", "watching")),
        "topic_quota.py": (*_drivers("cancelled_changes"), *_server("quotas")),
        "topics_by_name.py": _server("topics", "untold", "reloading"),
        "unconfirmed.py": _drivers("unconfirmed_work"),
        "unsettled.py": _drivers("settled_sets", "unconfirmed_work", "contract_of_outcomes"),
        "wait_graph.py": (*_drivers("waiting_publishers"), *_server("publishing_workers")),
        "writer.py": (
            *_drivers("contract_of_posts", "turns_in_commits", "gathered_posts"),
            *_server("trouble", "topics", "persistence", "full_disk", "store_trouble", "routed_posts"),
        ),
    },
)

ACCESS = Area(
    "omq/access",
    (
        "tests/access",
        *_server("clients", "client_limits", "management", "operations"),
        *_amqp("rights", "probe"),
    ),
    {
        "administration.py": ("tests/access/test_administration.py", *_server("watching", "management")),
        "archive.py": (*_server("bulk_reading", "dmp_leases"), *_amqp("streams")),
        "attempts.py": ("tests/access/test_attempts.py", *_server("many_attempts")),
        "clients.py": _server("reloading", "many_attempts"),
        "control.py": ("tests/access/test_control.py", *_server("quotas", "dmp_leases", "reloading")),
        "direct.py": _server("amqp_1_0_nodes", "amqp_1_0_relay", "amqp_1_0_statistics"),
        "hashes.py": ("tests/access/test_hashes.py",),
        "leased_topic.py": ("tests/access/test_leased_topics.py", *_server("dmp_leases", "dmp_sinks")),
        "leases.py": _server("dmp_leases"),
        "limits.py": _server("quotas", "reloading"),
        "link_names.py": _server("amqp_1_0_stolen"),
        "management.py": (*_server("management"), *_amqp("amqp_tools")),
        "management_records.py": (*_server("management"), *_amqp("amqp_tools")),
        "recent_events.py": ("tests/access/test_recent_events.py",),
        "moving.py": _server("management"),
        "peeking.py": _server("management"),
        "private_topic.py": ("tests/access/test_private_topics.py",),
        "quotas.py": ("tests/access/test_quotas.py", *_server("quotas")),
        "rights.py": _server("reloading", "clients", "client_limits", "watching"),
        "session.py": (
            "tests/access/test_session.py",
            *_server("new_topics", "reservations", "path_of_a_publish"),
        ),
        "topology.py": (
            "tests/access/test_topology.py",
            *_amqp("rights", "probe", "streams", "direct", "channels"),
        ),
        "turns.py": ("tests/access/test_turns.py",),
        "watches.py": ("tests/access/test_watches.py", *_server("watching", "reloading")),
    },
)

AMQP_0_9 = (
    *_protocol("amqp_0_9_server", "amqp_0_9_messages", "amqp_0_9_cuts", "amqp_0_9_recordings"),
    *_amqp("probe"),
)
"""Tests of the dialogue of AMQP 0-9-1."""

AMQP_1_0 = (
    *_protocol("amqp_1_0_connection", "amqp_1_0_links", "amqp_1_0_transfers"),
    *_server("amqp_1_0", "amqp_1_0_nodes", "amqp_1_0_refusals", "amqp_1_0_connections", "amqp_1_0_windows"),
)
"""Tests of the dialogue of AMQP 1.0."""

PROTOCOL = Area(
    "omq/protocol",
    ("tests/protocol",),
    {
        "amqp/fields.py": _protocol("dmp_fields", "protocol_twins", "amqp_0_9_methods"),
        "omq/block_lists.py": (*_protocol("commands"), *_server("bulk_reading")),
        "omq/blocks.py": (*_protocol("commands"), *_server("bulk_reading")),
        "omq/commands.py": _protocol("commands"),
        "omq/converters.py": _protocol("commands", "topics"),
        "credentials.py": _protocol("credentials"),
        "amqp/openamq.py": _protocol("dmp_fields"),
        "amqp/portions.py": (*_protocol("dmp_dialogue"), *_server("head_portions")),
        **{f"amqp_0_9/{name}.py": AMQP_0_9 for name in ("channels", "events", "problems", "runs", "server")},
        "amqp_0_9/delivery.py": (*_protocol("amqp_0_9_delivery"), *AMQP_0_9),
        "amqp_0_9/frames.py": AMQP_0_9,
        "amqp_0_9/methods.py": (*_protocol("amqp_0_9_methods"), *AMQP_0_9),
        **{
            f"amqp_1_0/{name}.py": AMQP_1_0
            for name in ("conditions", "connection", "events", "frames", "link", "session", "transfers")
        },
        "amqp_1_0/composites.py": (*_protocol("amqp_1_0_types"), *AMQP_1_0),
        "amqp_1_0/expansion.py": (*_protocol("amqp_1_0_expansion"), *AMQP_1_0),
        "amqp_1_0/long_messages.py": _protocol("amqp_1_0_long_messages"),
        "amqp_1_0/performatives.py": (*_protocol("amqp_1_0_types"), *AMQP_1_0),
        "amqp_1_0/runs.py": (*_protocol("amqp_1_0_runs"), *AMQP_1_0),
        "amqp_1_0/sections.py": _protocol("amqp_1_0_translation", "amqp_1_0_stored"),
        "amqp_1_0/serials.py": AMQP_1_0,
        "amqp_1_0/stored.py": _protocol("amqp_1_0_stored"),
        "amqp_1_0/translation.py": _protocol("amqp_1_0_translation"),
        "amqp_1_0/types.py": _protocol("amqp_1_0_types"),
        "amqp_1_0/unsettled.py": _protocol("amqp_1_0_unsettled"),
        "http/basic.py": _server("http"),
        "http/origins.py": _server("websocket"),
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
        "omq/lines.py": (*_protocol("line_reader"), *_server("bad_input", "bad_behaviour")),
        "amqp/properties.py": _protocol("dmp_fields"),
        "omq/sexp.py": _protocol("sexp", "protocol_twins"),
        "omq/atoms.py": _protocol("sexp", "protocol_twins"),
        "amqp/shortstr.py": _protocol("dmp_fields"),
        "omq/management.py": _protocol("management"),
        "omq/sentences.py": (*_protocol("client_session"), "tests/drivers/test_reasons.py"),
        "omq/statistics.py": _protocol("statistics_frames"),
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
        "backup.py": _storage("repair", "identity"),
        "batches.py": ("tests/storage/test_codec_twins.py", *_storage("batches", "blocks")),
        "blocks.py": (*_storage("blocks"), *_server("large_messages")),
        "catalogue.py": (
            *_storage("catalogue", "topology"),
            *_server("damaged_keys", "reservations", "store_trouble"),
        ),
        "checkpoint.py": (*_storage("checkpoint"), *_server("persistence", "interrupted_starts")),
        "codec.py": ("tests/storage/test_codec_twins.py",),
        "database.py": (
            *_storage("environment", "database", "deleting", "damage"),
            *_server("store_trouble", "scarcity"),
        ),
        "deleting.py": (*_storage("deleting", "environment"), *_server("trouble", "store_trouble")),
        "environment.py": (
            *_storage("environment", "deleting", "damage"),
            *_server("trouble", "store_trouble"),
        ),
        "extents.py": _storage("environment"),
        "files.py": _storage("files"),
        "fragments.py": _storage("fragments", "pieces"),
        "heads.py": _storage("blocks"),
        "identity.py": _storage("identity", "inspection"),
        "inspection.py": _storage("inspection", "repair", "identity"),
        "integrity.py": _storage("integrity", "repair", "metas"),
        "lookup.py": (*_storage("environment", "damage", "pieces", "reader"), *_server("bulk_reading")),
        "merging.py": _storage("merging", "environment"),
        "metas.py": _storage("metas"),
        "misplaced.py": _storage("identity"),
        "numbers.py": _storage("blocks"),
        "pages.py": _storage("pages", "repair", "metas"),
        "pieces.py": _storage("pieces"),
        "plain.py": _storage("blocks"),
        "producers.py": _storage("producers"),
        "reader.py": (*_storage("reader"), "tests/client/test_bulk.py", "tests/cli/test_store_command.py"),
        "reader_slots.py": _server("scarcity"),
        "records.py": (*_storage("runs"), *_server("stores_of_older_formats", "damaged_keys")),
        "repair.py": _storage("repair", "identity"),
        "runs.py": (*_storage("runs"), *_server("stores_of_older_formats")),
        "routes.py": _storage("topology"),
        "salvage.py": _storage("salvage", "repair", "fragments"),
        "reserved_space.py": (*_storage("files"), *_server("full_disk")),
        "store.py": (*_storage("store"), *_server("stores_of_older_formats")),
        "time_search.py": _storage("time_search"),
        "topics.py": (*_storage("catalogue"), *_server("damaged_keys", "reservations")),
        "topology.py": _storage("topology"),
    },
    frozenset({"blocks.py", "codec.py", "numbers.py", "plain.py"}),
)

AREAS = {"drivers": DRIVERS, "access": ACCESS, "protocol": PROTOCOL, "storage": STORAGE}
