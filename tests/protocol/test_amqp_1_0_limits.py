"""The limits and defaults of AMQP 1.0 that docs/AMQP-1.0.md and the specification state, as numbers."""

from dataclasses import fields
from typing import Any

import pytest
from amqp_1_0_helpers import OFFER, Peer, condition, frame, source, target

from omq.protocol.amqp_1_0 import decoding, encoding, frames, link, sections, serials, stored
from omq.protocol.amqp_1_0 import performatives as p
from omq.protocol.amqp_1_0.connection import HEADER, AmqpConnection, Stage
from omq.protocol.amqp_1_0.events import Attaching, Pause
from omq.protocol.amqp_1_0.performatives import Attach, Begin, Flow, Open
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.stored import BodyKind
from omq.protocol.amqp_1_0.types import (
    NULL,
    Binary,
    DecodeError,
    List,
    Map,
    Number,
    NumberType,
    Symbol,
    Value,
)

ADDRESS, SYMBOL, ZERO = encoding.write("a"), Symbol("x"), Number(NumberType.UINT, 0)

DEFAULTS: list[tuple[int, str, list[Value], list[Any]]] = [
    (0x10, "open", ["c"], ["c", None, 2**32 - 1, 65535, None, NULL, NULL, (), (), NULL]),
    (0x11, "begin", [None, *[ZERO] * 3],
     [None, 0, 0, 0, 2**32 - 1, (), (), NULL]),
    (0x12, "attach", ["n", ZERO, True],
     ["n", 0, True, 2, 0, NULL, NULL, NULL, False, None, None, (), (), NULL]),
    (0x13, "flow", [None, ZERO, ZERO, ZERO],
     [None, 0, 0, 0, None, None, None, None, False, False, NULL]),
    (0x14, "transfer", [ZERO], [0, None, None, None, None, False, None, NULL, False, False, False]),
    (0x15, "disposition", [True, ZERO], [True, 0, None, False, NULL, False]),
    (0x16, "detach", [ZERO], [0, False, NULL]),
    (0x17, "end", [], [NULL]),
    (0x18, "close", [], [NULL]),
    (0x1D, "error", [SYMBOL], ["x", None, NULL]),
    (0x23, "received", [ZERO, Number(NumberType.ULONG, 0)], [0, 0]),
    (0x24, "accepted", [], []),
    (0x25, "rejected", [], [NULL]),
    (0x26, "released", [], []),
    (0x27, "modified", [], [False, False, NULL]),
    (0x28, "source", [], [NULL, 0, "session-end", 0, False, NULL, None, NULL, NULL, (), ()]),
    (0x29, "target", [], [NULL, 0, "session-end", 0, False, NULL, ()]),
    (0x30, "coordinator", [], [()]),
    (0x40, "sasl-mechanisms", [SYMBOL], [("x",)]),
    (0x41, "sasl-init", [SYMBOL], ["x", None, None]),
    (0x42, "sasl-challenge", [Binary(b"c")], [b"c"]),
    (0x43, "sasl-response", [Binary(b"r")], [b"r"]),
    (0x44, "sasl-outcome", [Number(NumberType.UBYTE, 0)], [0, None]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "name", "required", "values"), DEFAULTS, ids=lambda each: str(each)[:15])
def test_each_composite_has_its_code_and_its_defaults(
    code: int, name: str, required: list[Value], values: list[Any]
) -> None:
    octets = encoding.write(List(tuple(required)))
    for descriptor in (b"\x53%c" % code, encoding.write(Symbol(f"amqp:{name}:list"))):
        made = p.read_all(b"\x00" + descriptor + octets)
        assert type(made).__name__.lower() == name.replace("-", "")
        assert [getattr(made, each.name) for each in fields(made)] == values
    assert p.write(made)[:3] == b"\x00\x53%c" % code


@pytest.mark.parametrize("octets", range(230, 260))
def test_an_outcome_of_any_length_is_a_disposition(octets: int) -> None:
    state = b"\x00\x53\x24\xc0" + bytes(octets)
    for last in (7, 8, 300):
        told = p.Disposition(True, 7, None if last == 7 else last, True, state)
        assert p.write_outcome(7, last, state) == p.write(told)


