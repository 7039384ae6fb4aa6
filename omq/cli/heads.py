"""The routing key, the properties and the headers of the messages that `omq pub` publishes."""

import argparse
import os
from dataclasses import dataclass, fields

from omq.cli.parsers import add_assigned
from omq.client import Properties
from omq.counted import natural
from omq.protocol.amqp import shortstr
from omq.protocol.amqp.fields import LongString, Table
from omq.protocol.amqp.properties import NUMBERS

NAMES = tuple(field.name for field in fields(Properties) if field.name != "headers")


@dataclass(frozen=True, slots=True)
class Given:
    """The head of all messages of one command."""

    routing_key: bytes
    properties: Properties | None


NO_HEAD = Given(b"", None)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of omq pub for the heads of messages."""
    parser.add_argument(
        "--routing-key",
        type=_octets,
        default=b"",
        metavar="KEY",
        help="the routing key of each message; publishes as --dmp does",
    )
    parser.add_argument(
        "--property",
        dest="properties",
        action="append",
        type=_property,
        default=[],
        metavar="NAME=VALUE",
        help=f"a property of each message: {', '.join(NAMES[:-1])} or {NAMES[-1]}; expiration is the "
        "number of milliseconds for which a queue keeps the message; may be repeated; publishes as --dmp "
        "does",
    )
    add_assigned(parser, "--property ", NAMES)
    parser.add_argument(
        "--header",
        dest="headers",
        action="append",
        type=_header,
        default=[],
        metavar="NAME=VALUE",
        help="a header of each message, whose value is a text; may be repeated; publishes as --dmp does",
    )


def given(options: argparse.Namespace) -> Given | None:
    """Return the head of the messages; None if no option sets a part of it."""
    parts = dict(options.properties)
    if options.headers:
        parts["headers"] = Table(tuple(options.headers))
    if not options.routing_key and not parts:
        return None
    return Given(options.routing_key, Properties(**parts) if parts else None)


def _octets(text: str) -> bytes:
    octets = os.fsencode(text)
    if len(octets) > shortstr.LONGEST:
        raise argparse.ArgumentTypeError(f"it has {len(octets)} octets, more than {shortstr.LONGEST}")
    return octets


def _property(text: str) -> tuple[str, bytes | int]:
    name, equals, value = text.partition("=")
    name = name.replace("-", "_")
    if not equals or name not in NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE with the name of a property")
    if name == "expiration" and natural(value) is None:  # queues would keep the message for ever
        raise argparse.ArgumentTypeError(f"{name}: {value!r} is no number of milliseconds")
    if name not in NUMBERS:
        return name, _octets(value)
    number = natural(value)
    if number is None or number > NUMBERS[name]:
        raise argparse.ArgumentTypeError(f"{name}: {value!r} is no number from 0 to {NUMBERS[name]}")
    return name, number


def _header(text: str) -> tuple[bytes, LongString]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return _octets(name), LongString(os.fsencode(value))
