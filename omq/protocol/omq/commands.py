"""Client commands, from and to the sexps on the wire: `Client.t` of the protocol (docs/PROTOCOL.md, "Types").

Source: docs/PROTOCOL.md, "What the client sends: lines".
This module checks only the types. The server checks that a topic's name has 1 to 255 octets (`check_topic`),
that the version is the agreed one, and that a count is not negative.
"""

from collections.abc import Callable
from typing import assert_never

from msgspec import Struct

from omq.model import check_topic
from omq.protocol.handshake import VERSION_ONE
from omq.protocol.omq import types
from omq.protocol.omq.atoms import atom
from omq.protocol.omq.converters import ConversionError, constructors, int64_of_sexp, string_of_sexp
from omq.protocol.omq.management import request_of_sexp, sexp_of_request
from omq.protocol.omq.sentences import sentence, shortened
from omq.protocol.omq.sexp import Sexp, SexpError, steps, write
from omq.protocol.omq.statistics import retention_of_sexp, sexp_of_retention
from omq.protocol.omq.times import sexp_of_time, time_of_sexp
from omq.protocol.omq.topics import topic_list_of_sexp, topic_list_sexp, topic_of_sexp, topic_sexp
from omq.protocol.omq.types import Command
from omq.protocol.omq.variants import (
    delivery_of_sexp,
    persistence_of_sexp,
    replay_of_sexp,
    sexp_of_delivery,
    sexp_of_persistence,
    sexp_of_replay,
)
from omq.protocol.steps import Steps, finished

__all__ = [
    "CommandError", "check_topic", "command_of_sexp", "parse", "publish_sexp", "sentence", "sexp_of_command",
    "topic_list_of_sexp", "topic_list_sexp", "topic_of_sexp", "topic_sexp",
]  # fmt: skip

MAX_TOKENS = 100
"""No command has as many atoms and parentheses: a line with more is refused before its tree is built."""

LONG_LINE = 64 << 10
"""A line with more octets is converted in another step than its sexp is parsed."""


class CommandError(ValueError):
    """A line is not a command.

    `sentence` is the sentence for the Error frame. `constructor` is the exact name of the command if the line
    has a known one.
    """

    def __init__(self, sentence: bytes, constructor: str | None = None) -> None:
        super().__init__(sentence.decode())
        self.sentence = sentence
        self.constructor = constructor


# -- reading ------------------------------------------------------------------------------------------------


class _Constructor(Struct, frozen=True):
    """A constructor with arguments: its name, and the name and the reader of each argument."""

    name: str
    make: Callable[..., Command]
    arguments: tuple[tuple[str, Callable[[Sexp], object]], ...]


_TOPIC = ("topic", string_of_sexp)
_REPLAY = ("replay", replay_of_sexp)
_FIRST = ("first", int64_of_sexp)
_COUNT = ("count", int64_of_sexp)
_N = ("n", int64_of_sexp)

_WITH_ARGUMENTS = constructors(
    {
        shape.name: shape
        for shape in (
            _Constructor("Connect", types.Connect, (("version", int64_of_sexp), ("id", string_of_sexp))),
            _Constructor("Subscribe", types.Subscribe, (_TOPIC, _REPLAY)),
            _Constructor("Unsubscribe", types.Unsubscribe, (_TOPIC,)),
            _Constructor("Ack", types.Ack, (("time", time_of_sexp),)),
            _Constructor("Publish", types.Publish, (_TOPIC, ("body", string_of_sexp))),
            _Constructor(
                "Declare",
                types.Declare,
                (_TOPIC, ("delivery", delivery_of_sexp), ("persistence", persistence_of_sexp)),
            ),
            _Constructor("Confirm", types.Confirm, (_N,)),
            _Constructor("Delete", types.Delete, (_TOPIC,)),
            _Constructor("Request", types.Request, (_TOPIC, _N)),
            _Constructor("Received", types.Received, (_TOPIC, ("id", int64_of_sexp))),
            _Constructor("Put", types.Put, (("sink", string_of_sexp),)),
            _Constructor("Get", types.Get, (("feed", string_of_sexp), _REPLAY)),
            _Constructor("Fetch", types.Fetch, (_TOPIC, _FIRST, _COUNT)),
            _Constructor("Blocks", types.Blocks, (_TOPIC, _FIRST, _COUNT)),
            _Constructor("Manage", types.Manage, (("request", request_of_sexp),)),
            _Constructor("Watch", types.Watch, (("period", int64_of_sexp),)),
            _Constructor("Connections", types.Connections, (_FIRST,)),
            _Constructor("Subscribers", types.Subscribers, (_TOPIC,)),
            _Constructor("Disconnect", types.Disconnect, (("id", int64_of_sexp),)),
            _Constructor("Purge", types.Purge, (_TOPIC,)),
            _Constructor("Retain", types.Retain, (_TOPIC, ("retention", retention_of_sexp))),
        )
    }
)
_TOPICS = constructors({"Topics": types.Topics()})


