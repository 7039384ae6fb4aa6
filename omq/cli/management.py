"""omq queues, omq exchanges and omq bindings: the commands that list and change the objects of AMQP 0-9-1."""

import argparse
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec.structs import asdict

from omq import management
from omq.cli.json_values import json_text
from omq.cli.output import CommandFailed, ShowName, TableRows, print_octets, print_table, print_text, shown
from omq.cli.parsers import add_assigned
from omq.client import Client, OmqError
from omq.counted import natural
from omq.management import Answer, Request
from omq.model import PERSISTENCES, Delivery

EVERY = 2**63 - 1


MOST_ARGUMENTS = 10
"""The most arguments of a binding: a command has at most 100 atoms and parentheses."""


DEFAULT_EXCHANGE = "amq.default"
"""The default exchange, whose name is empty, on the command line. No other exchange can have this name."""


T = TypeVar("T")
Item = TypeVar("Item", covariant=True)
Verb = Callable[[Client, argparse.Namespace], Awaitable[None]]


async def run(client: Client, options: argparse.Namespace) -> None:
    """Run one of these commands."""
    await VERBS[options.command, options.verb](client, options)


class _Part(Protocol[Item]):
    """Part of a list."""

    @property
    def list(self) -> tuple[Item, ...]: ...


async def _listed(client: Client, request: Callable[[int], Request], part: type[_Part[T]]) -> list[T]:
    """Return a whole list. `request` asks for the part from an index on."""
    found: list[T] = []
    while True:
        more = (await _ask(client, request(len(found)), part)).list
        if not more:
            return found
        found += more


async def _ask(client: Client, request: Request, expected: type[T]) -> T:
    """Return the answer to a request. Raises CommandFailed if it is of another type."""
    answer: Answer = await client.manage(request)
    if not isinstance(answer, expected):
        raise CommandFailed(f"the server answered with {type(answer).__name__}")
    return answer


# -- lists --------------------------------------------------------------------------------------------------


async def _list_queues(client: Client, options: argparse.Namespace) -> None:
    queues = await _listed(client, management.ListQueues, management.Queues)
    rows = [
        {**asdict(info), "options": dict(map(_shown_option, info.options))}
        for info in sorted(queues, key=lambda info: info.name)
    ]
    heads = ("name", "ready", "unacknowledged", "oldest_ms", "consumers", "durable", "options")
    await _print(options, heads, rows)


def _shown_option(option: management.Change) -> tuple[bytes, bytes | None]:
    """Return an option as the command line takes it."""
    is_default = option == management.Change(b"dead_letter_exchange", b"")
    return option.option, DEFAULT_EXCHANGE.encode() if is_default else option.value


async def _list_exchanges(client: Client, options: argparse.Namespace) -> None:
    found = await _listed(client, management.ListExchanges, management.Exchanges)
    heads = ("name", "type", "durable", "auto_delete", "internal", "alternate")
    await _print(options, heads, [asdict(info) for info in sorted(found, key=lambda info: info.name)])


async def _list_bindings(client: Client, options: argparse.Namespace) -> None:
    found = await _listed(client, management.ListBindings, management.Bindings)
    rows = [
        {
            "source": info.source,
            "to": type(info.destination).__name__.lower(),
            "destination": info.destination.name,
            "key": info.key,
            "arguments": {each.name: _plain(each.value) for each in info.arguments},
        }
        for info in found
    ]
    await _print(options, ("source", "to", "destination", "key", "arguments"), rows)


def _plain(value: management.Value) -> object:
    match value:
        case management.Void():
            return None
        case management.Other(text):
            return text
        case _:
            return value.value


async def _peek(client: Client, options: argparse.Namespace) -> None:
    left, first = options.count, options.first
    while left:
        messages = await _ask(client, management.Peek(options.name, first, left), management.Messages)
        if not messages.list:
            return
        rows = [asdict(message) for message in messages.list]
        await _print(options, ("id", "size", "exchange", "key", "body"), rows)
        left -= len(rows)
        first = messages.list[-1].id + 1


async def _print(
    options: argparse.Namespace, heads: Sequence[str], rows: Sequence[Mapping[str, object]]
) -> None:
    if options.format == "json":
        await print_text(
            "json", "".join(json.dumps(_jsonable(row), ensure_ascii=False) + "\n" for row in rows)
        )
        return
    numbers = {at for at, head in enumerate(heads) if rows and isinstance(rows[0][head], int)}

    def cells(show: ShowName) -> TableRows:
        # A body is no name.
        shows = [shown if head == "body" else show for head in heads]
        return [tuple(head.upper() for head in heads)] + [
            tuple(_cell(row[head], show) for head, show in zip(heads, shows, strict=True)) for row in rows
        ]

    await print_table(cells, numbers)


