"""The methods of AMQP 0-9-1, with RabbitMQ's extensions and OpenAMQ's class Direct, from and to octets.

Names are octets: nothing here requires UTF-8. Each class below is the one description of its method: see
`omq.protocol.amqp_0_9.layouts`.
"""

from dataclasses import dataclass

from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_0_9.layouts import (
    BY_TYPE,
    IDS,
    LAYOUTS,
    NO_FIELDS,
    Bit,
    Fields,
    Long,
    LongLong,
    LongStr,
    Method,
    MethodIds,
    Octet,
    Short,
    ShortStr,
    TableReader,
    method,
)
from omq.protocol.amqp_0_9.problems import ConnectionProblem, ReplyCode

# -- connection ---------------------------------------------------------------------------------------------


@method(10, 10)
@dataclass(frozen=True, slots=True)
class ConnectionStart(MethodIds):
    version_major: Octet
    version_minor: Octet
    server_properties: Fields
    mechanisms: LongStr
    locales: LongStr


@method(10, 11)
@dataclass(frozen=True, slots=True)
class ConnectionStartOk(MethodIds):
    client_properties: Fields
    mechanism: ShortStr
    response: LongStr
    locale: ShortStr


@method(10, 20)
@dataclass(frozen=True, slots=True)
class ConnectionSecure(MethodIds):
    challenge: LongStr


@method(10, 21)
@dataclass(frozen=True, slots=True)
class ConnectionSecureOk(MethodIds):
    response: LongStr


@method(10, 30)
@dataclass(frozen=True, slots=True)
class ConnectionTune(MethodIds):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 31)
@dataclass(frozen=True, slots=True)
class ConnectionTuneOk(MethodIds):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@method(10, 40, after="shortstr bit")
@dataclass(frozen=True, slots=True)
class ConnectionOpen(MethodIds):
    virtual_host: ShortStr


@method(10, 41, after="shortstr")
@dataclass(frozen=True, slots=True)
class ConnectionOpenOk(MethodIds):
    pass


@method(10, 50)
@dataclass(frozen=True, slots=True)
class ConnectionClose(MethodIds):
    reply_code: Short
    reply_text: ShortStr
    class_id: Short
    method_id: Short


@method(10, 51)
@dataclass(frozen=True, slots=True)
class ConnectionCloseOk(MethodIds):
    pass


@method(10, 60)
@dataclass(frozen=True, slots=True)
class ConnectionBlocked(MethodIds):
    """An extension of RabbitMQ."""

    reason: ShortStr


@method(10, 61)
@dataclass(frozen=True, slots=True)
class ConnectionUnblocked(MethodIds):
    """An extension of RabbitMQ."""


@method(10, 70)
@dataclass(frozen=True, slots=True)
class ConnectionUpdateSecret(MethodIds):
    """An extension of RabbitMQ."""

    new_secret: LongStr
    reason: ShortStr


@method(10, 71)
@dataclass(frozen=True, slots=True)
class ConnectionUpdateSecretOk(MethodIds):
    """An extension of RabbitMQ."""


# -- channel ------------------------------------------------------------------------------------------------


@method(20, 10, before="shortstr")
@dataclass(frozen=True, slots=True)
class ChannelOpen(MethodIds):
    pass


@method(20, 11, before="longstr")
@dataclass(frozen=True, slots=True)
class ChannelOpenOk(MethodIds):
    pass


@method(20, 20)
@dataclass(frozen=True, slots=True)
class ChannelFlow(MethodIds):
    active: Bit


@method(20, 21)
@dataclass(frozen=True, slots=True)
class ChannelFlowOk(MethodIds):
    active: Bit


@method(20, 40)
@dataclass(frozen=True, slots=True)
class ChannelClose(MethodIds):
    reply_code: Short
    reply_text: ShortStr
    class_id: Short
    method_id: Short


@method(20, 41)
@dataclass(frozen=True, slots=True)
class ChannelCloseOk(MethodIds):
    pass


# -- access, of AMQP 0-9 ------------------------------------------------------------------------------------


@method(30, 10)
@dataclass(frozen=True, slots=True)
class AccessRequest(MethodIds):
    realm: ShortStr
    exclusive: Bit
    passive: Bit
    active: Bit
    write: Bit
    read: Bit


@method(30, 11)
@dataclass(frozen=True, slots=True)
class AccessRequestOk(MethodIds):
    ticket: Short = 1


# -- exchange -----------------------------------------------------------------------------------------------


