"""The configuration: one TOML file, every key with a default, checked before anything starts."""

import ipaddress
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from omq.counted import counted
from omq.model import (
    DELIVERIES,
    LONGEST_BODY,
    MAX_TOPIC_OCTETS,
    PERSISTENCES,
    Delivery,
    DeliveryName,
    Persistence,
    PersistenceName,
    Sync,
)

DEFAULT_LISTEN = "127.0.0.1:7730"
DEFAULT_STORE = "omq-store"

MIB = 1 << 20

SECRET_HASH = re.compile(
    # scrypt is not defined for 2^16 rows and more of the smallest blocks
    r"\$scrypt\$(?!ln=(?:1[6-9]|20),r=1,)ln=([1-9]|1[0-9]|20),r=([1-9]|1[0-6]),p=([1-9]|1[0-6])"
    r"\$([A-Za-z0-9+/]{22})\$([A-Za-z0-9+/]{43})"
)
"""A hash of a secret: the costs of scrypt, the salt, and the key; see omq.access.hashes."""

HTTP_HOST = re.compile(r"[A-Za-z0-9._~-]{1,253}|[0-9A-Fa-f:.]{2,45}")
"""The name or address in the field Host, without a port."""

HTTP_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9._~-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
"""An origin of web pages (RFC 6454): scheme, host, and the port unless it is the scheme's own."""

_LONG_NUMBER = re.compile(r"([0-9](?:_?[0-9]){99})(?:_?[0-9])+")

LOG_AREAS = (
    "access", "catalogue", "connections", "dead_letters", "driver", "exchanges", "housekeeping", "metrics",
    "round_robin", "server", "spill", "spool", "stalled", "terminal", "threads", "writer",
)  # fmt: skip
"""The areas whose log levels can be set: the loggers of the server are called `omq.AREA`."""

# Above these bounds a number makes no sense, and the server could not compute with every one.
MOST_COUNT = 2**31 - 1
MOST_OCTETS = 2**53 - 1
MOST_SECONDS = 10**10

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)]
OctetCount = Annotated[int, msgspec.Meta(ge=1, le=MOST_OCTETS)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)]


LogLevel = Literal["debug", "info", "warning", "error"]