def parse(line: bytes) -> Command | None:
    """Parse one line without its line feed; None for a blank line and one with only comments.

    Raises CommandError.
    """
    return finished(parsing(line))


def parsing(line: bytes) -> Steps[Command | None]:
    """Parse one line as `parse` does, in steps, since a line may be long and contain anything."""
    try:
        sexp = yield from steps(line, max_tokens=MAX_TOKENS)
    except SexpError as error:
        raise CommandError(f"Bad sexp: {error}".encode()) from error
    if len(line) > LONG_LINE:
        yield  # a long integer takes most of a step
    return None if sexp is None else command_of_sexp(sexp)


def command_of_sexp(sexp: Sexp) -> Command:
    """Convert a sexp to a command, as OCaml's derived `Client.t_of_sexp` does. Raises CommandError."""
    match sexp:
        case bytes():
            return _without_arguments(sexp)
        case [bytes() as name, *arguments]:
            return _with_arguments(name, arguments)
        case _:
            raise CommandError(b"Bad command: a list must begin with the name of a command")


def _without_arguments(name: bytes) -> Command:
    if command := _TOPICS.get(name):
        return command
    if shape := _WITH_ARGUMENTS.get(name):
        raise CommandError(sentence(shape.name, None, _needs(shape)), shape.name)
    raise CommandError(b"Unknown command " + shortened(name))


def _with_arguments(name: bytes, arguments: list[Sexp]) -> Command:
    shape = _WITH_ARGUMENTS.get(name)
    if shape is None:
        if name in _TOPICS:
            raise CommandError(sentence("Topics", None, "takes no arguments and no parentheses"), "Topics")
        raise CommandError(b"Unknown command " + shortened(name))
    values: list[object] = []
    try:
        if len(arguments) != len(shape.arguments):
            raise ConversionError(_needs(shape))
        for (called, of_sexp), argument in zip(shape.arguments, arguments, strict=True):
            try:
                values.append(of_sexp(argument))
            except ConversionError as error:
                raise ConversionError(f"{called} {error}") from error
    except ConversionError as error:
        first = arguments[0] if arguments and isinstance(arguments[0], bytes) else None
        if shape.name == "Connect" and first != b"%d" % VERSION_ONE:
            first = None  # a malformed Connect may have a secret in place of the version
        raise CommandError(sentence(shape.name, first, str(error)), shape.name) from error
    return shape.make(*values)


def _needs(shape: _Constructor) -> str:
    count = len(shape.arguments)
    arguments = ", ".join(called for called, _ in shape.arguments)
    return f"takes exactly {count} argument{'s' * (count > 1)}: {arguments}"


# -- writing ------------------------------------------------------------------------------------------------


def sexp_of_command(command: Command) -> bytes:
    """Return `command` as sexplib prints it in machine form, without a line feed.

    Raises OverflowError for an Ack whose time is outside the years 1 to 9999.
    """
    match command:
        case types.Publish(topic, body):
            return publish_sexp(topic, body)
        case types.Topics():
            return b"Topics"
        case _:
            return write([type(command).__name__.encode(), *_arguments(command)])


def publish_sexp(topic: bytes, body: bytes) -> bytes:
    """Return `(Publish topic body)` in machine form, without a line feed."""
    topic, body = atom(topic), atom(body)
    before_topic = b"" if topic.startswith(b'"') else b" "
    between = b" " if before_topic and not body.startswith(b'"') else b""
    return b"(Publish%s%s%s%s)" % (before_topic, topic, between, body)


def _arguments(command: Command) -> list[Sexp]:
    match command:
        case types.Connect(version, id):
            return [_decimal(version), id]
        case types.Subscribe(topic, replay) | types.Get(topic, replay):
            return [topic, sexp_of_replay(replay)]
        case types.Unsubscribe(name) | types.Delete(name) | types.Put(name):
            return [name]
        case types.Ack(time):
            return [sexp_of_time(time)]
        case types.Publish(topic, body):
            return [topic, body]
        case types.Declare(topic, delivery, persistence):
            return [topic, sexp_of_delivery(delivery), sexp_of_persistence(persistence)]
        case types.Confirm(n):
            return [_decimal(n)]
        case types.Request(topic, n) | types.Received(topic, n):
            return [topic, _decimal(n)]
        case types.Fetch(topic, first, count) | types.Blocks(topic, first, count):
            return [topic, _decimal(first), _decimal(count)]
        case types.Manage(request):
            return [sexp_of_request(request)]
        case types.Watch(number) | types.Connections(number) | types.Disconnect(number):
            return [_decimal(number)]
        case types.Subscribers(name) | types.Purge(name):
            return [name]
        case types.Retain(topic, retention):
            return [topic, sexp_of_retention(retention)]
        case types.Topics():
            return []
        case _:
            assert_never(command)


def _decimal(value: int) -> bytes:
    return b"%d" % value
