"""Messages with an idempotent producer, as the compiled and the plain code read them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.head import PLAIN_HEAD, Head
from omq.protocol.amqp.producer import numbered_heads, origin, origins, renumbered
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp.shortstr import FieldError
from omq_storage import codec

compiled_only = pytest.mark.skipif(not codec.COMPILED, reason="needs the compiled codec")

WITH_PRODUCERS = [
    (Properties(app_id=b"a", message_id=b"7"), (b"a", 7)),
    (Properties(app_id=b"a", message_id=b"0"), (b"a", 0)),
    (Properties(app_id=b"a" * 255, message_id=b"00000000000000000007"), (b"a" * 255, 7)),
    (Properties(app_id=b"a", message_id=b"18446744073709551615"), (b"a", 2**64 - 1)),
    (Properties(app_id=b"a", message_id=b"18446744073709551616"), None),
    (Properties(app_id=b"a", message_id=b"99999999999999999999"), None),
    (Properties(app_id=b"a", message_id=b"0" * 21), None),
    (Properties(app_id=b"a", message_id=b"9" * 255), None),
    (Properties(app_id=b"a", message_id=b"-7"), None),
    (Properties(app_id=b"a", message_id=b"7:"), None),
    (Properties(app_id=b"a", message_id=b"7/"), None),
    (Properties(app_id=b"a", message_id=b""), None),
    (Properties(app_id=b"", message_id=b"7"), None),
    (Properties(app_id=b"a"), None),
    (Properties(message_id=b"7"), None),
    (Properties(), None),
]
WITH_OTHERS = Properties(app_id=b"a", message_id=b"7", content_type=b"text/plain", priority=4)


def octets(properties: Properties) -> bytes:
    return stored_head.encode(Head(b"exchange", b"key", properties))


@pytest.mark.parametrize(("properties", "wanted"), WITH_PRODUCERS)
def test_a_message_id_and_an_app_id_name_a_producer(
    properties: Properties, wanted: tuple[bytes, int] | None
) -> None:
    head = octets(properties)
    assert origin(head) == wanted
    assert origins([head, PLAIN_HEAD, head]) == [wanted, None, wanted]


def test_a_producer_beside_other_properties_is_found() -> None:
    heads = [octets(WITH_OTHERS), octets(WITH_PRODUCERS[0][0])]
    assert origins(heads) == [(b"a", 7), (b"a", 7)]


@compiled_only
def test_the_compiled_code_leaves_heads_with_other_properties_to_the_plain_code() -> None:
    assert codec.native.origins([octets(properties) for properties, _ in WITH_PRODUCERS]) is not None
    assert codec.native.origins([octets(WITH_OTHERS)]) is None


@given(
    st.lists(
        st.builds(
            Properties,
            app_id=st.none() | st.sampled_from([b"", b"a", b"b", b"ab"]) | st.binary(max_size=255),
            message_id=st.none()
            | st.integers(0, 2**65).map(lambda number: b"%d" % number)
            | st.binary(max_size=30),
        ),
        max_size=10,
    )
)
def test_the_codecs_find_the_same_producers(properties: list[Properties]) -> None:
    heads = list(map(octets, properties))
    assert origins(heads) == list(map(origin, heads))


names = st.binary(max_size=255)
numbers = st.integers(0, 2**64 - 1)


@given(st.binary(max_size=255), st.lists(st.tuples(numbers, names), max_size=4))
def test_numbered_heads_are_those_that_the_encoder_makes(
    producer: bytes, messages: list[tuple[int, bytes]]
) -> None:
    def numbered(number: int, key: bytes = b"") -> bytes:
        properties = Properties(app_id=producer, message_id=b"%d" % number)
        return stored_head.encode(Head(routing_key=key, properties=properties))

    every = [number for number, _ in messages]
    keys = [key for _, key in messages]
    assert numbered_heads(producer, every) == [numbered(number) for number in every]
    assert numbered_heads(producer, every, keys) == [numbered(number, key) for number, key in messages]


def test_a_name_that_is_too_long_has_no_head() -> None:
    with pytest.raises(FieldError, match=r"^the producer's name of 256 octets is longer than 255$"):
        numbered_heads(b"a" * 256, [])
    with pytest.raises(FieldError, match=r"^the routing key of 256 octets is longer than 255$"):
        numbered_heads(b"a", [1], [b"k" * 256])


@pytest.mark.parametrize("properties", [*(each for each, _ in WITH_PRODUCERS), WITH_OTHERS])
@pytest.mark.parametrize("named", [(b"", b""), (b"exchange", b"key")])
def test_a_renumbered_head_differs_in_its_producer_only(
    properties: Properties, named: tuple[bytes, bytes]
) -> None:
    wanted = replace(properties, app_id=b"b", message_id=b"8")
    head = stored_head.encode(Head(*named, properties))
    assert stored_head.decode(renumbered(head, b"b", 8)) == Head(*named, wanted)


HOSTILE = st.binary(max_size=12) | st.binary(max_size=6).map(lambda rest: b"\0\0\0\x88" + rest)


@compiled_only
@given(st.lists(HOSTILE, max_size=4))
def test_the_compiled_code_reads_nothing_behind_a_head(heads: list[bytes]) -> None:
    found = codec.native.origins(heads)
    if found is not None:
        for head, one in zip(heads, found, strict=True):
            assert one is None or head.endswith(one[0])