class ConfigError(Exception):
    """The configuration cannot be used; the message is one line that names the key."""


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[topics]]` table: a topic that exists from the start, with its types and its retention."""

    name: str
    delivery: DeliveryName = "broadcast"
    persistence: PersistenceName = "weak"
    retention_bytes: OctetCount | None = None
    retention_seconds: Seconds | None = None

    def types(self) -> tuple[Delivery, Persistence]:
        return DELIVERIES[self.delivery], PERSISTENCES[self.persistence]


class ClientConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[clients]]` table: a client that may connect, and its rights."""

    name: str
    secret: str | Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)]
    declare: list[str] = []
    publish: list[str] = []
    subscribe: list[str] = []
    delete: list[str] = []
    watch: list[str] = []
    administer: list[str] = []
    max_connections: Count | None = None
    max_subscriptions: Count | None = None
    max_topics: Count | None = None
    max_leases: Count | None = None
    max_exchanges: Count | None = None
    max_bindings: Count | None = None
    max_bytes_per_second: OctetCount | None = None
    certificate: str | None = None

    def secrets(self) -> tuple[str, ...]:
        """Return the hashes of the client's secrets: two while one is replaced by another."""
        return (self.secret,) if isinstance(self.secret, str) else tuple(self.secret)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings. The keys of the file are the names of these fields."""

    listen: list[str] = msgspec.field(default_factory=lambda: [DEFAULT_LISTEN])
    listen_tls: list[str] = []
    listen_http: list[str] = []
    http: bool = True
    http_hosts: list[str] = []
    http_origins: list[str] = []
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    insecure: bool = False
    clients: list[ClientConfig] = []
    max_connections: Count = 10_000
    max_subscriptions: Count = 100_000
    client_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    store: str = DEFAULT_STORE

    allow_undeclared: bool = True
    default_delivery: DeliveryName = "broadcast"
    default_persistence: PersistenceName = "weak"
    topics: list[TopicConfig] = []
    max_topics: Count = 20_000
    max_exchanges: Count = 10_000
    max_bindings: Count = 100_000

    amqp_durable: Literal["strong", "weak", "async"] = "strong"
    amqp_direct: bool = True
    amqp_heartbeat_seconds: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 60

    amqp1_default: Literal["queue", "multicast"] = "queue"
    amqp1_prefixes: dict[str, Literal["direct", "queue", "multicast"]] = {}
    amqp1_credit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 200

    ping_seconds: Annotated[float, msgspec.Meta(gt=0, le=50)] = 45
    missed_pings: Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)] = 3
    handshake_seconds: Seconds = 10
    stall_seconds: Seconds = 0.25
    spool_seconds: Seconds = 2

    lease_seconds: Seconds = 60
    lease_same_host: bool = True
    max_leases: Count = 20_000
    max_dmp_connections: Count = 10_000
    feed_null_seconds: Annotated[float, msgspec.Meta(gt=0, le=50)] = 5

    max_line_bytes: Annotated[int, msgspec.Meta(ge=1024, le=MOST_OCTETS)] = MIB
    max_message_bytes: OctetCount = 64 * MIB
    fragment_octets: Annotated[int, msgspec.Meta(ge=MIB // 8, le=64 * MIB)] = MIB // 4
    max_credit: Count = 100_000

    memory_bytes: Annotated[int, msgspec.Meta(ge=4 * MIB, le=MOST_OCTETS)] = 64 * MIB
    weak_flush_seconds: Seconds = 2
    async_flush_seconds: Seconds = 60
    map_bytes: Annotated[int, msgspec.Meta(ge=MIB, le=1 << 44)] = 1 << 40
    disk_reserve_bytes: Annotated[int, msgspec.Meta(ge=0, le=MOST_OCTETS)] = 256 * MIB
    spool_bytes: Annotated[int, msgspec.Meta(ge=0, le=MOST_OCTETS)] = 256 * MIB
    retention_bytes: OctetCount | None = None
    retention_seconds: Seconds | None = None

    log_level: LogLevel = "info"
    log_levels: dict[str, LogLevel] = {}

    def default_types(self) -> tuple[Delivery, Persistence]:
        """Return the types of a topic whose name is used before it is declared."""
        return DELIVERIES[self.default_delivery], PERSISTENCES[self.default_persistence]

    def durable_sync(self) -> Sync:
        """Return the sync level of durable AMQP queues whose declaration names none."""
        return Sync(self.amqp_durable.capitalize())

    def retention(self) -> tuple[int | None, float | None]:
        """Return the limits of other topics than those of `retentions`, in octets and in seconds; `None` for
        no limit.
        """
        return self.retention_bytes, self.retention_seconds

    def retentions(self) -> dict[bytes, tuple[int | None, float | None]]:
        """Return the limits of the topics that are configured, by their names: see `retention`."""
        return {
            topic.name.encode(): (
                self.retention_bytes if topic.retention_bytes is None else topic.retention_bytes,
                self.retention_seconds if topic.retention_seconds is None else topic.retention_seconds,
            )
            for topic in self.topics
        }


def load(path: Path | None, changed: Callable[[Config], Config] = lambda config: config) -> Config:
    """Read a configuration file; without one, the defaults. Return it as `changed` makes it, such as with the
    options of a command, and check only that: an option may correct the file.

    Raises ConfigError with one line that names the key, and the file if it is the file that is wrong.
    """
    if path is None:
        config = changed(Config())
        check(config)
        return config
    try:
        text = path.read_bytes().decode().removeprefix("\ufeff")  # some editors write a byte order mark
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path}: not UTF-8 text (octet {problem.start})") from problem
    try:
        table = _parsed(text)
        if "listen_tls" in table:
            table.setdefault("listen", [])
        config = msgspec.convert(table, Config)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path}: {problem}") from problem
    except msgspec.ValidationError as problem:
        from omq.config_errors import sentence  # few starts need it

        raise ConfigError(f"{path}: {sentence(problem, Config, table)}") from problem
    except RecursionError as problem:
        raise ConfigError(f"{path}: values are nested too deep") from problem
    result = changed(config)
    wrong = _problem(result)
    if wrong is None:
        return result
    raise ConfigError(f"{path}: {wrong}" if _problem(config) == wrong else wrong)


def _problem(config: Config) -> str | None:
    try:
        check(config)
    except ConfigError as problem:
        return str(problem)
    return None


def _parsed(text: str) -> dict[str, object]:
    """Parse TOML. Raises tomllib.TOMLDecodeError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        # Python does not convert a number of this many digits. Fewer of them are still above every bound, so
        # the check of the values names the key.
        return tomllib.loads(_LONG_NUMBER.sub(r"\1", text))


