"""The `omq` command: publish, subscribe, and manage topics from a shell.

Data goes to standard output and everything else to standard error. The exit code is 0 on success, 1 on
failure (the server refused, or there was no connection), 2 for an invalid command line.
"""

import argparse
import logging
import os
import shlex
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import BinaryIO, NoReturn

import trio

from omq.cli import command_line, heads, management, watching
from omq.cli.advice import advice
from omq.cli.output import (
    LogLines,
    json_topics,
    print_octets,
    print_text,
    print_topics,
    say,
)
from omq.cli.progress import progress
from omq.cli.subscribing import sub
from omq.cli.top import top
from omq.cli.whole_files import (
    READ_OCTETS,
    STANDARD_INPUT,
    InputError,
    publish_whole,
    read_some,
    standard_input,
)
from omq.client import (
    Client,
    Connecting,
    ConnectionLost,
    OmqError,
    PublishRefused,
    Sink,
    SinkFailed,
    connect,
)
from omq.client.errors import MOST_REFUSALS
from omq.client.lines import publish_start
from omq.client.refusals import together
from omq.credentials import is_readable_by_others
from omq.model import DELIVERIES, PERSISTENCES, check_topic
from omq.server_address import parse_url

LONGEST_LINE = 1 << 20
"""The server's default limit for a Publish line, in octets."""

