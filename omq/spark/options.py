"""Parse the options of the data source, which Spark passes as text (docs/SPARK.md, "Read").

Options with the same meaning as in Spark's Kafka source have the same names. An offset is a message id, and
ends are exclusive, as there.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from omq.bulk.credentials import Credentials, IdFile, IdVariable
from omq.bulk.errors import BadOptions
from omq.bulk.places import (
    Bound,
    Choice,
    Edge,
    NamedTopics,
    Pattern,
    PerTopic,
    Place,
    ServerPlace,
    StorePlace,
    Timestamp,
    TimestampPerTopic,
)
from omq.bulk.remote import RetryPolicy, parse_servers
from omq.model import check_topic
from omq.server_address import Address


@dataclass(frozen=True, slots=True)
class Wait:
    """A stream waits for this number of messages before a micro-batch, but no longer than this time after the
    previous one.
    """

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReadOptions:
    place: Place
    choice: Choice
    start: Bound
    end: Bound
    min_partitions: int | None
    max_records: int | None
    """The greatest number of messages in a partition."""
    max_per_trigger: int | None
    wait: "Wait | None"
    fail_on_data_loss: bool
    include_headers: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    servers: ServerPlace
    topic: str | None
    """The topic of all rows; None if a column contains it."""
    producer: str | None
    """The producer's name, for a batch that may be repeated as a whole."""


SERVERS = "omq.servers"
CA, CERT, KEY = "omq.tls.ca", "omq.tls.cert", "omq.tls.key"
ID_FILE, ID_VARIABLE = "omq.id.file", "omq.id.variable"
PATH = "path"
CHOICES = ("subscribe", "subscribePattern", "assign")
STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
MIN_PARTITIONS = "minPartitions"
MAX_RECORDS = "maxRecordsPerPartition"
MIN_PER_TRIGGER, MAX_PER_TRIGGER = "minOffsetsPerTrigger", "maxOffsetsPerTrigger"
MAX_DELAY = "maxTriggerDelay"
FAIL_ON_DATA_LOSS = "failOnDataLoss"
INCLUDE_HEADERS = "includeHeaders"
RETRIES = "fetchOffset.numRetries"
RETRY_INTERVAL = "fetchOffset.retryIntervalMs"
TOPIC = "topic"
PRODUCER = "producer"

_SECURITY = (CA, CERT, KEY, ID_FILE, ID_VARIABLE)
READ_OPTIONS = (
    SERVERS, *_SECURITY, PATH, *CHOICES, *STARTS, *ENDS, MIN_PARTITIONS, MAX_RECORDS, MIN_PER_TRIGGER,
    MAX_PER_TRIGGER, MAX_DELAY, FAIL_ON_DATA_LOSS, INCLUDE_HEADERS, RETRIES, RETRY_INTERVAL,
)  # fmt: skip
WRITE_OPTIONS = (SERVERS, *_SECURITY, TOPIC, PRODUCER, RETRIES, RETRY_INTERVAL, INCLUDE_HEADERS)
_SPARKS = ("checkpointLocation", "queryName")
"""Options of a stream that belong to Spark itself."""

ELSEWHERE = {
    "kafka.bootstrap.servers": SERVERS,
    "kafka.security.protocol": f"omqs://HOST:PORT in {SERVERS}",
    "kafka.ssl.truststore.location": f"{CA}, a file in PEM",
    "kafka.ssl.keystore.location": f"{CERT}, a file in PEM",
    "kafka.ssl.keystore.key": f"{KEY}, a file in PEM",
    "kafka.sasl.jaas.config": f"{ID_FILE}, a file with one line NAME:SECRET",
    "omq.id": f"{ID_FILE}, a file with one line NAME:SECRET",
}
"""Options that users may try: names of the Kafka source, and one that would expose a secret. With hints."""

_OF_A_TABLE = "option."
"""The prefix of the options of a table that `CREATE TABLE` is about to create."""