@method(40, 10, before="H")
@dataclass(frozen=True, slots=True)
class ExchangeDeclare(MethodIds):
    exchange: ShortStr
    type: ShortStr = b"direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@method(40, 11)
@dataclass(frozen=True, slots=True)
class ExchangeDeclareOk(MethodIds):
    pass


@method(40, 20, before="H")
@dataclass(frozen=True, slots=True)
class ExchangeDelete(MethodIds):
    exchange: ShortStr
    if_unused: Bit = False
    no_wait: Bit = False


@method(40, 21)
@dataclass(frozen=True, slots=True)
class ExchangeDeleteOk(MethodIds):
    pass


@method(40, 30, before="H")
@dataclass(frozen=True, slots=True)
class ExchangeBind(MethodIds):
    """An extension of RabbitMQ."""

    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr = b""
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@method(40, 31)
@dataclass(frozen=True, slots=True)
class ExchangeBindOk(MethodIds):
    """An extension of RabbitMQ."""


@method(40, 40, before="H")
@dataclass(frozen=True, slots=True)
class ExchangeUnbind(MethodIds):
    """An extension of RabbitMQ."""

    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr = b""
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@method(40, 51)
@dataclass(frozen=True, slots=True)
class ExchangeUnbindOk(MethodIds):
    """An extension of RabbitMQ."""


# -- queue --------------------------------------------------------------------------------------------------


@method(50, 10, before="H")
@dataclass(frozen=True, slots=True)
class QueueDeclare(MethodIds):
    queue: ShortStr
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@method(50, 11)
@dataclass(frozen=True, slots=True)
class QueueDeclareOk(MethodIds):
    queue: ShortStr
    message_count: Long
    consumer_count: Long


@method(50, 20, before="H")
@dataclass(frozen=True, slots=True)
class QueueBind(MethodIds):
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr = b""
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@method(50, 21)
@dataclass(frozen=True, slots=True)
class QueueBindOk(MethodIds):
    pass


@method(50, 30, before="H")
@dataclass(frozen=True, slots=True)
class QueuePurge(MethodIds):
    queue: ShortStr
    no_wait: Bit = False


@method(50, 31)
@dataclass(frozen=True, slots=True)
class QueuePurgeOk(MethodIds):
    message_count: Long


@method(50, 40, before="H")
@dataclass(frozen=True, slots=True)
class QueueDelete(MethodIds):
    queue: ShortStr
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@method(50, 41)
@dataclass(frozen=True, slots=True)
class QueueDeleteOk(MethodIds):
    message_count: Long


@method(50, 50, before="H")
@dataclass(frozen=True, slots=True)
class QueueUnbind(MethodIds):
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr = b""
    arguments: Fields = NO_FIELDS


@method(50, 51)
@dataclass(frozen=True, slots=True)
class QueueUnbindOk(MethodIds):
    pass


# -- basic --------------------------------------------------------------------------------------------------


@method(60, 10)
@dataclass(frozen=True, slots=True)
class BasicQos(MethodIds):
    prefetch_size: Long
    prefetch_count: Short
    is_global: Bit = False


@method(60, 11)
@dataclass(frozen=True, slots=True)
class BasicQosOk(MethodIds):
    pass


@method(60, 20, before="H")
@dataclass(frozen=True, slots=True)
class BasicConsume(MethodIds):
    queue: ShortStr
    consumer_tag: ShortStr = b""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: Fields = NO_FIELDS


@method(60, 21)
@dataclass(frozen=True, slots=True)
class BasicConsumeOk(MethodIds):
    consumer_tag: ShortStr


@method(60, 30)
@dataclass(frozen=True, slots=True)
class BasicCancel(MethodIds):
    """RabbitMQ's server sends it, too."""

    consumer_tag: ShortStr
    no_wait: Bit = False


@method(60, 31)
@dataclass(frozen=True, slots=True)
class BasicCancelOk(MethodIds):
    consumer_tag: ShortStr


@method(60, 40, before="H")
@dataclass(frozen=True, slots=True)
class BasicPublish(MethodIds):
    exchange: ShortStr
    routing_key: ShortStr
    mandatory: Bit = False
    immediate: Bit = False


@method(60, 50)
@dataclass(frozen=True, slots=True)
class BasicReturn(MethodIds):
    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 60)
@dataclass(frozen=True, slots=True)
class BasicDeliver(MethodIds):
    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@method(60, 70, before="H")
@dataclass(frozen=True, slots=True)
class BasicGet(MethodIds):
    queue: ShortStr
    no_ack: Bit = False


