"""The `omq` command: publish, subscribe, and look after topics from a shell.

Data goes to standard output and everything else to standard error. The exit code is 0 when it worked, 1 when
it did not (the server refused, there was no connection), 2 when the command line was wrong.
"""

import argparse
import base64
import itertools
import json
import os
import select
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

import trio
from tqdm import tqdm

from omq.client import (
    Client,
    Delivery,
    Envelope,
    Feed,
    FromBeginning,
    FromCurrent,
    FromMessage,
    MessageRun,
    OmqError,
    Persistent,
    Sink,
    Subscription,
    Sync,
    TopicInfo,
    Transient,
    connect,
)
from omq.client.address import parse_url
from omq.client.lines import publish_start
from omq.protocol.topics import check_topic
from omq.protocol.types import Persistence, Replay

DEFAULT_SERVER = "omq://127.0.0.1:7730"
READ_OCTETS = 64 << 10

LONGEST_LINE = 1 << 20
"""Octets of a Publish line, name and all, that a server takes when it is not configured otherwise."""

LONGEST_MESSAGE = 64 << 20
"""Octets of a body that a server takes through DMP when it is not configured otherwise."""

DELIVERIES = {"broadcast": Delivery.BROADCAST, "round-robin": Delivery.ROUND_ROBIN}
PERSISTENCES: dict[str, Persistence] = {
    "transient": Transient(),
    "strong": Persistent(Sync.STRONG),
    "weak": Persistent(Sync.WEAK),
    "async": Persistent(Sync.ASYNC),
}

FORMATS = ("lines", "raw", "json")

