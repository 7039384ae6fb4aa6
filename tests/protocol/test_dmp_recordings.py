"""Recorded connections of OpenAMQ's server and clients: parsed, written and answered as they did."""

import ast
import re

import dmp_recordings as recorded
import pytest

from omq.protocol import handshake
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import properties, shortstr
from omq.protocol.amqp.fields import LongString, Number, NumberType, Table, read_table, table_octets
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.client import ClientDialogue, ClientEvent, FeedOctets, HeaderDeclined, Purpose
from omq.protocol.dmp.envelopes import IMMEDIATE, MANDATORY, NULL_MESSAGE, EnvelopeRun
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.dmp.responses import LEASE_IN_USE, LEASE_NOT_VALID, Response
from omq.protocol.dmp.server import (
    CloseConnection,
    EnvelopeOctets,
    FeedReady,
    LeaseAnswer,
    LeaseReceived,
    LeaseRefused,
    Send,
    ServerDialogue,
    ServerEvent,
    SinkReady,
)

ANSWERS: dict[str, LeaseAnswer] = {
    "G_leases.conn1": LeaseRefused(LEASE_NOT_VALID),
    "G_leases.conn4": LeaseRefused(LEASE_IN_USE),
    "G_leases.conn5": LeaseRefused(LEASE_IN_USE),
}
"""The answers of the recorded server to a lease that was no good."""


def outcome(name: str, lease: bytes) -> LeaseAnswer:
    """Return the answer of the recorded server to a lease. A good one is `S-` or `F-`, a number, `-` and the
    name.
    """
    if name in ANSWERS:
        return ANSWERS[name]
    kind, _, named = lease.split(b"-", 2)
    assert kind in (b"S", b"F")
    return SinkReady(named) if kind == b"S" else FeedReady(named)


def run_server(name: str, pieces: list[bytes]) -> list[ServerEvent]:
    """Return the events of our server for a recorded client's octets; consecutive envelope octets are one
    event.
    """
    dialogue = ServerDialogue()
    events: list[ServerEvent] = []
    for piece in pieces:
        for event in dialogue.feed(piece):
            events.append(event)
            if isinstance(event, LeaseReceived):
                events += dialogue.decide(outcome(name, event.lease))
    messages = b"".join(event.octets for event in events if isinstance(event, EnvelopeOctets))
    rest: list[ServerEvent] = [event for event in events if not isinstance(event, EnvelopeOctets)]
    return [*rest, EnvelopeOctets(messages)] if messages else rest


def run_client(name: str, pieces: list[bytes]) -> list[ClientEvent]:
    """Return the events of our client for a recorded server's octets; consecutive envelope octets are one
    event.
    """
    purpose = Purpose.FEED if name in recorded.FEEDS else Purpose.SINK
    dialogue = ClientDialogue(b"any", purpose)
    events = [event for piece in pieces for event in dialogue.feed(piece)]
    received = b"".join(event.octets for event in events if isinstance(event, FeedOctets))
    rest: list[ClientEvent] = [event for event in events if not isinstance(event, FeedOctets)]
    return [*rest, FeedOctets(received)] if received else rest


def message_words(run: EnvelopeRun) -> list[str]:
    """Return a run in the words of the decoded recordings."""
    lines = []
    for index, envelope in enumerate(run.envelopes()):
        octets = run.heads[index] if run.heads else stored_head.PLAIN_HEAD
        assert stored_head.encode(envelope.head) == octets
        properties_octets = properties.encode(envelope.head.properties)
        present = {
            name: table_octets(value).hex() if isinstance(value, Table) else value
            for name in properties.Properties.__slots__
            if (value := getattr(envelope.head.properties, name)) is not None
        }
        options = MANDATORY * envelope.mandatory | IMMEDIATE * envelope.immediate
        lines.append(
            f"MESSAGE size={len(octets) + 4 + len(envelope.body)} exchange={envelope.head.exchange!r} "
            f"key={envelope.head.routing_key!r} flags={properties_octets[:2].hex()} props={present} "
            f"options={options:02x} bodylen={len(envelope.body)} body={envelope.body!r}"
        )
    return lines


def test_the_recordings_are_all_there() -> None:
    assert len(recorded.NAMES) == 27
    assert (len(recorded.AMQP), len(recorded.FEEDS), len(recorded.SINKS)) == (12, 2, 9)
    assert len(recorded.DMP) == 14


@pytest.mark.parametrize("name", recorded.NAMES)
@pytest.mark.parametrize("side", ["C", "S"])
def test_both_files_of_a_recording_hold_the_same_octets(name: str, side: str) -> None:
    assert b"".join(octets for _, octets in recorded.described(name, side)) == recorded.sent(name, side)


