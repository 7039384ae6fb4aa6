"""The clients and the commands, and which tests are nearest to them."""

from mutate_area import Area, server


def _client(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/client/test_{name}.py" for name in names)


def _cli(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/cli/test_{name}.py" for name in names)


def _replay(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/replay/test_{name}.py" for name in names)


CLIENT = Area(
    "omq/client",
    _client("client", "arguments", "many_tasks", "reconnect", "what_can_be_published", "silence"),
    {
        "arguments.py": _client("arguments"),
        "bodies.py": _client("arguments", "what_can_be_published", "client"),
        "bulk.py": _client("bulk"),
        "connecting.py": _client("client", "reconnect", "client_tls", "known_clients"),
        "connections.py": _client("reconnect", "client", "many_tasks", "silence"),
        "dmp_stream.py": _client("dmp"),
        "feed.py": _client("dmp"),
        "ledger.py": _client("ledger", "many_tasks", "reconnect"),
        "lines.py": _client("lines", "what_can_be_published"),
        "network.py": _client("client", "client_tls", "on_asyncio"),
        "silence.py": _client("silence", "dmp"),
        "sink.py": _client("dmp", "what_can_be_published"),
        "sink_heads.py": _client("dmp"),
        "tcp.py": _client("client", "silence", "on_asyncio"),
        "watching.py": _client("client_watching"),
    },
)

BLOCKING = Area(
    "omq/blocking",
    ("tests/blocking/test_blocking.py", "tests/blocking/test_ends.py"),
)

BULK = Area(
    "omq/bulk",
    (
        *_client("bulk", "bulk_ahead", "bulk_silence"),
        "tests/arrow/test_arrow.py",
        *_replay("replay", "replay_of_large_messages"),
    ),
    {
        "local.py": (*_replay("replay", "replay_of_large_messages"), *_client("bulk")),
        "network.py": (
            *_client("bulk", "bulk_ahead", "bulk_silence"),
            *_replay("replay", "interrupted_replay"),
            "tests/spark/test_spark_security.py",
        ),
        "places.py": _replay("replay", "replay_command_line"),
        "sinks.py": _replay("replay", "interrupted_replay"),
    },
)

REPLAY = Area(
    "omq/replay",
    _replay("replay", "replay_command_line", "interrupted_replay", "replay_of_large_messages"),
    {
        "arguments.py": _replay("replay_command_line"),
        "gaps.py": _replay("replay", "interrupted_replay"),
        "job.py": ("tests/spark/test_replay_job.py",),
        "request.py": _replay("replay_command_line", "replay"),
        "stopping.py": _replay("interrupted_replay"),
    },
)

CLI = Area(
    "omq/cli",
    _cli("omq_command", "sub_command", "management_commands", "watching_commands", "reference"),
    {
        "advice.py": _cli("omq_command", "tls_commands"),
        "allocator.py": _cli("allocator"),
        "cells.py": _cli("cells", "sub_command", "watching_commands"),
        "client.py": _cli("omq_command", "dmp_commands", "tls_commands"),
        "collector.py": _cli("collector"),
        "command_line.py": _cli("omq_command", "reference", "sub_command"),
        "descriptors.py": (*_cli("descriptors"), *server("scarcity")),
        "exposure.py": _cli("access_commands", "exit_status", "start"),
        "heads.py": _cli("dmp_commands"),
        "json_log.py": ("tests/test_logs.py",),
        "json_values.py": _cli("json_values", "dmp_commands"),
        "logs.py": ("tests/test_logs.py", *_cli("exit_status", "counts")),
        "management.py": _cli("management_commands"),
        "manual.py": _cli("reference"),
        "output.py": _cli("watching_commands", "management_commands", "omq_command"),
        "reference.py": _cli("reference"),
        "saving.py": _cli("sub_command", "dmp_commands"),
        "scheduling.py": _cli("scheduling"),
        "server.py": _cli("exit_status", "sighup", "reload", "start", "counts", "access_commands"),
        "since.py": _cli("sub_command"),
        "start.py": _cli("start", "exit_status", "omq_command"),
        "store.py": _cli("store_command"),
        "subscribing.py": _cli("sub_command", "dmp_commands"),
        "watching.py": _cli("watching_commands"),
        "watching_options.py": _cli("watching_commands", "reference"),
    },
)

CLIENTS = {"client": CLIENT, "blocking": BLOCKING, "bulk": BULK}

COMMANDS = {"cli": CLI, "replay": REPLAY}