def test_values_have_documented_limits() -> None:
    for count in (1023, 1024):
        octets = encoding.write_list([b"\x41"] * count)
        if count == 1023:
            assert decoding.read_all(octets) == List((True,) * count)
        else:
            with pytest.raises(DecodeError, match=r"^a value consists of more than 1024 values$"):
                decoding.read_all(octets)
    octets = b"\x40"
    for _ in range(32):
        octets = encoding.write_list([octets])
    assert isinstance(decoding.read_all(octets), List)
    with pytest.raises(DecodeError, match=r"^values are nested deeper than 32$"):
        decoding.read_all(encoding.write_list([octets]))
    described = b"\x00\x41" * 31 + b"\x41"
    assert decoding.skip(described, 0, len(described)) == len(described)
    for read in (
        lambda: decoding.skip(b"\x00\x41" + described, 0, 65),
        lambda: decoding.read(b"\x00\x41" * 40),
    ):
        with pytest.raises(DecodeError, match=r"deeper than 32$"):
            read()
    assert len(decoding.fields(encoding.write_list([b"\x41"] * 255), 0, 265)[0]) == 255
    with pytest.raises(DecodeError, match=r"at most 255 fields, not 256$"):
        decoding.fields(encoding.write_list([b"\x41"] * 256), 0, 265)


