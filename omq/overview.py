"""The server as a whole, for clients that watch and control it: see `omq.access.administered_server`."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import nlargest
from typing import Protocol

from omq import watching
from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.memory import Memory
from omq.drivers.seam import Channel
from omq.drivers.slices import let_go
from omq.drivers.statistics import ChannelStatistics, WriterStatistics
from omq.logs import quoted
from omq.model import Topic
from omq.statistics import ServerStatistics
from omq.terminals.connection.statistics import ConnectionStatistics, Kind
from omq.version import VERSION

log = logging.getLogger("omq.server")

MOST_LINES = 100
"""The number of the last lines of the log that are remembered."""

LONGEST_LINE = 1000
"""The greatest number of octets of a line that are remembered."""

MOST_FURTHEST = 4
"""The greatest number of subscriptions of a connection that are shown: those that are the furthest behind."""

CHANNELS_A_STEP = 64
"""The number of subscriptions that are examined in one step."""

OpenChannel = tuple[Topic, Channel]


class Connected(Protocol):
    """The interface of a connection for the overview."""

    def statistics(self) -> ConnectionStatistics:
        """Return a snapshot of the connection."""

    def open_channels(self) -> Iterator[OpenChannel]:
        """Yield the topics and channels of the subscriptions that it has now."""

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""

    def disconnect(self, why: str) -> None:
        """End the connection in order, within a short time, and tell the client why."""


class OverviewSource(Protocol):
    """The interface of the server for the overview."""

    config: Config
    catalogue: Catalogue
    memory: Memory

    def numbered(self) -> Sequence[tuple[Connected, int]]:
        """Return the connections with their ids, in the order of their ids."""

    def statistics(self) -> ServerStatistics:
        """Return a snapshot of the server."""


class RecentLines(logging.Handler):
    """The last warnings and errors of the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[watching.Line] = deque(maxlen=MOST_LINES)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a line. The logger calls it under the lock of this handler, from any thread."""
        try:
            text = record.getMessage().encode("utf-8", "backslashreplace")
        except Exception:  # noqa: BLE001 - as every handler does with a record that it cannot format
            self.handleError(record)
            return
        self._number += 1
        line = watching.Line(
            number=self._number,
            time_us=int(record.created * 1_000_000),
            level=record.levelname.encode(),
            logger=record.name.encode(),
            text=text[:LONGEST_LINE],
        )
        self._lines.append(line)

    def after(self, number: int) -> tuple[watching.Line, ...]:
        """Return the lines with higher numbers, the oldest first."""
        return tuple(line for line in self._lines.copy() if line.number > number)


@contextmanager
def recent_lines() -> Iterator[RecentLines]:
    """Remember the last warnings and errors of the server's log within the block."""
    lines = RecentLines()
    logger = logging.getLogger("omq")
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)


