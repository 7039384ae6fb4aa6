"""The command line of the `omq` command: its commands, their options, and what may stand there."""

import argparse
import itertools
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, NoReturn

from omq.cli.output import FORMATS
from omq.cli.subscribing import Since, Start
from omq.cli.words import DELIVERIES, PERSISTENCES
from omq.client import Client, FromBeginning, FromCurrent, FromMessage
from omq.client.address import parse_url
from omq.model import check_topic
from omq.protocol.credentials import read_id
from omq.replay import arguments as replay_arguments

DEFAULT_SERVER = "omq://127.0.0.1:7730"

Action = Callable[[Client, argparse.Namespace], Awaitable[None]]


class _Parser(argparse.ArgumentParser):
    """Says how to give a message or name that looks like an option."""

    given: Sequence[str] = ()
    known: frozenset[str] = frozenset()

    def error(self, message: str) -> NoReturn:
        for word in itertools.takewhile(lambda word: word != "--", self.given):
            option = word.partition("=")[0]
            if len(word) < 2 or word[0] != "-" or word[1].isdigit():
                continue
            if option not in self.known and not (
                option.startswith("--") and _abbreviates(option, self.known)
            ):
                message += f"; to give {word!r} as it is, write -- before it"
                break
        super().error(message)


def _abbreviates(option: str, known: frozenset[str]) -> bool:
    return any(other.startswith(option) for other in known)


def parser(actions: Mapping[str, Action], given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """`actions`: what each command does, by its name. `given`: the words that will be parsed, for errors."""
    top = _Parser(
        prog="omq",
        description="Publish to topics, subscribe to them, and look after them.",
        epilog=(
            "Data goes to standard output, everything else to standard error. Exit codes: 0 it worked, 1 it "
            "did not (the server refused, or there was no connection), 2 the command line was wrong."
        ),
    )
    top.add_argument("--version", action="version", version=f"omq {_version()}")
    _add_connection(top, given_before=True)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, summary: str, more: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(action=actions.get(name))
        _add_connection(sub, given_before=False)
        return sub

    pub = command(
        "pub",
        "publish one message, or each line of a file",
        """examples:
  omq pub prices 'EUR 1.0843'
  omq pub --confirm log --lines access.log
  tail -f access.log | omq pub log -
  omq pub --dmp log --lines access.log

Undeclared topics are declared by the server, as it is configured.""",
    )
    _add_topic(pub)
    source = pub.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "body", nargs="?", metavar="BODY", help="the message; - for each line of standard input"
    )
    source.add_argument("--lines", type=_file, metavar="FILE", help="publish each line of this file")
    pub.add_argument(
        "--confirm",
        action="store_true",
        help="wait until the messages are as safe as their topic declares; exit 1 if any is not",
    )
    pub.add_argument(
        "--dmp",
        action="store_true",
        help="publish on a connection made for speed, a DMP sink; this always ends as with --confirm, with "
        "the server's answer that all messages are stored",
    )

    sub = command(
        "sub",
        "print the messages of topics as they come",
        """examples:
  omq sub prices news
  omq sub 'prices.*' --reconnect
  omq sub prices --from 2024-05-01T12:00 --timeout 2
  omq sub prices --from beginning --format json | jq .body
  omq sub jobs --credit 1 | while read -r job; do ...; done

A TOPIC that ends with * is a pattern, as in the server's configuration: 'prices.*' means all topics whose
names begin with "prices.", and '*' means all. A topic that appears later is found within about a second, and
printed from its beginning; a transient or round-robin one, which cannot be replayed, from then on.

Ends when COUNT messages have come, when no message came for SECONDS, when all topics are deleted (never with
a pattern), or with Ctrl-C.

On a terminal, control characters of messages and octets that are not UTF-8 are printed as \\x1b; a file or
a pipe gets the octets as they are.""",
    )
    sub.add_argument(
        "topics",
        nargs="+",
        type=_pattern,
        metavar="TOPIC",
        help="names of topics, 1 to 255 octets each, or beginnings of names with a * behind them",
    )
    sub.add_argument("--exact", action="store_true", help="a * at the end of a TOPIC is part of its name")
    sub.add_argument(
        "--from",
        dest="replay",
        type=_replay,
        default=FromCurrent(),
        metavar="beginning|current|ID|TIME",
        help="where to begin: the oldest message kept, the next one (default), the one with this id, or the "
        "first one since a time such as 2024-05-01T12:00 (add Z for UTC)",
    )
    sub.add_argument("--count", type=_natural, metavar="N", help="end after so many messages")
    sub.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="end when no message came for so long: exit 1 with --count, since there were fewer, and else 0",
    )
    sub.add_argument(
        "--reconnect",
        action="store_true",
        help="connect again when the connection is lost, as often as it takes, and go on behind the last "
        "message that came; not with --dmp",
    )
    sub.add_argument(
        "--format",
        choices=FORMATS,
        default="lines",
        help="lines: each body and a line feed (default); raw: bodies only; json: one object a line, with "
        "id, topic and body (body_base64 where it is not UTF-8 text)",
    )
    sub.add_argument(
        "--credit",
        type=_positive,
        metavar="N",
        help="work on a round-robin topic with at most N unconfirmed messages at a time; a message is "
        "confirmed when it has been written to standard output",
    )
    sub.add_argument(
        "--dmp",
        action="store_true",
        help="receive on a connection made for speed, a DMP feed; json then has no id, but the exchange, the "
        "routing_key and the properties that came with a message; not with --credit",
    )

    declare = command("declare", "see that a topic exists with these types")
    _add_topic(declare)
    declare.add_argument(
        "--delivery",
        choices=DELIVERIES,
        default="broadcast",
        help="broadcast: every subscriber gets every message (default); round-robin: each goes to one",
    )
    declare.add_argument(
        "--persistence",
        choices=PERSISTENCES,
        default="weak",
        help="transient: in memory only; strong: on disk before anybody gets it; weak: written before, on "
        "disk within seconds (default); async: on disk within a minute",
    )

    topics = command("topics", "list the topics: types, messages, bytes, first and last id, subscribers")
    topics.add_argument(
        "--format", choices=("table", "json"), default="table", help="json: one object a line"
    )

    replay = command(
        "replay",
        "copy stored topics to another server, or into files",
        replay_arguments.EXAMPLES,
    )
    replay_arguments.add_arguments(replay)
    _add_topic(command("delete", "delete a topic and all its messages; its subscriptions end"))
    command("ping", "connect, and print how long a round trip takes")
    # It talks to no server, and `omq.cli.start` gives it to `omq.cli.store`.
    commands.add_parser("store", help="look through a store on this machine, repair it, copy it")
    parsers: list[_Parser] = [top, *commands.choices.values()]
    known = frozenset(option for one in parsers for option in one._option_string_actions)
    for one in parsers:
        one.given = given
        one.known = known
    return top