@pytest.mark.parametrize(
    ("octets", "problem"),
    [
        ("70 00 00 00", "^a value of type 0x70 has 3 of its 4 octets$"),
        ("80 00", "^a value of type 0x80 has 1 of its 8 octets$"),
        ("98", "^a value of type 0x98 has 0 of its 16 octets$"),
        ("a0 05 01 02", "^a value of type 0xa0 has 3 of its 6 octets$"),
        ("b1 00 00 00 05 01", "^a value of type 0xb1 has 5 of its 9 octets$"),
        ("c0 02 02 41", "^a compound of 1 octets cannot have 2 values$"),
        ("c0 00", "^a compound of 0 octets has no count$"),
        ("c0 04 01 41 41 41", "^2 octets of a list or map belong to no value$"),
        ("e0 04 01 56 01 00", "^1 octets of an array belong to no value$"),
        ("41 41 41", "^2 octets follow a value$"),
        ("56 02", "^a boolean is 0 or 1, not 2$"),
    ],
)
def test_problems_of_values_state_numbers(octets: str, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        decoding.read_all(bytes.fromhex(octets))


def test_differences_are_negative_from_half_of_all_numbers_on() -> None:
    assert serials.difference(2**31 - 1, 0) == 2**31 - 1
    assert serials.difference(2**31, 0) == -(2**31)
    assert serials.add(2**32 - 1, 3) == 2


def test_the_server_states_its_limits() -> None:
    peer = Peer()
    assert peer.connection.frame_room() == 512
    peer.say(HEADER, frame(Open("client")), frame(Begin(None, 2**32 - 2, 100, 100), channel=9))
    opened, begun = peer.heard()
    assert opened == Open("omq-test", None, 65536, 32767, 60_000)
    assert begun == Begin(9, 0, 64, 2**31 - 1, 1023)
    assert peer.connection.frame_room() == 1 << 20
    assert peer.say(frame(Flow(None, 5, 2**32 - 2, 5, echo=True), channel=9)) == []
    assert peer.heard() == [Flow(2**32 - 2, 64, 0, 2**31 - 1)]


def test_an_open_may_have_the_least_max_frame_size_and_the_greatest_channel_be_used() -> None:
    peer = Peer()
    peer.say(HEADER, frame(Open("client", max_frame_size=512)))
    assert peer.connection.frame_room() == 512
    peer.say(frame(Begin(None, 0, 9, 9), channel=32767))
    assert [type(said) for said in peer.heard()] == [Open, Begin]
    peer.say(frame(Begin(None, 0, 9, 9), channel=32768))
    assert condition(peer.heard()) == "amqp:not-allowed"


def test_frames_are_as_long_as_documented() -> None:
    peer = Peer()
    peer.say(HEADER)
    peer.connection.take()
    longest = frame(Open("c" * 487))
    assert len(longest) == 512
    peer.say(longest)
    assert [type(said) for said in peer.heard()] == [Open]
    padded = frames.write(0, b"\x00\x53\x18\x45", bytes(65536 - 12))
    assert len(padded) == 65536
    peer.say(padded)
    assert peer.connection.stage is Stage.CLOSED
    assert [type(said) for said in peer.heard()] == [p.Close]
    for octets, problem in (
        (frame(Open("c" * 488)), "a frame has at most 512 octets here, not 513"),
        (b"\x00\x00\x00\x08\x03\x00\x00\x00", "the data offset of a frame of 8 octets cannot be 12"),
    ):
        reader = frames.FrameReader()
        reader.add(octets)
        with pytest.raises(frames.ConnectionProblem, match=rf"^{problem}$"):
            list(reader.frames())


@pytest.mark.parametrize(("count", "pauses"), [(255, 0), (256, 1), (511, 1), (512, 2)])
def test_others_have_their_turn_after_256_frames(peer: Peer, count: int, pauses: int) -> None:
    assert peer.say(frames.HEARTBEAT * count) == [Pause()] * pauses


def test_a_connection_has_at_most_4096_sessions() -> None:
    peer = Peer()
    peer.open()
    peer.say(*(frame(Begin(None, 0, 9, 9), channel=channel) for channel in range(1, 4096)))
    assert peer.connection.stage is Stage.RUNNING
    peer.heard()
    peer.say(frame(Begin(None, 0, 9, 9), channel=5000))
    (close,) = peer.heard()
    assert isinstance(close, p.Close)
    error = p.read_all(close.error)
    assert error == p.Error("amqp:resource-limit-exceeded", "a connection has at most 4096 sessions")


def test_links_and_handles_have_documented_limits(peer: Peer) -> None:
    (event,) = peer.say(frame(Attach("last", 1023, True, source=source())))
    assert isinstance(event, Attaching)
    peer.heard()
    peer.say(frame(Attach("beyond", 1024, True, source=source())))
    (end,) = peer.heard()
    assert isinstance(end, p.End)
    assert p.read_all(end.error) == p.Error("amqp:not-allowed", "handles are at most 1023, not 1024")


@pytest.mark.parametrize("is_receiver", [True, False])
def test_the_name_of_a_link_has_at_most_1024_octets(peer: Peer, *, is_receiver: bool) -> None:
    fields: dict[str, Any] = {"source": source(), "target": target()}
    if not is_receiver:
        fields["initial_delivery_count"] = 0
    (event,) = peer.say(frame(Attach("\u20ac" * 341 + "x", 0, is_receiver, **fields)))
    assert isinstance(event, Attaching)
    name = "\u20ac" * 341 + "xx"
    assert peer.say(frame(Attach(name, 1, is_receiver, **fields))) == []
    attach, detach = peer.heard()
    assert isinstance(attach, Attach)
    assert attach.name == name
    assert (attach.source if is_receiver else attach.target) == NULL
    assert condition([detach]) == "amqp:invalid-field"


def test_a_client_has_no_more_links_than_it_has_handles() -> None:
    peer = Peer()
    peer.say(HEADER, frame(Open("client")), frame(Begin(None, 0, 9, 9, handle_max=1)))
    peer.heard()
    for handle in (0, 1):
        (event,) = peer.say(frame(Attach(f"{handle}", handle, True, source=source())))
        assert isinstance(event, Attaching)
    assert peer.heard() == []
    assert peer.say(frame(Attach("2", 2, True, source=source()))) == []
    attach, detach = peer.heard()
    assert isinstance(attach, Attach)
    assert (attach.source, attach.initial_delivery_count) == (NULL, 0)
    assert condition([detach]) == "amqp:resource-limit-exceeded"


def test_credit_is_at_most_half_of_all_numbers(peer: Peer) -> None:
    granted = peer.attach_sender(credit=2**31)
    assert granted.credit == link.LARGEST_CREDIT == 2**31 - 1


@pytest.mark.parametrize(
    ("seen", "credit", "left"),
    [
        (0, 2**32 - 1, 2**31 - 1),
        (7, 2**31, 2**31 - 1),
        (7, 2**31 - 1, 2**31 - 1),
        (5, 9, 7),
        (5, 1, 0),
        (5, 2, 0),
    ],
)
def test_a_client_may_state_any_credit(peer: Peer, seen: int, credit: int, left: int) -> None:
    """Seven messages have been sent, of which it had seen so many."""
    made = peer.attach_receiver()
    made.flowed(Flow(0, 9, 0, 9, 0, 0, 9))
    made.sent(7)
    made.flowed(Flow(0, 9, 0, 9, 0, seen, credit))
    assert made.credit == left


def test_the_attach_of_a_sender_is_answered_with_the_longest_message(peer: Peer) -> None:
    said = Attach("n", 3, False, 1, 1, source(), target(), initial_delivery_count=7)
    (event,) = peer.say(frame(said))
    assert isinstance(event, Attaching)
    made = event.link
    assert isinstance(made, link.ReceivingLink)
    made.accept(said.target, 1000)
    made.grant(5)
    attach, flow = peer.heard()
    assert attach == Attach("n", 0, True, 1, 0, source(), target(), max_message_size=1000)
    assert flow == Flow(0, 64, 0, 2**31 - 1, 0, 7, 5)
    assert [made.takes(count, longest) for count, longest in ((5, 1000), (6, 1), (1, 1001))] == [
        True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "settles", "answered"),
    [(2, True, 1), (2, False, 2), (1, True, 1), (1, False, 0), (0, False, 0)],
)
def test_the_settle_mode_is_what_the_server_does(
    peer: Peer, asked: int, settles: bool, answered: int
) -> None:
    (event,) = peer.say(frame(Attach("n", 0, True, asked, source=source())))
    assert isinstance(event, Attaching)
    made = event.link
    assert isinstance(made, link.SendingLink)
    assert made.settles is (asked == 1)
    made.accept(made.attach.source, settles=settles, offered=("x",))
    assert made.settles is settles
    (attach,) = peer.heard()
    assert attach == Attach("n", 0, False, answered, source=source(), initial_delivery_count=0,
                            offered_capabilities=("x",))  # fmt: skip


