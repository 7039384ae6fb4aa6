"""The command line of `omq`: its commands and their options."""

import argparse
import difflib
import itertools
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from omq.cli import heads
from omq.cli import option_values as values
from omq.cli import watching_options as watching
from omq.cli.management import add_binding_verbs, add_exchange_verbs, add_queue_verbs
from omq.cli.output import FORMATS
from omq.cli.parsers import CommandParser, OneFile
from omq.cli.version import PrintVersion
from omq.client import Client, FromCurrent
from omq.model import DELIVERIES, PERSISTENCES
from omq.replay import arguments as replay_arguments

DEFAULT_SERVER = "omq://127.0.0.1:7730"

NEAR = 0.75
"""The least similarity, from 0 to 1, of an unknown option or command to one that the error suggests."""

Action = Callable[[Client, argparse.Namespace], Awaitable[None]]


class _Parser(CommandParser):
    """Adds a hint to errors about a message or a name that looks like an option."""

    given: Sequence[str] = ()
    known: frozenset[str] = frozenset()

    def error(self, message: str) -> NoReturn:
        # argparse lets the parser of the whole line report unknown options: show the usage of their command.
        owner = _command_of(self, self.given)
        words = list(itertools.takewhile(lambda word: word != "--", self.given))
        for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
            option, _, value = word.partition("=")
            if len(word) < 2 or word[0] != "-" or word[1].isdigit():
                continue
            if option not in self.known and not (
                option.startswith("--") and _abbreviates(option, self.known)
            ):
                options = [each for each in owner._option_string_actions if each.startswith("--")]
                assigned = owner.assigned if isinstance(owner, CommandParser) else {}
                near = difflib.get_close_matches(option.replace("_", "-"), [*options, *assigned], 1, NEAR)
                if near and near[0] in assigned:
                    value = value or ("" if following.startswith("-") else following) or "VALUE"
                    message += f"; perhaps you mean {assigned[near[0]]}{value}"
                elif near:
                    message += f"; perhaps you mean {near[0]}"
                message += f"; to give {word!r} as it is, write -- before it"
                break
        if near_command := _near_command(owner, message):
            message += f"; perhaps you mean {near_command}"
        argparse.ArgumentParser.error(owner, message)