Action = Callable[[Client, argparse.Namespace], Awaitable[None]]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    parser = _parser(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(arguments)
    if options.action is _sub and options.dmp and options.credit is not None:
        parser.error("--credit does not go with --dmp: what a feed has received counts as done")
    if options.action in (_sub, _topics, _ping) and sys.stdout is None:
        _say("standard output is closed")
        sys.exit(1)
    code = 0
    try:
        trio.run(_run, options)
    except* BrokenPipeError:
        pass  # whoever read our output has had enough of it
    except* KeyboardInterrupt:
        # Ctrl-C is how one ends a subscription that has no other end; anything else was cut short.
        code = 0 if options.action is _sub and options.count is None else 1
    except* (OmqError, OSError) as group:
        for line in _sentences(group):
            _say(line)
        code = 1
    sys.exit(code)


class InputError(OmqError):
    """What was to be published could not be."""


def _say(line: str) -> None:
    if sys.stderr is not None:  # it is None when we were started with it closed
        print(f"omq: {line}", file=sys.stderr)


async def _run(options: argparse.Namespace) -> None:
    async with connect(options.server, id=b"omq " + options.command.encode()) as client:
        await options.action(client, options)


def _sentences(group: BaseExceptionGroup[OmqError | OSError]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _sentences(error)
        elif isinstance(error, OSError) and error.strerror:
            yield f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        else:
            yield str(error)


# -- the commands -------------------------------------------------------------------------------------------


PublishLines = Callable[[bytes], Awaitable[object]]
"""Publishes each line of a text as a message; the last may lack its line feed."""


async def _pub(client: Client, options: argparse.Namespace) -> None:
    if not options.dmp:
        longest = LONGEST_LINE - len(publish_start(options.topic)) - len('")')
        lines = partial(client.publish_lines, options.topic)
        await _publish(options, partial(client.publish, options.topic), lines, longest)
        if options.confirm:
            await client.confirm()
        return
    # Leaving the block waits for the answer in any case: a sink that just ended would not know of a refusal.
    async with client.sink(options.topic) as sink:
        await _publish(options, sink.publish, partial(_lines_to_sink, sink), LONGEST_MESSAGE)


async def _lines_to_sink(sink: Sink, text: bytes) -> None:
    if text:
        await sink.publish_many(text.removesuffix(b"\n").split(b"\n"))


async def _publish(
    options: argparse.Namespace, one: Callable[[bytes], Awaitable[None]], lines: PublishLines, longest: int
) -> None:
    if options.lines is not None:
        with options.lines.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size if stat.S_ISREG(status.st_mode) else None
            await _publish_file(lines, file, size, longest, str(options.lines))
    elif options.body == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed")
        await _publish_file(lines, sys.stdin.buffer, None, longest, "standard input")
    else:
        await one(os.fsencode(options.body))


async def _publish_file(
    lines: PublishLines, file: BinaryIO, size: int | None, longest: int, name: str
) -> None:
    """Publish each line. What comes slowly leaves line by line; what comes fast, many lines at a time.

    `size` is the octets of a regular file, None for anything that may keep us waiting. `longest` is the most
    octets that a line of it may have.
    """
    shown = size is not None and sys.stderr is not None and sys.stderr.isatty()
    held: list[bytes] = []  # the pieces of a line that is not complete
    held_octets = 0
    with tqdm(total=size, unit="B", unit_scale=True, disable=not shown, file=sys.stderr) as bar:
        while True:
            try:
                if size is not None:
                    data = file.read(READ_OCTETS)  # never long in coming: a thread would cost more
                else:
                    data = await trio.to_thread.run_sync(
                        os.read, file.fileno(), READ_OCTETS, abandon_on_cancel=True
                    )
            except OSError as error:
                raise InputError(f"{name}: {error.strerror or error}") from error
            if not data:
                break
            bar.update(len(data))
            # Only a line that began in an earlier read can be too long.
            if held_octets + len(data.partition(b"\n")[0]) > longest:
                raise InputError(f"{name}: a line has more than {longest} octets, the most that one may have")
            whole, feed, rest = data.rpartition(b"\n")
            held_octets = len(rest) if feed else held_octets + len(rest)
            if feed:
                await lines(b"".join((*held, whole, feed)))
                held = [rest] if rest else []
            else:
                held.append(rest)
        await lines(b"".join(held))


async def _sub(client: Client, options: argparse.Namespace) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_output, nursery.cancel_scope)
        if options.dmp:
            async with client.feed(options.topic, options.replay) as feed:
                if options.count != 0:
                    await _print_envelopes(feed, options)
        else:
            async with client.subscribe(options.topic, options.replay, credit=options.credit) as subscription:
                if options.count != 0:
                    await _print_messages(subscription, options)
        nursery.cancel_scope.cancel()


async def _print_messages(subscription: Subscription, options: argparse.Namespace) -> None:
    wanted: int | None = options.count
    async for run in subscription.runs():
        ids, bodies = run.ids, run.bodies
        if wanted is not None:
            ids, bodies = ids[:wanted], bodies[:wanted]
            wanted -= len(ids)
        text = _formatted(options.format, options.topic, MessageRun(run.topic, ids, bodies))
        # Straight to the descriptor: nothing stays behind in a buffer when the input runs dry, and a run of
        # messages is one write.
        await trio.to_thread.run_sync(_write_all, text, abandon_on_cancel=True)
        if wanted == 0:
            for id in ids if options.credit is not None else ():
                await subscription.received(id)
            return


async def _print_envelopes(feed: Feed, options: argparse.Namespace) -> None:
    wanted: int | None = options.count
    async for run in feed.runs():
        bodies = run.bodies if wanted is None else run.bodies[:wanted]
        if options.format == "json":
            lines = islice(run.envelopes(), len(bodies))
            text = b"".join([_json_envelope(options.topic, envelope) for envelope in lines])
        else:
            text = _joined(options.format, bodies)
        await trio.to_thread.run_sync(_write_all, text, abandon_on_cancel=True)
        if wanted is not None:
            wanted -= len(bodies)
            if wanted == 0:
                return


def _formatted(form: str, topic: bytes, run: MessageRun) -> bytes:
    if form == "json":
        return b"".join([_json_line(topic, id, body) for id, body in zip(run.ids, run.bodies, strict=True)])
    return _joined(form, run.bodies)


def _joined(form: str, bodies: list[bytes]) -> bytes:
    return b"".join(bodies) if form == "raw" else b"\n".join(bodies) + b"\n"


def _json_line(topic: bytes, id: int, body: bytes) -> bytes:
    """One object. What is not UTF-8 text is under another key, in base64."""
    return _json({"id": id, **_text_or_base64("topic", topic), **_text_or_base64("body", body)})


def _json_envelope(topic: bytes, envelope: Envelope) -> bytes:
    """The same for a message of a feed, which has no id; and what came with it, as far as it is there."""
    record: dict[str, object] = {**_text_or_base64("topic", topic), **_text_or_base64("body", envelope.body)}
    head = envelope.head
    if head.exchange:
        record |= _text_or_base64("exchange", head.exchange)
    if head.routing_key:
        record |= _text_or_base64("routing_key", head.routing_key)
    for field in fields(head.properties):
        match getattr(head.properties, field.name):
            case bytes() as octets:
                record |= _text_or_base64(field.name, octets)
            case int() as number:
                record[field.name] = number
            case _:
                pass  # absent; or headers, whose types JSON does not have
    return _json(record)


def _json(record: dict[str, object]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _text_or_base64(key: str, octets: bytes) -> dict[str, str]:
    try:
        return {key: octets.decode()}
    except UnicodeDecodeError:
        return {key + "_base64": base64.b64encode(octets).decode()}


async def _declare(client: Client, options: argparse.Namespace) -> None:
    await client.declare(options.topic, DELIVERIES[options.delivery], PERSISTENCES[options.persistence])


async def _delete(client: Client, options: argparse.Namespace) -> None:
    await client.delete(options.topic)


async def _topics(client: Client, options: argparse.Namespace) -> None:
    infos = sorted(await client.topics(), key=lambda info: info.topic)
    text = _json_topics(infos) if options.format == "json" else _table(infos)
    await trio.to_thread.run_sync(_write_all, text.encode(), abandon_on_cancel=True)


def _table(infos: list[TopicInfo]) -> str:
    head = ("NAME", "ID", "DELIVERY", "PERSISTENCE", "MESSAGES", "BYTES", "FIRST", "LAST", "SUBSCRIBERS")
    rows = [head] + [
        (
            _shown(info.topic),
            str(info.id),
            _word(DELIVERIES, info.delivery),
            _word(PERSISTENCES, info.persistence),
            *map(str, (info.messages, info.bytes, info.first, info.last, info.subscribers)),
        )
        for info in infos
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, 2, 3) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def _json_topics(infos: list[TopicInfo]) -> str:
    records = [
        {
            **_text_or_base64("topic", info.topic),
            "id": info.id,
            "delivery": _word(DELIVERIES, info.delivery),
            "persistence": _word(PERSISTENCES, info.persistence),
            "messages": info.messages,
            "bytes": info.bytes,
            "first": info.first,
            "last": info.last,
            "subscribers": info.subscribers,
        }
        for info in infos
    ]
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _word(words: Mapping[str, Delivery | Persistence], value: Delivery | Persistence) -> str:
    return next(word for word, meaning in words.items() if meaning == value)


def _shown(name: bytes) -> str:
    """A topic's name in a table: one line, and nothing that moves the cursor."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


async def _ping(client: Client, options: argparse.Namespace) -> None:
    seconds = await client.ping()
    await trio.to_thread.run_sync(_write_all, b"%.3f ms\n" % (seconds * 1000), abandon_on_cancel=True)


# -- standard output ----------------------------------------------------------------------------------------


def _write_all(octets: bytes) -> None:
    """Write to standard output. Raises OSError, BrokenPipeError among them."""
    rest = memoryview(octets)
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


async def _watch_output(scope: trio.CancelScope) -> None:
    """End when whoever reads our output is gone, even if no message comes that would make us notice."""
    output = sys.stdout.fileno()
    mode = os.fstat(output).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        poll = select.poll()
        poll.register(output, 0)  # nothing but what is always told: errors and hang-ups
        await trio.to_thread.run_sync(poll.poll, abandon_on_cancel=True)
        scope.cancel()


# -- the command line ---------------------------------------------------------------------------------------


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


def _parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="omq",
        description="Publish to topics, subscribe to them, and look after them.",
        epilog=(
            "Data goes to standard output, everything else to standard error. Exit codes: 0 it worked, 1 it "
            "did not (the server refused, or there was no connection), 2 the command line was wrong."
        ),
    )
    parser.add_argument("--version", action="version", version=f"omq {_version()}")
    parser.add_argument(
        "--server",
        type=_server,
        metavar="omq://HOST:PORT",
        default=os.environ.get("OMQ_SERVER", DEFAULT_SERVER),
        help=f"where the server is (default: $OMQ_SERVER, or else {DEFAULT_SERVER})",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, action: Action, summary: str, more: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(action=action)
        return sub

    pub = command(
        "pub",
        _pub,
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
        _sub,
        "print the messages of a topic as they come",
        """examples:
  omq sub prices
  omq sub prices --from beginning --format json | jq .body
  omq sub jobs --credit 1 | while read -r job; do ...; done

Ends when COUNT messages have come, when the topic is deleted, or with Ctrl-C.""",
    )
    _add_topic(sub)
    sub.add_argument(
        "--from",
        dest="replay",
        type=_replay,
        default=FromCurrent(),
        metavar="beginning|current|ID",
        help="where to begin: the oldest message kept, the next one (default), or the one with this id",
    )
    sub.add_argument("--count", type=_natural, metavar="N", help="end after so many messages")
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

    declare = command("declare", _declare, "see that a topic exists with these types")
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

    topics = command(
        "topics", _topics, "list the topics: types, messages, bytes, first and last id, subscribers"
    )
    topics.add_argument(
        "--format", choices=("table", "json"), default="table", help="json: one object a line"
    )

    _add_topic(command("delete", _delete, "delete a topic and all its messages; its subscriptions end"))
    command("ping", _ping, "connect, and print how long a round trip takes")
    # It talks to no server, and `omq.cli.start` gives it to `omq.cli.store`.
    commands.add_parser("store", help="look through a store on this machine, repair it, copy it")
    parsers: list[_Parser] = [parser, *commands.choices.values()]
    known = frozenset(option for one in parsers for option in one._option_string_actions)
    for one in parsers:
        one.given = given
        one.known = known
    return parser


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
        host, _ = parse_url(text)
        host.encode("idna")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} names no host that can be") from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the file's name is empty")
    return Path(text)


def _replay(text: str) -> Replay:
    match text:
        case "beginning":
            return FromBeginning()
        case "current":
            return FromCurrent()
        case _:
            try:
                return FromMessage(_positive(text))
            except argparse.ArgumentTypeError as error:
                message = f"{text!r} is neither beginning nor current nor a message id"
                raise argparse.ArgumentTypeError(message) from error


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
        return metadata.version("omq")
    except metadata.PackageNotFoundError:
        return "(not installed)"
