"""The options of the commands that watch and control a server."""

import argparse
from collections.abc import Callable

from omq.cli.option_values import add_topic, positive, seconds, topic
from omq.cli.top import SORTS
from omq.model import LONGEST_RETENTION
from omq.units import octets_meant

LEAST_INTERVAL, MOST_INTERVAL = 0.1, 3600.0
"""The bounds of the seconds between two reports of a server (docs/PROTOCOL.md, "Watch and control")."""

AddCommand = Callable[[str, str, str], argparse.ArgumentParser]


def add_commands(command: AddCommand) -> None:
    """Add the commands. `command` makes the parser of one."""
    top = command(
        "top",
        "show what the server does now: rates, queues, memory, disk, warnings",
        "It takes the right to watch topics; for the server itself, to watch all topics. On a terminal it"
        " goes\non when the connection was lost. End it with Ctrl-C.",
    )
    top.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="how often to show it: 0.1 to 3600 (default: 1)",
    )
    top.add_argument("--sort", choices=SORTS, default="in", help="by what to sort the topics (default: in)")
    top.add_argument("--limit", type=positive, metavar="N", help="show at most N topics")
    top.add_argument("--once", action="store_true", help="show it once, after one interval, and end")
    top.add_argument(
        "--format", choices=("table", "json"), default="table", help="json: one object for each interval"
    )

    connections = command(
        "connections",
        "list the connections: client, address, protocol, octets, how far behind, why slow",
        "It takes the right to watch all topics.",
    )
    connections.add_argument(
        "--topic",
        type=topic,
        metavar="TOPIC",
        help="list the subscribers of this topic that are the furthest behind",
    )
    connections.add_argument(
        "--format", choices=("table", "json"), default="table", help="json: one object per line"
    )

    disconnect = command(
        "disconnect", "end a connection of a client", "It takes the right to administer all topics."
    )
    disconnect.add_argument(
        "connection", type=positive, metavar="ID", help="its id, as omq connections lists it"
    )

    add_topic(
        command(
            "purge",
            "delete the messages of a topic, and print their number",
            "Of a round-robin topic it deletes those that no subscriber has. It takes the right to administer"
            " the topic.",
        )
    )

    retain = command(
        "retain",
        "change how long a topic in use keeps messages",
        "The server deletes the oldest messages beyond these limits. They also hold after a restart, whatever"
        " the\nconfiguration says. The command sets both limits: with --seconds alone, the number of octets"
        " has no limit,\nnot even that of the configuration. It takes the right to administer the topic.",
    )
    add_topic(retain)
    limits = retain.add_argument_group("limits")
    limits.add_argument("--octets", type=_octets, metavar="N", help="keep at most N octets")
    limits.add_argument("--seconds", type=_seconds, metavar="SECONDS", help="keep messages for so long")
    limits.add_argument("--unlimited", action="store_true", help="keep messages for ever")
    limits.add_argument("--configured", action="store_true", help="keep what the configuration says")


def _octets(text: str) -> int:
    if (meant := octets_meant(text)) is not None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number: write {meant}")
    octets = positive(text)
    if octets > LONGEST_RETENTION:
        raise argparse.ArgumentTypeError(f"{text!r} is above {LONGEST_RETENTION}, the most that is kept")
    return octets


def _seconds(text: str) -> float:
    found = seconds(text)
    if found > LONGEST_RETENTION / 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is above {LONGEST_RETENTION // 1000}: use --unlimited")
    return found


def _interval(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not LEAST_INTERVAL <= found <= MOST_INTERVAL:  # not a number, too
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds from {LEAST_INTERVAL:g} to {MOST_INTERVAL:g}"
        )
    return found
