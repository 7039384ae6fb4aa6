"""The terminals, the exchanges and the metrics, and which tests are nearest to them."""

from mutate_area import DEAD_LETTERS, Area, amqp, server

OMQ = Area(
    "omq/terminals/omq",
    server("broadcast", "topics", "round_robin", "replies", "bad_input", "bad_behaviour"),
    {
        "commands.py": server("topics", "broadcast", "round_robin", "new_topics", "operations"),
        "fetches.py": server("bulk_reading", "large_messages", "large_messages_in_trouble"),
        "forms.py": server("framed_messages", "stalled", "broadcast"),
        "long_answers.py": server("long_answers", "bulk_reading", "topics"),
        "replies.py": server("replies", "routed_posts", "topics"),
        "subscriptions.py": server("broadcast", "round_robin", "topics", "stalled", "unwanted_pieces"),
        "terminal.py": server("bad_input", "bad_behaviour", "liveness", "replies"),
        "watching.py": server("watching"),
    },
)

DMP = Area(
    "omq/terminals/dmp",
    server("dmp_leases", "dmp_sinks", "dmp_feeds", "dmp_heads"),
    {
        "exchange_target.py": amqp("direct", "two_worlds"),
        "feed.py": (*server("dmp_feeds", "dmp_heads"), *amqp("direct")),
        "forms.py": server("dmp_feeds", "dmp_heads", "amqp_1_0_other_protocols", "large_messages"),
        "sink.py": server(
            "dmp_sinks", "competing_sinks", "large_messages", "large_messages_in_trouble", "dmp_heads"
        ),
        "terminal.py": server("dmp_leases", "bad_input", "liveness"),
        "topic_target.py": server("dmp_sinks", "dmp_heads", "large_messages", "large_messages_in_trouble"),
    },
)

AMQP_0_9 = Area(
    "omq/terminals/amqp_0_9",
    amqp("probe", "channels", "promises", "at_once", "ends"),
    {
        "arguments.py": amqp("probe", "stream_limits", "priorities", "streams"),
        "confirms.py": amqp("confirms", "at_once", "probe"),
        "consumers.py": amqp("probe", "cancels", "channels", "priorities", "pieces"),
        "consuming.py": amqp("probe", "cancels", "channels", "streams"),
        "contents.py": amqp("pieces", "large_messages", "probe"),
        "direct.py": amqp("direct"),
        "forms.py": amqp("pieces", "large_messages", "two_worlds", "probe"),
        "getting.py": amqp("probe", "pieces", "priorities"),
        "login.py": amqp("channels", "rights", "probe"),
        "long_publishes.py": (
            *amqp("large_messages", "slices", "probe"),
            *server("large_messages", "large_messages_in_trouble"),
        ),
        "offsets.py": amqp("streams"),
        "outbox.py": amqp("confirms", "channels", "ends"),
        "posts.py": amqp("slices", "confirms", "full_targets", "probe"),
        "publishing.py": amqp("slices", "large_messages", "own_acknowledgements", "probe"),
        "refusals.py": amqp("rights", "probe"),
        "transactions.py": amqp("channels", "probe"),
        "unacknowledged.py": amqp("unacknowledged", "probe"),
    },
)

AMQP_1_0 = Area(
    "omq/terminals/amqp_1_0",
    server("amqp_1_0", "amqp_1_0_nodes", "amqp_1_0_refusals", "amqp_1_0_answers", "amqp_1_0_windows"),
    {
        "address_resolver.py": server("amqp_1_0", "amqp_1_0_rights", "amqp_1_0_relay", "amqp_1_0_refusals"),
        "addresses.py": server("amqp_1_0", "amqp_1_0_relay", "amqp_1_0_nodes", "amqp_1_0_mesh"),
        "attaching.py": server("amqp_1_0", "amqp_1_0_refusals", "amqp_1_0_nodes", "amqp_1_0_relay"),
        "direct.py": server("amqp_1_0_nodes", "amqp_1_0_at_once", "amqp_1_0_statistics"),
        "forms.py": server("amqp_1_0", "amqp_1_0_windows", "amqp_1_0_aborted", "amqp_1_0_annotations"),
        "idempotent.py": server("amqp_1_0_idempotent"),
        "incoming.py": server(
            "amqp_1_0", "amqp_1_0_answers", "amqp_1_0_long_messages", "amqp_1_0_idempotent"
        ),
        "links.py": server("amqp_1_0", "amqp_1_0_refusals", "amqp_1_0_stolen", "amqp_1_0_long_messages"),
        "offsets.py": server("amqp_1_0", "amqp_1_0_refusals"),
        "outgoing.py": server("amqp_1_0", "amqp_1_0_answers", "amqp_1_0_turns", "amqp_1_0_expiry"),
        "posted.py": server(
            "amqp_1_0", "amqp_1_0_publishing_workers", "amqp_1_0_refusals", "amqp_1_0_idempotent"
        ),
        "producing.py": server("amqp_1_0_long_messages", "amqp_1_0", "amqp_1_0_nodes", "amqp_1_0_idempotent"),
        "refusals.py": server("amqp_1_0_refusals", "amqp_1_0_rights", "amqp_1_0_answers"),
        "relay.py": server("amqp_1_0_relay"),
        "service.py": server("amqp_1_0", "amqp_1_0_turns", "amqp_1_0_answers"),
        "terminal.py": server("amqp_1_0_connections", "amqp_1_0_external", "amqp_1_0_bad_input", "amqp_1_0"),
        "waiting.py": server("amqp_1_0_windows", "amqp_1_0_bad_input"),
    },
)

