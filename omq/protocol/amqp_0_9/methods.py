"""The methods of AMQP 0-9-1, with RabbitMQ's extensions and OpenAMQ's class Direct, from and to octets.

A method is `u16 class | u16 method | arguments` in a method frame. Names are octets: nothing here requires
UTF-8. Arguments without a meaning today, such as tickets, are skipped and written as 0.

The annotations of a field give its form on the wire, and consecutive `Bit` fields share octets, so each class
below is the one description of its method.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from struct import Struct, error
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, get_args, get_type_hints

from omq.protocol.amqp import shortstr
from omq.protocol.amqp.fields import Table, read_small_table, table_octets
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_0_9.problems import ConnectionProblem, ReplyCode

Octet = Annotated[int, "B"]
Short = Annotated[int, "H"]
Long = Annotated[int, "I"]
LongLong = Annotated[int, "Q"]
ShortString = Annotated[bytes, "shortstr"]
LongString = Annotated[bytes, "longstr"]
Bit = Annotated[bool, "bit"]
Fields = Annotated[Table, "table"]

_NUMBERS = {kind: Struct(f">{kind}") for kind in "BHIQ"}
_LENGTH = _NUMBERS["I"]
_IDS = Struct(">HH")
_BITS_AN_OCTET = 8

NO_FIELDS = Table()


class Method(Protocol):
    """Any of the methods below."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    CLASS: ClassVar[int]
    METHOD: ClassVar[int]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The wire form of a method: names and kinds of its arguments; a reserved one has no name."""

    make: Callable[..., Method]
    head: bytes
    arguments: tuple[tuple[str | None, str], ...]


_LAYOUTS: dict[tuple[int, int], _Layout] = {}
_BY_TYPE: dict[type, _Layout] = {}

M = TypeVar("M", bound=Method)


def _method(class_id: int, method_id: int, before: str = "", after: str = "") -> Callable[[type[M]], type[M]]:
    """Register a dataclass as a method. `before` and `after` are the kinds of reserved arguments."""

    def register(made: type[M]) -> type[M]:
        hints = get_type_hints(made, include_extras=True)
        own = [(field.name, get_args(hints[field.name])[1]) for field in fields(made)]
        reserved_before = [(None, kind) for kind in before.split()]
        reserved_after = [(None, kind) for kind in after.split()]
        layout = _Layout(made, _IDS.pack(class_id, method_id), (*reserved_before, *own, *reserved_after))
        made.CLASS, made.METHOD = class_id, method_id
        _LAYOUTS[class_id, method_id] = layout
        _BY_TYPE[made] = layout
        return made

    return register


class _Ids:
    """The numbers of a method, which `_method` sets."""

    __slots__ = ()
    CLASS: ClassVar[int]
    METHOD: ClassVar[int]


# -- connection ---------------------------------------------------------------------------------------------


@_method(10, 10)
@dataclass(frozen=True, slots=True)
class ConnectionStart(_Ids):
    version_major: Octet
    version_minor: Octet
    server_properties: Fields
    mechanisms: LongString
    locales: LongString


@_method(10, 11)
@dataclass(frozen=True, slots=True)
class ConnectionStartOk(_Ids):
    client_properties: Fields
    mechanism: ShortString
    response: LongString
    locale: ShortString


@_method(10, 20)
@dataclass(frozen=True, slots=True)
class ConnectionSecure(_Ids):
    challenge: LongString


@_method(10, 21)
@dataclass(frozen=True, slots=True)
class ConnectionSecureOk(_Ids):
    response: LongString


@_method(10, 30)
@dataclass(frozen=True, slots=True)
class ConnectionTune(_Ids):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 31)
@dataclass(frozen=True, slots=True)
class ConnectionTuneOk(_Ids):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 40, after="shortstr bit")
@dataclass(frozen=True, slots=True)
class ConnectionOpen(_Ids):
    virtual_host: ShortString


@_method(10, 41, after="shortstr")
@dataclass(frozen=True, slots=True)
class ConnectionOpenOk(_Ids):
    pass


@_method(10, 50)
@dataclass(frozen=True, slots=True)
class ConnectionClose(_Ids):
    reply_code: Short
    reply_text: ShortString
    class_id: Short
    method_id: Short


@_method(10, 51)
@dataclass(frozen=True, slots=True)
class ConnectionCloseOk(_Ids):
    pass


@_method(10, 60)
@dataclass(frozen=True, slots=True)
class ConnectionBlocked(_Ids):
    """RabbitMQ's."""

    reason: ShortString


@_method(10, 61)
@dataclass(frozen=True, slots=True)
class ConnectionUnblocked(_Ids):
    """RabbitMQ's."""


