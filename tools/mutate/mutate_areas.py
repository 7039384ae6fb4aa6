"""The modules that can be mutated, and the tests that are nearest to each."""

from mutate_area import DEAD_LETTERS, QUEUES, Area, amqp, server
from mutate_client_areas import CLIENTS, COMMANDS
from mutate_terminal_areas import TERMINALS


def _protocol(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/protocol/test_{name}.py" for name in names)


def _storage(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/storage/test_storage_{name}.py" for name in names)


def _drivers(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/drivers/test_{name}.py" for name in names)


DRIVERS = Area(
    "omq/drivers",
    ("tests/drivers", *DEAD_LETTERS),
    {
        "ages.py": (*_drivers("timers"), *server("clocks")),
        "alarms.py": (*_drivers("timers"), *server("stalled")),
        "piecewise.py": (
            *_drivers("contract_of_outcomes"),
            *server("round_robin", "round_robin_store", "stalled"),
        ),
        "backpressure.py": (
            *_drivers("tails", "slow_subscribers"),
            *server("broadcast", "stalled", "spool"),
        ),
        "broadcast.py": (
            *_drivers("contract_of_broadcast", "contract_of_posts", "pushes"),
            *server("broadcast", "topics", "stalled", "many_topics"),
        ),
        "broadcast_channel.py": (
            *_drivers("contract_of_broadcast", "slow_subscribers", "contract_of_credit"),
            *server("broadcast", "topics", "stalled", "many_topics", "spool"),
        ),
        "budget.py": (*_drivers("budgets"), *server("stalled", "round_robin", "round_robin_store")),
        "consumers.py": QUEUES,
        "dead_lettering.py": (*QUEUES, *_drivers("spilling")),
        "dead_letters.py": QUEUES,
        **{
            f"{name}.py": (
                *_drivers("direct_nodes"),
                *server("amqp_1_0_nodes", "amqp_1_0_relay", "amqp_1_0_statistics"),
            )
            for name in ("direct", "direct_channel")
        },
        "queue_expiry.py": (*_drivers("queue_expiry"), *QUEUES),
        "ephemeral_queues.py": QUEUES,
        "expiring.py": (*_drivers("queue_expirations"), *QUEUES),
        "limited.py": (*_drivers("queue_lengths", "queue_sizes"), *QUEUES),
        "catalogue.py": (
            *_drivers("crowds_gone", "cancelled_changes", "lifetimes"),
            *server("topics", "reservations", "damaged_keys", "throttled_logs", "full_disk"),
        ),
        "competing.py": (
            *_drivers(
                "dealing",
                "contract_of_round_robin",
                "contract_of_outcomes",
                "contract_of_channels",
                "waiting_publishers",
                "spilling",
            ),
            *server("sender", "framed_messages", "round_robin", "round_robin_store", "stalled", "backlog"),
        ),
        "confirmation.py": (*_drivers("confirmations"), *server("replies")),
        "driver.py": (
            *_drivers("contract_of_posts", "contract_of_broadcast", "offers", "housekeeping"),
            *server("broadcast", "topics", "trouble", "throttled_logs", "store_trouble", "backlog"),
        ),
        "publisher_queue.py": (
            *_drivers("publisher_queues"),
            *server("round_robin", "round_robin_store", "publishing_workers"),
        ),
        "immediate_sends.py": (*amqp("at_once"), *server("amqp_1_0_at_once", "routed_posts")),
        "fragment_commits.py": server("large_messages", "large_messages_in_trouble"),
        "feed.py": ("tests/access/test_topology.py", *server("dmp_leases", "dmp_feeds"), *amqp("direct")),
        "factory.py": (*_drivers("queues"), *server("round_robin", "round_robin_store"), *QUEUES),
        "holdings.py": (
            *_drivers("contract_of_round_robin", "dealing"),
            *server("round_robin", "round_robin_store"),
        ),
        "housekeeping.py": (
            *_drivers("housekeeping"),
            *server("trouble", "clocks", "persistence", "full_disk", "scarcity"),
        ),
        "orphaned_blocks.py": server("topics", "full_disk"),
        "lifetime.py": (*_drivers("lifetimes"), *QUEUES),
        "loading.py": server("topics", "damaged_keys", "throttled_logs"),
        "memory.py": (*_drivers("shares"), *server("stalled", "round_robin", "round_robin_store")),
        "offer.py": (*_drivers("offers"), *server("publishing_workers")),
        "channel_limit.py": (
            *_drivers("shared_windows", "contract_of_credit", "contract_of_outcomes", "unconfirmed_work"),
            *server("round_robin", "round_robin_store"),
        ),
        "message_outbox.py": (
            *_drivers(
                "dealing",
                "contract_of_round_robin",
                "contract_of_channels",
                "contract_of_drains",
                "contract_of_credit",
                "contract_of_outcomes",
                "suspended_channels",
                "delivery_order",
            ),
            *server("round_robin", "round_robin_store", "stalled", "backlog"),
        ),
        "pieces.py": (*_drivers("contract_of_broadcast"), *server("stalled")),
        "pending_offers.py": (*_drivers("offers"), *server("publishing_workers")),
        "priority_queue.py": (*_drivers("priority_queues"), *QUEUES),
        "problems.py": (*_drivers("reasons", "defective_posts"), *server("trouble")),
        "push.py": (*_drivers("pushes"), *server("many_topics")),
        "queue.py": (*_drivers("queues", "queue_getters", "queue_consumers"), *QUEUES),
        "queue_options.py": QUEUES,
        "reservations.py": (*_drivers("budgets"), *server("reservations")),
        "round_robin.py": (
            *_drivers("dealing", "contract_of_round_robin", "contract_of_outcomes"),
            *server("sender", "framed_messages", "round_robin", "round_robin_store", "stalled", "backlog"),
        ),
        "round_robin_channel.py": (
            *_drivers(
                "dealing",
                "contract_of_round_robin",
                "contract_of_channels",
                "contract_of_drains",
                "contract_of_credit",
                "contract_of_outcomes",
            ),
            *server("round_robin", "round_robin_store", "stalled", "backlog"),
        ),
        "seam.py": (*_drivers("selections"), *server("broadcast", "stalled")),
        "gathering.py": _drivers("gathered_posts"),
        "slices.py": _drivers("housekeeping"),
        "stored_reads.py": (
            *_drivers("message_times", "contract_of_broadcast"),
            *server("persistence", "store_trouble"),
        ),
        "signal.py": (*_drivers("timers"), *server("broadcast")),
        "stalled.py": (*_drivers("shares"), *server("stalled")),
        "statistics.py": (*_drivers("statistics"), *server("statistics")),
        "store_calls.py": server("topics", "full_disk"),
        "stored_types.py": server("topics", "dmp_leases"),
        "tail.py": (*_drivers("tail", "tails"), *server("broadcast", "stalled")),
        "unfinished.py": (
            *_drivers("shares"),
            *server("bad_input", "bad_behaviour", "dmp_sinks", "competing_sinks"),
        ),
        "uploads.py": (
            *_drivers("contract_of_posts"),
            *server("large_messages", "large_messages_in_trouble"),
        ),
        "backlog.py": _drivers("backlogs", "pushes"),
        "credit.py": _drivers("contract_of_credit", "contract_of_drains"),
        "cursor_limit.py": _drivers("contract_of_credit", "contract_of_drains", "contract_of_broadcast"),
        "dealt_times.py": _drivers("dealt_times"),
        "direct_memory.py": _drivers("direct_nodes"),
        "excerpts.py": _drivers("slow_subscribers", "selections", "tail"),
        "histogram.py": (*_drivers("statistics"), *server("metrics")),
        "making.py": (*_drivers("cancelled_changes", "queues"), *server("topics")),
        "overflow.py": _drivers("queue_lengths"),
        "message_expiry.py": _drivers("queue_expirations"),
        "post_queue.py": (*_drivers("turns_in_commits"), *server("routed_posts")),
        "posts.py": _drivers("contract_of_posts", "defective_posts", "turns_in_commits"),
        "purging.py": (*amqp("probe"), *server("management")),
        "reasons.py": _drivers("reasons"),
        "replaying.py": _drivers("replaying", "contract_of_broadcast"),
        "rounds.py": _drivers("timers", "housekeeping"),
        "routed.py": (*_drivers("turns_in_commits"), *server("routed_posts")),
        "sequences.py": _drivers("sequences", "idempotent_posts"),
        "settling.py": _drivers("settled_sets", "contract_of_outcomes"),
        "shared_window.py": (
            *_drivers("contract_of_credit", "contract_of_drains"),
            *amqp("probe", "channels"),
        ),
        "sizes.py": _drivers("queue_sizes", "queue_lengths"),
        "spill.py": _drivers("spilling"),
        "spilling.py": _drivers("spilling"),
        "spool.py": (*_drivers("spooled", "spool_pages"), *server("spool")),
        "spool_pages.py": _drivers("spool_pages", "spooled"),
        "spoolable.py": (*_drivers("spooler"), *server("spool")),
        "spooled.py": (*_drivers("spooled"), *server("spool")),
        "spooler.py": (*_drivers("spooler"), *server("spool")),
        "spooling.py": server("spool"),
        "times.py": _drivers("message_times", "contract_of_broadcast"),
        "topic_commit.py": (
            *_drivers("sequences", "idempotent_posts", "turns_in_commits"),
            *server("persistence", "full_disk", "store_trouble"),
        ),
        "topic_changes.py": (*_drivers("queue_options", "cancelled_changes"), *server("topics", "watching")),
        "topic_quota.py": (*_drivers("cancelled_changes"), *server("quotas")),
        "topics_by_name.py": server("topics", "throttled_logs", "reloading"),
        "unconfirmed.py": _drivers("unconfirmed_work", "shares"),
        "unsettled.py": _drivers("settled_sets", "unconfirmed_work", "contract_of_outcomes"),
        "wait_graph.py": (*_drivers("waiting_publishers"), *server("publishing_workers")),
        "writer.py": (
            *_drivers("contract_of_posts", "turns_in_commits", "gathered_posts"),
            *server("trouble", "topics", "persistence", "full_disk", "store_trouble", "routed_posts"),
        ),
    },
)

ACCESS = Area(
    "omq/access",
    (
        "tests/access",
        *server("clients", "client_limits", "management", "operations"),
        *amqp("rights", "probe"),
    ),
    {
        "administration.py": ("tests/access/test_administration.py", *server("watching", "management")),
        "archive.py": (*server("bulk_reading", "dmp_leases"), *amqp("streams")),
        "attempts.py": ("tests/access/test_attempts.py", *server("many_attempts")),
        "clients.py": server("reloading", "many_attempts"),
        "control.py": ("tests/access/test_control.py", *server("quotas", "dmp_leases", "reloading")),
        "direct.py": server("amqp_1_0_nodes", "amqp_1_0_relay", "amqp_1_0_statistics"),
        "hashes.py": ("tests/access/test_hashes.py",),
        "leased_topic.py": ("tests/access/test_leased_topics.py", *server("dmp_leases", "dmp_sinks")),
        "leases.py": server("dmp_leases"),
        "limits.py": server("quotas", "reloading"),
        "link_names.py": server("amqp_1_0_stolen"),
        "management.py": (*server("management"), *amqp("amqp_tools")),
        "management_records.py": (*server("management"), *amqp("amqp_tools")),
        "recent_events.py": ("tests/access/test_recent_events.py",),
        "moving.py": server("management"),
        "peeking.py": server("management"),
        "quotas.py": ("tests/access/test_quotas.py", *server("quotas")),
        "rights.py": server("reloading", "clients", "client_limits", "watching"),
        "session.py": (
            "tests/access/test_session.py",
            *server("new_topics", "reservations", "path_of_a_publish"),
        ),
        **{
            f"{name}.py": (
                "tests/access/test_topology.py",
                *amqp("rights", "probe", "streams", "direct", "channels"),
            )
            for name in ("getter", "routed_publishing", "topology")
        },
        "turns.py": ("tests/access/test_turns.py",),
        "watches.py": ("tests/access/test_watches.py", *server("watching", "reloading")),
    },
)

AMQP_FIELDS = _protocol(
    "dmp_fields",
    "protocol_twins",
    "amqp_0_9_methods",
    "amqp_0_9_messages",
    "amqp_0_9_delivery",
    "amqp_1_0_translation",
    "dmp_envelopes",
    "step_sizes",
    "dmp_recordings",
    "amqp_0_9_runs",
    "portions",
    "producers",
)
"""Tests of heads, properties and tables, which DMP and both versions of AMQP share."""

AMQP_0_9 = (
    *_protocol(
        "amqp_0_9_server",
        "amqp_0_9_messages",
        "amqp_0_9_cuts",
        "amqp_0_9_runs",
        "amqp_0_9_methods",
        "amqp_0_9_delivery",
        "amqp_0_9_recordings",
    ),
    *amqp("probe", "channels", "pieces"),
)
"""Tests of the dialogue of AMQP 0-9-1."""

AMQP_1_0 = (
    *_protocol(
        *(
            f"amqp_1_0_{name}"
            for name in (
                "connection", "links", "transfers", "sessions", "limits", "forms", "types", "runs", "stored",
                "translation", "expansion", "long_messages", "unsettled",
            )
        )
    ),
    *_protocol("step_sizes"),
    *server(
        "amqp_1_0", "amqp_1_0_nodes", "amqp_1_0_refusals", "amqp_1_0_connections", "amqp_1_0_windows",
        "amqp_1_0_idempotent", "amqp_1_0_annotations", "amqp_1_0_long_messages", "amqp_1_0_bad_input",
    ),
)  # fmt: skip
"""Tests of the octets and the dialogue of AMQP 1.0."""

DMP = (
    *_protocol("dmp_envelopes", "dmp_dialogue", "step_sizes", "dmp_recordings", "protocol_twins"),
    *server("dmp_sinks", "dmp_feeds", "dmp_heads"),
)
"""Tests of DMP."""

SEXPS = (
    *_protocol("commands", "topics", "management", "statistics_frames", "frames", "times", "sexp"),
    *_protocol("line_reader", "line_limits", "step_sizes", "client_session", "protocol_twins"),
    *server("topics", "bad_input", "management", "watching", "bulk_reading"),
)
"""Tests of sexps: commands, and the contents of frames."""


def _nearest(first: str | tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tests nearest to a module, and then the others of its protocol."""
    return tuple(dict.fromkeys((*(_protocol(first) if isinstance(first, str) else first), *others)))


PROTOCOL = Area(
    "omq/protocol",
    ("tests/protocol",),
    {
        "handshake.py": (*_protocol("handshake"), *server("handshake")),
        "silence.py": ("tests/client/test_silence.py",),
        "tls.py": (*_protocol("tls_engine"), *server("tls"), "tests/client/test_client_tls.py"),
        **{f"amqp/{name}.py": AMQP_FIELDS for name in ("fields", "head", "properties", "shortstr")},
        "amqp/openamq.py": _nearest(
            _protocol("openamq", "dmp_fields", "amqp_0_9_messages", "protocol_twins"),
            (*AMQP_FIELDS, *server("head_portions", "dmp_feeds", "dmp_sinks")),
        ),
        "amqp/portions.py": (*_protocol("portions", "dmp_dialogue"), *server("head_portions")),
        "amqp/producer.py": (*_protocol("producers"), *server("dmp_heads", "amqp_1_0_idempotent")),
        **{
            f"amqp_0_9/{name}.py": AMQP_0_9
            for name in ("channels", "events", "frames", "problems", "runs", "server")
        },
        "amqp_0_9/delivery.py": _nearest("amqp_0_9_delivery", AMQP_0_9),
        "amqp_0_9/layouts.py": _nearest("amqp_0_9_methods", AMQP_0_9),
        "amqp_0_9/methods.py": _nearest("amqp_0_9_methods", AMQP_0_9),
        **{
            f"amqp_1_0/{name}.py": AMQP_1_0
            for name in ("conditions", "connection", "events", "frames", "link", "serials", "session")
        },
        "amqp_1_0/annotations.py": _nearest(server("amqp_1_0_idempotent", "amqp_1_0_annotations"), AMQP_1_0),
        **{
            f"amqp_1_0/{name}.py": _nearest("amqp_1_0_types", AMQP_1_0)
            for name in ("composites", "decoding", "encoding", "performatives", "types")
        },
        **{
            f"amqp_1_0/{name}.py": _nearest(f"amqp_1_0_{name}", AMQP_1_0)
            for name in (
                "expansion", "long_messages", "runs", "stored", "transfers", "translation", "unsettled",
            )
        },
        "amqp_1_0/number_types.py": _protocol("amqp_1_0_translation", "amqp_1_0_expansion"),
        "amqp_1_0/sections.py": _nearest(_protocol("amqp_1_0_translation", "amqp_1_0_stored"), AMQP_1_0),
        "dmp/client.py": (*_protocol("dmp_dialogue"), "tests/client/test_dmp.py"),
        "dmp/envelopes.py": _nearest("dmp_envelopes", DMP),
        "dmp/reader.py": _nearest("dmp_envelopes", (*DMP, *server("large_messages"))),
        "dmp/responses.py": _nearest("dmp_dialogue", DMP),
        "dmp/server.py": _nearest("dmp_dialogue", DMP),
        "dmp/writer.py": _nearest("dmp_envelopes", DMP),
        "http/basic.py": server("http", "metrics_access"),
        "http/origins.py": (*server("http", "websocket"), "tests/console/test_origins.py"),
        "http/requests.py": (*_protocol("requests"), *server("http", "websocket")),
        "http/websocket.py": (*_protocol("upgrades"), *server("websocket")),
        "omq/atoms.py": _nearest(_protocol("sexp", "step_sizes", "protocol_twins"), SEXPS),
        "omq/block_lists.py": (*_protocol("commands"), *server("bulk_reading")),
        "omq/blocks.py": (*_protocol("commands"), *server("bulk_reading")),
        "omq/client.py": (
            *_protocol("client_session"),
            *(f"tests/client/test_{name}.py" for name in ("client", "client_watching", "bulk", "reconnect")),
        ),
        "omq/commands.py": _nearest("commands", SEXPS),
        "omq/converters.py": _nearest(_protocol("commands", "topics"), SEXPS),
        "omq/derived.py": _nearest(_protocol("management", "statistics_frames"), SEXPS),
        "omq/frames.py": _nearest(_protocol("frames", "protocol_twins"), SEXPS),
        "omq/lines.py": (
            *_protocol("line_reader", "line_limits", "step_sizes", "protocol_twins"),
            *server("bad_input", "bad_behaviour", "replies"),
        ),
        "omq/management.py": _nearest("management", SEXPS),
        "omq/sentences.py": (
            *_protocol("client_session", "commands", "line_reader"), "tests/drivers/test_reasons.py",
        ),
        "omq/sexp.py": _nearest(_protocol("sexp", "step_sizes", "protocol_twins"), SEXPS),
        "omq/statistics.py": _nearest("statistics_frames", SEXPS),
        "omq/times.py": _nearest("times", SEXPS),
        "omq/topics.py": _nearest(_protocol("topics"), (*server("topics"), *SEXPS)),
        "omq/variants.py": _nearest("commands", SEXPS),
    },
    frozenset(
        f"{name}.py"
        for name in (
            "amqp/fields", "amqp/head", "amqp/openamq", "amqp/producer", "amqp/properties",
            "amqp_0_9/channels", "amqp_0_9/delivery", "amqp_0_9/runs",
            "amqp_1_0/performatives", "amqp_1_0/runs", "amqp_1_0/stored", "amqp_1_0/transfers",
            "dmp/envelopes", "dmp/reader", "dmp/writer",
            "omq/atoms", "omq/frames", "omq/lines", "omq/sexp",
        )
    ),
)  # fmt: skip

STORAGE = Area(
    "storage/omq_storage",
    ("tests/storage",),
    {
        "backup.py": _storage("repair", "identity"),
        "batches.py": ("tests/storage/test_codec_twins.py", *_storage("batches", "blocks")),
        "blocks.py": (*_storage("blocks"), *server("large_messages", "large_messages_in_trouble")),
        "catalogue.py": (
            *_storage("catalogue", "topology"),
            *server("damaged_keys", "reservations", "store_trouble"),
        ),
        "checkpoint.py": (*_storage("checkpoint"), *server("persistence", "interrupted_starts")),
        "codec.py": ("tests/storage/test_codec_twins.py",),
        "database.py": (
            *_storage("environment", "database", "catalogue", "deleting", "damage"),
            *server("store_trouble", "scarcity"),
        ),
        "deleting.py": (*_storage("deleting", "environment"), *server("trouble", "store_trouble")),
        "full.py": (*_storage("deleting", "environment"), *server("trouble", "store_trouble")),
        "environment.py": (
            *_storage("environment", "deleting", "damage"),
            *server("trouble", "store_trouble"),
        ),
        "extents.py": _storage("environment"),
        "files.py": _storage("files"),
        "fragments.py": _storage("fragments", "pieces"),
        "heads.py": _storage("blocks"),
        "identity.py": _storage("identity", "inspection"),
        "inspection.py": _storage("inspection", "repair", "identity"),
        "integrity.py": _storage("integrity", "repair", "metas"),
        "lookup.py": (*_storage("environment", "damage", "pieces", "reader"), *server("bulk_reading")),
        "merging.py": _storage("merging", "environment"),
        "metas.py": _storage("metas"),
        "misplaced.py": _storage("identity"),
        "numbers.py": _storage("blocks"),
        "pages.py": _storage("pages", "repair", "metas"),
        "pieces.py": _storage("pieces"),
        "plain.py": ("tests/storage/test_codec_twins.py", *_storage("blocks")),
        "producers.py": _storage("producers"),
        "reader.py": (*_storage("reader"), "tests/client/test_bulk.py", "tests/cli/test_store_command.py"),
        "reader_slots.py": server("scarcity"),
        "records.py": (*_storage("runs"), *server("stores_of_older_formats", "damaged_keys")),
        "repair.py": _storage("topology", "repair", "identity"),
        "runs.py": (*_storage("runs"), *server("stores_of_older_formats")),
        "routes.py": _storage("topology"),
        "salvage.py": _storage("salvage", "repair", "fragments", "inspection"),
        "reserved_space.py": (*_storage("files"), *server("full_disk")),
        "store.py": (*_storage("store", "identity"), *server("stores_of_older_formats")),
        "time_search.py": _storage("time_search"),
        "topics.py": (*_storage("catalogue"), *server("damaged_keys", "reservations")),
        "topology.py": _storage("topology"),
    },
    frozenset({"blocks.py", "codec.py", "numbers.py", "plain.py"}),
)

AREAS = {
    "drivers": DRIVERS,
    "access": ACCESS,
    "protocol": PROTOCOL,
    "storage": STORAGE,
    **TERMINALS,
    **CLIENTS,
    **COMMANDS,
}
