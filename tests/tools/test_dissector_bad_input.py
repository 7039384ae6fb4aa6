"""The dissector with octets that are neither omq nor DMP, with very many units, and with very long ones."""

from pathlib import Path
from random import Random

import pytest
import trio
from capture_file import Cut, Endpoint, Packet, SentOctets, every, packets, ragged, whole, write
from dissector_conversation import recorded
from shark import Unit, failures, listed, needs_tshark, run, units, values

from omq.protocol.amqp import shortstr
from omq.protocol.amqp.fields import Array, Table
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.envelopes import Envelope
from omq.protocol.handshake import DMP_HEADER, REFUSED, OtherAmqp, answer_to_other, hello
from omq.protocol.omq import types
from omq.protocol.omq.frames import encode

pytestmark = needs_tshark

OMQ = [SentOctets(0, Endpoint.CLIENT, hello()), SentOctets(0, Endpoint.SERVER, hello())]
SINK = [
    SentOctets(0, Endpoint.CLIENT, DMP_HEADER + shortstr.write(b"lease", "the lease")),
    SentOctets(0, Endpoint.SERVER, shortstr.write(b"200 OK DP/0.1", "the greeting")),
    SentOctets(0, Endpoint.SERVER, shortstr.write(b"200 OK Sink 't' ready", "the answer")),
]


def capture(path: Path, conversations: list[list[SentOctets]], cut: Cut = whole) -> Path:
    """Return each conversation on a connection of its own."""
    said = [
        SentOctets(number, part.side, part.octets)
        for number, conversation in enumerate(conversations)
        for part in conversation
    ]
    return write(path, packets(said, cut))


def shown_after(path: Path, beginning: list[SentOctets], more: SentOctets, *options: str) -> list[Unit]:
    """Return the units of what is said behind a beginning, in which there are as many units as there are
    packets.
    """
    # The other side closes, so that what comes begins a segment.
    found = units(capture(path, [[*beginning, SentOctets(0, more.side.other, b""), more]]), *options)
    return found[len(units(capture(path.with_name("beginning.pcap"), [beginning]))) :]


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answered", "lines"),
    [
        (
            hello(2),
            REFUSED,
            ["omq Client speaks version 2", "omq Server answers -1"],
        ),
        (
            b"GET / HT",
            REFUSED,
            [f"omq Client speaks version {int.from_bytes(b'GET / HT', 'big')}", "omq Server answers -1"],
        ),
        (
            b"AMQP\x00\x00\x09\x00",
            answer_to_other(OtherAmqp(b"AMQP\x00\x00\x09\x00")),
            ["DMP Header AMQP 0.0.9.0", "DMP The server speaks AMQP 0.0.9.1, and closes"],
        ),
        (
            b"AMQP\x0a\x01\x00\x02",
            answer_to_other(OtherAmqp(b"AMQP\x0a\x01\x00\x02")),
            ["DMP Header AMQP 10.1.0.2", "DMP The server speaks AMQP 10.1.0.1, and closes"],
        ),
    ],
)
@pytest.mark.parametrize("cut", [whole, every(1)], ids=["whole", "one octet each"])
def test_a_refused_handshake(
    asked: bytes, answered: bytes, lines: list[str], cut: Cut, tmp_path: Path
) -> None:
    said = [SentOctets(0, Endpoint.CLIENT, asked), SentOctets(0, Endpoint.SERVER, answered)]
    path = write(tmp_path / "omq.pcap", packets(said, cut))
    assert listed(path) == lines
    assert ["omq.refusal" in unit.fields for unit in units(path)] == [True, True]


# -- malformed ----------------------------------------------------------------------------------------------


def frame(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "big") + octets


envelope = frame
"""Both have a size and what it counts."""

PROPERTIES = b"\x00\x00"
"""The octets before the flags where there is neither an exchange nor a key."""

BAD_FRAMES = {
    frame(b""): "A frame of length 0 has no type",
    b"\xff\xff\xff\xff\x02": "A frame of 4294967295 octets is longer than a frame may be",
    frame(b"\x01a"): "A Ping is malformed: the payload of a Ping has 4 octets",
    frame(b"\x06a"): "A Confirmed is malformed: the payload of a Confirmed has 8 octets",
    frame(b"\x02abcd"): "A Message is malformed: a Message has at least 12 octets before its body",
    frame(b"\x03((id 0))"): "A Subscribed is malformed: the payload is not the sexp of a topic",
    frame(b"\x09("): "A Topics is malformed: the payload is not the sexp of a list of topics",
    frame(b"\x09((a))"): "This is not the record of a topic",
    frame(b"\xeeabc"): "This type of frame is not known here",
}