def check(config: Config) -> None:
    """Check the keys against one another. Raises ConfigError with one line that names the key."""
    for key in (
        "handshake_seconds", "stall_seconds", "spool_seconds", "lease_seconds", "weak_flush_seconds",
        "async_flush_seconds", "retention_seconds",
    ):  # fmt: skip
        seconds = getattr(config, key)
        if seconds is not None and not math.isfinite(seconds):
            raise ConfigError(f"{key}: must be a finite number of seconds")
    if not config.store or "\0" in config.store:
        raise ConfigError("store: must name a directory")
    if not config.listen and not config.listen_tls and not config.listen_http:
        raise ConfigError("listen: at least one address is needed")
    _check_addresses(config)
    _check_http(config)
    if (config.tls_cert is None) != (config.tls_key is None):
        here, missing = ("tls_cert", "tls_key") if config.tls_key is None else ("tls_key", "tls_cert")
        raise ConfigError(f"{missing}: it is needed beside {here}")
    for key in ("tls_cert", "tls_key", "tls_client_ca"):
        name = getattr(config, key)
        if name is not None and (not name or "\0" in name):
            raise ConfigError(f"{key}: must name a file")
    for key in ("listen_tls", "tls_client_ca"):
        if getattr(config, key) and config.tls_cert is None:
            raise ConfigError(f"{key}: it needs tls_cert and tls_key")
    for area in config.log_levels:
        if area not in LOG_AREAS:
            raise ConfigError(f"log_levels: there is no area {area!r}, only {', '.join(LOG_AREAS)}")
    _check_clients(config)
    _check_exposure(config)
    seen: set[str] = set()
    for topic in config.topics:
        if topic.retention_seconds is not None and not math.isfinite(topic.retention_seconds):
            raise ConfigError(f"topics.retention_seconds: {topic.name!r} needs a finite number of seconds")
        octets = len(topic.name.encode())
        if not 1 <= octets <= MAX_TOPIC_OCTETS:
            raise ConfigError(f"topics.name: a name has 1 to {MAX_TOPIC_OCTETS} octets, this one {octets}")
        if topic.name in seen:
            raise ConfigError(f"topics.name: {topic.name!r} stands there twice")
        seen.add(topic.name)
        bounded = topic.retention_bytes is not None or topic.retention_seconds is not None
        if topic.persistence == "transient" and bounded:
            raise ConfigError(f"topics.retention_*: {topic.name!r} is transient, it keeps nothing to retain")
    if len(config.topics) > config.max_topics:
        declared = counted(len(config.topics), "declared topic")
        raise ConfigError(f"max_topics: {config.max_topics}, less than {declared}")
    if config.max_line_bytes > config.memory_bytes:
        raise ConfigError("max_line_bytes: must not exceed memory_bytes")
    if config.max_message_bytes > LONGEST_BODY:
        why = f"must not exceed {LONGEST_BODY:_}: the length of a frame has 32 bits"
        raise ConfigError(f"max_message_bytes: {why}")