@_method(10, 70)
@dataclass(frozen=True, slots=True)
class ConnectionUpdateSecret(_Ids):
    """RabbitMQ's."""

    new_secret: LongString
    reason: ShortString


@_method(10, 71)
@dataclass(frozen=True, slots=True)
class ConnectionUpdateSecretOk(_Ids):
    """RabbitMQ's."""


# -- channel ------------------------------------------------------------------------------------------------


@_method(20, 10, before="shortstr")
@dataclass(frozen=True, slots=True)
class ChannelOpen(_Ids):
    pass


@_method(20, 11, before="longstr")
@dataclass(frozen=True, slots=True)
class ChannelOpenOk(_Ids):
    pass


@_method(20, 20)
@dataclass(frozen=True, slots=True)
class ChannelFlow(_Ids):
    active: Bit


@_method(20, 21)
@dataclass(frozen=True, slots=True)
class ChannelFlowOk(_Ids):
    active: Bit


@_method(20, 40)
@dataclass(frozen=True, slots=True)
class ChannelClose(_Ids):
    reply_code: Short
    reply_text: ShortString
    class_id: Short
    method_id: Short


@_method(20, 41)
@dataclass(frozen=True, slots=True)
class ChannelCloseOk(_Ids):
    pass


# -- access, of AMQP 0-9 ------------------------------------------------------------------------------------


@_method(30, 10)
@dataclass(frozen=True, slots=True)
class AccessRequest(_Ids):
    realm: ShortString
    exclusive: Bit
    passive: Bit
    active: Bit
    write: Bit
    read: Bit


@_method(30, 11)
@dataclass(frozen=True, slots=True)
class AccessRequestOk(_Ids):
    ticket: Short = 1


# -- exchange -----------------------------------------------------------------------------------------------


@_method(40, 10, before="H")
@dataclass(frozen=True, slots=True)
class ExchangeDeclare(_Ids):
    exchange: ShortString
    type: ShortString = b"direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@_method(40, 11)
@dataclass(frozen=True, slots=True)
class ExchangeDeclareOk(_Ids):
    pass


@_method(40, 20, before="H")
@dataclass(frozen=True, slots=True)
class ExchangeDelete(_Ids):
    exchange: ShortString
    if_unused: Bit = False
    no_wait: Bit = False


@_method(40, 21)
@dataclass(frozen=True, slots=True)
class ExchangeDeleteOk(_Ids):
    pass


@_method(40, 30, before="H")
@dataclass(frozen=True, slots=True)
class ExchangeBind(_Ids):
    """RabbitMQ's."""

    destination: ShortString
    source: ShortString
    routing_key: ShortString = b""
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@_method(40, 31)
@dataclass(frozen=True, slots=True)
class ExchangeBindOk(_Ids):
    """RabbitMQ's."""


@_method(40, 40, before="H")
@dataclass(frozen=True, slots=True)
class ExchangeUnbind(_Ids):
    """RabbitMQ's."""

    destination: ShortString
    source: ShortString
    routing_key: ShortString = b""
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@_method(40, 51)
@dataclass(frozen=True, slots=True)
class ExchangeUnbindOk(_Ids):
    """RabbitMQ's."""


# -- queue --------------------------------------------------------------------------------------------------


@_method(50, 10, before="H")
@dataclass(frozen=True, slots=True)
class QueueDeclare(_Ids):
    queue: ShortString
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@_method(50, 11)
@dataclass(frozen=True, slots=True)
class QueueDeclareOk(_Ids):
    queue: ShortString
    message_count: Long
    consumer_count: Long


@_method(50, 20, before="H")
@dataclass(frozen=True, slots=True)
class QueueBind(_Ids):
    queue: ShortString
    exchange: ShortString
    routing_key: ShortString = b""
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@_method(50, 21)
@dataclass(frozen=True, slots=True)
class QueueBindOk(_Ids):
    pass


@_method(50, 30, before="H")
@dataclass(frozen=True, slots=True)
class QueuePurge(_Ids):
    queue: ShortString
    no_wait: Bit = False


@_method(50, 31)
@dataclass(frozen=True, slots=True)
class QueuePurgeOk(_Ids):
    message_count: Long


@_method(50, 40, before="H")
@dataclass(frozen=True, slots=True)
class QueueDelete(_Ids):
    queue: ShortString
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@_method(50, 41)
@dataclass(frozen=True, slots=True)
class QueueDeleteOk(_Ids):
    message_count: Long


@_method(50, 50, before="H")
@dataclass(frozen=True, slots=True)
class QueueUnbind(_Ids):
    queue: ShortString
    exchange: ShortString
    routing_key: ShortString = b""
    arguments: Fields = NO_FIELDS


@_method(50, 51)
@dataclass(frozen=True, slots=True)
class QueueUnbindOk(_Ids):
    pass


