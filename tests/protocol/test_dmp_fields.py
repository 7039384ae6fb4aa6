"""Short strings, field tables, properties and heads: octet by octet, round trips, and truncated anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measuring import untraced

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import properties, shortstr
from omq.protocol.amqp.fields import (
    MAX_NESTING,
    Array,
    Boolean,
    ByteArray,
    Decimal,
    LongString,
    Number,
    NumberType,
    Table,
    Value,
    Void,
    entries_octets,
    entry_of_tables,
    long_string,
    places,
    read_table,
    table_octets,
    table_of_entries,
)
from omq.protocol.amqp.fields import names as names_of_table
from omq.protocol.amqp.head import PLAIN_HEAD, Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp.shortstr import FieldError

RANGES = {
    NumberType.INT8: (-(2**7), 2**7 - 1),
    NumberType.UINT8: (0, 2**8 - 1),
    NumberType.INT16: (-(2**15), 2**15 - 1),
    NumberType.INT16_OF_SPECIFICATION: (-(2**15), 2**15 - 1),
    NumberType.UINT16: (0, 2**16 - 1),
    NumberType.INT32: (-(2**31), 2**31 - 1),
    NumberType.UINT32: (0, 2**32 - 1),
    NumberType.INT64: (-(2**63), 2**63 - 1),
    NumberType.INT64_OF_SPECIFICATION: (-(2**63), 2**63 - 1),
    NumberType.TIMESTAMP: (0, 2**64 - 1),
}

names = st.binary(max_size=12) | st.binary(min_size=255, max_size=255)
whole_numbers = st.sampled_from(sorted(RANGES, key=lambda kind: kind.value)).flatmap(
    lambda kind: st.builds(Number, st.just(kind), st.integers(*RANGES[kind]))
)
values: st.SearchStrategy[Value] = st.recursive(
    st.one_of(
        whole_numbers,
        st.builds(Number, st.just(NumberType.FLOAT32), st.floats(width=32, allow_nan=False)),
        st.builds(Number, st.just(NumberType.FLOAT64), st.floats(allow_nan=False)),
        st.builds(Boolean, st.booleans()),
        st.builds(Decimal, st.integers(0, 255), st.integers(0, 2**32 - 1)),
        st.builds(LongString, st.binary(max_size=20)),
        st.builds(ByteArray, st.binary(max_size=20)),
        st.just(Void()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple).map(Array),
        st.lists(st.tuples(names, inner), max_size=4).map(tuple).map(Table),
    ),
    max_leaves=8,
)
tables = st.lists(st.tuples(names, values), max_size=4).map(tuple).map(Table)
maybe_name = st.none() | names
maybe_octet = st.none() | st.integers(0, 255)
any_properties = st.builds(
    Properties,
    content_type=maybe_name,
    content_encoding=maybe_name,
    headers=st.none() | tables,
    delivery_mode=maybe_octet,
    priority=maybe_octet,
    correlation_id=maybe_name,
    reply_to=maybe_name,
    expiration=maybe_name,
    message_id=maybe_name,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=maybe_name,
    user_id=maybe_name,
    app_id=maybe_name,
    sender_id=maybe_name,
)
any_head = st.builds(Head, names, names, any_properties)

ALL_PROPERTIES = Properties(
    b"a", b"b", Table(), 1, 2, b"c", b"d", b"e", b"f", 3, b"g", b"h", b"i", b"j"
)  # fmt: skip


def test_short_strings_octet_by_octet() -> None:
    assert shortstr.write(b"", "x") == b"\x00"
    assert shortstr.write(b"abc", "x") == b"\x03abc"
    assert shortstr.read(b"?\x03abc!", 1, 6, "x") == (b"abc", 5)
    longest = bytes(range(255))
    assert shortstr.read(shortstr.write(longest, "x"), 0, 256, "x") == (longest, 256)
    with pytest.raises(FieldError, match=r"^the name of 256 octets is longer than 255$"):
        shortstr.write(bytes(256), "the name")
    with pytest.raises(FieldError, match=r"^the name has 2 of its 3 octets$"):
        shortstr.read(b"\x03abc", 0, 3, "the name")
    with pytest.raises(FieldError, match=r"^the name is missing$"):
        shortstr.read(b"\x03abc", 0, 0, "the name")


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (LongString(b"red\x00"), b"S\x00\x00\x00\x04red\x00"),
        (ByteArray(b"\xff"), b"x\x00\x00\x00\x01\xff"),
        (Number(NumberType.INT32, -2), b"I\xff\xff\xff\xfe"),
        (Number(NumberType.UINT32, 2**32 - 1), b"i\xff\xff\xff\xff"),
        (Number(NumberType.INT8, -1), b"b\xff"),
        (Number(NumberType.UINT8, 255), b"B\xff"),
        (Number(NumberType.INT16, -1), b"s\xff\xff"),
        (Number(NumberType.INT16_OF_SPECIFICATION, 1), b"U\x00\x01"),
        (Number(NumberType.UINT16, 65535), b"u\xff\xff"),
        (Number(NumberType.INT64, -1), b"l" + b"\xff" * 8),
        (Number(NumberType.INT64_OF_SPECIFICATION, 1), b"L" + bytes(7) + b"\x01"),
        (Number(NumberType.FLOAT32, 1.5), b"f\x3f\xc0\x00\x00"),
        (Number(NumberType.FLOAT64, 1.5), b"d\x3f\xf8" + bytes(6)),
        (Number(NumberType.TIMESTAMP, 1), b"T" + bytes(7) + b"\x01"),
        (Boolean(True), b"t\x01"),
        (Boolean(False), b"t\x00"),
        (Decimal(2, 314), b"D\x02\x00\x00\x01\x3a"),
        (Void(), b"V"),
        (Array((Boolean(True), Void())), b"A\x00\x00\x00\x03t\x01V"),
        (Table(((b"k", Void()),)), b"F\x00\x00\x00\x03\x01kV"),
    ],
)
def test_each_type_octet_by_octet(value: Value, octets: bytes) -> None:
    table = Table(((b"name", value),))
    wire = (5 + len(octets)).to_bytes(4, "big") + b"\x04name" + octets
    assert table_octets(table) == wire
    assert read_table(b"??" + wire + b"rest", 2, 2 + len(wire)) == (table, 2 + len(wire))


@given(tables)
def test_any_table_comes_back(table: Table) -> None:
    octets = table_octets(table)
    assert read_table(octets, 0, len(octets)) == (table, len(octets))
    assert list(names_of_table(octets, 0)) == [name for name, _ in table.entries]


@given(any_head)
def test_any_head_comes_back(head: Head) -> None:
    octets = stored_head.encode(head)
    assert stored_head.decode(octets) == head
    around = b"??" + octets + b"rest"
    assert stored_head.skip(around, 2, len(around)) == 2 + len(octets)
    assert stored_head.skip(octets, 0, len(octets)) == len(octets)


@given(any_head)
def test_parts_of_a_head_are_read_without_the_rest(head: Head) -> None:
    octets = stored_head.encode(head)
    assert stored_head.names(octets) == (head.exchange, head.routing_key)
    assert stored_head.routing_key(octets) == head.routing_key
    headers = head.properties.headers
    assert stored_head.headers_table(octets) == (b"" if headers is None else table_octets(headers))
    assert octets.startswith(stored_head.NO_NAMES) == (not head.exchange and not head.routing_key)
    assert stored_head.headers_table(b"") == b""


@given(tables)
def test_parts_of_a_table_are_read_and_written_without_its_values(table: Table) -> None:
    octets = table_octets(table)
    assert table_of_entries(entries_octets(table)) == octets
    strings = [
        (name, found)
        for name, _, type_at, end in places(octets, 0)
        if (found := long_string(octets, type_at, end)) is not None
    ]
    assert strings == [(n, value.octets) for n, value in table.entries if isinstance(value, LongString)]


@given(names, st.lists(tables, max_size=3))
def test_an_entry_of_tables_is_one_of_an_array(name: bytes, each: list[Table]) -> None:
    entry = entry_of_tables(name, map(table_octets, each))
    assert entry == entries_octets(Table(((name, Array(tuple(each))),)))


@given(any_head)
@untraced()
def test_a_cut_head_is_an_error_wherever_it_is_cut(head: Head) -> None:
    octets = stored_head.encode(head)
    for cut in range(max(0, len(octets) - 400), len(octets)):
        with pytest.raises(FieldError):
            stored_head.skip(octets, 0, cut)
        with pytest.raises(FieldError):
            stored_head.decode(octets[:cut])
    with pytest.raises(FieldError):
        stored_head.decode(octets + b"\x00")


@given(st.binary(max_size=40))
def test_skipping_and_decoding_agree_on_any_octets(octets: bytes) -> None:
    def verdict(read: object) -> object:
        try:
            assert callable(read)
            return read()
        except FieldError as error:
            return str(error)

    end = verdict(lambda: stored_head.skip(octets, 0, len(octets)))
    if isinstance(end, int):
        head = stored_head.decode(octets[:end])
        assert stored_head.skip(stored_head.encode(head), 0, end) == end
    else:
        assert verdict(lambda: stored_head.decode(octets)) == end


def test_the_plain_head() -> None:
    assert stored_head.encode(Head()) == PLAIN_HEAD == bytes(4)
    assert stored_head.decode(PLAIN_HEAD) == Head()


def test_each_property_has_its_flag() -> None:
    octets = properties.encode(ALL_PROPERTIES)
    assert octets == (
        b"\xff\xfc\x01a\x01b\x00\x00\x00\x00\x01\x02\x01c\x01d\x01e\x01f"
        b"\x00\x00\x00\x00\x00\x00\x00\x03\x01g\x01h\x01i\x01j"
    )
    assert properties.decode(octets) == ALL_PROPERTIES
    flags = {
        name: properties.encode(Properties(**{name: getattr(ALL_PROPERTIES, name)}))[:2].hex()
        for name in Properties.__slots__
    }
    assert list(flags.values()) == [f"{1 << bit:04x}" for bit in range(15, 1, -1)]


def test_an_empty_property_is_not_an_absent_one() -> None:
    assert properties.encode(Properties(message_id=b"")) == b"\x00\x80\x00"
    assert properties.decode(b"\x00\x80\x00") == Properties(message_id=b"") != Properties()
    assert properties.decode(b"\x20\x00\x00\x00\x00\x00") == Properties(headers=Table()) != Properties()


def table_of(contents: bytes) -> bytes:
    return b"\x20\x00" + len(contents).to_bytes(4, "big") + contents


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (b"", "the property flags have 0 of their 2 octets"),
        (b"\x00", "the property flags have 1 of their 2 octets"),
        (b"\x00\x01", "the property flags 0x0001 have bits set that stand for no property"),
        (b"\xff\xfe", "the property flags 0xfffe have bits set that stand for no property"),
        (b"\x80\x00", "the property content-type is missing"),
        (b"\x00\x80\x05abc", "the property message-id has 3 of its 5 octets"),
        (b"\x00\x88\x01a", "the property app-id is missing"),
        (b"\x10\x00", "the property delivery-mode has 0 of its 1 octets"),
        (b"\x00\x40\x00\x00\x00", "the property timestamp has 3 of its 8 octets"),
        (b"\x00\x00\x00", "1 octets follow the last property"),
        (b"\x20\x00\x00\x00\x00", "the property headers has 3 of its 4 octets"),
        (b"\x20\x00\x00\x00\x00\x05\x01k", "the property headers has 2 of its 5 octets"),
        (b"\x20\x00\xff\xff\xff\xff", "the property headers has 0 of its 4294967295 octets"),
        (table_of(b"\x05k"), "a name in the property headers has 1 of its 5 octets"),
        (table_of(b"\x01k"), "the type of 'k' in the property headers has 0 of its 1 octets"),
        (table_of(b"\x01kI\x00"), "'k' in the property headers has 1 of its 4 octets"),
        (table_of(b"\x01kS\x00\x00\x00\x09abc"), "'k' in the property headers has 3 of its 9 octets"),
        (table_of(b"\x01kx\x00\x00\x00\x01"), "'k' in the property headers has 0 of its 1 octets"),
        (table_of(b"\x01kt"), "'k' in the property headers has 0 of its 1 octets"),
        (table_of(b"\x01kD\x00"), "'k' in the property headers has 1 of its 5 octets"),
        (table_of(b"\x01k?"), "'k' in the property headers has the type 0x3f, which is not known here"),
        (table_of(b"\x01k\x00"), "'k' in the property headers has the type 0x00, which is not known here"),
        (
            table_of(b"\x01kA\x00\x00\x00\x02I\x00"),
            "a value of 'k' in the property headers has 1 of its 4 octets",
        ),
        (
            table_of(b"\x01kF\x00\x00\x00\x03\x01jt"),
            "'j' in 'k' in the property headers has 0 of its 1 octets",
        ),
        (table_of(b"\x01kF\x00\x00\x00\x03"), "'k' in the property headers has 0 of its 3 octets"),
    ],
)
def test_malformed_properties_are_named(octets: bytes, text: str) -> None:
    with pytest.raises(FieldError) as read:
        properties.decode(octets)
    assert str(read.value) == text
    if "follow" not in text:
        with pytest.raises(FieldError) as skipped:
            properties.skip(octets, 0, len(octets))
        assert str(skipped.value) == text


def nested(depth: int) -> bytes:
    contents = b""
    for _ in range(depth):
        contents = b"\x01kF" + len(contents).to_bytes(4, "big") + contents
    return len(contents).to_bytes(4, "big") + contents


def test_tables_are_nested_so_deep_and_no_deeper() -> None:
    deepest = nested(MAX_NESTING - 1)
    table, end = read_table(deepest, 0, len(deepest))
    assert end == len(deepest)
    assert table_octets(table) == deepest
    for depth in (MAX_NESTING, 5000):
        with pytest.raises(FieldError, match=r"^tables are nested more than 32 deep$"):
            read_table(nested(depth), 0, len(nested(depth)))


def test_an_error_does_not_name_all_tables_around_it() -> None:
    contents = b"\x01k?"
    for _ in range(MAX_NESTING - 1):
        contents = b"\x28" + b"\xff" * 40 + b"F" + len(contents).to_bytes(4, "big") + contents
    with pytest.raises(FieldError) as caught:
        properties.decode(table_of(contents))
    assert len(str(caught.value)) < 500


def test_a_long_name_is_cut_off_in_an_error() -> None:
    with pytest.raises(FieldError) as caught:
        properties.decode(table_of(b"\xff" + b"k" * 255 + b"?"))
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("kind", RANGES, ids=lambda kind: kind.name)
def test_numbers_end_where_their_type_does(kind: NumberType) -> None:
    for outside in (RANGES[kind][0] - 1, RANGES[kind][1] + 1):
        with pytest.raises(FieldError, match=f"{outside} is no {kind.name}"):
            table_octets(Table(((b"k", Number(kind, outside)),)))


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (Head(exchange=bytes(256)), "the exchange of 256 octets is longer than 255"),
        (Head(routing_key=bytes(256)), "the routing key of 256 octets is longer than 255"),
        (Head(properties=Properties(type=bytes(256))), "the property type of 256 octets is longer than 255"),
        (Head(properties=Properties(priority=256)), "the property priority cannot be 256"),
        (Head(properties=Properties(delivery_mode=-1)), "the property delivery-mode cannot be -1"),
        (Head(properties=Properties(timestamp=2**64)), f"the property timestamp cannot be {2**64}"),
        (
            Head(properties=Properties(headers=Table(((bytes(256), Void()),)))),
            "a name in a table of 256 octets is longer than 255",
        ),
        (
            Head(properties=Properties(headers=Table(((b"k", Decimal(256, 1)),)))),
            "1 at scale 256 is no decimal",
        ),
        (
            Head(properties=Properties(headers=Table(((b"k", Number(NumberType.FLOAT32, 1e300)),)))),
            "1e+300 is no FLOAT32",
        ),
    ],
)
def test_an_unwritable_head_is_refused_by_name(head: Head, text: str) -> None:
    with pytest.raises(FieldError) as caught:
        stored_head.encode(head)
    assert str(caught.value) == text