def test_a_connection_that_has_not_begun_is_closed_without_a_word() -> None:
    connection = AmqpConnection(OFFER)
    connection.heartbeat()
    assert connection.close() == b""
    assert connection.stage is Stage.CLOSED
    assert connection.take() == b""


# -- stored messages ----------------------------------------------------------------------------------------


def section(code: Section, value: Value) -> bytes:
    return b"\x00\x53%c%s" % (code, encoding.write(value))


@pytest.mark.parametrize(("around", "form"), [(60_000, BodyKind.TEXT), (60_001, BodyKind.MESSAGE)])
@pytest.mark.parametrize("footer", [False, True])
def test_a_head_holds_60000_octets_of_sections(around: int, form: BodyKind, footer: bool) -> None:
    after = section(Section.FOOTER, Map(())) if footer else b""
    empty = section(Section.APPLICATION_PROPERTIES, Map((("x", Binary(bytes(300))),)))
    size = around - len(after) - len(empty) + 300
    before = section(Section.APPLICATION_PROPERTIES, Map((("x", Binary(bytes(size))),)))
    assert len(before) + len(after) == around
    message = before + section(Section.AMQP_VALUE, "hello") + after
    made = stored.store(message)
    found = stored.around(made.head)
    assert found is not None
    assert found.form == form
    assert stored.message(found, made.body) == message


@pytest.mark.parametrize("size", [0, 255, 256])
@pytest.mark.parametrize("wide", [False, True])
def test_the_length_of_a_content_keeps_its_form(size: int, wide: bool) -> None:
    if size == 256 and not wide:
        return
    length = size.to_bytes(4, "big") if wide else bytes((size,))
    octets = b"\x00\x53\x77" + (b"\xb1" if wide else b"\xa1") + length + b"x" * size
    made = stored.store(octets)
    around = stored.around(made.head)
    assert around is not None
    assert around.form == BodyKind.TEXT + (16 if wide and size < 256 else 0)
    assert stored.message(around, made.body) == octets