BAD_LINES = {
    b"x" * (2**20 + 1): "A line has more than 1048576 octets",
    b"(Publish a)\n": "Publish: takes exactly 2 arguments",
    b"(Subscribe a b)\n": "Subscribe: replay must be From_beginning, (From_message id) or From_current",
    b"(Shout a)\n": "Unknown command Shout",
    b"((a))\n": "Bad command: a list must begin with the name of a command",
    b"(Topics\n": "Bad sexp: a list has no end",
}

BAD_ENVELOPES = {
    envelope(bytes(7)): "The size of an envelope is 7, and an empty one has 8",
    b"\xff\xff\xff\xff": "An envelope of 4294967295 octets is longer than one may be",
    envelope(bytes(7) + b"\x05b"): "its body's length is 5, but its size leaves 1 octets",
    envelope(bytes(4) + b"\x04" + bytes(3)): "its options 04 have bits set that stand for nothing",
    envelope(b"\x09" + bytes(7)): "the exchange is cut off",
    envelope(b"\x00\x09" + bytes(6)): "the key is cut off",
    envelope(PROPERTIES + b"\x80\x00" + bytes(4)): "the property content-type is cut off",
    envelope(PROPERTIES + b"\x00\x40" + bytes(9)): "the property timestamp is cut off",
    envelope(PROPERTIES + b"\x00\x01" + bytes(4)): (
        "the property flags 0001 have bits set that stand for no property"
    ),
    envelope(PROPERTIES + b"\x20\x00\x00\x00\x00\x03\x01nQ" + bytes(4)): (
        "the property headers: a value has the type Q, which is not known here"
    ),
    envelope(PROPERTIES + b"\x20\x00\x00\x00\x00\x02\x05n" + bytes(4)): (
        "the property headers: a name in a table is cut off"
    ),
    envelope(PROPERTIES + b"\x20\x00\x00\x00\x00\x04\x01nI\x00" + bytes(4)): (
        "the property headers: a value is cut off"
    ),
}


def nested(depth: int) -> bytes:
    """Return a message with headers nested to this depth."""
    value: Table | Array = Table()
    for _ in range(depth - 2):
        value = Array((value,))
    headers = Table(((b"a", value),))
    return dmp_writer.encode(Envelope(b"", Head(properties=Properties(headers=headers))))


def test_malformed_units_are_reported(tmp_path: Path) -> None:
    bad = [
        *((OMQ, SentOctets(0, Endpoint.SERVER, octets), text) for octets, text in BAD_FRAMES.items()),
        *((OMQ, SentOctets(0, Endpoint.CLIENT, octets), text) for octets, text in BAD_LINES.items()),
        *((SINK, SentOctets(0, Endpoint.CLIENT, octets), text) for octets, text in BAD_ENVELOPES.items()),
        (SINK, SentOctets(0, Endpoint.CLIENT, nested(33)), "tables nest deeper than 32"),
        (
            SINK,
            SentOctets(0, Endpoint.SERVER, b"\x03abc"),
            "This is no response: it does not begin with three digits",
        ),
    ]
    path = capture(tmp_path / "omq.pcap", [[*beginning, more] for beginning, more, _ in bad])
    assert failures(path) == []
    found = units(path)
    for number, (_, more, text) in enumerate(bad):
        told = [
            message
            for unit in found
            if unit.connection == number
            for message in unit.fields.get("_ws.expert.message", [])
        ]
        assert len(told) == 1, more
        assert told[0].endswith(text), more


def test_headers_at_the_depth_limit_are_not_reported(tmp_path: Path) -> None:
    (unit,) = shown_after(tmp_path / "omq.pcap", SINK, SentOctets(0, Endpoint.CLIENT, nested(32)))
    assert (unit.name, unit.get("_ws.expert.message")) == ("omq.dmp.envelope", None)


# -- any octets ---------------------------------------------------------------------------------------------

PIECES = [b"\0", b"\xff", b"\n", b'"', b"(", b")", b"#|", b"#;", bytes(4), b"\xff" * 4, b"\x7f" + b"\xff" * 3]


