"""The methods of AMQP 0-9-1 come back from their octets, and malformed ones have the problem they have."""

from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pika.spec
import pytest
from amqp_0_9_helpers import all_methods
from hypothesis import given
from hypothesis import strategies as st
from test_dmp_fields import values

from omq.protocol.amqp.fields import VALUES_A_STEP, Array, Table, Void
from omq.protocol.amqp.openamq import widened_table
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.layouts import NO_FIELDS, Method, TableReader
from omq.protocol.amqp_0_9.methods import (
    BasicDeliver,
    BasicQos,
    DirectPut,
    DirectPutOk,
    ExchangeDeclare,
    QueueDeclare,
    decode,
    encode,
)
from omq.protocol.amqp_0_9.problems import ConnectionProblem, ReplyCode

_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "B": st.integers(0, 255),
    "H": st.integers(0, 2**16 - 1),
    "I": st.integers(0, 2**32 - 1),
    "Q": st.integers(0, 2**64 - 1),
    "shortstr": st.binary(max_size=255),
    "longstr": st.binary(max_size=300),
    "bit": st.booleans(),
    "table": st.lists(st.tuples(st.binary(max_size=5), values), max_size=3).map(
        lambda entries: Table(tuple(entries))
    ),
}


def made(kind: type) -> st.SearchStrategy[Method]:
    hints = get_type_hints(kind, include_extras=True)
    own = {field.name: hints[field.name] for field in fields(kind)}
    assert all(get_origin(hint) is Annotated for hint in own.values())
    return st.builds(kind, **{name: _STRATEGIES[get_args(hint)[1]] for name, hint in own.items()})


any_method = st.sampled_from(all_methods()).flatmap(made)


@given(any_method)
def test_methods_come_back(method: Method) -> None:
    assert decode(encode(method)) == method


@given(any_method, st.data())
def test_truncated_methods_are_frame_errors(method: Method, data: st.DataObject) -> None:
    octets = encode(method)
    cut = octets[: data.draw(st.integers(0, len(octets) - 1))]
    with pytest.raises(ConnectionProblem) as caught:
        decode(cut)
    assert caught.value.code is ReplyCode.FRAME_ERROR
    if len(cut) >= 4:
        assert (caught.value.class_id, caught.value.method_id) == (method.CLASS, method.METHOD)


@given(any_method)
def test_octets_after_the_last_argument_are_a_frame_error(method: Method) -> None:
    with pytest.raises(ConnectionProblem, match="octets follow") as caught:
        decode(encode(method) + b"\0")
    assert caught.value.code is ReplyCode.FRAME_ERROR


@given(st.binary(max_size=60))
def test_any_octets_are_a_method_or_a_problem(octets: bytes) -> None:
    try:
        again = encode(decode(octets))
    except ConnectionProblem:
        return
    assert encode(decode(again)) == again


@pytest.mark.parametrize("ids", [(60, 99), (61500, 12), (1, 1)])
def test_unknown_methods_are_named(ids: tuple[int, int]) -> None:
    octets = b"".join(number.to_bytes(2, "big") for number in ids)
    with pytest.raises(ConnectionProblem, match=f"method {ids[1]} of class {ids[0]}") as caught:
        decode(octets)
    assert caught.value.code is ReplyCode.COMMAND_INVALID
    assert (caught.value.class_id, caught.value.method_id) == ids


def test_reply_codes_have_the_numbers_of_the_specification() -> None:
    """They are compared with those of another implementation."""
    # pika calls SUCCESS by another name, and does not know ReplyCode.CANNOT_ROUTE, which is OpenAMQ's.
    names = {name for name in ReplyCode.__members__ if hasattr(pika.spec, name)}
    assert names == ReplyCode.__members__.keys() - {"SUCCESS", "CANNOT_ROUTE"}
    assert {name: ReplyCode[name] for name in names} == {name: getattr(pika.spec, name) for name in names}


def test_methods_have_the_numbers_of_the_specification() -> None:
    """They are compared with those of another implementation, which does not know all of ours."""
    groups = [group for group in vars(pika.spec).values() if isinstance(group, type)]
    theirs = {
        group.__name__ + method.__name__: divmod(method.INDEX, 1 << 16)
        for group in groups
        for method in vars(group).values()
        if isinstance(method, type) and hasattr(method, "INDEX")
    }
    ours = {made.__name__: (made.CLASS, made.METHOD) for made in all_methods()}
    assert len(theirs.keys() & ours.keys()) >= 50
    assert {name: theirs[name] for name in ours if name in theirs} == {
        name: ours[name] for name in ours if name in theirs
    }


def test_tables_that_are_nested_too_deep_are_refused() -> None:
    deep = b"\0\0\0\0"
    for _ in range(2000):
        entry = b"\x01aF" + deep
        deep = len(entry).to_bytes(4, "big") + entry
    octets = encode(QueueDeclare(b"q"))[:-4] + deep
    with pytest.raises(ConnectionProblem, match="nested more than 32 deep"):
        decode(octets)