def test_heads_that_are_cut_or_longer_have_no_framing() -> None:
    head = stored.store(section(Section.HEADER, List((True,))) + section(Section.AMQP_VALUE, "t")).head
    assert stored.around(head) is not None
    for end in range(len(head)):
        assert stored.around(head[:end]) is None
        assert not stored.is_head(head[:end])
    assert stored.around(head + b"x") is None
    shorter = stored.BodyFraming(BodyKind.TEXT, b"", b"")
    assert stored.around(stored.store(section(Section.AMQP_VALUE, "t")).head) == shorter


@pytest.mark.parametrize(("count", "is_replaced"), [(127, True), (128, True), (129, False)])
def test_annotations_are_replaced_among_128_at_most(count: int, is_replaced: bool) -> None:
    entries = ((SYMBOL, True), *((Symbol(f"n{number}"), True) for number in range(count - 1)))
    around = stored.BodyFraming(BodyKind.TEXT, section(Section.MESSAGE_ANNOTATIONS, Map(entries)), b"")
    found = stored.annotated(around, [(SYMBOL, False)])
    if not is_replaced:
        assert found is around
        return
    expected = section(Section.MESSAGE_ANNOTATIONS, Map((*entries[1:], (SYMBOL, False))))
    assert found == stored.BodyFraming(BodyKind.TEXT, expected, b"")


def test_a_header_with_more_fields_than_there_are_keeps_five() -> None:
    fields = List((True, None, None, None, None, True))
    around = stored.BodyFraming(BodyKind.TEXT, section(Section.HEADER, fields), b"after")
    found = stored.redelivered(around, 300)
    header, after = decoding.read(found.before, 3)
    assert isinstance(header, List)
    assert header.values == (True, None, None, False, Number(NumberType.UINT, 300))
    assert (after, found.after, found.form) == (len(found.before), b"after", BodyKind.TEXT)


def test_a_message_has_at_most_1024_sections() -> None:
    data = section(Section.DATA, Binary(b"x"))
    assert len(sections.find(data * 1024)) == 1024
    with pytest.raises(DecodeError, match=r"^a message has at most 1024 sections$"):
        sections.find(data * 1025)


@pytest.mark.parametrize(
    ("values", "to"), [((), NULL), ((None, None), NULL), ((None, None, "a"), ADDRESS), ((None,) * 4, NULL)]
)
def test_the_third_property_is_where_a_message_goes(values: tuple[Value, ...], to: bytes) -> None:
    octets = section(Section.HEADER, List(())) + section(Section.PROPERTIES, List(values))
    assert sections.to(octets, sections.find(octets)) == to
    assert sections.to(octets[:4], sections.find(octets[:4])) == NULL


@pytest.mark.parametrize("section", Section)
def test_a_section_may_be_named_by_its_symbol(section: Section) -> None:
    kind = {Section.AMQP_SEQUENCE: "list", Section.DATA: "binary", Section.AMQP_VALUE: "*"}.get(
        section, "list" if section in (Section.HEADER, Section.PROPERTIES) else "map"
    )
    value = {"list": b"\x45", "map": b"\xc1\x01\x00", "binary": b"\xa0\x00", "*": b"\x41"}[kind]
    name = section.name.lower().replace("_", "-")
    for descriptor in (
        encoding.write(Symbol(f"amqp:{name}:{kind}")), b"\x80" + bytes(7) + bytes((section,)),
    ):  # fmt: skip
        octets = b"\x00" + descriptor + value
        assert sections.find(octets) == [
            sections.SectionPlace(section, 0, len(octets) - len(value), len(octets))
        ]
        assert sections.body_at(octets) == (
            0 if section.name in ("AMQP_SEQUENCE", "DATA", "AMQP_VALUE") else -1
        )
    wrong = b"\x00\x53%c%s" % (section, b"\x42")
    if kind != "*":
        with pytest.raises(DecodeError, match=rf"^the section {name} cannot be a value of type 0x42$"):
            sections.find(wrong)
