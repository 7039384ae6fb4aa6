"""The values of the options and arguments of `omq`, read from their texts.

Those that read one raise argparse.ArgumentTypeError for a text that is no such value.
"""

import argparse
import math
import os
from pathlib import Path
from typing import NamedTuple

from omq.cli.subscribing import Since, Start
from omq.client import FromBeginning, FromCurrent, FromMessage
from omq.counted import natural
from omq.credentials import read_id
from omq.model import check_topic
from omq.replay import arguments as replay_arguments
from omq.server_address import parse_url
from omq.units import seconds_meant


def add_topic(parser: argparse.ArgumentParser) -> None:
    """Add the argument TOPIC."""
    parser.add_argument("topic", type=topic, metavar="TOPIC", help="the topic's name, 1 to 255 octets")


def topic(text: str) -> bytes:
    """Read the name of a topic."""
    name = os.fsencode(text)
    problem = check_topic(name)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return name


def server(text: str) -> str:
    """Read the address of a server."""
    source = "$OMQ_SERVER: " if isinstance(text, replay_arguments.DefaultServer) else ""
    try:
        parse_url(text).host.encode("idna")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{source}{text!r}: no host can have this name") from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{source}{error}") from error
    return text


class _IdFile(NamedTuple):
    """The name of an id file, and the id in it."""

    path: str
    id: bytes


def id_file(text: str) -> _IdFile:
    """Read the id in a file."""
    try:
        return _IdFile(text, read_id(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def file(text: str) -> Path:
    """Read the name of a file."""
    if not text:
        raise argparse.ArgumentTypeError("the file's name is empty")
    return Path(text)


def pattern(text: str) -> bytes:
    """Read the name of a topic, or a prefix of names followed by `*`."""
    beginning = text.removesuffix("*")
    return topic(beginning) + b"*" if beginning not in (text, "") else topic(text)


def seconds(text: str) -> float:
    """Read a time in seconds."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        meant = seconds_meant(text)
        hint = "" if meant is None else f": write {meant}"
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0{hint}")
    return found


def replay(text: str) -> Start:
    """Read where a subscription begins."""
    match text:
        case "beginning":
            return FromBeginning()
        case "current":
            return FromCurrent()
        case _:
            parse = _message if text.isdigit() else _since
            try:
                return parse(text)
            except argparse.ArgumentTypeError as error:
                message = f"{text!r} is neither beginning nor current nor a message id nor a time"
                raise argparse.ArgumentTypeError(message) from error


def _message(text: str) -> FromMessage:
    return FromMessage(positive(text))


def _since(text: str) -> Since:
    return Since(replay_arguments.parse_time(text))


def natural_number(text: str) -> int:
    """Read a number from 0 on."""
    digits = text.removeprefix("-")
    number = natural(digits)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    if digits != text:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return number


def positive(text: str) -> int:
    """Read a number from 1 on."""
    number = natural_number(text)
    if number < 1 or number >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {2**63 - 1}")
    return number
