"""OpenAMQ's dialect: in its field tables a time (type `T`) has four octets, and in all others it has eight.

Its client library names itself in Start-Ok. On its connections the tables are translated in both directions,
on those with AMQP as on those with DMP that it opens with leases. So stored heads have one form, and one
OpenAMQ client gets what another one sent.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from struct import Struct

from omq.protocol.amqp import properties as stored_properties
from omq.protocol.amqp.fields import MAX_NESTING, VALUES_A_STEP, LongString, Table
from omq.protocol.amqp.head import names_end
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.steps import Steps, finished
from omq_storage import codec

TIME = 4
"""The octets of a time."""

ORDINARY_TIME = 8
"""The octets of a time of all other programs."""

_NAME = b"OpenAMQ"
_U32 = Struct(">I")
_SIZES = {
    kind: size
    for kinds, size in ((b"tbB", 1), (b"sUu", 2), (b"Iif", 4), (b"D", 5), (b"lLd", 8), (b"V", 0))
    for kind in kinds
}
_TIME = ord("T")
_LATEST = 2**32 - 1

_HEADS_A_STEP = 64


def is_openamq(client_properties: Table) -> bool:
    """Return whether these properties of Start-Ok are those of OpenAMQ's client library."""
    return any(
        name == b"product" and isinstance(value, LongString) and value.octets.startswith(_NAME)
        for name, value in client_properties.entries
    )


def widened_table(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Translate the table at `data[at]` from OpenAMQ's form; return it with its length, and its end.

    Raises `FieldError` for octets that are no table, and for a table with too many values: others must not
    wait for it.
    """
    steps = _translating_table(data, at, end, TIME, ORDINARY_TIME)
    try:
        next(steps)
    except StopIteration as stop:
        translated: tuple[bytes, int] = stop.value
        return translated
    raise FieldError(f"the table has {VALUES_A_STEP} values or more")


def widened_properties(octets: bytes) -> bytes:
    """Translate property flags and properties from OpenAMQ's form. Raises `FieldError`."""
    return finished(_translating(octets, 0, TIME, ORDINARY_TIME))


def may_have_times(octets: bytes) -> bool:
    """Return whether checked properties, or a stored head, may differ in OpenAMQ's form: most do not."""
    return _TIME in octets


def narrowed_properties(octets: bytes) -> bytes:
    """Translate checked property flags and properties to OpenAMQ's form; times after 2106 become the last one
    of it.
    """
    return _narrowed(octets, 0) if may_have_times(octets) else octets


def widening_head(head: bytes) -> Steps[bytes]:
    """Translate a head, whose names are checked, from OpenAMQ's form. Raises `FieldError`."""
    return _translating(head, names_end(head), TIME, ORDINARY_TIME)


def narrowed_head(head: bytes) -> bytes:
    """Translate a stored head as `narrowed_properties` does."""
    return _narrowed(head, names_end(head))


def _narrowed(octets: bytes, at: int) -> bytes:
    """Translate checked octets with property flags at `at`, and properties. In plain Python, 60 KB with many
    headers take some milliseconds.
    """
    if codec.COMPILED and stored_properties.flags_of(octets, at) & stored_properties.HEADERS:
        table_at = stored_properties.headers_at(octets, at)
        narrowed = codec.native.narrowed_table(octets, table_at)
        if narrowed is not None:
            table, end = narrowed
            return octets[:table_at] + table + octets[end:]
    return finished(_translating(octets, at, ORDINARY_TIME, TIME))


def widening_heads(heads: Sequence[bytes]) -> Steps[list[bytes]]:
    """Translate the heads of a run of messages, of which neighbours are often equal. Raises `FieldError`."""
    found: list[bytes] = []
    wide = narrow = b""
    steps = 0
    for head in heads:
        if head != narrow:
            narrow, wide = head, (yield from widening_head(head))
            steps += 1
            if not steps % _HEADS_A_STEP:
                yield
        found.append(wide)
    return found


def _translating(octets: bytes, at: int, before: int, after: int) -> Steps[bytes]:
    """Translate octets with property flags at `at`, and properties."""
    if not stored_properties.flags_of(octets, at) & stored_properties.HEADERS:
        return octets
    at = stored_properties.headers_at(octets, at)
    table, end = yield from _translating_table(octets, at, len(octets), before, after)
    return octets[:at] + table + octets[end:]


def _translating_table(data: bytes, at: int, end: int, before: int, after: int) -> Steps[tuple[bytes, int]]:
    return (
        yield from _translating_values(data, at, end, before, after, MAX_NESTING, count(1), is_named=True)
    )


def _translating_values(
    data: bytes,
    at: int,
    end: int,
    before: int,
    after: int,
    levels: int,
    values: Iterator[int],
    *,
    is_named: bool,
) -> Steps[tuple[bytes, int]]:
    """Translate a table, or an array, whose values have no names. `values` counts those of all levels."""
    if not levels:
        raise FieldError(f"tables are nested more than {MAX_NESTING} deep")
    stop = _end_of_long(data, at, end)
    parts: list[bytes] = []
    at += _U32.size
    begin = at
    while at < stop:
        if not next(values) % VALUES_A_STEP:
            yield
        if is_named:
            at += 1 + data[at]
        if at >= stop:
            raise FieldError("a value in a table is missing")
        kind = data[at]
        at += 1
        if kind == _TIME:
            if stop - at < before:
                raise FieldError(f"a time in a table has {stop - at} of its {before} octets")
            number = int.from_bytes(data[at : at + before], "big")
            parts += (
                data[begin:at],
                (min(number, _LATEST) if after == TIME else number).to_bytes(after, "big"),
            )
            at += before
            begin = at
        elif kind in b"FA":
            inner, inner_end = yield from _translating_values(
                data, at, stop, before, after, levels - 1, values, is_named=kind == ord("F")
            )
            parts += (data[begin:at], inner)
            begin = at = inner_end
        elif kind in b"Sx":
            at = _end_of_long(data, at, stop)
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise FieldError(f"a value in a table has the type {kind:#04x}, which is not known here")
    if at != stop:
        raise FieldError("a value exceeds its table")
    parts.append(data[begin:stop])
    whole = b"".join(parts)
    return _U32.pack(len(whole)) + whole, stop


def _end_of_long(data: bytes, at: int, end: int) -> int:
    if end - at < _U32.size:
        raise FieldError(f"a length in a table has {end - at} of its {_U32.size} octets")
    stop: int = at + _U32.size + _U32.unpack_from(data, at)[0]
    if stop > end:
        raise FieldError("a value exceeds its table")
    return stop
