"""omq top: what the server does now, as a screen or as JSON, again and again."""

import argparse
import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from datetime import datetime

import trio

from omq import watching
from omq.cli.cells import cut, shortened
from omq.cli.output import column_widths, columns, print_text, shown, watch_output
from omq.cli.records import duration, json_fields
from omq.client import Client, ConnectionFailed, ConnectionLost, Numbers, ProtocolError, Round, Rounds
from omq.counted import counted
from omq.model import delivery_name, persistence_name
from omq.protocol.omq.sentences import RefusalKind, refusal_in

CLEAR = b"\x1b[H\x1b[2J"
"""Moves the cursor home, and clears the screen of a terminal."""

WAITING = (
    "waiting for the first statistics of the server: with thousands of topics, or if it is busy, "
    "they take seconds"
)
"""The screen of `omq top` until they have come."""

PAUSE_SECONDS = 1
"""The number of seconds between attempts to connect again."""

SORTS = ("in", "out", "behind", "ready", "octets", "name")
"""The columns by which `omq top` sorts topics."""

MIN_NAME = 12
"""The least number of characters of a name that fit into a narrow terminal."""

MOST_WARNINGS = 3
"""The number of the last warnings that `omq top` shows."""


async def top(client: Client, options: argparse.Namespace) -> None:
    """Run `omq top`. A screen goes on when the connection was lost: its user sees that, and ends it."""
    is_live = os.isatty(1) and not options.once and options.format == "table"
    report = _Report(options, is_live=is_live)
    if is_live:
        await print_text("lines", f"{WAITING}\n", before=CLEAR)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_output, nursery.cancel_scope)
        while not report.is_over:
            try:
                async with client.watch(options.interval) as rounds:
                    await report.show(rounds)
            except (ConnectionLost, ConnectionFailed) as error:
                if not is_live or _is_final(error):
                    raise
                await report.tell(f"{error}; trying again")
                await trio.sleep(PAUSE_SECONDS)
        nursery.cancel_scope.cancel()


def _is_final(error: ConnectionLost | ConnectionFailed) -> bool:
    """Return whether another connection would end like this one."""
    if isinstance(error, ConnectionFailed):
        return False
    said = (error.server_error or "").encode()
    return isinstance(error, ProtocolError) or refusal_in(said) is RefusalKind.UNKNOWN_CLIENT


class _Report:
    """The output of `omq top`, round by round."""

    def __init__(self, options: argparse.Namespace, *, is_live: bool) -> None:
        self.is_over = False
        self._options = options
        self._is_live = is_live
        self._lines: list[watching.Line] = []
        self._text = ""

    async def show(self, rounds: Rounds) -> None:
        """Print rounds until the end of the connection, or until the report is over."""
        options, rates = self._options, TopicRates()
        number = 0
        async for round in rounds:
            rates.take(round)
            self._lines = [*self._lines, *round.lines][-MOST_WARNINGS:]
            number += 1
            if options.once and number == 1:
                continue  # rates need two rounds
            if options.format == "json":
                await print_text("json", _json_round(round, rates))
            else:
                self._text = _screen(round, rates, self._lines, options, is_live=self._is_live)
                await print_text("lines", self._text, before=CLEAR if self._is_live else b"")
            if options.once:
                self.is_over = True
                break

    async def tell(self, what: str) -> None:
        """Print a line above the last round. A screen that scrolled would not show it."""
        size = shutil.get_terminal_size()
        line = cut(shown(what.encode()), size.columns)
        rest = self._text.split("\n")[: max(0, size.lines - 2)]
        await print_text("lines", "\n".join([line, *rest]), before=CLEAR)


# -- the topics ---------------------------------------------------------------------------------------------


STILL = watching.TrafficRates()
"""The rates of a topic that has not changed."""


class TopicRates:
    """The rates of topics between two rounds."""

    def __init__(self) -> None:
        self._before: dict[int, Numbers] = {}
        self._rates: dict[int, watching.TrafficRates] = {}

    def take(self, round: Round) -> None:
        """Note the numbers of a round."""
        changed = set(round.changed)
        for id in self._rates:
            if id not in changed:
                self._rates[id] = STILL
        for id in round.changed:
            now, before = round.topics[id], self._before.get(id)
            if before is None:
                self._rates[id] = STILL
            else:
                seconds = (now.time_us - before.time_us) / 1_000_000
                self._rates[id] = watching.TrafficRates.between(before.topic, now.topic, seconds)
        for id in round.gone:
            self._rates.pop(id, None)
        # Numbers that did not change were the same at the end of the round: the next difference begins there.
        self._before = {
            id: dataclasses.replace(numbers, time_us=max(numbers.time_us, round.time_us))
            if id not in changed
            else numbers
            for id, numbers in round.topics.items()
        }

    def of(self, id: int) -> tuple[float, float]:
        """Return the messages in and out of a topic in each second."""
        rates = self._rates.get(id, STILL)
        return rates.messages_in, rates.messages_out