def _cell(value: object, show: ShowName) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case bytes():
            return show(value)
        case dict():
            return " ".join(f"{show(name)}={_cell(each, show)}" for name, each in value.items()) or "-"
        case _:
            return str(value)


def _jsonable(value: object) -> object:
    match value:
        case dict():
            return {_name(name): _jsonable(each) for name, each in value.items()}
        case bytes():
            return json_text(value)
        case _:
            return value


def _name(name: object) -> str:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)


# -- changes ------------------------------------------------------------------------------------------------


async def _do(client: Client, request: Request) -> int:
    return (await _ask(client, request, management.Done)).count


async def _count(client: Client, request: Request) -> None:
    """Do it, and print the number of messages."""
    await print_octets(b"%d\n" % await _do(client, request))


async def _declare_queue(client: Client, options: argparse.Namespace) -> None:
    # One request: if it is refused, there is neither a new queue nor a change.
    await _do(
        client,
        management.DeclareQueue(options.name, options.persistence.encode(), tuple(options.changes)),
    )


async def _delete_queue(client: Client, options: argparse.Namespace) -> None:
    # Delete would delete a broadcast topic, too, with all its messages.
    for info in await client.topics():
        if info.topic == options.name and info.delivery is not Delivery.ROUND_ROBIN:
            raise CommandFailed(
                f"{shown(options.name)!r} is a broadcast topic, and no queue: see `omq delete`"
            )
    await client.delete(options.name)


async def _purge(client: Client, options: argparse.Namespace) -> None:
    await _count(client, management.Purge(options.name))


async def _change(client: Client, options: argparse.Namespace) -> None:
    await _do(client, management.ChangeQueue(options.name, tuple(options.changes)))


async def _move(client: Client, options: argparse.Namespace) -> None:
    """Move in several requests, each of which moves a limited number of messages."""
    moved = 0
    try:
        while moved < options.count:
            done = await _do(client, management.Move(options.name, options.to, options.count - moved))
            moved += done
            if not done:
                break
    except OmqError:
        if moved:  # they are moved, whatever the failure
            await print_octets(b"%d\n" % moved)
        raise
    await print_octets(b"%d\n" % moved)


async def _declare_exchange(client: Client, options: argparse.Namespace) -> None:
    await _do(
        client,
        management.DeclareExchange(
            options.name,
            options.type.encode(),
            durable=not options.transient,
            auto_delete=options.auto_delete,
            internal=options.internal,
            alternate=options.alternate,
        ),
    )


async def _delete_exchange(client: Client, options: argparse.Namespace) -> None:
    if not await _do(client, management.DeleteExchange(options.name)):
        raise CommandFailed(f"there is no exchange {shown(options.name)!r}")


async def _bind(client: Client, options: argparse.Namespace) -> None:
    await _do(client, management.Bind(options.source, *_binding(options)))


async def _unbind(client: Client, options: argparse.Namespace) -> None:
    await _do(client, management.Unbind(options.source, *_binding(options)))


def _binding(
    options: argparse.Namespace,
) -> tuple[management.Destination, bytes, tuple[management.Argument, ...]]:
    if len(options.arguments) > MOST_ARGUMENTS:
        raise CommandFailed(f"a binding has at most {MOST_ARGUMENTS} arguments here")
    kind = management.Exchange if options.exchange else management.Queue
    return kind(options.destination), options.routing_key, tuple(options.arguments)


VERBS: Mapping[tuple[str, str], Verb] = {
    ("queues", "list"): _list_queues,
    ("queues", "declare"): _declare_queue,
    ("queues", "delete"): _delete_queue,
    ("queues", "purge"): _purge,
    ("queues", "peek"): _peek,
    ("queues", "change"): _change,
    ("queues", "move"): _move,
    ("exchanges", "list"): _list_exchanges,
    ("exchanges", "declare"): _declare_exchange,
    ("exchanges", "delete"): _delete_exchange,
    ("bindings", "list"): _list_bindings,
    ("bindings", "bind"): _bind,
    ("bindings", "unbind"): _unbind,
}

# -- the command line ---------------------------------------------------------------------------------------

AddVerb = Callable[[str, str], argparse.ArgumentParser]


