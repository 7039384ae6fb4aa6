"""The dissector with OpenAMQ's recorded connections (tests/data/dmp), and with other protocols."""

import ssl
from pathlib import Path

import pytest
from capture_file import Cut, Endpoint, SentOctets, every, packets, ragged, whole, write
from dissector_conversation import of_envelope, of_response, shown
from dmp_recordings import AMQP, DMP, FEEDS, OTHER_VERSION, SINKS, reads, sent
from shark import Unit, failures, listed, needs_tshark, units, values

from omq.protocol.amqp import shortstr
from omq.protocol.amqp.fields import Table
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_0_9.delivery import ConsumerFraming, deliveries
from omq.protocol.amqp_0_9.frames import content, method_frame
from omq.protocol.amqp_0_9.methods import BasicPublish, QueueDeclare
from omq.protocol.amqp_0_9.server import ServerConnection
from omq.protocol.amqp_1_0 import encoding, frames, performatives
from omq.protocol.amqp_1_0.performatives import Attach, Begin, Open, SaslInit, Target, Transfer
from omq.protocol.dmp.reader import EnvelopeReader
from omq_storage.blocks import encode

pytestmark = needs_tshark

SIDES = {"C": Endpoint.CLIENT, "S": Endpoint.SERVER}


def capture(path: Path, names: list[str], cut: Cut = whole) -> Path:
    """Return a capture with these recordings as the connections 0, 1 and so on."""
    said = [
        SentOctets(number, SIDES[read.side], read.octets)
        for number, name in enumerate(names)
        for read in reads(name)
    ]
    return write(path, packets(said, cut))


def after_strings(octets: bytes, count: int) -> tuple[list[bytes], bytes]:
    """Return N short strings, and what follows them."""
    strings, at = [], 0
    for _ in range(count):
        string, at = shortstr.read(octets, at, len(octets), "a string")
        strings.append(string)
    return strings, octets[at:]


def envelopes(octets: bytes, topic: bytes) -> list[dict[str, str]]:
    run = EnvelopeReader().feed(octets)
    return [of_envelope(number, one, topic) for number, one in enumerate(run.envelopes(), 1)]


def compare(found: list[Unit], side: Endpoint, wanted: list[dict[str, str]]) -> None:
    shown_units = [unit for unit in found if unit.side is side and unit.name != "omq.dmp.null"]
    for unit, fields in zip(shown_units, wanted, strict=True):
        assert {name: unit.get(name) for name in fields} == fields


@pytest.mark.parametrize("cut", [whole, every(1), ragged(2)], ids=["whole", "one octet each", "ragged"])
def test_dmp(cut: Cut, tmp_path: Path) -> None:
    path = capture(tmp_path / "omq.pcap", DMP, cut)
    every_unit = units(path)
    for number, name in enumerate(DMP):
        found = [unit for unit in every_unit if unit.connection == number]
        (lease,), from_client = after_strings(sent(name, "C")[8:], 1)
        (greeting, answer), from_server = after_strings(sent(name, "S"), 2)
        topic = answer.split(b"'")[1] if name in FEEDS + SINKS else b""
        opening = [{"omq.dmp.header": "AMQP 10.1.0.1"}, {"omq.lease": shown(lease)}]
        compare(found, Endpoint.CLIENT, [*opening, *envelopes(from_client, topic)])
        responses = [of_response(greeting), of_response(answer)]
        compare(found, Endpoint.SERVER, [*responses, *envelopes(from_server, topic)])
    assert failures(path) == []


def test_a_header_of_another_version(tmp_path: Path) -> None:
    (name,) = OTHER_VERSION
    version, answer = (".".join(map(str, sent(name, side)[4:8])) for side in "CS")
    assert listed(capture(tmp_path / "omq.pcap", [name])) == [
        f"DMP Header AMQP {version}",
        f"DMP The server speaks AMQP {answer}, and closes",
    ]


def test_amqp_is_shown_by_its_own_dissector(tmp_path: Path) -> None:
    path = capture(tmp_path / "omq.pcap", AMQP)
    lines = listed(path)
    assert len(lines) > 10 * len(AMQP)
    assert {line.split()[0] for line in lines} == {"AMQP"}
    assert units(path) == []


def test_messages_of_amqp_are_shown_with_their_fields(tmp_path: Path) -> None:
    """On the port of omq, without another option: what any client and this server send."""
    block = encode(7, 1, [b"hello"], 0, [b"\x06orders\x03new\x80\0\x0atext/plain"])
    consumer = ConsumerFraming(1, b"ctag", 131072, b"\0\0\0\0")
    published = b"".join(content(1, BasicPublish(b"orders", b"new"), b"\0\0", b"hello", 131072))
    declared = method_frame(1, QueueDeclare(b"jobs", durable=True))
    path = write(
        tmp_path / "omq.pcap",
        packets(
            [
                SentOctets(0, Endpoint.CLIENT, b"AMQP\0\0\x09\x01"),
                SentOctets(0, Endpoint.SERVER, ServerConnection().start(Table(), b"PLAIN")),
                SentOctets(0, Endpoint.CLIENT, declared + published),
                SentOctets(0, Endpoint.SERVER, deliveries(consumer, 1, block, range(1, 2), Portion())[0]),
            ]
        ),
    )
    assert values(path, "amqp.method.arguments.queue") == ["jobs"]
    assert values(path, "amqp.method.arguments.exchange") == ["orders", "orders"]
    assert values(path, "amqp.method.arguments.routing_key") == ["new", "new"]
    assert values(path, "amqp.method.arguments.consumer_tag") == ["ctag"]
    assert values(path, "amqp.method.properties.content_type") == ["text/plain"]
    assert failures(path) == []


def test_tls_is_shown_by_its_own_dissector(tmp_path: Path) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="server.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    path = write(tmp_path / "omq.pcap", packets([SentOctets(0, Endpoint.CLIENT, outgoing.read())]))
    (line,) = listed(path)
    assert line.startswith("TLSv1")
    assert "Client Hello" in line


def test_amqp_1_0_is_shown_by_its_own_dissector(tmp_path: Path) -> None:
    """On the port of omq, without another option, with the SASL layer and without."""
    sasl = b"AMQP\3\1\0\0"
    plain = b"AMQP\0\1\0\0"
    init = performatives.write(SaslInit("PLAIN", b"\0name\0secret"))
    said = frames.write(0, init, kind=frames.FrameType.SASL)
    attach = Attach("link", 0, False, target=performatives.write(Target(encoding.write("orders"))),
                    initial_delivery_count=0)  # fmt: skip
    linked = b"".join(
        frames.write(0, performatives.write(one)) for one in (Open("client"), Begin(None, 0, 9, 9), attach)
    )
    message = b"\x00\x53\x75\xa0\x05hello"
    transfer = frames.write(0, performatives.write(Transfer(0, 0, b"tag", 0, True)), message)
    path = write(
        tmp_path / "omq.pcap",
        packets(
            [
                SentOctets(0, Endpoint.CLIENT, sasl),
                SentOctets(0, Endpoint.SERVER, sasl),
                SentOctets(0, Endpoint.CLIENT, said),
                SentOctets(1, Endpoint.CLIENT, plain),
                SentOctets(1, Endpoint.SERVER, plain),
                SentOctets(1, Endpoint.CLIENT, linked),
                SentOctets(1, Endpoint.CLIENT, transfer),
            ]
        ),
    )
    assert {line.split()[0] for line in listed(path)} == {"AMQP"}
    assert values(path, "amqp.performative") == ["16", "17", "18", "20"]
    assert values(path, "amqp.sasl.method") == ["65"]
    assert failures(path) == []
