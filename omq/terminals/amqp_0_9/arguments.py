"""The arguments of Queue.Declare as options of a queue. Those that are not known are ignored."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omq.drivers.queue_options import Overflow, QueueKind, QueueOptions
from omq.drivers.reasons import IN_VIRTUAL_HOST, Reason, Refused
from omq.logs import quoted
from omq.model import LONGEST_RETENTION, Sync
from omq.protocol.amqp.fields import Boolean, LongString, Number, NumberType, Table, Value
from omq.protocol.amqp.shortstr import LONGEST
from omq.protocol.amqp_0_9.methods import QueueDeclare
from omq.terminals.amqp_0_9.offsets import read_interval

MAX_PRIORITY = 255
"""The greatest priority of messages that a queue may have."""


@dataclass(frozen=True, slots=True)
class StreamDeclared:
    """A declaration of a broadcast topic."""

    sync: Sync | None
    """None leaves it to the configuration."""
    most_octets: int | None
    most_ms: int | None
    """The greatest number of octets that the topic keeps, and of milliseconds that it keeps them; None leaves
    that to the configuration, too.
    """


def options_of(method: QueueDeclare) -> QueueOptions | StreamDeclared:
    """Return the options that a declaration asks for. Raises Refused."""
    found = _read(method.queue, method.arguments)
    kind = found.pop("queue_type", b"classic")
    for argument, (option, _) in _KNOWN.items():
        if option in found and option not in _OF_BOTH and (option in _OF_STREAMS) is not (kind == b"stream"):
            what = "only a stream has it" if option in _OF_STREAMS else "a stream does not have it"
            raise _invalid(argument.decode(), method.queue, what)
    sync: Sync | None = found.pop("sync", None)
    if kind == b"stream":
        if not method.durable or method.exclusive or method.auto_delete:
            raise _invalid("x-queue-type", method.queue, "a stream is durable, and not exclusive")
        octets = found.get("max_octets")
        return StreamDeclared(sync, None if octets is None else max(1, octets), found.get("max_age_ms"))
    is_durable = method.durable and not method.exclusive
    if kind == b"quorum":
        if not is_durable or method.auto_delete:
            raise _invalid("x-queue-type", method.queue, "a quorum queue is durable, and not exclusive")
        sync = Sync.STRONG
    if "dead_letter_key" in found and "dead_letter_exchange" not in found:
        text = "it needs an x-dead-letter-exchange"
        raise _invalid("x-dead-letter-routing-key", method.queue, text)
    return QueueOptions(
        durable=is_durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        kind=QueueKind(kind.decode()),
        sync=sync if is_durable else None,
        **found,
    )


def _read(queue: bytes, arguments: Table) -> dict[str, Any]:
    """Return the known arguments. Raises Refused."""
    found: dict[str, Any] = {}
    for name, value in arguments.entries:
        known = _KNOWN.get(name)
        if known is None:
            continue
        option, read = known
        try:
            found[option] = read(value)
        except ValueError as problem:
            raise _invalid(name.decode(), queue, str(problem)) from problem
    return found


def _invalid(argument: str, queue: bytes, why: str) -> Refused:
    return Refused(
        Reason.INVALID, f"invalid arg '{argument}' for queue {quoted(queue)} {IN_VIRTUAL_HOST}: {why}"
    )


# -- values: each raises ValueError -------------------------------------------------------------------------


def _number(value: Value) -> int:
    if (
        not isinstance(value, Number)
        or value.type is NumberType.TIMESTAMP
        or not isinstance(value.value, int)
    ):
        raise ValueError("it is no number")
    if value.value < 0:
        raise ValueError("it is negative")
    return value.value


def _positive(value: Value) -> int:
    number = _number(value)
    if not number:
        raise ValueError("it is 0")
    return number


def _priority(value: Value) -> int:
    number = _number(value)
    if number > MAX_PRIORITY:
        raise ValueError(f"it is more than {MAX_PRIORITY}")
    return number


def _text(value: Value) -> bytes:
    if not isinstance(value, LongString):
        raise ValueError("it is no string")
    return value.octets.removesuffix(b"\0")


def _name(value: Value) -> bytes:
    name = _text(value)
    if len(name) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} octets")
    return name


def _truth(value: Value) -> bool:
    if not isinstance(value, Boolean):
        raise ValueError("it is no boolean")
    return value.value


def _overflow(value: Value) -> Overflow:
    try:
        return Overflow(_text(value).decode(errors="replace"))
    except ValueError:
        *others, last = (each.value for each in Overflow)
        raise ValueError(f"it must be {', '.join(others)} or {last}") from None


def _queue_type(value: Value) -> bytes:
    text = _text(value)
    if text not in (b"classic", b"quorum", b"stream"):
        raise ValueError("it must be classic, quorum or stream")
    return text


def _age(value: Value) -> int:
    """Return milliseconds."""
    seconds = read_interval(_text(value))
    if not seconds:
        raise ValueError("it is no interval such as 7D or 12h")
    return min(seconds * 1000, LONGEST_RETENTION)


def _sync(value: Value) -> Sync:
    return Sync(_text(value).decode(errors="replace").capitalize())


_KNOWN: dict[bytes, tuple[str, Callable[[Value], object]]] = {
    b"x-queue-type": ("queue_type", _queue_type),
    b"x-omq-sync": ("sync", _sync),
    b"x-message-ttl": ("ttl_ms", _number),
    b"x-expires": ("expires_ms", _positive),
    b"x-max-length": ("max_length", _number),
    b"x-max-length-bytes": ("max_octets", _number),
    b"x-overflow": ("overflow", _overflow),
    b"x-dead-letter-exchange": ("dead_letter_exchange", _name),
    b"x-dead-letter-routing-key": ("dead_letter_key", _name),
    b"x-max-priority": ("max_priority", _priority),
    b"x-delivery-limit": ("delivery_limit", _number),
    b"x-single-active-consumer": ("single_active", _truth),
    b"x-max-age": ("max_age_ms", _age),
}

_OF_STREAMS = {"max_age_ms"}
_OF_BOTH = {"sync", "max_octets"}
"""The options that only streams have, and those that all queues have. A queue refuses an option that it does
not have, because it would not keep what the option promises.
"""