def add_queue_verbs(verb: AddVerb) -> None:
    """Add the verbs of omq queues. `verb` makes the parser of one."""
    _add_format(verb("list", "list the queues: every round-robin topic is one"))
    declare = verb("declare", "create a queue, or check that one exists with these options")
    _add_name(declare, "queue")
    declare.add_argument(
        "--persistence", choices=PERSISTENCES, default="strong", help="as for omq declare (default: strong)"
    )
    _add_changes(declare, "*")
    _add_name(verb("delete", "delete a queue and its messages"), "queue")
    _add_name(verb("purge", "delete the messages that are ready, and print their number"), "queue")
    peek = verb("peek", "show messages without taking them")
    _add_name(peek, "queue")
    peek.add_argument("--first", type=_number, default=0, metavar="ID", help="begin with this message id")
    peek.add_argument(
        "--count", type=_number, default=10, metavar="N", help="at most N messages (default: 10)"
    )
    _add_format(peek)
    change = verb("change", "change options of a queue that is in use")
    _add_name(change, "queue")
    _add_changes(change, "+")
    move = verb("move", "move ready messages, by default each to the queue in which it became a dead letter")
    _add_name(move, "queue")
    move.add_argument(
        "--to",
        type=os.fsencode,
        metavar="QUEUE",
        help="move all to this queue, or to a persistent broadcast topic, which keeps them",
    )
    move.add_argument("--count", type=_number, default=EVERY, metavar="N", help="at most N messages")


def add_exchange_verbs(verb: AddVerb) -> None:
    """Add the verbs of omq exchanges."""
    _add_format(verb("list", "list the exchanges"))
    declare = verb("declare", "create an exchange, or check that it exists with these properties")
    _add_name(declare, "exchange")
    declare.add_argument(
        "type",
        choices=("direct", "fanout", "topic", "headers"),
        metavar="TYPE",
        help="direct, fanout, topic or headers",
    )
    declare.add_argument("--transient", action="store_true", help="it ends with the server")
    declare.add_argument("--auto-delete", action="store_true", help="it ends with its last binding")
    declare.add_argument("--internal", action="store_true", help="clients cannot publish to it")
    declare.add_argument(
        "--alternate", type=os.fsencode, metavar="EXCHANGE", help="it gets messages that match no binding"
    )
    _add_name(verb("delete", "delete an exchange and its bindings"), "exchange")


def add_binding_verbs(verb: AddVerb) -> None:
    """Add the verbs of omq bindings."""
    _add_format(verb("list", "list the bindings"))
    for name, summary in (("bind", "bind a queue to an exchange"), ("unbind", "remove a binding")):
        parser = verb(name, summary)
        parser.add_argument("source", type=os.fsencode, metavar="EXCHANGE", help="whose messages it routes")
        parser.add_argument("destination", type=os.fsencode, metavar="QUEUE", help="where it routes them")
        # `key` is the connection option.
        parser.add_argument(
            "routing_key",
            type=os.fsencode,
            nargs="?",
            default=b"",
            metavar="KEY",
            help="the routing key of the binding; of a topic exchange with * for one word and # for any "
            "number of words (default: empty)",
        )
        parser.add_argument(
            "--exchange", action="store_true", help="the destination is an exchange, and no queue"
        )
        parser.add_argument(
            "--argument",
            dest="arguments",
            action="append",
            default=[],
            type=_argument,
            metavar="NAME[=VALUE]",
            help="for a headers exchange: a whole number is one, true and false are booleans, anything else "
            "is text; without a value the header must be present",
        )


def _add_name(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("name", type=os.fsencode, metavar="NAME", help=f"the name of the {what}")


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="json: one object per line"
    )


def _add_changes(parser: argparse.ArgumentParser, nargs: str) -> None:
    parser.add_argument(
        "changes",
        nargs=nargs,
        type=_change_of,
        metavar="OPTION=[VALUE]",
        help="ttl_ms, expires_ms, max_length, max_octets, overflow (drop-head, reject-publish or "
        "reject-publish-dlx), dead_letter_exchange (amq.default: the default exchange), "
        "dead_letter_key or delivery_limit; "
        "OPTION= stands for none",
    )
    add_assigned(parser, "", management.OPTIONS)


def _change_of(text: str) -> management.Change:
    option, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be OPTION=VALUE")
    option = option.replace("-", "_")  # as in the names of other options
    # The name of the default exchange is empty, and an empty value removes an option.
    if option == "dead_letter_exchange" and value == DEFAULT_EXCHANGE:
        return management.Change(b"dead_letter_exchange", b"")
    change = management.Change(os.fsencode(option), os.fsencode(value) if value else None)
    problem = management.problem_of(change)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return change


def _argument(text: str) -> management.Argument:
    name, equals, value = text.partition("=")
    if not equals:
        return management.Argument(os.fsencode(name), management.Void())
    if value in ("true", "false"):
        return management.Argument(os.fsencode(name), management.Bool(value == "true"))
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 19:
        return management.Argument(os.fsencode(name), management.Int(int(value)))
    return management.Argument(os.fsencode(name), management.String(os.fsencode(value)))


def _number(text: str) -> int:
    number = natural(text)
    if number is None or number > EVERY:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {EVERY}")
    return number