NO_TABLES = (
    "Spark stores the options of CREATE TABLE and does not give them to a data source in Python: use CREATE "
    "TEMPORARY VIEW, or give the options in the query, SELECT ... FROM t WITH (...)"
)
"""The reason that a table cannot be used, and the alternatives."""

_USUAL_DELAY = "15m"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
"""Seconds in each unit of a duration."""

_LONGEST_INTERVAL = 24 * 3600 * 1000
"""The milliseconds of the longest pause between two attempts: a day. No program can wait for 10**18."""

_LONGEST_PRODUCER = 200
"""The octets of the longest name: an app-id has up to 255, and the writer appends a hyphen and the partition.
"""


def spelled(place: ServerPlace) -> dict[str, str]:
    """Convert a server back to options."""
    known = place.credentials
    given = {
        SERVERS: ",".join(address.url for address in place.addresses),
        RETRIES: str(place.retry_policy.retries),
        RETRY_INTERVAL: str(round(place.retry_policy.seconds * 1000)),
        CA: known.ca,
        CERT: known.certificate,
        KEY: known.key,
        ID_FILE: known.id.path if isinstance(known.id, IdFile) else None,
        ID_VARIABLE: known.id.name if isinstance(known.id, IdVariable) else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def read_options(options: Mapping[str, str], *, stream: bool | None) -> ReadOptions:
    """Parse the options of a reader. `stream` is None while it is unknown whether they are for a stream.

    Raises BadOptions.
    """
    given = _Given(options, READ_OPTIONS)
    place = _place(given)
    choice = _choice(given)
    start = _bound(given, STARTS, Edge.LATEST if stream else Edge.EARLIEST)
    end = _bound(given, ENDS, Edge.LATEST)
    if stream:
        given.refuse(ENDS, "a stream has no end")
    elif stream is False:
        given.refuse((MIN_PER_TRIGGER, MAX_PER_TRIGGER, MAX_DELAY), "it is for streams only")
        if start is Edge.LATEST:
            raise BadOptions("startingOffsets cannot be 'latest' in a batch: there is nothing behind it.")
        if end is Edge.EARLIEST:
            raise BadOptions("endingOffsets cannot be 'earliest': there is nothing before it.")
    if isinstance(start, Timestamp) and isinstance(end, Timestamp) and start.milliseconds > end.milliseconds:
        raise BadOptions(
            f"startingTimestamp {start.milliseconds} is after endingTimestamp {end.milliseconds}."
        )
    if isinstance(start, TimestampPerTopic) and isinstance(end, TimestampPerTopic):
        for topic, milliseconds in start.milliseconds.items():
            if milliseconds > end.milliseconds.get(topic, milliseconds):
                raise BadOptions(
                    f"startingOffsetsByTimestamp {milliseconds} is after endingOffsetsByTimestamp "
                    f"{end.milliseconds[topic]} for {topic!r}."
                )
    max_per_trigger = given.number(MAX_PER_TRIGGER, 1)
    return ReadOptions(
        place,
        choice,
        start,
        end,
        given.number(MIN_PARTITIONS, 1),
        given.number(MAX_RECORDS, 1),
        max_per_trigger,
        _wait(given, max_per_trigger),
        given.boolean(FAIL_ON_DATA_LOSS, True),
        given.boolean(INCLUDE_HEADERS, False),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer. Raises BadOptions."""
    given = _Given(options, WRITE_OPTIONS)
    if given.get(PATH) is not None:
        raise BadOptions(f"A sink writes to a server: give {SERVERS}, and no path.")
    if given.get(SERVERS) is None:
        raise BadOptions(f"A sink needs {SERVERS}: HOST:PORT of the server to write to." + _if_table(given))
    topic = given.get(TOPIC)
    if topic is not None and (problem := check_topic(topic.encode())) is not None:
        raise BadOptions(f"The option topic cannot be {topic!r}: {problem}.")
    producer = given.get(PRODUCER)
    if producer is not None and not 0 < len(producer.encode()) <= _LONGEST_PRODUCER:
        raise BadOptions(f"The option {PRODUCER} has 1 to {_LONGEST_PRODUCER} octets.")
    return WriteOptions(_servers(given), topic, producer)


class _Given:
    """The given options; their names are case-insensitive."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        if any(name.startswith(_OF_A_TABLE) for name in self._options):
            raise BadOptions(f"There can be no table of topics. {NO_TABLES}.")
        names = {name.lower() for name in (*known, *_SPARKS)}
        for name in options:
            if name.lower() not in names and name.lower() != PATH:
                here = ELSEWHERE.get(name.lower())
                hint = f"; there are {', '.join(known)}" if here is None else f": here it is {here}"
                raise BadOptions(f"There is no option {name!r}{hint}.")

    @property
    def nothing(self) -> bool:
        """Whether no options are given at all, as for a table."""
        return not self._options

    def get(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def among(self, names: tuple[str, ...]) -> str | None:
        """Return the one of these names that is given, if any. Raise BadOptions for more than one."""
        found = [name for name in names if self.get(name) is not None]
        if len(found) > 1:
            raise BadOptions(f"{' and '.join(found)} exclude each other: give one of them.")
        return found[0] if found else None

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if self.get(name) is not None:
                raise BadOptions(f"{name} makes no sense here: {why}.")

    def number(self, name: str, least: int, most: int | None = None) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < least:
            raise BadOptions(f"{name} must be a whole number of at least {least}, not {text!r}.")
        if most is not None and int(text) > most:
            raise BadOptions(f"{name} must be at most {most}, not {text!r}.")
        return int(text)

    def boolean(self, name: str, otherwise: bool) -> bool:
        text = self.get(name)
        if text is None:
            return otherwise
        if text.strip().lower() not in ("true", "false"):
            raise BadOptions(f"{name} must be true or false, not {text!r}.")
        return text.strip().lower() == "true"


def _place(given: _Given) -> Place:
    name = given.among((SERVERS, PATH))
    if name is None:
        raise BadOptions(
            f"Give {SERVERS} (HOST:PORT of a server) or {PATH} (a store of this machine)." + _if_table(given)
        )
    if name == SERVERS:
        return _servers(given)
    given.refuse((RETRIES, RETRY_INTERVAL, *_SECURITY), f"it is for {SERVERS} only")
    path = given.get(PATH)
    assert path is not None
    return StorePlace(path)


def _if_table(given: _Given) -> str:
    """Return a hint for queries of a table, which come without its options."""
    return f" For a table: {NO_TABLES}." if given.nothing else ""


def _servers(given: _Given) -> ServerPlace:
    try:
        addresses = parse_servers(given.get(SERVERS) or "")
    except ValueError as error:
        raise BadOptions(f"{SERVERS}: {error}.") from error
    retries = given.number(RETRIES, 0)
    interval = given.number(RETRY_INTERVAL, 0, _LONGEST_INTERVAL)
    usual = RetryPolicy()
    return ServerPlace(
        addresses,
        RetryPolicy(
            usual.retries if retries is None else retries,
            usual.seconds if interval is None else interval / 1000,
        ),
        _credentials(given, addresses),
    )


def _credentials(given: _Given, addresses: tuple[Address, ...]) -> Credentials:
    if not any(address.tls for address in addresses):
        given.refuse((CA, CERT, KEY), f"it is for omqs://HOST:PORT in {SERVERS}")
    if given.get(CERT) is None:
        given.refuse((KEY,), f"it is the key of {CERT}")
    id: IdFile | IdVariable | None = None
    match given.among((ID_FILE, ID_VARIABLE)):
        case "omq.id.file":
            id = IdFile(given.get(ID_FILE) or "")
        case "omq.id.variable":
            id = IdVariable(given.get(ID_VARIABLE) or "")
        case _:
            pass
    return Credentials(given.get(CA), given.get(CERT), given.get(KEY), id)


def _choice(given: _Given) -> Choice:
    name = given.among(CHOICES)
    text = None if name is None else given.get(name)
    match name:
        case "subscribe":
            assert text is not None
            return _topics("subscribe", [part.strip() for part in text.split(",")])
        case "assign":
            assert text is not None
            return _topics("assign", _assigned(text))
        case "subscribePattern":
            assert text is not None
            try:
                re.compile(text)
            except re.error as error:
                raise BadOptions(f"subscribePattern {text!r} is no regular expression: {error}.") from error
            return Pattern(text)
        case _:
            raise BadOptions(f"Say which topics: give one of {', '.join(CHOICES)}.")


def _topics(option: str, names: list[str]) -> NamedTopics:
    for name in names:
        if (problem := check_topic(name.encode())) is not None:
            raise BadOptions(f"{option} names {name!r}: {problem}.")
    if not names:
        raise BadOptions(f"{option} names no topic.")
    return NamedTopics(tuple(dict.fromkeys(names)))


def _assigned(text: str) -> list[str]:
    found = _json("assign", text)
    for name, partitions in found.items():
        if partitions != [0]:
            raise BadOptions(f"assign must have [0] for {name!r}: a topic of omq is one partition, number 0.")
    return list(found)


def _bound(given: _Given, names: tuple[str, ...], otherwise: Edge) -> Bound:
    name = given.among(names)
    if name is None:
        return otherwise
    text = given.get(name)
    assert text is not None
    if name.endswith("ByTimestamp"):
        return TimestampPerTopic(
            {topic: _time(name, topic, value) for topic, value in _json(name, text).items()}
        )
    if name.endswith("Timestamp"):
        milliseconds = given.number(name, 0)
        assert milliseconds is not None
        return Timestamp(milliseconds)
    edges = {edge.value: edge for edge in Edge}
    if text.strip().lower() in edges:
        return edges[text.strip().lower()]
    return PerTopic({topic: _offset(name, topic, value) for topic, value in _json(name, text).items()})


def _time(option: str, topic: str, value: object) -> int:
    """Parse a time of one topic: plain, or as in the Kafka source by partition."""
    if isinstance(value, dict) and set(value) == {"0"}:
        value = value["0"]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadOptions(f"{option} must have milliseconds since the epoch for {topic!r}, not {value!r}.")
    return value


def _wait(given: _Given, max_per_trigger: int | None) -> Wait | None:
    messages = given.number(MIN_PER_TRIGGER, 1)
    if messages is None:
        given.refuse((MAX_DELAY,), f"it bounds the time that {MIN_PER_TRIGGER} waits")
        return None
    if max_per_trigger is not None and messages > max_per_trigger:
        raise BadOptions(f"{MIN_PER_TRIGGER} {messages} is greater than {MAX_PER_TRIGGER} {max_per_trigger}.")
    return Wait(messages, _seconds(given.get(MAX_DELAY) or _USUAL_DELAY))


def _seconds(text: str) -> float:
    """Parse a duration as Spark spells it: `90s`, `15m`; milliseconds without a unit."""
    found = re.fullmatch(r"([0-9]{1,12})([a-z]*)", text.strip().lower())
    if found is None or (found[2] or "ms") not in _UNITS:
        raise BadOptions(
            f"{MAX_DELAY} must be a number with one of the units {', '.join(_UNITS)}, such as 15m, "
            f"not {text!r}."
        )
    return int(found[1]) * _UNITS[found[2] or "ms"]


def _offset(option: str, topic: str, value: object) -> int | Edge:
    """Parse an offset: plain, or as in the Kafka source by partition, with -2 and -1 for the two ends."""
    if isinstance(value, dict) and set(value) == {"0"}:
        value = value["0"]
        if value == -2:
            return Edge.EARLIEST
        if value == -1:
            return Edge.LATEST
    if isinstance(value, str) and value in (Edge.EARLIEST.value, Edge.LATEST.value):
        return Edge(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadOptions(f"{option} must have a message id of at least 1 for {topic!r}, not {value!r}.")
    return value


def _json(option: str, text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadOptions(f"{option} is no JSON, and none of its words: {text!r}.") from error
    if not isinstance(found, dict):
        raise BadOptions(f"{option} must be a JSON object with a member for each topic, not {text!r}.")
    return found
