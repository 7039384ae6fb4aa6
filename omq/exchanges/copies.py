"""The headers CC and BCC: further routing keys of a message.

A message with them is routed as if it were published once with each of the keys. BCC is removed from the
message, so that no consumer sees it.
"""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import Struct

from omq.drivers.reasons import Reason, Refused
from omq.exchanges.types import argument
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import Array, LongString, Table, check_small_table, names
from omq.protocol.amqp.shortstr import FieldError
from omq_storage.heads import common

CC, BCC = b"CC", b"BCC"

MARK = b"CC"
"""Both names end with this, so a head without it has neither header. To search for it costs much
less than to look for the headers.
"""


def may_have_copies(run: Sequence[bytes]) -> bool:
    """Return whether any of these heads may have one of these headers."""
    head = run[0] if len(run) == 1 else common(run)
    return MARK in (b"".join(run) if head is None else head)


class Copies(Struct, frozen=True):
    """The further routing keys of a message."""

    keys: tuple[bytes, ...]
    head: bytes
    """The head to store."""


def copies_of(head: bytes) -> Copies:
    """Return the further routing keys of a message with this head. Raises Refused."""
    if MARK not in head or not _has_copies(head):
        return Copies((), head)
    check_headers(head)
    parsed = heads.decode(head)
    headers = parsed.properties.headers or Table()
    keys = _keys(headers, CC) + _keys(headers, BCC)
    if argument(headers, BCC) is not None:
        kept = Table(tuple(entry for entry in headers.entries if entry[0] != BCC))
        head = heads.encode(replace(parsed, properties=replace(parsed.properties, headers=kept)))
    return Copies(keys, head)


def _has_copies(head: bytes) -> bool:
    _, table = heads.bounds(head, 0, len(head))
    return table is not None and any(name in (CC, BCC) for name in names(head, table))


def check_headers(head: bytes) -> None:
    """Raise Refused if a message has too many headers: others must not wait until they are read."""
    if not head:
        return
    _, table = heads.bounds(head, 0, len(head))
    if table is None:
        return
    try:
        check_small_table(head, table, len(head), "the property headers")
    except FieldError as problem:
        raise Refused(Reason.INVALID, f"a message cannot be routed by its headers: {problem}") from problem


def _keys(headers: Table, name: bytes) -> tuple[bytes, ...]:
    match argument(headers, name):
        case None:
            return ()
        case Array(values):
            keys = tuple(value.octets for value in values if isinstance(value, LongString))
            if len(keys) == len(values):
                return keys
        case _:
            pass
    raise Refused(Reason.INVALID, f"the header {name.decode()} must be an array of strings")
