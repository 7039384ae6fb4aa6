"""Recorded principal connections of OpenAMQ: its client is understood, and its server's octets come back."""

import pytest
from dmp_recordings import AMQP, sent

from omq.protocol.amqp.fields import Table
from omq.protocol.amqp_0_9.delivery import returned
from omq.protocol.amqp_0_9.events import ClosedByPeer, Event, MethodCalled, Opened, StartOk, Tuned
from omq.protocol.amqp_0_9.frames import FRAME, HEARTBEAT, FrameType, method_frame
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.methods import (
    BasicReturn,
    ChannelOpenOk,
    ConnectionStart,
    DirectGet,
    DirectPut,
    decode,
)
from omq.protocol.amqp_0_9.server import ServerConnection

HEADER = 8
PUT = bytes.fromhex("01 0001 0000000f f03c000a 0a 616d712e646972656374 ce")
PUT_OK = bytes.fromhex("01 0001 00000022 f03c000b 1d") + b"S-000660BEBA994AB6-amq.direct\xce"


def replay(name: str) -> tuple[ServerConnection, list[Event]]:
    """Return the events of what the client sent."""
    connection = ServerConnection()
    connection.start(Table(), b"PLAIN")
    events: list[Event] = []
    for event in connection.feed(sent(name, "C")[HEADER:]):
        assert event is not None
        events.append(event)
        if isinstance(event, StartOk):
            connection.tune()
    return connection, events


def server_frames(name: str) -> list[bytes]:
    octets, frames = sent(name, "S"), []
    while octets:
        end = FRAME.size + FRAME.unpack_from(octets)[2] + 1
        frames.append(octets[:end])
        octets = octets[end:]
    return frames


@pytest.mark.parametrize("name", AMQP)
def test_every_frame_of_the_client_is_understood(name: str) -> None:
    connection, events = replay(name)
    # Some leases were asked for by a program of another name.
    assert connection.is_openamq is not name.startswith("G_")
    assert [type(event) for event in events[:3]] == [StartOk, Tuned, Opened]
    assert isinstance(events[0], StartOk)
    assert (events[0].mechanism, events[0].response) == (b"PLAIN", b"\0guest\0guest")
    assert isinstance(events[1], Tuned)
    assert (events[1].channel_max, events[1].frame_max) == (1, 32768)
    assert all(isinstance(event, MethodCalled | ClosedByPeer) for event in events[3:])
    leases = [event.method for event in events if isinstance(event, MethodCalled)]
    assert any(isinstance(method, DirectPut | DirectGet) for method in leases)


@pytest.mark.parametrize("name", AMQP)
def test_the_methods_of_the_server_come_back(name: str) -> None:
    for octets in server_frames(name):
        if octets[0] != FrameType.METHOD:
            assert octets[0] in (FrameType.HEADER, FrameType.BODY) or octets == HEARTBEAT
            continue
        method: Method = decode(octets[FRAME.size : -1])
        _, channel, _ = FRAME.unpack_from(octets)
        if not isinstance(method, ChannelOpenOk):  # whose reserved argument it fills
            assert method_frame(channel, method) == octets


def test_the_lease_of_a_sink() -> None:
    assert PUT in sent("A_pub.conn1", "C")
    assert PUT_OK in server_frames("A_pub.conn1")
    start = decode(server_frames("A_pub.conn1")[0][FRAME.size : -1])
    assert isinstance(start, ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert b"direct" in dict(start.server_properties.entries)


@pytest.mark.parametrize("name", ["B_mandatory.conn1", "B_mandimm.conn1"])
def test_a_mandatory_message_without_a_route_comes_back(name: str) -> None:
    frames = server_frames(name)
    (at,) = (
        index
        for index, octets in enumerate(frames)
        if octets[0] == FrameType.METHOD and isinstance(decode(octets[FRAME.size : -1]), BasicReturn)
    )
    head = b"\x0aamq.direct\x08no.route\0\0"
    body = frames[at + 2][FRAME.size : -1]
    text = b"Message cannot be processed - no route is defined"
    assert b"".join(returned(1, 32768, 310, text, head, body)) == b"".join(frames[at : at + 3])