@method(60, 71)
@dataclass(frozen=True, slots=True)
class BasicGetOk(MethodIds):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


@method(60, 72, before="shortstr")
@dataclass(frozen=True, slots=True)
class BasicGetEmpty(MethodIds):
    pass


@method(60, 80)
@dataclass(frozen=True, slots=True)
class BasicAck(MethodIds):
    delivery_tag: LongLong
    multiple: Bit = False


@method(60, 90)
@dataclass(frozen=True, slots=True)
class BasicReject(MethodIds):
    delivery_tag: LongLong
    requeue: Bit = True


@method(60, 100)
@dataclass(frozen=True, slots=True)
class BasicRecoverAsync(MethodIds):
    requeue: Bit = False


@method(60, 110)
@dataclass(frozen=True, slots=True)
class BasicRecover(MethodIds):
    requeue: Bit = False


@method(60, 111)
@dataclass(frozen=True, slots=True)
class BasicRecoverOk(MethodIds):
    pass


@method(60, 120)
@dataclass(frozen=True, slots=True)
class BasicNack(MethodIds):
    """An extension of RabbitMQ."""

    delivery_tag: LongLong
    multiple: Bit = False
    requeue: Bit = True


# -- confirm, tx, direct ------------------------------------------------------------------------------------


@method(85, 10)
@dataclass(frozen=True, slots=True)
class ConfirmSelect(MethodIds):
    """An extension of RabbitMQ."""

    no_wait: Bit = False


@method(85, 11)
@dataclass(frozen=True, slots=True)
class ConfirmSelectOk(MethodIds):
    """An extension of RabbitMQ."""


@method(90, 10)
@dataclass(frozen=True, slots=True)
class TxSelect(MethodIds):
    pass


@method(90, 11)
@dataclass(frozen=True, slots=True)
class TxSelectOk(MethodIds):
    pass


@method(90, 20)
@dataclass(frozen=True, slots=True)
class TxCommit(MethodIds):
    pass


@method(90, 21)
@dataclass(frozen=True, slots=True)
class TxCommitOk(MethodIds):
    pass


@method(90, 30)
@dataclass(frozen=True, slots=True)
class TxRollback(MethodIds):
    pass


@method(90, 31)
@dataclass(frozen=True, slots=True)
class TxRollbackOk(MethodIds):
    pass


@method(61500, 10)
@dataclass(frozen=True, slots=True)
class DirectPut(MethodIds):
    """OpenAMQ's: ask for the lease of a sink (6-DMP, "Integration with AMQP")."""

    sink: ShortStr


@method(61500, 11)
@dataclass(frozen=True, slots=True)
class DirectPutOk(MethodIds):
    """OpenAMQ's."""

    lease: ShortStr


@method(61500, 20)
@dataclass(frozen=True, slots=True)
class DirectGet(MethodIds):
    """OpenAMQ's: ask for the lease of a feed."""

    feed: ShortStr


@method(61500, 21)
@dataclass(frozen=True, slots=True)
class DirectGetOk(MethodIds):
    """OpenAMQ's."""

    lease: ShortStr


# -- octets -------------------------------------------------------------------------------------------------


def encode(method: Method) -> bytes:
    """Encode a method, without its frame.

    Raises `FieldError` for a name longer than 255 octets or a number out of range.
    """
    return BY_TYPE[type(method)].write(method)


def ids(payload: bytes) -> tuple[int, int]:
    """Return the class and method of the payload of a method frame. Raise `ConnectionProblem` if it
    has none.
    """
    if len(payload) < IDS.size:
        raise ConnectionProblem(ReplyCode.FRAME_ERROR, f"a method of {len(payload)} octets has no class")
    class_id, method_id = IDS.unpack_from(payload)
    return class_id, method_id


def decode(payload: bytes, translate: TableReader | None = None) -> Method:
    """Parse the payload of a method frame. `translate` makes tables of another dialect ordinary ones.

    Raises `ConnectionProblem` for an unknown method, and for arguments that are truncated, malformed or
    followed by other octets.
    """
    class_id, method_id = ids(payload)
    layout = LAYOUTS.get((class_id, method_id))
    if layout is None:
        text = f"method {method_id} of class {class_id} is not known"
        raise ConnectionProblem(ReplyCode.COMMAND_INVALID, text, class_id, method_id)
    try:
        return layout.read(payload, translate)
    except FieldError as problem:
        raise ConnectionProblem(ReplyCode.FRAME_ERROR, str(problem), class_id, method_id) from problem