def _check_addresses(config: Config) -> None:
    seen: set[tuple[str, int]] = set()
    for key in ("listen", "listen_tls", "listen_http"):
        for address in getattr(config, key):
            parsed = parse_address(address, key)
            if parsed in seen and parsed[1] != 0:
                raise ConfigError(f"{key}: {address!r} is there twice")
            seen.add(parsed)


def _check_http(config: Config) -> None:
    if config.listen_http and not config.http:
        raise ConfigError("listen_http: there are addresses for HTTP, but http is off")
    for host in config.http_hosts:
        if not HTTP_HOST.fullmatch(host):
            raise ConfigError(f"http_hosts: {host!r} is not a name or an address without a port")
    for origin in config.http_origins:
        if not HTTP_ORIGIN.fullmatch(origin):
            raise ConfigError(f"http_origins: {origin!r} is not SCHEME://HOST or SCHEME://HOST:PORT")


def _check_clients(config: Config) -> None:
    seen: set[str] = set()
    certificates: set[str] = set()
    for client in config.clients:
        if not client.name or ":" in client.name:
            raise ConfigError(f"clients.name: {client.name!r} must be a name without a colon")
        if client.name in seen:
            raise ConfigError(f"clients.name: {client.name!r} stands there twice")
        seen.add(client.name)
        _check_certificate(client, config, certificates)
        if not all(map(SECRET_HASH.fullmatch, client.secrets())):
            # Do not repeat the value: it may be the secret itself.
            what = f"that of {client.name!r} is not what omq-server --hash-secret prints"
            raise ConfigError(f"clients.secret: {what}")
        if len(set(client.secrets())) < len(client.secrets()):
            raise ConfigError(f"clients.secret: {client.name!r} has the same hash twice")
        for key in ("declare", "publish", "subscribe", "delete", "watch", "administer"):
            for pattern in getattr(client, key):
                octets = len(pattern.encode())
                if not 1 <= octets <= MAX_TOPIC_OCTETS:
                    what = f"the name of a topic, or how it begins and *, has 1 to {MAX_TOPIC_OCTETS} octets"
                    raise ConfigError(f"clients.{key}: {what}, one of {client.name!r} {octets}")


def _check_certificate(client: ClientConfig, config: Config, seen: set[str]) -> None:
    """Check the name of the certificates of a client, and add it to those that were `seen`."""
    if client.certificate is None:
        return
    if not client.certificate:
        raise ConfigError(f"clients.certificate: that of {client.name!r} must be a name")
    if client.certificate in seen:
        raise ConfigError(f"clients.certificate: {client.certificate!r} stands there twice")
    if config.tls_client_ca is None:
        raise ConfigError("clients.certificate: it needs tls_client_ca")
    seen.add(client.certificate)


def _check_exposure(config: Config) -> None:
    """Refuse addresses that other machines can reach if every client may do everything."""
    if config.clients or config.insecure:
        return
    tls = config.listen_tls if config.tls_client_ca is None else []
    for address in config.listen + config.listen_http + tls:
        if not is_loopback(parse_address(address)[0]):
            raise ConfigError(
                f"insecure: {address} can be reached from other machines, and without clients configured"
                " every client may do everything: configure clients, or allow that with --insecure"
            )


def is_loopback(host: str) -> bool:
    """Return whether a host, an address or a name, is certainly a loopback address of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_address(address: str, key: str = "listen") -> tuple[str, int]:
    """Parse `HOST:PORT` or `[HOST]:PORT`; port 0 selects a free port. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{key}: {address!r}: an IPv6 address is written [ADDRESS]:PORT")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not host or not host.isprintable() or not digits or int(port) > 65535:
        raise ConfigError(f"{key}: {address!r} is not HOST:PORT with a port from 0 to 65535")
    return host, int(port)