# -- basic --------------------------------------------------------------------------------------------------


@_method(60, 10)
@dataclass(frozen=True, slots=True)
class BasicQos(_Ids):
    prefetch_size: Long
    prefetch_count: Short
    is_global: Bit = False


@_method(60, 11)
@dataclass(frozen=True, slots=True)
class BasicQosOk(_Ids):
    pass


@_method(60, 20, before="H")
@dataclass(frozen=True, slots=True)
class BasicConsume(_Ids):
    queue: ShortString
    consumer_tag: ShortString = b""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@_method(60, 21)
@dataclass(frozen=True, slots=True)
class BasicConsumeOk(_Ids):
    consumer_tag: ShortString


@_method(60, 30)
@dataclass(frozen=True, slots=True)
class BasicCancel(_Ids):
    """RabbitMQ's server sends it, too."""

    consumer_tag: ShortString
    no_wait: Bit = False


@_method(60, 31)
@dataclass(frozen=True, slots=True)
class BasicCancelOk(_Ids):
    consumer_tag: ShortString


@_method(60, 40, before="H")
@dataclass(frozen=True, slots=True)
class BasicPublish(_Ids):
    exchange: ShortString
    routing_key: ShortString
    mandatory: Bit = False
    immediate: Bit = False


@_method(60, 50)
@dataclass(frozen=True, slots=True)
class BasicReturn(_Ids):
    reply_code: Short
    reply_text: ShortString
    exchange: ShortString
    routing_key: ShortString


@_method(60, 60)
@dataclass(frozen=True, slots=True)
class BasicDeliver(_Ids):
    consumer_tag: ShortString
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortString
    routing_key: ShortString


@_method(60, 70, before="H")
@dataclass(frozen=True, slots=True)
class BasicGet(_Ids):
    queue: ShortString
    no_ack: Bit = False


@_method(60, 71)
@dataclass(frozen=True, slots=True)
class BasicGetOk(_Ids):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortString
    routing_key: ShortString
    message_count: Long


@_method(60, 72, before="shortstr")
@dataclass(frozen=True, slots=True)
class BasicGetEmpty(_Ids):
    pass


@_method(60, 80)
@dataclass(frozen=True, slots=True)
class BasicAck(_Ids):
    delivery_tag: LongLong
    multiple: Bit = False


@_method(60, 90)
@dataclass(frozen=True, slots=True)
class BasicReject(_Ids):
    delivery_tag: LongLong
    requeue: Bit = True


@_method(60, 100)
@dataclass(frozen=True, slots=True)
class BasicRecoverAsync(_Ids):
    requeue: Bit = False


@_method(60, 110)
@dataclass(frozen=True, slots=True)
class BasicRecover(_Ids):
    requeue: Bit = False


@_method(60, 111)
@dataclass(frozen=True, slots=True)
class BasicRecoverOk(_Ids):
    pass


@_method(60, 120)
@dataclass(frozen=True, slots=True)
class BasicNack(_Ids):
    """RabbitMQ's."""

    delivery_tag: LongLong
    multiple: Bit = False
    requeue: Bit = True


# -- confirm, tx, direct ------------------------------------------------------------------------------------


@_method(85, 10)
@dataclass(frozen=True, slots=True)
class ConfirmSelect(_Ids):
    """RabbitMQ's."""

    no_wait: Bit = False


@_method(85, 11)
@dataclass(frozen=True, slots=True)
class ConfirmSelectOk(_Ids):
    """RabbitMQ's."""


@_method(90, 10)
@dataclass(frozen=True, slots=True)
class TxSelect(_Ids):
    pass


@_method(90, 11)
@dataclass(frozen=True, slots=True)
class TxSelectOk(_Ids):
    pass


@_method(90, 20)
@dataclass(frozen=True, slots=True)
class TxCommit(_Ids):
    pass


@_method(90, 21)
@dataclass(frozen=True, slots=True)
class TxCommitOk(_Ids):
    pass


@_method(90, 30)
@dataclass(frozen=True, slots=True)
class TxRollback(_Ids):
    pass


@_method(90, 31)
@dataclass(frozen=True, slots=True)
class TxRollbackOk(_Ids):
    pass


@_method(61500, 10)
@dataclass(frozen=True, slots=True)
class DirectPut(_Ids):
    """OpenAMQ's: ask for the lease of a sink (6-DMP, "Integration with AMQP")."""

    sink: ShortString


@_method(61500, 11)
@dataclass(frozen=True, slots=True)
class DirectPutOk(_Ids):
    """OpenAMQ's."""

    lease: ShortString


@_method(61500, 20)
@dataclass(frozen=True, slots=True)
class DirectGet(_Ids):
    """OpenAMQ's: ask for the lease of a feed."""

    feed: ShortString


