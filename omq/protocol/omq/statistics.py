"""The sexps of Statistics, Connections and Subscribers, derived from the types of `omq.watching`
(docs/PROTOCOL.md, "Watch and control").
"""

from collections.abc import Iterator
from typing import cast, get_args

from omq import watching
from omq.model import Delivery, Persistence
from omq.protocol.omq.derived import Derived
from omq.protocol.omq.sexp import Sexp
from omq.protocol.omq.topics import identity_fields
from omq.protocol.omq.variants import delivery_of_sexp, persistence_of_sexp

_DERIVED = Derived(
    records=(
        watching.Share, watching.WriterInfo, watching.ProtocolCount, watching.Line, watching.TopicWatch,
        watching.SubscriptionInfo, watching.ConnectionInfo, watching.SubscriberInfo,
    ),
    readers={Delivery: delivery_of_sexp, Persistence: persistence_of_sexp},
)  # fmt: skip

_STATISTICS: tuple[type, ...] = get_args(watching.Statistics)
_RETENTIONS: tuple[type, ...] = get_args(watching.Retention)


def statistics_octets(statistics: watching.Statistics) -> bytes:
    """Encode the payload of a Statistics frame."""
    if isinstance(statistics, watching.Topics):
        records = b"".join(map(_topic, statistics.list))
        return b"(Topics(time_us %d)(list(%s)))" % (statistics.time_us, records)
    return _DERIVED.octets(statistics)


def read_statistics(payload: bytes) -> watching.Statistics:
    """Parse the payload of a Statistics frame. Raises SexpError."""
    return cast(watching.Statistics, _DERIVED.read_variant(_STATISTICS, payload, "a Statistics.t"))


def connection_pieces(connections: tuple[watching.ConnectionInfo, ...]) -> Iterator[bytes]:
    """Encode the payload of a Connections frame, in pieces that are short to make."""
    return _DERIVED.pieces(connections)


def read_connections(payload: bytes) -> tuple[watching.ConnectionInfo, ...]:
    """Parse the payload of a Connections frame. Raises SexpError."""
    found = _DERIVED.read_list(watching.ConnectionInfo, payload, "a list of connections")
    return cast(tuple[watching.ConnectionInfo, ...], found)


def subscriber_pieces(subscribers: tuple[watching.SubscriberInfo, ...]) -> Iterator[bytes]:
    """Encode the payload of a Subscribers frame, in pieces that are short to make."""
    return _DERIVED.pieces(subscribers)


def read_subscribers(payload: bytes) -> tuple[watching.SubscriberInfo, ...]:
    """Parse the payload of a Subscribers frame. Raises SexpError."""
    found = _DERIVED.read_list(watching.SubscriberInfo, payload, "a list of subscribers")
    return cast(tuple[watching.SubscriberInfo, ...], found)


def retention_of_sexp(sexp: Sexp) -> watching.Retention:
    """Convert the argument of a Retain. Raises ConversionError."""
    return cast(watching.Retention, _DERIVED.variant(_RETENTIONS, sexp))


def sexp_of_retention(retention: watching.Retention) -> Sexp:
    """Convert a retention to the argument of a Retain."""
    return _DERIVED.sexp(retention)


_RECORD = (
    b"((id %d)(topic%s)(delivery %s)(persistence%s)(messages %d)(octets %d)(first %d)(last %d)"
    b"(subscribers %d)(ready %d)(unconfirmed %d)(behind %d)(messages_in %d)(octets_in %d)"
    b"(messages_out %d)(octets_out %d)(waiting %d)(failures %d)(retention_octets(%s))(retention_ms(%s)))"
)


def _topic(info: watching.TopicWatch) -> bytes:
    # The same as `write` prints, but faster: there may be thousands of records in each second.
    return _RECORD % (
        *identity_fields(info),
        info.messages,
        info.octets,
        info.first,
        info.last,
        info.subscribers,
        info.ready,
        info.unconfirmed,
        info.behind,
        info.messages_in,
        info.octets_in,
        info.messages_out,
        info.octets_out,
        info.waiting,
        info.failures,
        _option(info.retention_octets),
        _option(info.retention_ms),
    )


def _option(number: int | None) -> bytes:
    return b"" if number is None else b"%d" % number