LONGEST_MESSAGE = 64 << 20
"""The server's default limit for a body over DMP, in octets."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit."""
    parser = command_line.parser(ACTIONS, sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(arguments)
    for file in _id_files(options):
        if is_readable_by_others(file):
            say(f"{file}: other users may read the secret in it; `chmod 600 {shlex.quote(file)}` corrects it")
    lines = LogLines()
    logging.getLogger("omq").addHandler(lines)
    if options.command == "replay":
        # Import late: a replay uses threads and plain sockets, which the other commands do not need.
        from omq.replay.command import run

        if options.id_file is not None:
            options.id_file = options.id_file.path  # the replay reads the file when it connects
        sys.exit(run(options, parser.error))
    if options.action is sub and options.dmp and options.credit is not None:
        parser.error("--credit does not go with --dmp: what a feed has received counts as done")
    if options.action is watching.retain and (unclear := watching.unclear(options)) is not None:
        parser.error(unclear)
    if options.action is sub and options.exact:
        for problem in filter(None, map(check_topic, options.topics)):
            parser.error(problem)
    if options.action is sub and options.dmp and options.reconnect:
        parser.error("--reconnect does not go with --dmp: a feed has no ids by which it could go on")
    if options.action is sub and options.output_dir is not None:
        if len(options.topics) > 1 or (options.topics[0].endswith(b"*") and not options.exact):
            parser.error("--output-dir saves one topic, and no pattern")
        if options.credit is not None or options.reconnect:
            parser.error("--output-dir uses a feed, so neither --credit nor --reconnect goes with it")
    if options.action in PRINTING and sys.stdout is None:
        say("standard output is closed")
        sys.exit(1)
    code = 0
    if options.action is sub and options.output_dir is not None:
        try:
            options.output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            say(f"{problem.filename}: {problem.strerror}")
            sys.exit(1)
    try:
        connection = _connection(options)
    except ValueError as error:
        parser.error(str(error))
    try:
        trio.run(_run, options, connection)
    except* BrokenPipeError:
        pass  # the reader of our output has closed it
    except* KeyboardInterrupt:
        # Ctrl-C is the normal end of a subscription without a count; it interrupts anything else.
        is_endless = options.action is sub and options.count is None
        code = 0 if is_endless or (options.action is top and not options.once) else 1
    except* (OmqError, OSError) as group:
        sentences = list(dict.fromkeys(_sentences(group, lines)))  # one for all that have the same reason
        if (hint := advice(group, _given_id(options))) is not None:
            sentences[-1:] = ["; ".join((*sentences[-1:], hint))]
        for line in sentences:
            say(line)
        code = 1
    sys.exit(code)


def _id_files(options: argparse.Namespace) -> list[str]:
    """Return the files with ids that the command line names."""
    own = [] if options.id_file is None else [options.id_file.path]
    to = getattr(options, "to_id_file", None)  # of replay alone
    return own if to is None else [*own, str(to)]


def _given_id(options: argparse.Namespace) -> bytes | None:
    """Return the id of the client; None or nothing if the user gave none."""
    if options.id_file is not None:
        id: bytes = options.id_file.id
        return id
    return os.environb.get(b"OMQ_ID")


async def _run(options: argparse.Namespace, connection: Connecting) -> None:
    async with connection as client:
        await options.action(client, options)


def _connection(options: argparse.Namespace) -> Connecting:
    """Prepare the connection. Raises ValueError for options that cannot be used, such as a missing file."""
    id = _given_id(options) or b"omq " + options.command.encode()
    ca = options.ca
    if ca is None and parse_url(options.server).tls:
        ca = os.environ.get("OMQ_CA") or None
    return connect(
        options.server,
        id=id,
        ca=ca,
        certificate=options.cert,
        key=options.key,
        reconnect=options.action is sub and options.reconnect,
    )


def _sentences(group: BaseExceptionGroup[OmqError | OSError], lines: LogLines) -> Iterator[str]:
    """Yield a sentence for each error, except for those that the log lines have."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _sentences(error, lines)
        elif (
            isinstance(error, ConnectionLost)
            and error.server_error is not None
            and lines.has_said(error.server_error)
        ):
            continue  # the server said why it closes the connection, and that is enough
        elif isinstance(error, SinkFailed) and lines.has_said(error.server_error):
            if error.sent:
                yield f"messages stored: {error.stored} of {error.sent}"
        elif isinstance(error, PublishRefused) and 0 < len(error.refusals) < MOST_REFUSALS:
            # All of them are there: the answer to Confirm only counts them.
            yield "; ".join(together(error.refusals))
        elif isinstance(error, OSError) and error.strerror:
            yield f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        else:
            yield str(error)


# -- the commands -------------------------------------------------------------------------------------------


PublishLines = Callable[[bytes], Awaitable[object]]
"""Publishes each line of a text as a message; the last line may lack its line feed."""


async def _pub(client: Client, options: argparse.Namespace) -> None:
    head = heads.given(options)
    if options.file is not None:
        await publish_whole(client, options.topic, options.file, head or heads.NO_HEAD)
        return
    if not options.dmp and head is None:
        longest = LONGEST_LINE - len(publish_start(options.topic)) - len('")')
        lines = partial(client.publish_lines, options.topic)
        await _publish(options, partial(client.publish, options.topic), lines, longest)
        if options.confirm:
            await client.confirm()
        else:
            await client.ping()  # a refused Connect would go unnoticed otherwise
        return
    # The end of the block always waits for the server's answer: otherwise a refusal would go unnoticed.
    async with client.sink(options.topic) as sink:
        head = head or heads.NO_HEAD
        one = partial(sink.publish, routing_key=head.routing_key, properties=head.properties)
        await _publish(options, one, partial(_lines_to_sink, sink, head), LONGEST_MESSAGE)


async def _lines_to_sink(sink: Sink, head: heads.Given, text: bytes) -> None:
    if text:
        lines = text.removesuffix(b"\n").split(b"\n")
        await sink.publish_many(lines, routing_key=head.routing_key, properties=head.properties)


async def _publish(
    options: argparse.Namespace, one: Callable[[bytes], Awaitable[None]], lines: PublishLines, longest: int
) -> None:
    if options.body == "-" or options.lines == STANDARD_INPUT:
        with standard_input() as file:
            await _publish_file(lines, file, None, longest, "standard input")
    elif options.lines is not None:
        with options.lines.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size if stat.S_ISREG(status.st_mode) else None
            await _publish_file(lines, file, size, longest, str(options.lines))
    else:
        await one(os.fsencode(options.body))


async def _publish_file(
    lines: PublishLines, file: BinaryIO, size: int | None, longest: int, name: str
) -> None:
    """Publish each line. Slow input is sent line by line, fast input many lines at a time.

    `size` is the size of a regular file; None for input that may block. `longest` is the greatest allowed
    length of a line.
    """
    held: list[bytes] = []  # the pieces of a line that is not complete
    held_octets = 0
    with progress(size) as bar:
        while True:
            if size is None:
                data = await read_some(file, name)
            else:
                try:
                    data = file.read(READ_OCTETS)  # hardly blocks: a thread would cost more
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


async def _declare(client: Client, options: argparse.Namespace) -> None:
    await client.declare(options.topic, DELIVERIES[options.delivery], PERSISTENCES[options.persistence])


async def _delete(client: Client, options: argparse.Namespace) -> None:
    await client.delete(options.topic)


async def _topics(client: Client, options: argparse.Namespace) -> None:
    if options.lag:
        await watching.topics_with_lag(client, options)
        return
    infos = sorted(await client.topics(), key=lambda info: info.topic)
    if options.format == "json":
        await print_text("json", json_topics(infos))
    else:
        await print_topics(infos)


async def _ping(client: Client, options: argparse.Namespace) -> None:
    await client.ping()  # the first answer also takes the time to check a secret
    seconds = await client.ping()
    await print_octets(b"%.3f ms\n" % (seconds * 1000))


ACTIONS: Mapping[str, command_line.Action] = {
    "pub": _pub,
    "sub": sub,
    "declare": _declare,
    "topics": _topics,
    "delete": _delete,
    "ping": _ping,
    "queues": management.run,
    "exchanges": management.run,
    "bindings": management.run,
    "top": top,
    "connections": watching.connections,
    "disconnect": watching.disconnect,
    "purge": watching.purge,
    "retain": watching.retain,
}

PRINTING = (sub, _topics, _ping, management.run, top, watching.connections, watching.purge)
"""The commands that print something."""