def _rows(topics: Sequence[watching.TopicWatch], rates: TopicRates, width: int | None = None) -> str:
    """Format topics as a table. What tells most comes first: where a `width` is given, the last columns that
    do not fit are left out, and names may be shortened.
    """
    rows: list[tuple[str, ...]] = [
        (
            shown(topic.topic),
            *(f"{rate:.0f}" for rate in rates.of(topic.id)),
            *map(str, (topic.behind, topic.subscribers, topic.ready, topic.unconfirmed)),
            *map(str, (topic.messages, topic.octets)),
            delivery_name(topic.delivery),
            persistence_name(topic.persistence),
        )
        for topic in topics
    ]
    head = ("TOPIC", "IN/S", "OUT/S", "BEHIND", "SUBSCRIBERS", "READY", "UNCONFIRMED", "MESSAGES", "OCTETS",
            "DELIVERY", "PERSISTENCE")  # fmt: skip
    if width is not None:
        longest = max(MIN_NAME, width // 4)
        rows = [(shortened(row[0], longest), *row[1:]) for row in rows]
    rows.insert(0, head)
    if width is not None:
        widths = column_widths(rows)
        count = len(widths)
        while count > 1 and sum(widths[:count]) + 2 * (count - 1) > width:
            count -= 1
        rows = [row[:count] for row in rows]
    return columns(rows, range(1, 9))


def _sorted(topics: Sequence[watching.TopicWatch], rates: TopicRates, by: str) -> list[watching.TopicWatch]:
    def key(topic: watching.TopicWatch) -> tuple[float, bytes]:
        rate_in, rate_out = rates.of(topic.id)
        first = {
            "in": rate_in,
            "out": rate_out,
            "behind": topic.behind,
            "ready": topic.ready,
            "octets": topic.octets,
            "name": 0,
        }[by]
        return -first, topic.topic

    return sorted(topics, key=key)


# -- the screen ---------------------------------------------------------------------------------------------


def _screen(
    round: Round,
    rates: TopicRates,
    lines: Sequence[watching.Line],
    options: argparse.Namespace,
    *,
    is_live: bool,
) -> str:
    head = [] if round.server is None else _head(round.server)
    head += [
        f"{moment(line.time_us, round.time_us)} {shown(line.level)} {shown(line.logger)}: {shown(line.text)}"
        for line in lines
    ]
    topics = [numbers.topic for numbers in round.topics.values()]
    total = [sum(each) for each in zip((0.0, 0.0), *(rates.of(topic.id) for topic in topics), strict=True)]
    head.append(f"topics: {len(topics)}, {total[0]:.0f} messages/s in, {total[1]:.0f} messages/s out")
    size = shutil.get_terminal_size()
    rows = size.lines - len(head) - 3 if is_live else len(topics)
    if options.limit is not None:
        rows = min(rows, options.limit)
    width = size.columns if is_live else None
    table = _rows(_sorted(topics, rates, options.sort)[: max(1, rows)], rates, width)
    text = "\n".join([*head, "", table])
    if is_live:
        text = "\n".join(cut(line, size.columns) for line in text.split("\n"))
    return text


def moment(time_us: int, now_us: int) -> str:
    """Return a time in the local zone; the date, too, if it was on another day."""
    then, now = (datetime.fromtimestamp(each / 1_000_000) for each in (time_us, now_us))
    return f"{then:%H:%M:%S}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M:%S}"


def _head(server: watching.Server) -> list[str]:
    spoken = ", ".join(f"{each.connections} {shown(each.protocol)}" for each in server.protocols)
    held = sum(share.used for share in server.memory)
    limit = sum(share.limit for share in server.memory)
    full = [f"{shown(s.name)} {_percent(s)}" for s in server.memory if s.used * 2 > s.limit]
    commits = ", ".join(
        f"{shown(writer.level)} {writer.last_commit_us / 1000:.1f} ms"
        for writer in server.writers
        if writer.commits
    )
    found = [
        f"omq {shown(server.version)}, up {duration(server.uptime)}",
        f"connections: {server.connections} of {server.max_connections} ({spoken or 'none'}),"
        f" {counted(server.subscriptions, 'subscription')}",
        f"memory: {_octets(held)} of {_octets(limit)}" + (f"; {', '.join(full)}" if full else ""),
        f"last commits: {commits or 'none'}",
        f"disk: {_octets(server.disk_free)} free, the store has {_octets(server.store_octets)}"
        + (f", the spool {_octets(server.spool)} of {_octets(server.spool_limit)}" if server.spool else ""),
    ]
    found += [f"{shown(w.level)}: {shown(w.refusal)}" for w in server.writers if w.refusal is not None]
    return found


def _percent(share: watching.Share) -> str:
    return f"{100 * share.used // share.limit} %"


def _octets(octets: float) -> str:
    if octets < 1024:
        return counted(round(octets), "octet")
    for unit in ("KiB", "MiB", "GiB"):
        octets /= 1024
        if octets < 1023.95:  # it would be shown as 1024.0
            return f"{octets:.1f} {unit}"
    octets /= 1024
    return f"{octets:.1f} TiB"


def _json_round(round: Round, rates: TopicRates) -> str:
    topics = [
        {
            **json_fields(numbers.topic),
            **dict(zip(("in_per_second", "out_per_second"), rates.of(id), strict=True)),
        }
        for id, numbers in round.topics.items()
    ]
    record = {
        "time_us": round.time_us,
        "server": None if round.server is None else json_fields(round.server),
        "warnings": [json_fields(line) for line in round.lines],
        "topics": topics,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"