@pytest.mark.parametrize("translate", [None, widened_table], ids=["ordinary", "openamq"])
def test_tables_of_methods_have_a_limit(translate: TableReader | None) -> None:
    most = VALUES_A_STEP - 1
    assert decode(encode(QueueDeclare(b"q", arguments=Table(((b"", Void()),) * most))), translate)
    inner = Array((Void(),) * most)
    for large in (Table(((b"", Void()),) * (most + 1)), Table(((b"values", inner),))):
        with pytest.raises(ConnectionProblem, match="512 values or more") as caught:
            decode(encode(QueueDeclare(b"q", arguments=large)), translate)
        assert caught.value.code is ReplyCode.FRAME_ERROR


def test_flags_share_an_octet() -> None:
    octets = encode(QueueDeclare(b"q", durable=True, no_wait=True))
    assert octets == b"\0\x32\0\x0a\0\0\x01q\x12\0\0\0\0"
    assert encode(ExchangeDeclare(b"e")) == b"\0\x28\0\x0a\0\0\x01e\x06direct\0\0\0\0\0"
    assert encode(BasicDeliver(b"c", 1, True, b"", b"k"))[6:15] == b"\0" * 7 + b"\x01\x01"


def test_the_octets_of_direct_are_those_that_openamq_was_seen_to_send() -> None:
    assert encode(DirectPut(b"amq.direct")).hex() == "f03c000a0a616d712e646972656374"
    lease = b"S-000660BEBA994AB6-amq.direct"
    assert decode(bytes.fromhex("f03c000b1d") + lease) == DirectPutOk(lease)


@pytest.mark.parametrize("method", [QueueDeclare(b"q" * 256), BasicQos(0, 65536), BasicQos(-1, 0)])
def test_values_out_of_range_cannot_be_encoded(method: Method) -> None:
    with pytest.raises(FieldError):
        encode(method)


def test_every_method_is_true() -> None:
    assert all(bool(method) for method in (methods.ConnectionCloseOk(), methods.TxSelect()))
    assert len(all_methods()) == 70


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (methods.AccessRequestOk(), (1,)),
        (methods.ExchangeDeclare(b"e"), (b"e", b"direct", False, False, False, False, False, NO_FIELDS)),
        (methods.ExchangeDelete(b"e"), (b"e", False, False)),
        (methods.ExchangeBind(b"d", b"s"), (b"d", b"s", b"", False, NO_FIELDS)),
        (methods.ExchangeUnbind(b"d", b"s"), (b"d", b"s", b"", False, NO_FIELDS)),
        (methods.QueueDeclare(b"q"), (b"q", False, False, False, False, False, NO_FIELDS)),
        (methods.QueueBind(b"q", b"e"), (b"q", b"e", b"", False, NO_FIELDS)),
        (methods.QueuePurge(b"q"), (b"q", False)),
        (methods.QueueDelete(b"q"), (b"q", False, False, False)),
        (methods.QueueUnbind(b"q", b"e"), (b"q", b"e", b"", NO_FIELDS)),
        (methods.BasicQos(0, 1), (0, 1, False)),
        (methods.BasicConsume(b"q"), (b"q", b"", False, False, False, False, NO_FIELDS)),
        (methods.BasicCancel(b"c"), (b"c", False)),
        (methods.BasicPublish(b"e", b"k"), (b"e", b"k", False, False)),
        (methods.BasicGet(b"q"), (b"q", False)),
        (methods.BasicAck(1), (1, False)),
        (methods.BasicReject(1), (1, True)),
        (methods.BasicRecoverAsync(), (False,)),
        (methods.BasicRecover(), (False,)),
        (methods.BasicNack(1), (1, False, True)),
        (methods.ConfirmSelect(), (False,)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_defaults_of_arguments(method: Method, arguments: tuple[object, ...]) -> None:
    assert method == type(method)(*arguments)


@pytest.mark.parametrize(
    ("octets", "problem"),
    [
        ("000a0015 000000", "response has 3 of its 4 octets of length"),
        ("000a0015", "response has 0 of its 4 octets of length"),
        ("000a0015 00000005 6162", "response has 2 of its 5 octets"),
        ("000a001f 0001 000000", "frame-max has 3 of its 4 octets"),
        ("000a001f 00", "channel-max has 1 of its 2 octets"),
        ("003c0050 00000000000000", "delivery-tag has 7 of its 8 octets"),
        ("003c0050 0000000000000000", "the flags are missing"),
        ("003c0050 0000000000000000 00 0000", "2 octets follow the last argument"),
        ("003c0046 00", "a reserved field has 1 of its 2 octets"),
        ("000a", "a method of 2 octets has no class"),
        ("000a0063", "method 99 of class 10 is not known"),
    ],
)
def test_problems_of_arguments_state_numbers(octets: str, problem: str) -> None:
    with pytest.raises(ConnectionProblem, match=rf"^{problem}$"):
        decode(bytes.fromhex(octets))
