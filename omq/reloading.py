"""The keys of the configuration that a running server applies when it reads its file again."""

import msgspec

from omq.config import Config, TopicConfig

RELOADED = frozenset(
    {
        "clients",
        "client_share",
        "log_level",
        "log_levels",
        "max_bindings",
        "max_connections",
        "max_dmp_connections",
        "max_exchanges",
        "max_leases",
        "max_subscriptions",
        "max_topics",
        "retention_bytes",
        "retention_seconds",
        "topics",
    }
)
"""The keys that are applied. Two only in part, see `need_restart`."""


def need_restart(running: Config, read: Config) -> list[str]:
    """Return the keys that differ and that only a start of the server applies.

    Of `topics` a reload applies the retention only. It applies `clients` if both configurations have clients,
    or neither has: a protocol greets in another way if everybody may connect.
    """
    keys = [
        field.name
        for field in msgspec.structs.fields(Config)
        if field.name not in RELOADED and getattr(running, field.name) != getattr(read, field.name)
    ]
    if bool(running.clients) != bool(read.clients):
        keys.append("clients")
    if sorted(map(_declared, running.topics)) != sorted(map(_declared, read.topics)):
        keys.append("topics")
    return sorted(keys)


def applied(running: Config, read: Config) -> Config:
    """Return the running configuration with those keys of `read` that a running server can apply."""
    kept = set(need_restart(running, read))
    reloaded = {key: getattr(read, key) for key in RELOADED - (kept - {"topics"})}
    return msgspec.structs.replace(running, **reloaded)


def _declared(topic: TopicConfig) -> tuple[str, str, str]:
    return topic.name, topic.delivery, topic.persistence