def _add_connection(parser: argparse.ArgumentParser, *, given_before: bool) -> None:
    """Which server, and what it is shown. These options may stand before the command and behind it; those
    behind it count.
    """

    def default(value: str | None) -> str | None:
        # What is not given behind the command must not hide what is given before it.
        return value if given_before else argparse.SUPPRESS

    group = parser.add_argument_group("the server, before or behind the command")
    group.add_argument(
        "--server",
        type=_server,
        metavar="omq://HOST:PORT",
        default=default(os.environ.get("OMQ_SERVER", DEFAULT_SERVER)),
        help="where the server is; with TLS: omqs://HOST:PORT "
        f"(default: $OMQ_SERVER, or else {DEFAULT_SERVER})",
    )
    group.add_argument(
        "--id-file",
        type=_id_file,
        metavar="FILE",
        default=default(None),
        help="a file with one line NAME:SECRET, for a server that wants to know its clients (default: what "
        "is in $OMQ_ID; there is no option for the secret itself, since others could see it)",
    )
    group.add_argument(
        "--ca",
        metavar="FILE",
        default=default(None),
        help="for omqs://: the certificates of the authorities that may vouch for the server "
        "(default: $OMQ_CA, or else those that the system trusts)",
    )
    group.add_argument(
        "--cert",
        metavar="FILE",
        default=default(None),
        help="for omqs://: our certificate, where the server wants one",
    )
    group.add_argument(
        "--key", metavar="FILE", default=default(None), help="its private key (default: in the same file)"
    )


def _add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", type=_topic, metavar="TOPIC", help="the topic's name, 1 to 255 octets")


def _topic(text: str) -> bytes:
    name = os.fsencode(text)
    problem = check_topic(name)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return name


def _server(text: str) -> str:
    try:
        parse_url(text).host.encode("idna")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} names no host that can be") from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


class _IdFile(NamedTuple):
    """A file with an id in it, and the id."""

    path: str
    id: bytes


def _id_file(text: str) -> _IdFile:
    try:
        return _IdFile(text, read_id(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the file's name is empty")
    return Path(text)


def _pattern(text: str) -> bytes:
    """The name of a topic, or how names begin and a `*`."""
    beginning = text.removesuffix("*")
    return _topic(beginning) + b"*" if beginning not in (text, "") else _topic(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _replay(text: str) -> Start:
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
    return FromMessage(_positive(text))


def _since(text: str) -> Since:
    return Since(replay_arguments.parse_time(text))


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def _positive(text: str) -> int:
    number = _natural(text)
    if number < 1 or number >= 2**63:
        raise argparse.ArgumentTypeError(f"{text} is out of range")
    return number


def _version() -> str:
    try:
        return metadata.version("omq-server")
    except metadata.PackageNotFoundError:
        return "(not installed)"
