"""The sexps about topics: as sexplib prints them, and read as a client's derived converters do."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omq.model import Delivery, Persistent, Sync, Topic, TopicInfo, Transient, check_topic
from omq.protocol.omq.sentences import sentence, shortened
from omq.protocol.omq.sexp import SexpError, read, write
from omq.protocol.omq.topics import topic_list_of_sexp, topic_list_sexp, topic_of_sexp, topic_sexp

DATA = Path(__file__).parent.parent / "data" / "sexp"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def test_a_topic_is_printed_octet_for_octet_as_sexplib_does() -> None:
    printed = rows("topics.jsonl")
    assert len(printed) == 400
    for row in printed:
        topic = Topic(row["id"], bytes.fromhex(row["topic"]))
        assert topic_sexp(topic) == bytes.fromhex(row["mach"]), row


def test_a_topic_is_read_in_each_form_that_sexplib_prints() -> None:
    for row in rows("topics.jsonl"):
        for form in ("mach", "mach2013", "hum"):
            topic = topic_of_sexp(bytes.fromhex(row[form]))
            assert topic == Topic(row["id"], bytes.fromhex(row["topic"])), row


HAND = rows("topics_hand.jsonl")


@pytest.mark.parametrize("row", HAND, ids=[str(number) for number, _ in enumerate(HAND)])
def test_a_topic_is_read_or_refused_as_a_client_of_63_bits_does(row: dict[str, Any]) -> None:
    payload = bytes.fromhex(row["line"])
    decision = row["int"]
    if decision["ok"]:
        assert topic_of_sexp(payload) == Topic(decision["id"], bytes.fromhex(decision["topic"]))
    else:
        with pytest.raises(SexpError):
            topic_of_sexp(payload)


@pytest.mark.parametrize(
    ("number", "id"),
    [
        (b"4611686018427387903", 2**62 - 1),
        (b"-4611686018427387904", -(2**62)),
        (b"0x7fffffffffffffff", -1),
        (b"0u9223372036854775807", -1),
        (b"4611686018427387904", None),
        (b"-4611686018427387905", None),
        (b"0x8000000000000000", None),
        (b"", None),
        pytest.param(b"0" * 9000 + b"7_" + b"_" * 9000, 7, id="zeros"),
        pytest.param(b"-" + b"0_" * 9000 + b"4_611_686_018_427_387_904", -(2**62), id="least"),
        pytest.param(b"0x" + b"0_" * 9000 + b"7fffffffffffffff", -1, id="hexadecimal"),
        pytest.param(b"0b" + b"0" * 9000 + b"1_" * 63, -1, id="bits"),
        pytest.param(b"1" + b"0" * 9000, None, id="many zeros"),
        pytest.param(b"0" * 9000 + b"1" + b"0" * 200, None, id="zeros after a digit"),
        pytest.param(b"0" + b"_" * 9000 + b"x1", None, id="prefix in parts"),
        pytest.param(b"0" * 9000 + b"x1", None, id="prefix after zeros"),
        pytest.param(b"0x" + b"_" * 9000 + b"1", None, id="no first digit"),
        pytest.param(b"_" * 9000 + b"1", None, id="underscores"),
    ],
)
def test_an_id_has_63_bits(number: bytes, id: int | None) -> None:
    payload = b'((id "%s")(topic a))' % number
    if id is None:
        with pytest.raises(SexpError, match="63 bits"):
            topic_of_sexp(payload)
    else:
        assert topic_of_sexp(payload) == Topic(id, b"a")


names = st.binary(max_size=30)
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**62), 2**62 - 1)
infos = st.builds(
    TopicInfo,
    id=ints,
    topic=names,
    delivery=st.sampled_from(Delivery),
    persistence=st.sampled_from([Transient(), *map(Persistent, Sync)]),
    messages=longs,
    bytes=longs,
    first=longs,
    last=longs,
    subscribers=longs,
)


@given(st.builds(Topic, ints, names))
def test_a_topic_is_read_back(topic: Topic) -> None:
    assert topic_of_sexp(topic_sexp(topic)) == topic


@given(st.lists(infos, max_size=4).map(tuple), st.randoms(use_true_random=False))
def test_a_list_of_topics_is_read_back_with_its_fields_in_any_order(
    infos: tuple[TopicInfo, ...], random: Random
) -> None:
    written = topic_list_sexp(infos)
    assert topic_list_of_sexp(written) == infos
    records = read(written)
    assert isinstance(records, list)
    for record in records:
        assert isinstance(record, list)
        random.shuffle(record)
    assert topic_list_of_sexp(write(records)) == infos


def test_a_list_of_topics_octet_for_octet() -> None:
    kept = TopicInfo(7, b"a b", Delivery.ROUND_ROBIN, Persistent(Sync.WEAK), 3, 30, 5, 7, 2)
    new = TopicInfo(8, b"c", Delivery.BROADCAST, Transient(), 0, 0, 0, 0, 0)
    assert topic_list_sexp(()) == b"()"
    assert topic_list_sexp((kept, new)) == (
        b'(((id 7)(topic"a b")(delivery Round_robin)(persistence(Persistent Weak))(messages 3)(bytes 30)'
        b"(first 5)(last 7)(subscribers 2))"
        b"((id 8)(topic c)(delivery Broadcast)(persistence Transient)(messages 0)(bytes 0)"
        b"(first 0)(last 0)(subscribers 0)))"
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"", b" ; a", b"a", b"(a)", b"(())", b"(((id 7)(topic a)))", b"(", b"()()",
        b"(((id 7)(topic a)(delivery Other)(persistence Transient)(messages 0)(bytes 0)(first 0)(last 0)"
        b"(subscribers 0)))",
    ],
)  # fmt: skip
def test_a_malformed_list_of_topics_is_refused(payload: bytes) -> None:
    with pytest.raises(SexpError):
        topic_list_of_sexp(payload)


@pytest.mark.parametrize("length", [1, 2, 254, 255])
def test_a_topics_name_has_up_to_255_octets(length: int) -> None:
    assert check_topic(b"\xff" * length) is None


@pytest.mark.parametrize("length", [0, 256, 1 << 20])
def test_other_lengths_are_no_names(length: int) -> None:
    reason = check_topic(b"a" * length)
    assert reason is not None
    assert ("empty" if not length else f"{length} octets, more than 255") in reason


# -- sentences about them -----------------------------------------------------------------------------------


@given(st.one_of(st.binary(max_size=20), st.binary(min_size=250, max_size=260)))
@example(b"a" * 255)
@example(b"\xff" * 255)
@example(b"a" * 256)
def test_a_sentence_is_one_printable_line_that_names_what_it_answers(argument: bytes) -> None:
    answer = sentence("Subscribe", argument, "there is no such topic")
    assert all(0x20 <= octet < 0x7F for octet in answer)
    assert answer.startswith(b"Subscribe ")
    assert answer.endswith(b": there is no such topic")
    named = read(answer.removeprefix(b"Subscribe ").removesuffix(b": there is no such topic"))
    assert named == (argument if len(argument) <= 255 else argument[:252] + b"...")
    assert named == read(shortened(argument))


def test_a_sentence_may_answer_a_command_without_an_argument() -> None:
    assert sentence("Topics", None, "no") == b"Topics: no"
    assert sentence("Put", b"", "no") == b'Put "": no'
    assert sentence("Put", b"a b", "no") == b'Put "a b": no'
