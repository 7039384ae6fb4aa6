"""Lists and control of connections and topics: omq connections, topics --lag, disconnect, purge, retain."""

import argparse
import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import msgspec

from omq import watching
from omq.cli.output import CommandFailed, ShowName, print_table, print_text, shown
from omq.cli.records import duration, json_line
from omq.client import Client

# -- topics -------------------------------------------------------------------------------------------------


async def topics_with_lag(client: Client, options: argparse.Namespace) -> None:
    """Run `omq topics --lag`."""
    async with client.watch() as rounds:
        one = await anext(rounds)
    found = sorted((numbers.topic for numbers in one.topics.values()), key=lambda topic: topic.topic)
    head = ("NAME", "MESSAGES", "READY", "UNCONFIRMED", "BEHIND", "SUBSCRIBERS", "PUBLISHERS WAITING")

    def row(topic: watching.TopicWatch, show: ShowName) -> Sequence[str]:
        return (
            show(topic.topic),
            *map(str, (topic.messages, topic.ready, topic.unconfirmed, topic.behind)),
            *map(str, (topic.subscribers, topic.waiting)),
        )

    await _print_records(options, found, head, range(1, 7), row)


# -- connections --------------------------------------------------------------------------------------------


async def connections(client: Client, options: argparse.Namespace) -> None:
    """Run `omq connections`."""
    if options.topic is not None:
        await _subscribers(client, options)
        return
    head = ("ID", "CLIENT", "PEER", "PROTOCOL", "AGE", "IN", "OUT", "SUBSCRIPTIONS", "BEHIND", "HELD",
            "STALLED", "WHY SLOW")  # fmt: skip

    def row(each: watching.ConnectionInfo, show: ShowName) -> Sequence[str]:
        return (
            str(each.id),
            show(each.client) or "-",
            shown(each.peer),
            shown(each.protocol),
            duration(each.age),
            *map(str, (each.octets_in, each.octets_out, each.subscriptions, each.behind, each.held)),
            "-" if each.stalled is None else duration(each.stalled),
            "-" if each.slow is None else shown(each.slow),
        )

    await _print_records(options, await client.connections(), head, {0, *range(4, 11)}, row)


async def _subscribers(client: Client, options: argparse.Namespace) -> None:
    head = ("CONNECTION", "CLIENT", "PEER", "PROTOCOL", "POSITION", "BEHIND", "CREDIT", "UNCONFIRMED")

    def row(each: watching.SubscriberInfo, show: ShowName) -> Sequence[str]:
        return (
            str(each.connection),
            show(each.client) or "-",
            shown(each.peer),
            shown(each.protocol),
            "-" if each.position is None else str(each.position),
            str(each.behind),
            "-" if each.credit is None else str(each.credit),
            str(each.unconfirmed),
        )

    await _print_records(options, await client.subscribers(options.topic), head, {0, *range(4, 8)}, row)


async def disconnect(client: Client, options: argparse.Namespace) -> None:
    """Run `omq disconnect`."""
    if not await client.disconnect(options.connection):
        raise CommandFailed(f"there is no connection {options.connection}")


# -- topics in use ------------------------------------------------------------------------------------------


async def purge(client: Client, options: argparse.Namespace) -> None:
    """Run `omq purge`."""
    await print_text("lines", f"{await client.purge(options.topic)}\n")


def unclear(options: argparse.Namespace) -> str | None:
    """Return the problem of the options of omq retain; None if there is none."""
    is_limited = options.octets is not None or options.seconds is not None
    if is_limited + options.unlimited + options.configured != 1:
        return "give limits (--octets, --seconds), or either --unlimited or --configured"
    return None


async def retain(client: Client, options: argparse.Namespace) -> None:
    """Run `omq retain`."""
    if options.configured:
        await client.retain(options.topic, watching.Configured())
        return
    ms = None if options.seconds is None else math.ceil(1000 * options.seconds)
    await client.retain(options.topic, watching.Limits(options.octets, ms))


# -- output -------------------------------------------------------------------------------------------------


Record = TypeVar("Record", bound=msgspec.Struct)


async def _print_records(
    options: argparse.Namespace,
    records: Sequence[Record],
    head: Sequence[str],
    numbers: Collection[int],
    row: Callable[[Record, ShowName], Sequence[str]],
) -> None:
    """Print records as JSON, or as rows of a table with this heading: see `print_table`."""
    if options.format == "json":
        await print_text("json", "".join(json_line(each) for each in records))
    else:
        await print_table(lambda show: [head, *(row(each, show) for each in records)], numbers)