@pytest.mark.parametrize("name", recorded.DMP)
def test_a_recorded_client_is_read_as_its_description_says(name: str) -> None:
    words = [f"protocol header {handshake.DMP_HEADER!r}"]
    for event in run_server(name, [recorded.sent(name, "C")]):
        match event:
            case LeaseReceived(lease):
                words.append(f"lease {lease!r}")
            case EnvelopeOctets(octets):
                reader = EnvelopeReader()
                words += message_words(reader.feed(octets))
                assert reader.unfinished == 0
            case _:
                pass
    assert words == [said for said, _ in recorded.described(name, "C")]


@pytest.mark.parametrize("name", recorded.DMP)
def test_a_recorded_server_is_read_as_its_description_says(name: str) -> None:
    words: list[str] = []
    for event in run_client(name, [recorded.sent(name, "S")]):
        match event:
            case FeedOctets(octets):
                reader = EnvelopeReader()
                words += message_words(reader.feed(octets))
                assert reader.unfinished == 0
            case HeaderDeclined(header):
                words.append(repr(header))
            case _:
                words.append(f"response {b'%d %s' % (event.response.code, event.response.words)!r}")
    expected = [said for said, octets in recorded.described(name, "S") if octets != NULL_MESSAGE]
    assert words == expected


def test_null_messages_were_recorded_and_vanish() -> None:
    nulls = [said for said, octets in recorded.described("A_sub.conn2", "S") if octets == NULL_MESSAGE]
    assert nulls == ["null message"] * 2


@pytest.mark.parametrize("name", recorded.DMP)
def test_our_server_answers_each_read_of_a_recorded_client_as_openamq_did(name: str) -> None:
    dialogue = ServerDialogue()
    ours: list[
        tuple[bytes, bool]
    ] = []  # after the header and after the lease: the answer, and whether it is over
    theirs: list[tuple[bytes, bool]] = []
    reads = recorded.reads(name)
    for place, read in enumerate(reads):
        if read.side != "C" or len(ours) == 2:
            continue
        events = dialogue.feed(read.octets)
        if events and isinstance(events[-1], LeaseReceived):
            events = dialogue.decide(outcome(name, events[-1].lease))
        answer = b"".join(event.octets for event in events if isinstance(event, Send))
        ours.append((answer, events[-1] == CloseConnection()))
        closed = reads[place + 2] == recorded.Read("S", b"")
        theirs.append((reads[place + 1].octets, closed))
        assert reads[place + 1].side == "S"
    assert ours == theirs
    assert len(ours) == 2


@pytest.mark.parametrize("name", recorded.OTHER_VERSION)
def test_another_version_of_the_header_is_answered_with_the_supported_one(name: str) -> None:
    answered = recorded.sent(name, "S")
    assert answered == b"AMQP\x00\x00\x09\x01"  # what OpenAMQ speaks besides; we speak nothing but DMP here
    ours = ServerDialogue().feed(recorded.sent(name, "C"))
    assert ours == [Send(b"AMQP\x0a\x01\x00\x01"), CloseConnection()]
    assert run_client(name, [answered]) == [HeaderDeclined(answered)]


@pytest.mark.parametrize("name", recorded.SINKS)
def test_recorded_sinks_are_written_again_octet_for_octet(name: str) -> None:
    for event in run_server(name, [recorded.sent(name, "C")]):
        if isinstance(event, EnvelopeOctets):
            run = EnvelopeReader().feed(event.octets)
            assert len(run) > 0
            assert dmp_writer.for_sink(run.bodies, run.heads, run.options) == event.octets
            assert b"".join(map(dmp_writer.encode, run.envelopes())) == event.octets


@pytest.mark.parametrize("name", recorded.FEEDS)
def test_recorded_feeds_are_written_again_octet_for_octet(name: str) -> None:
    messages = [(said, octets) for said, octets in recorded.described(name, "S") if "MESSAGE" in said]
    octets = b"".join(octets for _, octets in messages)
    run = EnvelopeReader().feed(octets)
    assert len(run) == len(messages) > 4
    assert dmp_writer.for_feed(run.bodies, run.heads) == octets


@pytest.mark.parametrize("name", recorded.DMP + recorded.OTHER_VERSION)
def test_every_split_of_a_recorded_client_gives_the_same_events(name: str) -> None:
    octets = recorded.sent(name, "C")
    whole = run_server(name, [octets])
    assert len(whole) >= 2
    for at in range(1, len(octets)):
        assert run_server(name, [octets[:at], octets[at:]]) == whole
    assert run_server(name, [octets[at : at + 1] for at in range(len(octets))]) == whole


