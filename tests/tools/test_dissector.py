"""The Wireshark dissector `tools/omq.lua`: what tshark shows of a real conversation."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from capture_file import SERVER_PORT, Cut, Endpoint, SentOctets, every, packets, ragged, whole, write
from dissector_conversation import JOBS, SHOWN_HEADERS, Conversation, hold, recorded, serving, shown
from live_capture import capturing
from shark import Unit, failures, listed, needs_tshark, run, units

from omq.protocol.handshake import hello

pytestmark = needs_tshark


@dataclass(frozen=True)
class Recording:
    said: list[SentOctets]
    conversation: Conversation


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Return the recording, made once for all tests."""
    return Recording(*trio.run(recorded, tmp_path_factory.mktemp("conversation") / "store"))


@pytest.fixture(scope="module")
def capture(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recording with as few segments as possible."""
    return write(tmp_path_factory.mktemp("capture") / "omq.pcap", packets(recording.said))


def by_side(found: list[Unit]) -> dict[tuple[int, Endpoint], list[Unit]]:
    sorted_out = defaultdict(list)
    for unit in found:
        sorted_out[unit.connection, unit.side].append(unit)
    return sorted_out


def compare(found: list[Unit], expected: dict[tuple[int, Endpoint], list[dict[str, str]]]) -> None:
    """Assert that every unit is shown, in order, with at least the expected fields."""
    sides = by_side(found)
    assert sides.keys() == expected.keys()
    for side, wanted in expected.items():
        assert len(sides[side]) == len(wanted)
        for unit, fields in zip(sides[side], wanted, strict=True):
            assert {name: unit.get(name) for name in fields} == fields


# -- everything is shown ------------------------------------------------------------------------------------

CUTS = {"whole": whole, "one octet each": every(1), "23 octets each": every(23), "ragged": ragged(1)}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_every_unit_of_a_conversation_is_shown(recording: Recording, cut: Cut, tmp_path: Path) -> None:
    path = write(tmp_path / "omq.pcap", packets(recording.said, cut))
    compare(units(path), recording.conversation.expected)
    assert failures(path) == []


async def test_a_capture_of_tcpdump_is_shown(tmp_path: Path) -> None:
    last = b"; the last line of the capture"
    async with serving(tmp_path / "store") as port, capturing(port, tmp_path / "omq.pcap", last):
        conversation = await hold(port)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(hello() + last + b"\n")
            assert await stream.receive_some(8) == hello()
    found = units(tmp_path / "omq.pcap", "-o", f"omq.port:{port}", port=port)
    count = len(conversation.expected) // 2
    compare([unit for unit in found if unit.connection < count], conversation.expected)


def test_sequence_numbers_may_pass_2_to_the_32(recording: Recording, tmp_path: Path) -> None:
    path = write(tmp_path / "omq.pcap", packets(recording.said, every(23), first=2**32 - 300))
    compare(units(path), recording.conversation.expected)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_second_pass_shows_the_same(recording: Recording, cut: Cut, tmp_path: Path) -> None:
    """As in Wireshark, which shows packets again, and those of its first pass without their fields."""
    path = write(tmp_path / "omq.pcap", packets(recording.said, cut))
    assert listed(path, "-2") == listed(path)
    compare(units(path, "-2"), recording.conversation.expected)
    answered = {unit.value for unit in units(path, "-2") if "omq.answered" in unit.fields}
    assert answered == {
        "Declare", "Subscribe", "Unsubscribe", "Confirm", "Topics", "Delete", "Put", "Get"
    }  # fmt: skip


def test_connections_of_the_same_addresses_in_a_second_pass(recording: Recording, tmp_path: Path) -> None:
    """In a first pass without fields only the handshake distinguishes a connection from the one before."""
    said = [said for said in recording.said if said.connection == 1]
    one, again = packets(said), packets(said, first=900_000)
    # Without a filter, for which the first pass would have to look at fields.
    once = listed(write(tmp_path / "once.pcap", one), "-2")
    assert listed(write(tmp_path / "twice.pcap", one + again), "-2") == once + once


# -- what belongs together ----------------------------------------------------------------------------------


def test_an_answer_names_its_command(capture: Path) -> None:
    found = units(capture)
    for answer, command in {
        "Declared": "Declare", "Subscribed": "Subscribe", "Confirmed": "Confirm", "Topics": "Topics",
        "Error": "Delete", "Unsubscribed": "Unsubscribe", "Leased": "Put",
    }.items():  # fmt: skip
        unit = next(unit for unit in found if unit.name == "omq.frame" and unit.value == answer)
        asked = next(unit for unit in found if unit.name == "omq.command" and unit.value == command)
        assert int(unit["omq.answers"]) == asked.packet
        assert float(unit["omq.answer_time"]) == pytest.approx((unit.packet - asked.packet) / 1e6)


def test_a_lease_links_its_two_connections(recording: Recording, capture: Path) -> None:
    _, get, put = (lease.decode() for lease in recording.conversation.leases)
    found = units(capture, "-2")
    for lease, purpose in ((get, "feed"), (put, "sink")):
        (leased,) = [unit for unit in found if unit.name == "omq.frame" and unit.get("omq.lease") == lease]
        (used,) = [unit for unit in found if unit.name == "omq.lease" and unit.value == lease]
        assert (leased["omq.lease.used"], used["omq.lease.given"]) == (str(used.packet), str(leased.packet))
        for unit in (leased, used):
            assert (unit["omq.topic"], unit["omq.dmp.purpose"]) == ("prices", purpose)


def test_the_topics_are_shown_one_by_one(capture: Path) -> None:
    (topics,) = [unit for unit in units(capture) if unit.value == "Topics" and unit.name == "omq.frame"]
    names = ("", ".id", ".delivery", ".persistence", ".messages", ".first", ".last", ".subscribers")
    shown_fields = [topics[f"omq.topic{name}"] for name in names]
    assert shown_fields == ["prices", "0", "Broadcast", "(Persistent Strong)", "4", "1", "4", "1"]


def test_headers_are_shown_entry_by_entry(capture: Path) -> None:
    envelopes = [unit for unit in units(capture) if "omq.dmp.entry" in unit.fields]
    assert {unit.side for unit in envelopes} == set(Endpoint)
    for unit in envelopes:
        names, kinds = unit.fields["omq.dmp.entry.name"], unit.fields["omq.dmp.entry.type"]
        entries = dict(zip(names, unit.fields["omq.dmp.entry.value"], strict=True))
        assert {name: entries[name] for name in SHOWN_HEADERS} == SHOWN_HEADERS
        assert dict(zip(names, kinds, strict=True))["list[2]"] == "decimal"


def test_refused_commands_are_marked(capture: Path) -> None:
    refused = [unit for unit in units(capture) if "omq.refusal" in unit.fields]
    assert [(unit.name, unit.value[:13]) for unit in refused] == [
        ("omq.frame", "Error"),
        ("omq.dmp.response", "402 BAD-LEASE"),
    ]
    assert [unit["_ws.expert.message"] for unit in refused] == [
        "Delete nope: there is no such topic",
        "402 BAD-LEASE Lease is not valid for this connection",
    ]


# -- looking at it ------------------------------------------------------------------------------------------


def test_the_list_of_packets_summarises_each_packet(capture: Path) -> None:
    lines = [line.split(maxsplit=1)[1] for line in listed(capture)]
    # The server sends pings when it is time for one, so one may share a packet.
    lines += [line.removeprefix("Ping, ").removesuffix(", Ping") for line in lines]
    jobs = f'"{shown(JOBS)}"'
    for line in (
        "Client speaks version 1",
        "Connect 1 alice, Declare prices Broadcast (Persistent Strong)",
        "Declared prices, id 0",
        "Publish prices (4), Confirm 7",
        "Subscribe prices (From_message 4)",
        f"Message 1 of {jobs}: one",
        f"Received {jobs} 1",
        "Leased a feed of prices",
        "Header of DMP, Lease of a sink of prices",
        "Null message, Envelopes 1 to 4, Null message",
        "200 OK 4 messages stored",
    ):
        assert line in lines
    assert any("Messages 1 to 4 of prices" in line for line in lines)


@pytest.mark.parametrize(
    ("filter", "count"),
    [
        ('omq.command == "Publish" and omq.topic == "prices"', 4),
        ("omq.message.id == 2 and omq.frame.type == 2", 3),
        ('omq.body == "ACME 101.5"', 3),
        ("omq.body.octets == ff:00:0a", 4),
        ('omq.topic == "prices" and omq.dmp.envelope', 11),
        ("omq.dmp.property.priority == 9", 2),
        ('omq.dmp.property.app_id == "till"', 2),
        ('omq.dmp.entry == "table.inner: 1375869662 (2013-08-07 10:01:02 UTC)"', 2),
        ("omq.dmp.mandatory == 1", 2),
        ('omq.dmp.key == "acme"', 2),
        ("omq.dmp.code == 402", 1),
        ("omq.dmp.stored == 4", 1),
        ("omq.error", 1),
    ],
)
def test_filters(recording: Recording, tmp_path: Path, filter: str, count: int) -> None:
    """With a unit in each packet, so that the filter finds units."""
    path = write(tmp_path / "omq.pcap", packets(recording.said, every(1)))
    found = run(path, "-Y", filter, "-T", "fields", "-e", "frame.number").split()
    assert len(found) == count


# -- where it looks -----------------------------------------------------------------------------------------


def moved(path: Path, port: int) -> Path:
    """Return the capture with another port for the server."""
    octets = path.read_bytes()
    other = path.with_name(f"{port}.pcap")
    other.write_bytes(octets.replace(SERVER_PORT.to_bytes(2, "big"), port.to_bytes(2, "big")))
    return other


@pytest.mark.parametrize(
    "option", [("-o", "omq.port:7777"), ("-o", "omq.port:7700-7800,9000"), ("-d", "tcp.port==7777,omq")]
)
def test_another_port(recording: Recording, capture: Path, option: tuple[str, str]) -> None:
    elsewhere = moved(capture, 7777)
    assert listed(elsewhere) == []
    compare(units(elsewhere, *option, port=7777), recording.conversation.expected)


def test_the_port_can_be_turned_off(capture: Path) -> None:
    assert listed(capture, "-o", "omq.port:7777") == []