def _command_of(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command, or of its verb, that the words name; else the parser itself."""
    for word in itertools.takewhile(lambda word: word != "--", given):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
                break
    return parser


def _near_command(parser: argparse.ArgumentParser, message: str) -> str | None:
    """Return the command, or the verb of one, that is most like the one of which an error says that there is
    none, or with which that begins, as publish does.
    """
    unknown = re.search(r"invalid choice: '(.+?)'", message)
    for action in parser._actions:
        if unknown is not None and isinstance(action, argparse._SubParsersAction):
            word = unknown[1]
            near = difflib.get_close_matches(word, action.choices, 1, NEAR)
            return next(iter(near or [name for name in action.choices if word.startswith(name)]), None)
    return None


def _abbreviates(option: str, known: frozenset[str]) -> bool:
    return any(other.startswith(option) for other in known)


def parser(
    actions: Mapping[str, Action],
    given: Sequence[str] = (),
    add_store_verbs: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.ArgumentParser:
    """Make the parser. `actions`: the function of each command. `given`: the words to parse, for errors.
    `add_store_verbs`: adds the commands of `omq store`, which has a parser of its own.
    """
    top = _Parser(
        prog="omq",
        description="Publish to topics, subscribe to them, and manage them.",
        epilog=(
            "Data goes to standard output, everything else to standard error. Exit codes: 0 success, 1 "
            "failure (the server refused, or there was no connection), 2 invalid command line."
        ),
    )
    top.add_argument("--version", action=PrintVersion)
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
        "publish one message, a file, or each line of a file",
        """examples:
  omq pub prices 'EUR 1.0843'
  omq pub --confirm log --lines access.log
  tail -f access.log | omq pub log -
  omq pub --dmp log --lines access.log
  omq pub backups --file backup.tar
  pg_dump shop | omq pub backups --file -
  omq pub events '{"id": 7}' --property content_type=application/json --header source=web

The server declares undeclared topics, if its configuration allows that.""",
    )
    values.add_topic(pub)
    source = pub.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "body", nargs="?", metavar="BODY", help="the message; - for each line of standard input"
    )
    source.add_argument(
        "--lines",
        action=OneFile,
        type=values.file,
        metavar="FILE",
        help="publish each line of this file; - for standard input",
    )
    source.add_argument(
        "--file",
        action=OneFile,
        type=values.file,
        metavar="FILE",
        help="publish this file as one message, through a DMP sink; waits until it is stored; - for standard "
        "input: of a pipe, whose length is not known before its end, a temporary file without a name in "
        "$TMPDIR holds the message until then",
    )
    pub.add_argument(
        "--confirm",
        action="store_true",
        help="wait until the server confirms the messages; exit 1 if it refuses any",
    )
    pub.add_argument(
        "--dmp",
        action="store_true",
        help="publish through a DMP sink, which is faster; always waits at the end for the server's answer "
        "that all messages are stored, as with --confirm",
    )
    heads.add_options(pub)

    sub = command(
        "sub",
        "print the messages of topics as they arrive",
        """examples:
  omq sub prices news
  omq sub 'prices.*' --reconnect
  omq sub prices --from 2024-05-01T12:00 --timeout 2
  omq sub prices --from beginning --format json | jq .body
  omq sub jobs --credit 1 | while read -r job; do ...; done
  omq sub backups --from beginning --output-dir saved

A TOPIC that ends with * is a pattern, as in the server's configuration: 'prices.*' means all topics whose
names begin with "prices.", and '*' means all topics. omq sub finds a topic that appears later within about a
second, and prints it from its beginning; transient and round-robin topics cannot be replayed, so it prints
these from then on.

It ends after N messages (--count), when no message has arrived for SECONDS (--timeout), when all topics are
deleted (never with a pattern), or with Ctrl-C.

On a terminal, it prints control characters and invalid UTF-8 as escapes such as \\x1b; a file or a pipe gets
the published octets.""",
    )
    sub.add_argument(
        "topics",
        nargs="+",
        type=values.pattern,
        metavar="TOPIC",
        help="names of topics, 1 to 255 octets each, or prefixes of names followed by *",
    )
    sub.add_argument("--exact", action="store_true", help="a * at the end of a TOPIC is part of its name")
    sub.add_argument(
        "--from",
        dest="replay",
        type=values.replay,
        default=FromCurrent(),
        metavar="beginning|current|ID|TIME",
        help="the start: the oldest stored message, the next message (default), the message with this id, or "
        "the first message since a time such as 2024-05-01T12:00 (add Z for UTC)",
    )
    sub.add_argument("--count", type=values.natural_number, metavar="N", help="end after N messages")
    sub.add_argument(
        "--timeout",
        type=values.seconds,
        metavar="SECONDS",
        help="end when no message has arrived for this time: exit 1 with --count, because messages are "
        "missing, else 0",
    )
    sub.add_argument(
        "--reconnect",
        action="store_true",
        help="reconnect after a lost connection, any number of times, and continue after the last received "
        "message; not with --dmp",
    )
    sub.add_argument(
        "--format",
        choices=FORMATS,
        default="lines",
        help="lines: each body and a line feed (default); raw: bodies only; json: one object per line, with "
        "id, topic and body (body_base64 if it is not UTF-8)",
    )
    sub.add_argument(
        "--credit",
        type=values.positive,
        metavar="N",
        help="consume a round-robin topic with at most N unconfirmed messages at a time; omq sub confirms a "
        "message after writing it to standard output",
    )
    sub.add_argument(
        "--dmp",
        action="store_true",
        help="receive through a DMP feed, which is faster; json then has no id, but the exchange, the "
        "routing_key and the properties of each message; not with --credit",
    )
    sub.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="save each message of one TOPIC as a file in this directory, which is made if there is none, "
        "and print the names of the files; uses a DMP feed",
    )

    declare = command("declare", "create a topic, or check that it exists with these types")
    values.add_topic(declare)
    declare.add_argument(
        "--delivery",
        choices=DELIVERIES,
        default="broadcast",
        help="broadcast: every subscriber gets every message (default); round-robin: each message goes to "
        "one subscriber",
    )
    declare.add_argument(
        "--persistence",
        choices=PERSISTENCES,
        default="weak",
        help="transient: in memory only; strong: on disk before any subscriber gets it; weak: written to the "
        "file before, on disk within seconds (default); async: on disk within a minute",
    )

    topics = command("topics", "list the topics: types, messages, octets, first and last id, subscribers")
    topics.add_argument(
        "--format", choices=("table", "json"), default="table", help="json: one object per line"
    )
    topics.add_argument(
        "--lag",
        action="store_true",
        help="show how far subscribers are behind instead: messages that are ready and unconfirmed, how "
        "many messages the slowest subscriber is behind, and how many publishers wait for room; takes the "
        "right to watch the topics",
    )
    watching.add_commands(command)

    replay = command(
        "replay",
        "copy stored topics to another server or to files",
        replay_arguments.EXAMPLES,
    )
    replay_arguments.add_arguments(replay)
    values.add_topic(command("delete", "delete a topic and all its messages, and end its subscriptions"))
    nested: list[_Parser] = []
    for name, summary, add_verbs in (
        ("queues", "list, change, purge and look into queues, and move their messages", add_queue_verbs),
        ("exchanges", "list, declare and delete exchanges of AMQP 0-9-1", add_exchange_verbs),
        ("bindings", "list, make and remove bindings of exchanges", add_binding_verbs),
    ):
        verbs = command(name, summary).add_subparsers(dest="verb", metavar="VERB", required=True)
        add_verbs(partial(_add_verb, verbs.add_parser, nested))
    command("ping", "connect, and print the round-trip time")
    # These commands use no server: `omq.cli.start` passes them to `omq.cli.store` and to `omq.cli.reference`.
    store = commands.add_parser("store", help="check, repair or back up a store on this machine")
    if add_store_verbs is not None:
        add_store_verbs(store)
    _add_reference(commands.add_parser)
    parsers: list[_Parser] = [top, *commands.choices.values(), *nested]
    known = frozenset(option for one in parsers for option in one._option_string_actions)
    for one in parsers:
        one.given = given
        one.known = known
    return top


def _add_reference(add: Callable[..., argparse.ArgumentParser]) -> None:
    completion = add(
        "completion",
        help="print what a shell needs to complete commands and options",
        description="Print what a shell needs to complete the commands and options of a program.",
        epilog="""examples:
  omq completion bash > ~/.local/share/bash-completion/completions/omq
  omq completion bash omq-server > ~/.local/share/bash-completion/completions/omq-server
  omq completion zsh > ~/.zfunc/_omq          with a directory of $fpath
  omq completion fish > ~/.config/fish/completions/omq.fish""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument(
        "shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"
    )
    man = add(
        "man",
        help="print a manual page",
        description="Print the manual page of a program, as a source for man.",
        epilog="""examples:
  omq man | man -l -
  omq man omq-server > /usr/local/share/man/man8/omq-server.8""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for each in (completion, man):
        each.add_argument(
            "program",
            nargs="?",
            choices=("omq", "omq-server"),
            default="omq",
            metavar="PROGRAM",
            help="omq (default) or omq-server",
        )


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of a parser's commands, in their order."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser, and those of its commands and their verbs."""
    yield parser
    for command in commands_of(parser):
        yield from every_parser(command)


def _add_verb(
    add: Callable[..., argparse.ArgumentParser], parsers: list[_Parser], name: str, summary: str
) -> argparse.ArgumentParser:
    """Add the parser of a verb of a command."""
    parser = add(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    assert isinstance(parser, _Parser), "the verbs have the class of the command"
    _add_connection(parser, given_before=False)
    parsers.append(parser)
    return parser


def _add_connection(parser: argparse.ArgumentParser, *, given_before: bool) -> None:
    """Add the connection options. They may stand before or after the command; those that follow it take
    precedence.
    """

    def default(value: str | None) -> str | None:
        # A missing option after the command must not override one before it.
        return value if given_before else argparse.SUPPRESS

    group = parser.add_argument_group("connection options, before or after the command")
    group.add_argument(
        "--server",
        type=values.server,
        metavar="omq://HOST:PORT",
        default=default(replay_arguments.DefaultServer(os.environ.get("OMQ_SERVER", DEFAULT_SERVER))),
        help=f"the server's address; with TLS: omqs://HOST:PORT (default: $OMQ_SERVER, or {DEFAULT_SERVER})",
    )
    group.add_argument(
        "--id-file",
        type=values.id_file,
        metavar="FILE",
        default=default(None),
        help="a file with one line NAME:SECRET, for a server with configured clients (default: the value of "
        "$OMQ_ID; there is no option for the secret itself, because other users could see it)",
    )
    group.add_argument(
        "--ca",
        metavar="FILE",
        default=default(None),
        help="for omqs://: the certificates of trusted authorities "
        "(default: $OMQ_CA, or those that the system trusts)",
    )
    group.add_argument(
        "--cert",
        metavar="FILE",
        default=default(None),
        help="for omqs://: the client's certificate, if the server requires one",
    )
    group.add_argument(
        "--key",
        metavar="FILE",
        default=default(None),
        help="its private key, without a pass phrase (default: in the same file)",
    )