@pytest.mark.parametrize("name", recorded.DMP + recorded.OTHER_VERSION)
def test_every_split_of_a_recorded_server_gives_the_same_events(name: str) -> None:
    octets = recorded.sent(name, "S")
    whole = run_client(name, [octets])
    assert whole
    for at in range(1, len(octets)):
        assert run_client(name, [octets[:at], octets[at:]]) == whole
    assert run_client(name, [octets[at : at + 1] for at in range(len(octets))]) == whole


@pytest.mark.parametrize("name", recorded.FEEDS)
def test_every_split_of_a_recorded_feed_gives_the_same_messages(name: str) -> None:
    (octets,) = [
        event.octets
        for event in run_client(name, [recorded.sent(name, "S")])
        if isinstance(event, FeedOctets)
    ]
    whole = message_words(EnvelopeReader().feed(octets))
    for at in range(1, len(octets)):
        reader = EnvelopeReader()
        halves = [reader.feed(octets[:at]), reader.feed(octets[at:])]
        assert message_words(halves[0]) + message_words(halves[1]) == whole


def test_the_texts_that_were_recorded_are_ours() -> None:
    said = {recorded.sent(name, "S")[1:][: recorded.sent(name, "S")[0]] for name in recorded.DMP}
    assert said == {b"200 OK DP/0.1"}
    assert dmp_responses.decode(said.pop()) == dmp_responses.GREETING
    assert Response(402, b"BAD-LEASE Lease already acquired") == LEASE_IN_USE
    assert Response(402, b"BAD-LEASE Lease is not valid for this connection") == LEASE_NOT_VALID


# -- the AMQP connections beside them: not spoken here, but their tables, names and properties are -----------


def frames(octets: bytes) -> list[tuple[int, bytes]]:
    """Return type and payload of each AMQP frame, after the header if there is one."""
    at = 8 if octets.startswith(b"AMQP") else 0
    found = []
    while at < len(octets):
        size = int.from_bytes(octets[at + 3 : at + 7], "big")
        found.append((octets[at], octets[at + 7 : at + 7 + size]))
        assert octets[at + 7 + size] == 0xCE
        at += size + 8
    return found


def plain(table: Table) -> dict[str, str | int]:
    values: dict[str, str | int] = {}
    for name, value in table.entries:
        match value:
            case LongString(octets):
                values[name.decode()] = octets.decode()
            case Number(NumberType.INT32, int() as number):
                values[name.decode()] = number
            case _:
                raise AssertionError(f"OpenAMQ was not heard to send {value}")
    return values


@pytest.mark.parametrize("name", recorded.AMQP)
@pytest.mark.parametrize(
    ("side", "method", "at", "named"),
    [("S", b"\x00\x0a\x00\x0a", 6, "server_properties"), ("C", b"\x00\x0a\x00\x0b", 4, "client_properties")],
)
def test_recorded_tables_are_read_and_written(
    name: str, side: str, method: bytes, at: int, named: str
) -> None:
    (payload,) = [octets for _, octets in frames(recorded.sent(name, side)) if octets.startswith(method)]
    table, end = read_table(payload, at, len(payload))
    (said,) = [said for said, _ in recorded.described(name, side) if named in said]
    words = re.search(rf"'{named}': (\{{[^}}]*\}})", said)
    assert words
    assert plain(table) == ast.literal_eval(words[1])
    assert table_octets(table) == payload[at:end]


def test_recorded_leases_are_those_that_direct_gave() -> None:
    given = set()
    for name in recorded.AMQP:
        for _, payload in frames(recorded.sent(name, "S")):
            if payload[:4] in (b"\xf0\x3c\x00\x0b", b"\xf0\x3c\x00\x15"):  # Put-Ok and Get-Ok
                lease, end = shortstr.read(payload, 4, len(payload), "a lease")
                assert end == len(payload)
                given.add(lease)
    shown = {
        event.lease
        for name in recorded.DMP
        for event in run_server(name, [recorded.sent(name, "C")])
        if isinstance(event, LeaseReceived)
    }
    assert shown - given == {b"no-such-lease"}
    assert len(shown) == 12


@pytest.mark.parametrize("name", ["B_mandatory.conn1", "B_mandimm.conn1"])
def test_recorded_properties_of_a_returned_message(name: str) -> None:
    (header,) = [payload for kind, payload in frames(recorded.sent(name, "S")) if kind == 2]
    assert properties.decode(header[12:]) == properties.Properties()
