"""Format the output of the `omq` command, and write it to standard output."""

import base64
import json
import logging
import os
import re
import select
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields

import trio

from omq.cli.cells import shortened, width
from omq.cli.json_values import json_table
from omq.client import Envelope, MessageRun, OmqError, TopicInfo
from omq.model import delivery_name, persistence_name
from omq.printable import printable
from omq.protocol.amqp.fields import Table

FORMATS = ("lines", "raw", "json")

LEAST_NAME = 24
"""The number of cells to which no name in a table is shortened."""


class CommandFailed(OmqError):
    """A command cannot do its work. The user sees the message, which is one sentence."""


def formatted(form: str, topic: bytes, run: MessageRun) -> bytes:
    """Format messages in one of FORMATS."""
    if form == "json":
        return b"".join([_json_line(topic, id, body) for id, body in zip(run.ids, run.bodies, strict=True)])
    return joined(form, run.bodies)


def joined(form: str, bodies: list[bytes]) -> bytes:
    """Join bodies, each with a line feed unless the form is raw."""
    return b"".join(bodies) if form == "raw" else b"\n".join(bodies) + b"\n"


def _json_line(topic: bytes, id: int, body: bytes) -> bytes:
    """Return one message as a JSON object. Octets that are not UTF-8 are in base64, under another key."""
    return _json({"id": id, **_text_or_base64("topic", topic), **_text_or_base64("body", body)})


def json_envelope(topic: bytes, envelope: Envelope) -> bytes:
    """Return a message of a feed as a JSON object. It has no id, but a head: its non-empty parts are
    included.
    """
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
            case Table() as headers:
                record[field.name] = json_table(headers)
            case None:
                pass
    return _json(record)


def _json(record: dict[str, object]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _text_or_base64(key: str, octets: bytes) -> dict[str, str]:
    try:
        return {key: octets.decode()}
    except UnicodeDecodeError:
        return {key + "_base64": base64.b64encode(octets).decode()}


ShowName = Callable[[bytes], str]
TableRows = Sequence[Sequence[str]]


async def print_table(rows: Callable[[ShowName], TableRows], numbers: Collection[int]) -> None:
    """Print a table, of which the columns with these indexes are numbers. `rows` makes its rows, the heading
    included, with a function for the names in it: a table that is too wide for a terminal gets shortened
    names.
    """
    text = columns(rows(shown), numbers)
    if os.isatty(1):
        across = shutil.get_terminal_size().columns
        if any(width(line) > across for line in text.splitlines()):
            longest = max(LEAST_NAME, across // 3)
            text = columns(rows(lambda name: shortened(shown(name), longest)), numbers)
    await print_text("table", text)


async def print_topics(infos: list[TopicInfo]) -> None:
    """Print topics as a table with a heading."""
    head = ("NAME", "ID", "DELIVERY", "PERSISTENCE", "MESSAGES", "OCTETS", "FIRST", "LAST", "SUBSCRIBERS")

    def rows(show: ShowName) -> TableRows:
        return [head] + [
            (
                show(info.topic),
                str(info.id),
                delivery_name(info.delivery),
                persistence_name(info.persistence),
                *map(str, (info.messages, info.bytes)),
                # An empty topic has no first and no last message.
                *map(str, (info.first, info.last) if info.messages else ("-", "-")),
                str(info.subscribers),
            )
            for info in infos
        ]

    await print_table(rows, {1, 4, 5, 6, 7, 8})


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the number of cells of a terminal that each column needs."""
    return [max(map(width, column)) for column in zip(*rows, strict=True)]


def columns(rows: Sequence[Sequence[str]], numbers: Collection[int]) -> str:
    """Format rows as columns; those with these indexes are numbers."""
    widths = column_widths(rows)
    lines = []
    for row in rows:
        cells = []
        for column, (cell, widest) in enumerate(zip(row, widths, strict=True)):
            space = " " * (widest - width(cell))
            cells.append(space + cell if column in numbers else cell + space)
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def json_topics(infos: list[TopicInfo]) -> str:
    """Format topics as JSON objects, one per line."""
    records = [
        {
            **_text_or_base64("topic", info.topic),
            "id": info.id,
            "delivery": delivery_name(info.delivery),
            "persistence": persistence_name(info.persistence),
            "messages": info.messages,
            "octets": info.bytes,
            "first": info.first,
            "last": info.last,
            "subscribers": info.subscribers,
        }
        for info in infos
    ]
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def shown(name: bytes) -> str:
    """Return a topic's name for a table or a sentence: one line, without control characters. Spaces at its
    beginning and end are escaped, so that no name looks like another or is empty.
    """
    text = printable(name.decode("utf-8", "backslashreplace"))
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    after = len(text) - before - len(inner)
    return _SPACE * before + inner + _SPACE * after


_SPACE = "\\x20"

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""The control characters, C0 and C1, except line feed and tab."""


def for_terminal(form: str, octets: bytes) -> bytes:
    """Replace control characters and invalid UTF-8 in formatted output by escapes such as `\\x1b`.

    A terminal would execute them: a message could move the cursor and overwrite earlier output, set the
    clipboard, or make the terminal type. JSON output uses JSON's own escapes.
    """
    escape = "\\u00%02x" if form == "json" else "\\x%02x"
    text = octets.decode("utf-8", "backslashreplace")
    clean = _CONTROLS.sub(lambda found: escape % ord(found[0]), text)
    return clean.encode(sys.stdout.encoding, "backslashreplace")


def say(line: str) -> None:
    """Print a message for the user to standard error."""
    if sys.stderr is not None:  # it is None if the process was started with it closed
        print(f"omq: {printable(line)}", file=sys.stderr)


SAID = "the server said: "
"""The beginning of the client library's log records of Errors that answer no command."""


class LogLines(logging.Handler):
    """Prints the client library's log records like other messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self._last = record.getMessage()
        say(self._last)

    def has_said(self, server_error: str) -> bool:
        """Return whether the last line had this Error of the server, perhaps behind the name of a topic. A
        response of DMP may be shortened.
        """
        return self._last.startswith(SAID) and f": {server_error.removesuffix('...')}" in self._last


def write_all(octets: bytes) -> None:
    """Write to standard output. Raises CommandFailed, and BrokenPipeError if its reader has closed it."""
    output = sys.stdout.fileno()
    rest = memoryview(octets)
    while rest:
        try:
            rest = rest[os.write(output, rest) :]
        except BlockingIOError:  # another program that has the same pipe or terminal made it so
            poll = select.poll()
            poll.register(output, select.POLLOUT)
            poll.poll()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailed(f"standard output: {error.strerror}") from error


async def print_octets(octets: bytes) -> None:
    """Do as `write_all`, in a thread."""
    await trio.to_thread.run_sync(write_all, octets, abandon_on_cancel=True)


async def print_text(form: str, text: str, before: bytes = b"") -> None:
    """Print octets as they are, and text in this form, safe for a terminal if standard output is one."""
    octets = text.encode()
    await print_octets(before + (for_terminal(form, octets) if os.isatty(1) else octets))


async def watch_output(scope: trio.CancelScope) -> None:
    """Cancel `scope` when the reader of our output has closed it, even if no message arrives."""
    output = sys.stdout.fileno()
    mode = os.fstat(output).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        poll = select.poll()
        poll.register(output, 0)  # only the events that are always reported: errors and hang-ups
        await trio.to_thread.run_sync(poll.poll, abandon_on_cancel=True)
        scope.cancel()