@_method(61500, 21)
@dataclass(frozen=True, slots=True)
class DirectGetOk(_Ids):
    """OpenAMQ's."""

    lease: ShortString


# -- octets -------------------------------------------------------------------------------------------------


def encode(method: Method) -> bytes:
    """Encode a method, without its frame.

    Raises `FieldError` for a name longer than 255 octets or a number out of range.
    """
    layout = _BY_TYPE[type(method)]
    parts = [layout.head]
    bits, place = 0, 0
    for name, kind in layout.arguments:
        if kind == "bit":
            if place == _BITS_AN_OCTET:
                parts.append(bytes((bits,)))
                bits, place = 0, 0
            bits |= (name is not None and bool(getattr(method, name))) << place
            place += 1
            continue
        if place:
            parts.append(bytes((bits,)))
            bits, place = 0, 0
        parts.append(_written(kind, _reserved(kind) if name is None else getattr(method, name), name))
    if place:
        parts.append(bytes((bits,)))
    return b"".join(parts)


def _reserved(kind: str) -> Any:
    return 0 if kind in _NUMBERS else b""


def _written(kind: str, value: Any, name: str | None) -> bytes:
    what = (name or "a reserved field").replace("_", "-")
    match kind:
        case "shortstr":
            return shortstr.write(value, what)
        case "longstr":
            return _LENGTH.pack(len(value)) + bytes(value)
        case "table":
            return table_octets(value)
        case _:
            try:
                return _NUMBERS[kind].pack(value)
            except error as problem:
                raise FieldError(f"{what} cannot be {value}") from problem


def ids(payload: bytes) -> tuple[int, int]:
    """Return the class and method of the payload of a method frame. Raise `ConnectionProblem` if it
    has none.
    """
    if len(payload) < _IDS.size:
        raise ConnectionProblem(ReplyCode.FRAME_ERROR, f"a method of {len(payload)} octets has no class")
    class_id, method_id = _IDS.unpack_from(payload)
    return class_id, method_id


TableReader = Callable[[bytes, int, int], tuple[bytes, int]]
"""Translates the table at an index, up to an end at most; returns its octets, and where it ended."""


def decode(payload: bytes, translate: TableReader | None = None) -> Method:
    """Parse the payload of a method frame. `translate` makes tables of another dialect ordinary ones.

    Raises `ConnectionProblem` for an unknown method, and for arguments that are truncated, malformed or
    followed by other octets.
    """
    class_id, method_id = ids(payload)
    layout = _LAYOUTS.get((class_id, method_id))
    if layout is None:
        text = f"method {method_id} of class {class_id} is not known"
        raise ConnectionProblem(ReplyCode.COMMAND_INVALID, text, class_id, method_id)
    try:
        return _decoded(layout, payload, translate)
    except FieldError as problem:
        raise ConnectionProblem(ReplyCode.FRAME_ERROR, str(problem), class_id, method_id) from problem


def _decoded(layout: _Layout, payload: bytes, translate: TableReader | None) -> Method:
    values: list[Any] = []
    at, end = _IDS.size, len(payload)
    bits, place = 0, _BITS_AN_OCTET
    for name, kind in layout.arguments:
        value: Any
        if kind == "bit":
            if place == _BITS_AN_OCTET:
                if at >= end:
                    raise FieldError("the flags are missing")
                bits, place = payload[at], 0
                at += 1
            value = bool(bits >> place & 1)
            place += 1
        else:
            place = _BITS_AN_OCTET
            if kind == "table" and translate is not None:
                table, at = translate(payload, at, end)
                value, _ = _read(kind, table, 0, len(table), name)
            else:
                value, at = _read(kind, payload, at, end, name)
        if name is not None:
            values.append(value)
    if at != end:
        raise FieldError(f"{end - at} octets follow the last argument")
    return layout.make(*values)


def _read(kind: str, data: bytes, at: int, end: int, name: str | None) -> tuple[Any, int]:
    what = (name or "a reserved field").replace("_", "-")
    match kind:
        case "shortstr":
            return shortstr.read(data, at, end, what)
        case "longstr":
            start = at + _LENGTH.size
            if start > end:
                raise FieldError(f"{what} has {end - at} of its {_LENGTH.size} octets of length")
            after = start + _LENGTH.unpack_from(data, at)[0]
            if after > end:
                raise FieldError(f"{what} has {end - start} of its {after - start} octets")
            return data[start:after], after
        case "table":
            return read_small_table(data, at, end, what)
        case _:
            number = _NUMBERS[kind]
            if end - at < number.size:
                raise FieldError(f"{what} has {end - at} of its {number.size} octets")
            return number.unpack_from(data, at)[0], at + number.size
