"""The dissector with incomplete captures: without their beginning, packets, or parts of packets."""

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest
import trio
from capture_file import Cut, Endpoint, Packet, SentOctets, every, packets, ragged, whole, write
from dissector_conversation import Conversation, recorded
from shark import Unit, failures, needs_tshark, units

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.head import Head
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.envelopes import Envelope

pytestmark = needs_tshark

WITHOUT_REASSEMBLY = ("-o", "tcp.desegment_tcp_streams:FALSE")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[SentOctets], Conversation]:
    return trio.run(recorded, tmp_path_factory.mktemp("conversation") / "store")


NOT_COMPARED = {"omq.topic", "omq.dmp.envelope", "omq.dmp.purpose"}
"""The fields that cannot be known, or are counted from another beginning, when something is missing."""


def damaged(
    recording: tuple[list[SentOctets], Conversation],
    path: Path,
    cut: Cut,
    copies: int,
    damage: Callable[[int, list[Packet]], Iterable[Packet]],
) -> tuple[Path, list[int]]:
    """Return copies of each connection, each damaged in its own way, and of which connection each is
    a copy.
    """
    said, _ = recording
    originals, captured = [], list[Packet]()
    for copy in range(copies):
        for connection in sorted({part.connection for part in said}):
            number = 10 * copy + connection
            parts = [
                SentOctets(number, part.side, part.octets) for part in said if part.connection == connection
            ]
            left = list(damage(copy, packets(parts, cut)))
            if left:
                captured += left
                originals.append(connection)
    return write(path, captured), originals


def shown_and_said(
    recording: tuple[list[SentOctets], Conversation], found: list[Unit], originals: list[int]
) -> int:
    """Check that each shown unit was sent, in this order, and return their number."""
    count = 0
    for number, original in enumerate(originals):
        for side in Endpoint:
            wanted = iter(recording[1].expected[original, side])
            for unit in found:
                if (unit.connection, unit.side) == (number, side) and unit.name not in (
                    "omq.unread",
                    "_ws.expert",
                ):
                    if unit.value == "Ping":
                        continue  # the server sends one when it is time, wherever a slow recording is then
                    assert "omq.malformed" not in unit.fields
                    assert any(is_shown(fields, unit) for fields in wanted), unit
                    count += 1
    return count


def is_shown(fields: dict[str, str], unit: Unit) -> bool:
    return unit.name in fields and all(
        unit.get(name) == value for name, value in fields.items() if name not in NOT_COMPARED
    )


def begin_late(copy: int, captured: list[Packet]) -> list[Packet]:
    return captured[copy:]


def lose_some(copy: int, captured: list[Packet]) -> list[Packet]:
    random = Random(copy)
    return [packet for packet in captured if random.random() > 0.15]


def keep_beginnings(copy: int, captured: list[Packet]) -> list[Packet]:
    return [packet.cut(45 + 3 * copy) for packet in captured]


def keep_all(copy: int, captured: list[Packet]) -> list[Packet]:
    return captured


@pytest.mark.parametrize(
    ("damage", "options"),
    [
        (begin_late, ()),
        (lose_some, ()),
        (keep_beginnings, ()),
        (keep_all, WITHOUT_REASSEMBLY),
        (lose_some, WITHOUT_REASSEMBLY),
        (lose_some, ("-o", "tcp.reassemble_out_of_order:TRUE")),
        (lose_some, ("-2",)),
    ],
)
@pytest.mark.parametrize("cut", [whole, ragged(3)], ids=["whole", "ragged"])
def test_units_that_were_never_sent_are_not_shown(
    recording: tuple[list[SentOctets], Conversation],
    damage: Callable[[int, list[Packet]], list[Packet]],
    options: tuple[str, ...],
    cut: Cut,
    tmp_path: Path,
) -> None:
    """The dissector shows no false frame or envelope, and continues where it can."""
    copies = 10
    path, originals = damaged(recording, tmp_path / "omq.pcap", cut, copies, damage)
    count = shown_and_said(recording, units(path, *options), originals)
    # The number of units that can be shown depends on the ends of the segments of this recording. A dissector
    # that does not read on after a gap shows far less.
    assert count > copies * sum(map(len, recording[1].expected.values())) / 8
    assert failures(path, *options) == []


def test_missing_data_is_reported(recording: tuple[list[SentOctets], Conversation], tmp_path: Path) -> None:
    first = packets([said for said in recording[0] if said.connection == 0], every(60))
    late = units(write(tmp_path / "late.pcap", packets(recording[0][:40], ragged(3))[12:]))
    for words in ("Cannot be read", "Read from here on"):
        assert f"{words}: the beginning of this connection was not captured" in messages(late)
    holed = units(write(tmp_path / "holed.pcap", first[:8] + first[9:]))
    assert "Read from here on: a segment before this one was not captured" in messages(holed)
    cut_off = units(write(tmp_path / "cut.pcap", [packet.cut(80) for packet in first]))
    assert "Cut off: the capture has only the beginning of a packet" in messages(cut_off)
    apart = units(write(tmp_path / "apart.pcap", first), *WITHOUT_REASSEMBLY)
    assert any("Wireshark's TCP is set not to reassemble" in message for message in messages(apart))


def messages(found: list[Unit]) -> list[str]:
    return [message for unit in found for message in unit.fields.get("_ws.expert.message", [])]


def test_an_envelope_may_look_like_a_frame(tmp_path: Path) -> None:
    """With an exchange of two octets it begins as a Message does, and with none as an Error."""
    envelopes = [
        Envelope(b"a body", Head(b"ab", b"key")),
        Envelope(b"another", Head(b"", b"key")),
        Envelope(b"/", Head(b"ab", b"\x00\x00")),
    ]
    for first in range(3):
        octets = dmp_writer.for_feed(
            [envelope.body for envelope in envelopes[first:]],
            [stored_head.encode(envelope.head) for envelope in envelopes[first:]],
        )
        captured = packets([SentOctets(0, Endpoint.SERVER, octets)])[-1:]
        found = units(write(tmp_path / "omq.pcap", captured))
        assert [unit["omq.body"] for unit in found if unit.name != "_ws.expert"] == [
            envelope.body.decode() for envelope in envelopes[first:]
        ]
