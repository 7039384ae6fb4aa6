"""The sexps of Manage and Managed: what is written is read again, and malformed ones are refused."""

from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq import management as m
from omq.protocol.omq.commands import CommandError, parse, sexp_of_command
from omq.protocol.omq.frames import FrameDecoder, FrameError, encode
from omq.protocol.omq.types import Manage, Managed

longs = st.integers(-(2**63), 2**63 - 1)
values = st.one_of(
    st.builds(m.String, st.binary(max_size=5)),
    st.builds(m.Int, longs),
    st.builds(m.Bool, st.booleans()),
    st.just(m.Void()),
    st.builds(m.Other, st.binary(max_size=5)),
)
arguments = st.lists(st.builds(m.Argument, st.binary(max_size=5), values), max_size=3).map(tuple)
changes = st.lists(
    st.builds(m.Change, st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=3
).map(tuple)
destinations = st.one_of(st.builds(m.Queue, st.binary()), st.builds(m.Exchange, st.binary()))
FIELDS: dict[type, dict[str, st.SearchStrategy[object]]] = {
    m.Bind: {"destination": destinations, "arguments": arguments},
    m.Unbind: {"destination": destinations, "arguments": arguments},
    m.BindingInfo: {"destination": destinations, "arguments": arguments},
    m.ChangeQueue: {"changes": changes},
    m.DeclareQueue: {"options": changes},
    m.QueueInfo: {"options": changes},
}
PLAIN: dict[object, st.SearchStrategy[object]] = {
    "int": longs, int: longs, bytes: st.binary(), bool: st.booleans(),
    bytes | None: st.none() | st.binary(), int | None: st.none() | longs,
}  # fmt: skip


def built(kind: type) -> st.SearchStrategy[object]:
    """Return any values of a class."""
    given = FIELDS.get(kind, {})
    hints = get_type_hints(kind)
    return st.builds(
        kind, **{name: given[name] if name in given else PLAIN[hint] for name, hint in hints.items()}
    )


LISTS: dict[type, type] = {
    m.Queues: m.QueueInfo, m.Exchanges: m.ExchangeInfo, m.Bindings: m.BindingInfo, m.Messages: m.MessageInfo,
}  # fmt: skip
requests = st.one_of([built(kind) for kind in get_args(m.Request)])
answers = st.one_of(
    built(m.Done),
    *(st.builds(kind, st.lists(built(inner), max_size=3).map(tuple)) for kind, inner in LISTS.items()),
)


@given(requests)
def test_requests_are_read_as_they_were_written(request_: m.Request) -> None:
    assert parse(sexp_of_command(Manage(request_))) == Manage(request_)


@given(answers)
def test_answers_are_read_as_they_were_written(answer: m.Answer) -> None:
    assert FrameDecoder().feed(encode(Managed(answer))) == [Managed(answer)]


def test_fields_may_have_any_order_and_a_constructor_a_small_letter() -> None:
    assert parse(b"(manage (move (count 5) (to (q)) (queue d)))") == Manage(m.Move(b"d", b"q", 5))
    assert parse(b"(Manage (Unbind (key k) (source e) (arguments ()) (destination (exchange x))))") == (
        Manage(m.Unbind(b"e", m.Exchange(b"x"), b"k", ()))
    )


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (b"Purge", b"request must have Purge with fields"),
        (b"()", b"request must be one of List_queues,"),
        (b"(Purge)", b"request must hold exactly the fields queue"),
        (b"(Purge (queue a) (queue b))", b"request must not hold a field twice"),
        (b"(Purge (queue (a)))", b"request has a field queue that must be an atom, not a list"),
        (b"(Move (queue a) (to b) (count 1))", b"request has a field to that must be () or (value)"),
        (b"(Move (queue a) (to ()) (count x))", b"a field count that must be an integer of 64 bits"),
        (
            b"(Bind (source e) (destination (Queue q)) (key k) (arguments ((a (Void)))))",
            b"request has a field arguments that has a field value that must have Void without fields",
        ),
        (
            b"(Bind (source e) (destination q) (key k) (arguments x))",
            b"request has a field destination that must be one of Queue, Exchange",
        ),
        (
            b"(Bind (source e) (destination (Queue q)) (key k) (arguments x))",
            b"request has a field arguments that must be a list, not an atom",
        ),
        *(
            (
                b"(Bind (source e) (destination (Queue q)) (key k) (arguments (%s)))" % argument,
                b"request has a field arguments that must be a list with name and value",
            )
            for argument in (b"()", b"(a)", b"(a (Bool true) b)", b"ab", b"abc")
        ),
        (
            b"(Declare_exchange (name e) (type t) (durable yes) (auto_delete false) (internal false)"
            b" (alternate ()))",
            b"request has a field durable that must be true or false",
        ),
    ],
)
def test_malformed_requests_are_refused(request_: bytes, why: bytes) -> None:
    with pytest.raises(CommandError) as caught:
        parse(b"(Manage %s)" % request_)
    assert why in caught.value.sentence


@pytest.mark.parametrize("payload", [b"", b"(", b"(Done (count x))", b"Queues", b"(Queues (list x))"])
def test_malformed_answers_are_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="Managed carries no answer"):
        FrameDecoder().feed((1 + len(payload)).to_bytes(4, "big") + b"\x0c" + payload)
