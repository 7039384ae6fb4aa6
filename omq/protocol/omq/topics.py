"""The sexps in frames about topics: one `Topic.t`, and the list of records that answers `Topics`.

Source: docs/PROTOCOL.md, "What the server sends: frames" and "Topics".
Readers raise SexpError for octets that are not a sexp of the required type.
"""

from omq.model import Topic, TopicInfo
from omq.protocol.omq.atoms import atom
from omq.protocol.omq.converters import (
    ConversionError,
    fields_of_sexp,
    int64_of_sexp,
    int_of_sexp,
    string_of_sexp,
)
from omq.protocol.omq.sexp import Sexp, SexpError, read_one, write
from omq.protocol.omq.variants import (
    delivery_of_sexp,
    persistence_of_sexp,
    sexp_of_persistence,
)
from omq.watching import TopicWatch


def topic_sexp(topic: Topic) -> bytes:
    """Return `((id 7)(topic prices))`: the payload of Subscribed, Unsubscribed, Declared and Deleted."""
    # The same as `write` prints, but faster: a client may subscribe to many topics.
    return b"((id %d)(topic%s))" % (topic.id, _after_name(atom(topic.topic)))


def topic_of_sexp(payload: bytes) -> Topic:
    """Parse the output of `topic_sexp`. The id may be any OCaml `int` (63 bits)."""
    sexp = read_one(payload)
    try:
        number, name = fields_of_sexp(sexp, (b"id", b"topic"))
        return Topic(int_of_sexp(number), string_of_sexp(name))
    except ConversionError as error:
        raise SexpError(f"a topic {error}") from error


_FIELDS = (
    b"id", b"topic", b"delivery", b"persistence", b"messages", b"bytes", b"first", b"last", b"subscribers"
)  # fmt: skip


def topic_list_sexp(topics: tuple[TopicInfo, ...]) -> bytes:
    """Return the payload of a Topics frame: a list of records, each with its fields in the order of
    `TopicInfo`.
    """
    return b"(" + b"".join(map(topic_info_sexp, topics)) + b")"


def identity_fields(info: TopicInfo | TopicWatch) -> tuple[int, bytes, bytes, bytes]:
    """Return the id, the name and the types of a topic, for the format with which all records of topics
    begin. Those that may be quoted or lists have the space before them.
    """
    return (
        info.id,
        _after_name(atom(info.topic)),
        info.delivery.value.encode(),
        _after_name(write(sexp_of_persistence(info.persistence))),
    )


_RECORD = (
    b"((id %d)(topic%s)(delivery %s)(persistence%s)"
    b"(messages %d)(bytes %d)(first %d)(last %d)(subscribers %d))"
)


def topic_info_sexp(info: TopicInfo) -> bytes:
    """Return one record of that list."""
    # The same as `write` prints, but faster: there may be many records, and only two fields need escaping.
    return _RECORD % (
        *identity_fields(info),
        info.messages,
        info.bytes,
        info.first,
        info.last,
        info.subscribers,
    )


def topic_list_of_sexp(payload: bytes) -> tuple[TopicInfo, ...]:
    """Parse the output of `topic_list_sexp`; the fields of a record may have any order."""
    sexp = read_one(payload)
    if isinstance(sexp, bytes):
        raise SexpError("a list of topics must be a list, not an atom")
    try:
        return tuple(_info_of_sexp(record) for record in sexp)
    except ConversionError as error:
        raise SexpError(f"a topic of the list {error}") from error


def _info_of_sexp(record: Sexp) -> TopicInfo:
    number, name, delivery, persistence, messages, octets, first, last, subscribers = fields_of_sexp(
        record, _FIELDS
    )
    return TopicInfo(
        id=int_of_sexp(number),
        topic=string_of_sexp(name),
        delivery=delivery_of_sexp(delivery),
        persistence=persistence_of_sexp(persistence),
        messages=int64_of_sexp(messages),
        bytes=int64_of_sexp(octets),
        first=int64_of_sexp(first),
        last=int64_of_sexp(last),
        subscribers=int64_of_sexp(subscribers),
    )


def _after_name(printed: bytes) -> bytes:
    """Return the octets after the name of a field: there is a space before a bare atom only."""
    return printed if printed.startswith((b'"', b"(")) else b" " + printed