HTTP = Area(
    "omq/terminals/http",
    (*server("http", "websocket", "metrics_access"), "tests/console/test_origins.py"),
    {
        "pages.py": server("http"),
        "site.py": server("http", "metrics_access", "readiness"),
        "websocket_transport.py": server("websocket"),
    },
)

CONNECTION = Area(
    "omq/terminals/connection",
    server("broadcast", "stalled", "sender", "bad_behaviour", "tls", "turns", "pace"),
    {
        "accepting.py": server("scarcity", "newcomers"),
        "admission.py": server("bad_behaviour", "bad_input", "large_messages", "large_messages_in_trouble"),
        "certificates.py": server("certificate_expiry", "tls", "reloading"),
        "closing_deadline.py": server("bad_behaviour", "liveness", "newcomers"),
        "duplex.py": (*amqp("channels", "ends"), *server("amqp_1_0_connections")),
        "expiry.py": server("certificate_expiry"),
        "forms.py": server("sender", "framed_messages"),
        **{
            f"{name}.py": server("stalled", "framed_messages", "sender")
            for name in ("forwarding", "remainders")
        },
        "framed_transport.py": (*amqp("pieces"), *server("framed_messages", "amqp_1_0_windows")),
        "heartbeats.py": (*amqp("channels", "ends"), *server("amqp_1_0_connections", "logged_ends")),
        "held.py": server("publishing_workers", "amqp_1_0_publishing_workers"),
        "late_tasks.py": server("amqp_0_9_stop"),
        "liveness.py": server("liveness"),
        "login.py": (*amqp("channels", "rights"), *server("amqp_1_0_connections", "many_attempts")),
        "pace.py": server("pace", "turns"),
        "sender.py": server("sender", "many_topics", "stalled"),
        "statistics.py": server("statistics", "watching"),
        "tls_transport.py": server("tls", "stalled"),
        "transport.py": server("stalled", "framed_messages", "bad_behaviour"),
        "turns.py": server("turns"),
    },
)

EXCHANGES = Area(
    "omq/exchanges",
    ("tests/exchanges", *amqp("probe", "full_targets")),
    {
        "copies.py": ("tests/exchanges/test_exchanges.py", *amqp("probe")),
        "dead_letters.py": (*DEAD_LETTERS, *amqp("probe", "full_targets")),
        "deaths.py": ("tests/exchanges/test_deaths.py", *DEAD_LETTERS),
        "matching.py": ("tests/exchanges/test_matching.py", "tests/exchanges/test_exchanges.py"),
        "records.py": ("tests/exchanges/test_durable_exchanges.py",),
        "routes.py": ("tests/exchanges/test_exchanges.py", "tests/exchanges/test_many_of_them.py"),
        "types.py": ("tests/exchanges/test_exchanges.py", "tests/exchanges/test_durable_exchanges.py"),
    },
)

METRICS = Area(
    "omq/metrics",
    server("metrics", "metrics_access", "readiness"),
    {"nodes.py": server("metrics", "amqp_1_0_statistics"), "readiness.py": server("readiness")},
)

TERMINALS = {
    "omq": OMQ,
    "dmp": DMP,
    "amqp-0-9-1": AMQP_0_9,
    "amqp-1-0": AMQP_1_0,
    "http": HTTP,
    "connection": CONNECTION,
    "exchanges": EXCHANGES,
    "metrics": METRICS,
}
"""The areas by name."""
