"""The types and performatives of AMQP 1.0."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omq.protocol.amqp_1_0 import decoding, encoding
from omq.protocol.amqp_1_0 import performatives as p
from omq.protocol.amqp_1_0.decoding import MAX_NESTING, MOST_VALUES
from omq.protocol.amqp_1_0.types import (
    Array,
    Binary,
    DecodeError,
    Described,
    List,
    Map,
    Number,
    NumberType,
    Opaque,
    OpaqueType,
    Symbol,
    Value,
)

RANGES = {
    NumberType.UBYTE: (0, 2**8 - 1),
    NumberType.USHORT: (0, 2**16 - 1),
    NumberType.UINT: (0, 2**32 - 1),
    NumberType.ULONG: (0, 2**64 - 1),
    NumberType.BYTE: (-(2**7), 2**7 - 1),
    NumberType.SHORT: (-(2**15), 2**15 - 1),
    NumberType.INT: (-(2**31), 2**31 - 1),
    NumberType.LONG: (-(2**63), 2**63 - 1),
    NumberType.TIMESTAMP: (-(2**63), 2**63 - 1),
}
numbers: st.SearchStrategy[Number] = st.one_of(
    *(st.builds(Number, st.just(kind), st.integers(low, high)) for kind, (low, high) in RANGES.items()),
    st.builds(Number, st.just(NumberType.DOUBLE), st.floats(allow_nan=False)),
    st.builds(Number, st.just(NumberType.FLOAT), st.floats(width=32, allow_nan=False)),
)
opaques = st.sampled_from(OpaqueType).flatmap(
    lambda kind: st.builds(Opaque, st.just(kind), st.binary(min_size=kind.value[1], max_size=kind.value[1]))
)
names = st.text(st.characters(max_codepoint=127), max_size=300)
plain: st.SearchStrategy[Value] = st.one_of(
    st.none(), st.booleans(), numbers, opaques, st.binary(max_size=300).map(Binary), st.text(max_size=100),
    names.map(Symbol),
)  # fmt: skip


def arrays() -> st.SearchStrategy[Value]:
    """Return arrays of one type each."""
    each: list[st.SearchStrategy[tuple[Value, ...]]] = [
        st.lists(kind, max_size=300 if wide else 5).map(tuple)
        for kind, wide in (
            (st.none(), True),
            (st.booleans(), True),
            (st.builds(Number, st.just(NumberType.UINT), st.integers(0, 2**32 - 1)), True),
            (st.binary(max_size=9).map(Binary), False),
            (st.text(max_size=9), False),
            (names.map(Symbol), False),
            (st.lists(plain, max_size=3).map(lambda values: List(tuple(values))), False),
            (st.lists(st.tuples(plain, plain), max_size=3).map(lambda pairs: Map(tuple(pairs))), False),
            (st.lists(st.booleans(), min_size=1, max_size=3).map(lambda some: Array(tuple(some))), False),
            (st.booleans().map(lambda some: Described(Symbol("x"), some)), False),
        )
    ]
    return st.one_of(*each).map(Array)


values: st.SearchStrategy[Value] = st.recursive(
    plain | arrays(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda some: List(tuple(some))),
        st.lists(st.tuples(inner, inner), max_size=4).map(lambda some: Map(tuple(some))),
        st.builds(Described, plain, inner),
    ),
    max_leaves=12,
)


@given(values)
def test_a_value_comes_back_as_it_was_written(value: Value) -> None:
    octets = encoding.write(value)
    assert decoding.read_all(octets) == value
    assert decoding.skip(octets, 0, len(octets)) == len(octets)


@given(values, st.data())
def test_a_truncated_value_is_refused(value: Value, data: st.DataObject) -> None:
    octets = encoding.write(value)
    cut = octets[: data.draw(st.integers(0, len(octets) - 1))]
    with pytest.raises(DecodeError):
        decoding.read_all(cut)


@given(st.binary(max_size=60))
def test_any_octets_are_a_value_or_a_decode_error(octets: bytes) -> None:
    try:
        value, after = decoding.read(octets)
    except DecodeError:
        return
    assert after <= len(octets)
    assert decoding.read_all(encoding.write(value)) == value or "nan" in repr(value)


@given(st.binary(max_size=60), st.integers(0, 70))
def test_skip_and_read_end_at_the_same_octet(octets: bytes, at: int) -> None:
    try:
        _, after = decoding.read(octets, at)
    except DecodeError:
        return
    assert decoding.skip(octets, at, len(octets)) == after


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        ("40", None), ("41", True), ("42", False), ("56 01", True), ("56 00", False),
        ("43", Number(NumberType.UINT, 0)), ("52 ff", Number(NumberType.UINT, 255)),
        ("70 00 00 00 07", Number(NumberType.UINT, 7)),
        ("44", Number(NumberType.ULONG, 0)), ("53 10", Number(NumberType.ULONG, 16)),
        ("54 ff", Number(NumberType.INT, -1)), ("55 80", Number(NumberType.LONG, -128)),
        ("83 00 00 01 31 1c 49 b0 80", Number(NumberType.TIMESTAMP, 0x01311C49B080)),
        ("a1 02 c3 a9", "é"), ("b1 00 00 00 01 61", "a"), ("a3 01 61", Symbol("a")),
        ("a0 01 ff", Binary(b"\xff")),
        ("73 00 00 00 61", Opaque(OpaqueType.CHAR, b"\0\0\0a")),
        ("74 00 01 02 03", Opaque(OpaqueType.DECIMAL32, bytes(range(4)))),
        (f"84 {bytes(range(8)).hex()}", Opaque(OpaqueType.DECIMAL64, bytes(range(8)))),
        (f"94 {bytes(range(16)).hex()}", Opaque(OpaqueType.DECIMAL128, bytes(range(16)))),
        (f"98 {bytes(range(16)).hex()}", Opaque(OpaqueType.UUID, bytes(range(16)))),
        ("45", List()), ("c0 03 02 41 40", List((True, None))),
        ("d0 00 00 00 05 00 00 00 01 41", List((True,))),
        ("c1 05 02 a3 01 61 41", Map(((Symbol("a"), True),))),
        ("e0 04 02 56 01 00", Array((True, False))),
        ("e0 02 09 41", Array((True,) * 9)),
        ("f0 00 00 00 0a 00 00 00 01 b3 00 00 00 01 61", Array((Symbol("a"),))),
        ("00 a3 01 61 41", Described(Symbol("a"), True)),
        ("e0 06 01 00 a3 01 61 41", Array((Described(Symbol("a"), True),))),
    ],
)  # fmt: skip
def test_forms(octets: str, value: Value) -> None:
    assert decoding.read_all(bytes.fromhex(octets)) == value


@pytest.mark.parametrize(
    ("octets", "problem"),
    [
        ("", "missing"), ("3f", "no type 0x3f"), ("56 02", "0 or 1"), ("70 00", "1 of its 4"),
        ("a1 01 ff", "not UTF-8"), ("a3 01 ff", "not ASCII"), ("b0 ff ff ff ff 00", "of its"),
        ("b0 00 00 00", "3 of its 4"), ("a0", "0 of its 1"),
        ("c0 00", "no count"), ("c0 01 01", "cannot have 1"), ("d0 00 00 00 04 ff ff ff ff", "cannot have"),
        ("c0 03 01 41 41", "belong to no value"), ("c1 02 01 41", "key without a value"),
        ("e0 01 00", "no constructor"), ("e0 02 00 3f", "no type"), ("e0 03 01 56 02", "0 or 1"),
        ("41 41", "follow a value"), ("00 41", "missing"),
        ("f0 00 00 00 05 ff ff ff ff 40", "more than"),
    ],
)  # fmt: skip
def test_malformed_values(octets: str, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        decoding.read_all(bytes.fromhex(octets))


@pytest.mark.parametrize("octets", ["70 00 00 00 07", "a0 01 ff", "b0 00 00 00 01 ff", "00 a3 01 61 41"])
def test_a_truncated_value_is_not_skipped(octets: str) -> None:
    whole = bytes.fromhex(octets)
    for end in range(len(whole)):
        with pytest.raises(DecodeError):
            decoding.skip(whole, 0, end)
    assert decoding.skip(whole, 0, len(whole)) == len(whole)


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> bytes:
        octets = b"\x40"
        for _ in range(levels):
            octets = encoding.write_list([b"\x41", octets, b"\x41"])
        return octets

    assert decoding.read_all(nested(MAX_NESTING)) is not None
    with pytest.raises(DecodeError, match="deeper"):
        decoding.read_all(nested(MAX_NESTING + 1))
    descriptors = b"\x00" * 1000
    with pytest.raises(DecodeError, match="a descriptor has a descriptor"):
        decoding.read(descriptors)
    with pytest.raises(DecodeError, match="descriptor"):
        decoding.skip(descriptors, 0, 1000)
    described = b"\x00\x41" * 1000 + b"\x41"
    with pytest.raises(DecodeError, match="deeper"):
        decoding.read(described)
    with pytest.raises(DecodeError, match="deeper"):
        decoding.skip(described, 0, len(described))


def test_the_values_of_one_value_are_counted() -> None:
    most = encoding.write_list([b"\x41"] * (MOST_VALUES - 1))
    assert isinstance(decoding.read_all(most), List)
    with pytest.raises(DecodeError, match=str(MOST_VALUES)):
        decoding.read_all(encoding.write_list([b"\x41"] * MOST_VALUES))


def test_numbers_out_of_range_are_not_written() -> None:
    for kind, (low, high) in RANGES.items():
        for number in (low - 1, high + 1):
            with pytest.raises(ValueError, match=str(number)):
                encoding.write(Number(kind, number))
    with pytest.raises(ValueError, match="no float"):
        encoding.write(Number(NumberType.FLOAT, 1e300))


PERFORMATIVES = [
    p.Open("c"), p.Open("c", "h", 512, 7, 1000, desired_capabilities=("a", "b"), properties=b"\xc1\x01\x00"),
    p.Begin(None, 0, 1, 2), p.Begin(3, 0, 1, 2, 1023), p.Attach("n", 0, True), p.Flow(None, 1, 2, 3),
    p.Flow(0, 1, 2, 3, 4, 5, 6, 7, True, True), p.Transfer(1, 2, b"t", 0, True, True), p.Detach(1, True),
    p.Disposition(True, 1, 2, True, p.write(p.Accepted())), p.End(),
    p.Close(p.write(p.Error("amqp:x", "why"))),
    p.SaslMechanisms(("PLAIN", "ANONYMOUS")), p.SaslInit("PLAIN", b"\0a\0b"), p.SaslOutcome(0), p.Accepted(),
    p.Modified(True, True), p.Rejected(), p.Received(1, 2), p.Released(), p.Coordinator(("x",)),
    p.Source(encoding.write("a"), 2, distribution_mode="copy"), p.Target(b"\x40", dynamic=True),
    p.SaslChallenge(b"1"), p.SaslResponse(b"2"),
]  # fmt: skip


@pytest.mark.parametrize("performative", PERFORMATIVES, ids=lambda one: type(one).__name__)
def test_performatives_come_back(performative: p.Performative) -> None:
    octets = p.write(performative)
    assert p.read_all(octets) == performative
    assert p.read(octets + b"payload", 0, len(octets) + 7) == (performative, len(octets))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from([p.Accepted(), p.Modified(True, True)])
    | st.integers(0, 300).map(lambda size: p.Rejected(p.write(p.Error("amqp:x", "y" * size)))),
)
@example(7, 7, p.Released())
def test_outcomes_are_written_as_other_dispositions(first: int, last: int, state: p.DeliveryState) -> None:
    told = p.write(state)
    until = None if last == first else last
    assert p.write_outcome(first, last, told) == p.write(p.Disposition(True, first, until, True, told))


uints = st.sampled_from([0, 1, 255, 256]) | st.integers(0, 2**32 - 1)


@given(st.tuples(uints, uints, uints, uints), uints, uints, uints, st.none() | uints, st.booleans())
def test_a_flow_of_a_link_is_written_as_other_flows(
    windows: tuple[int, int, int, int],
    handle: int,
    delivery_count: int,
    credit: int,
    available: int | None,
    drain: bool,
) -> None:
    flow = p.Flow(*windows, handle, delivery_count, credit, available, drain)
    assert p.write_credit(windows, handle, delivery_count, credit, available, drain=drain) == p.write(flow)


def test_a_performative_may_be_named_by_its_symbol() -> None:
    octets = b"\x00" + encoding.write(Symbol("amqp:accepted:list")) + b"\x45"
    assert p.read_all(octets) == p.Accepted()
    wide = b"\x00\x80" + (0x24).to_bytes(8, "big") + b"\x45"
    assert p.read_all(wide) == p.Accepted()


def test_one_symbol_stands_for_an_array_of_one() -> None:
    octets = b"\x00\x53\x40" + encoding.write_list([encoding.write(Symbol("PLAIN"))])
    assert p.read_all(octets) == p.SaslMechanisms(("PLAIN",))


@pytest.mark.parametrize(
    ("octets", "problem"),
    [
        (b"\x00\x53\x10\x45", "container-id of open is missing"),
        (b"\x00\x53\x10\xc0\x02\x01\x41", "container-id of open: not string"),
        (b"\x00\x53\x24\xc0\x02\x01\x41", "accepted has at most 0 fields"),
        (b"\x00\x53\x99\x45", "no performative with the descriptor 53 99"),
        (b"\x00\xa3\x01x\x45", "no performative"),
        (b"\x45", "performative was expected"),
        (b"\x00\x53\x24\x41", "list was expected"),
        (b"\x00\x53\x24\x45\x45", "follow a described list"),
        (b"\x00\x53\x10\xd0\x00\x00\x01\x04\x00\x00\x01\x00" + b"\x40" * 256, "at most 255 fields"),
    ],
)
def test_malformed_performatives(octets: bytes, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        p.read_all(octets)


@given(st.binary(max_size=40), st.sampled_from(PERFORMATIVES))
def test_any_octets_are_a_performative_or_a_decode_error(octets: bytes, performative: p.Performative) -> None:
    for tried in (octets, p.write(performative)[:3] + octets):
        try:
            made = p.read_all(tried)
        except DecodeError:
            continue
        assert p.read_all(p.write(made)) == made