class Overview:
    """One server as a whole."""

    def __init__(self, server: OverviewSource, lines: RecentLines) -> None:
        self._server = server
        self._lines = lines

    def totals(self, watchers: int) -> watching.Server:
        """See `AdministeredServer`."""
        server, config = self._server, self._server.config
        numbers = server.statistics()
        writers = server.catalogue.writers.values()
        served = numbers.served
        spoken = [(kind.value.encode(), served[kind]) for kind in Kind if served[kind]]
        return watching.Server(
            time_us=time.time_ns() // 1000,
            version=VERSION.encode(),
            uptime=_ms(numbers.seconds),
            connections=numbers.connections,
            max_connections=numbers.max_connections,
            protocols=tuple(watching.ProtocolCount(*each) for each in spoken),
            subscriptions=numbers.subscriptions,
            max_subscriptions=numbers.max_subscriptions,
            topics=numbers.topics,
            max_topics=numbers.max_topics,
            leases=numbers.leases,
            watchers=watchers,
            turned_away=numbers.turned_away,
            memory=_shares(server.memory),
            writers=tuple(_writer(writer.statistics()) for writer in writers),
            disk_free=server.catalogue.disk.free,
            disk_reserve=config.disk_reserve_bytes,
            store_octets=server.catalogue.disk.stored,
            spool=numbers.spool.used,
            spool_limit=numbers.spool.limit,
        )

    def warnings(self, after: int) -> tuple[watching.Line, ...]:
        """See `AdministeredServer`."""
        return self._lines.after(after)

    def connections(self, first: int) -> Iterator[watching.ConnectionInfo | None]:
        """See `AdministeredServer`."""
        for connection, id in let_go(list(self._server.numbered())):
            if id < first:
                continue
            furthest: list[watching.SubscriptionInfo] = []
            behind = held = 0
            is_used_up = False
            for number, (topic, channel) in enumerate(connection.open_channels(), 1):
                numbers = channel.statistics()
                behind += numbers.behind
                held += numbers.octets
                is_used_up = is_used_up or _is_used_up(numbers)
                furthest.append(_subscription(topic, numbers))
                if not number % CHANNELS_A_STEP:
                    furthest = _furthest(furthest)
                    yield None
            seen = connection.statistics()
            yield watching.ConnectionInfo(
                id=id,
                client=seen.client or b"",
                peer=seen.peer.encode(),
                protocol=seen.kind.value.encode(),
                encrypted=seen.is_encrypted,
                age=_ms(seen.seconds),
                octets_in=seen.octets_in,
                octets_out=seen.octets_out,
                unconfirmed=seen.unconfirmed,
                answers=seen.waiting_answers,
                subscriptions=seen.subscriptions,
                behind=behind,
                held=held + _held(seen),
                stalled=None if seen.stalled_seconds is None else _ms(seen.stalled_seconds),
                slow=_why_slow(seen, is_limited=connection.is_limited, is_used_up=is_used_up),
                furthest=tuple(_furthest(furthest)),
            )

    def subscribers(self, topic: Topic) -> Iterator[watching.SubscriberInfo | None]:
        """See `AdministeredServer`."""
        for connection, id in let_go(list(self._server.numbered())):
            yield None
            for number, (at, channel) in enumerate(connection.open_channels(), 1):
                if not number % CHANNELS_A_STEP:
                    yield None
                if at != topic:  # a node without a queue has no id of its own
                    continue
                seen, numbers = connection.statistics(), channel.statistics()
                yield watching.SubscriberInfo(
                    connection=id,
                    client=seen.client or b"",
                    peer=seen.peer.encode(),
                    protocol=seen.kind.value.encode(),
                    position=numbers.position,
                    behind=numbers.behind,
                    credit=numbers.credit,
                    unconfirmed=numbers.unsettled,
                    octets=numbers.octets,
                    stalled=None if seen.stalled_seconds is None else _ms(seen.stalled_seconds),
                )

    def disconnect(self, connection: int, by: bytes) -> bool:
        """See `AdministeredServer`."""
        for terminal, id in self._server.numbered():
            if id == connection:
                seen = terminal.statistics()
                what = "the connection of %s from %s is ended by %s"
                log.info(what, quoted(seen.client or b""), seen.peer, quoted(by))
                terminal.disconnect("an operator ended the connection")
                return True
        return False


def _why_slow(seen: ConnectionStatistics, *, is_limited: bool, is_used_up: bool) -> bytes | None:
    """Return the reason why a connection gets messages late, or is not read; None if there is none."""
    if seen.stalled_seconds is not None:
        return b"its client reads nothing"
    if is_limited:
        return b"its rate limit is used up"
    if seen.is_sending:
        return b"its client reads more slowly than it is sent messages"
    if is_used_up:
        return b"its credit is used up: it has not confirmed what it got"
    if seen.held.publishes:
        return b"its messages wait for room in a round-robin topic"
    if seen.held.reading:
        return b"its input waits: it sends faster than the server takes it"
    return None


def _is_used_up(numbers: ChannelStatistics) -> bool:
    return numbers.credit is not None and numbers.behind > 0 and numbers.unsettled >= numbers.credit


def _held(seen: ConnectionStatistics) -> int:
    held = seen.held
    return held.reading + held.unfinished + held.answers + held.fetched + held.publishes


def _subscription(topic: Topic, numbers: ChannelStatistics) -> watching.SubscriptionInfo:
    return watching.SubscriptionInfo(
        topic=topic.topic,
        position=numbers.position,
        behind=numbers.behind,
        credit=numbers.credit,
        unconfirmed=numbers.unsettled,
        octets=numbers.octets,
    )


def _furthest(found: list[watching.SubscriptionInfo]) -> list[watching.SubscriptionInfo]:
    return nlargest(MOST_FURTHEST, found, key=lambda each: each.behind)


def _shares(memory: Memory) -> tuple[watching.Share, ...]:
    shares = (
        (b"tails", memory.tails),
        (b"waiting", memory.waiting),
        (b"posted", memory.posted),
        (b"reading", memory.reading),
        (b"replayed", memory.replayed),
        (b"fetched", memory.fetched),
        (b"listed", memory.listed),
        (b"stalled", memory.stalled),
        (b"unconfirmed", memory.unconfirmed),
        (b"unfinished", memory.unfinished),
        (b"uploaded", memory.uploaded),
    )
    return tuple(watching.Share(name, share.used, share.limit) for name, share in shares)


def _writer(numbers: WriterStatistics) -> watching.WriterInfo:
    refusal = numbers.refusal
    return watching.WriterInfo(
        level=numbers.level.value.encode(),
        refusal=None if refusal is None else refusal.text.encode(),
        waiting_posts=numbers.waiting_posts,
        waiting_octets=numbers.waiting_octets,
        commits=numbers.commits,
        commit_us=round(1_000_000 * numbers.commit_seconds),
        last_commit_us=round(1_000_000 * numbers.last_commit_seconds),
        messages=numbers.messages,
        octets=numbers.octets,
        failures=numbers.failures,
    )


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