def changed(octets: bytes, random: Random) -> bytes:
    made = bytearray(octets)
    for _ in range(random.choice((0, 0, 0, 1, 3))):
        at = random.randrange(len(made) + 1)
        made[at : at + random.randrange(6)] = random.choice((*PIECES, random.randbytes(3)))
    return bytes(made)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[SentOctets]:
    return trio.run(recorded, tmp_path_factory.mktemp("conversation") / "store")[0]


@pytest.mark.parametrize("options", [(), ("-2",), ("-o", "tcp.desegment_tcp_streams:FALSE")])
@pytest.mark.parametrize("seed", range(3))
def test_no_octets_make_the_dissector_fail(
    said: list[SentOctets], seed: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    random = Random(seed)
    cut = random.choice((whole, every(random.randint(1, 50)), ragged(seed)))
    spoilt = [
        SentOctets(10 * copy + part.connection, part.side, changed(part.octets, random))
        for copy in range(20)
        for part in said
        if part.octets and random.random() > 0.05
    ]
    captured = [packet for packet in packets(spoilt, cut) if random.random() > 0.01]
    path = write(tmp_path / "omq.pcap", [maybe_cut(packet, random) for packet in captured])
    assert failures(path, *options) == []
    assert len(listed(path, *options)) > len(captured) / 20


def maybe_cut(packet: Packet, random: Random) -> Packet:
    return packet.cut(random.randint(40, 90)) if random.random() < 0.02 else packet


# -- many and long ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beginning", "side", "octets"),
    [
        (OMQ, Endpoint.SERVER, encode(types.Error(b""))),
        (OMQ, Endpoint.CLIENT, b"x\n"),
        (SINK, Endpoint.CLIENT, bytes(4)),
    ],
)
def test_a_segment_of_very_many_units(
    beginning: list[SentOctets], side: Endpoint, octets: bytes, tmp_path: Path
) -> None:
    """Wireshark refuses more than a million items in a packet."""
    many = 64_000 // len(octets)
    path = tmp_path / "omq.pcap"
    found = shown_after(path, beginning, SentOctets(0, side, octets * many))
    assert len([unit for unit in found if unit.name != "_ws.expert"]) == min(many, 20_000)
    assert failures(path) == []


def test_headers_of_very_many_entries(tmp_path: Path) -> None:
    entries = b"\x00V" * 30_000
    octets = envelope(PROPERTIES + b"\x20\x00" + frame(entries) + bytes(4))
    unit, more = shown_after(tmp_path / "omq.pcap", SINK, SentOctets(0, Endpoint.CLIENT, octets))
    assert more["_ws.expert.message"] == "Only the first 20000 units are shown"
    assert len(unit.fields["omq.dmp.entry"]) == 19_999


def test_long_messages(tmp_path: Path) -> None:
    long_line, long_body = b"y" * (2**20 - 20), b"z" * (2**24 + 5)
    omq = [
        *OMQ,
        SentOctets(0, Endpoint.CLIENT, b"(Publish t " + long_line + b")\n(Confirm 1)\n"),
        SentOctets(0, Endpoint.SERVER, encode(types.Message(1, 0, long_line)) + encode(types.Confirmed(1))),
    ]
    dmp = [*SINK, SentOctets(0, Endpoint.CLIENT, dmp_writer.for_sink([b"before", long_body, b"behind"]))]
    path = capture(tmp_path / "omq.pcap", [omq, dmp], every(20_000))  # 1,448 octets take longer
    assert values(path, "frame.number", "-Y", f"len(omq.body.octets) == {len(long_body)}") != []
    # The long one is 4-DMP's, and has no options.
    fields = ["omq.dmp.length", "omq.dmp.options", "omq.confirm", "omq.body"]
    options = [word for name in fields for word in ("-e", name)]
    rows = run(path, "-Y", "omq.body or omq.confirm", "-T", "fields", *options).splitlines()
    line, body = (octets[: 64 * 2**10].decode() + "..." for octets in (long_line, long_body))
    assert [row.split("\t") for row in rows] == [
        ["", "", "1", line],
        ["", "", "1", line],
        ["6", "0x00", "", "before"],
        [f"{len(long_body)},6", "0x00", "", f"{body},behind"],
    ]
