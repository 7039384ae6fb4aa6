"""A server's side of a connection of AMQP 1.0: how it begins and ends, and any octets."""

from dataclasses import replace

import pytest
from amqp_1_0_helpers import OFFER, Peer, condition, frame, target
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp_1_0 import frames, performatives
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.connection import (
    FLOW_OCTETS,
    FLOWS_AT_ONCE,
    HEADER,
    MAX_FRAME,
    SASL_HEADER,
    AmqpConnection,
    Stage,
)
from omq.protocol.amqp_1_0.events import (
    Authenticating,
    Closed,
    ConnectionEnded,
    Pause,
    SessionEnded,
)
from omq.protocol.amqp_1_0.frames import FrameType
from omq.protocol.amqp_1_0.link import SendingLink
from omq.protocol.amqp_1_0.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)


def test_a_connection_opens_without_sasl() -> None:
    peer = Peer()
    peer.say(HEADER)
    assert peer.connection.take() == HEADER
    peer.say(frame(Open("client", max_frame_size=4096, idle_time_out=8000)))
    (said,) = peer.heard()
    assert isinstance(said, Open)
    assert (said.container_id, said.max_frame_size, said.idle_time_out) == ("omq-test", MAX_FRAME, 60_000)
    assert peer.connection.frame_room() == 4096
    assert peer.connection.heartbeat_seconds == 4


def test_a_client_authenticates_and_opens() -> None:
    peer = Peer(replace(OFFER, needs_sasl=True))
    init = frame(SaslInit("ANONYMOUS", b"me"), kind=FrameType.SASL)
    events = peer.say(SASL_HEADER, init, HEADER, frame(Open("client")))
    assert events[0] == Authenticating("ANONYMOUS", b"me")
    assert peer.connection.stage is Stage.RUNNING
    octets = peer.connection.take()
    assert octets.startswith(SASL_HEADER)
    assert HEADER in octets


def test_a_client_with_wrong_credentials_is_told_so() -> None:
    peer = Peer()
    peer.say(SASL_HEADER, frame(SaslInit("PLAIN", b"\0a\0b"), kind=FrameType.SASL), HEADER)
    said = peer.heard()
    assert said == [SaslMechanisms(("ANONYMOUS", "PLAIN")), SaslOutcome(1)]
    assert peer.connection.stage is Stage.CLOSED
    assert peer.say(frame(Open("client"))) == []


@pytest.mark.parametrize(
    ("needs_sasl", "header", "answer"),
    [(True, HEADER, SASL_HEADER), (False, b"AMQP\x02\x01\x00\x00", HEADER), (False, b"GET / HT", HEADER)],
)
def test_another_header_is_answered_with_the_one_that_is_taken(
    needs_sasl: bool, header: bytes, answer: bytes
) -> None:
    peer = Peer(replace(OFFER, needs_sasl=needs_sasl))
    assert peer.say(header) == [Closed(None)]
    assert peer.connection.take() == answer


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (frame(Begin(None, 0, 1, 1)), Condition.ILLEGAL_STATE),
        (frame(SaslInit("PLAIN"), kind=FrameType.SASL), Condition.FRAMING_ERROR),
        (frame(Open("client", max_frame_size=511)), Condition.INVALID_FIELD),
        (frame(Open("c" * 600)), Condition.FRAMING_ERROR),
        (frame(Open("client")) + b"\x00\x00\x00\x07\x02\x00\x00\x00", Condition.FRAMING_ERROR),
        (frame(Open("client")) + b"\x00\x00\x00\x08\x01\x00\x00\x00", Condition.FRAMING_ERROR),
        (frame(Open("client")) + b"\x00\x00\x00\x08\x03\x00\x00\x00", Condition.FRAMING_ERROR),
        (frame(Open("client")) + b"\x00\x00\x00\x08\x02\x02\x00\x00", Condition.FRAMING_ERROR),
        (frame(Open("client")) + b"\x00\x01\x00\x01\x02\x00\x00\x00", Condition.FRAMING_ERROR),
        (frame(Open("client")) + frames.write(0, b"\x41"), Condition.DECODE_ERROR),
        (frame(Open("client")) + frame(Open("client")), Condition.ILLEGAL_STATE),
        (frame(Open("client")) + frame(Flow(0, 1, 0, 1)), Condition.ILLEGAL_STATE),
        (frame(Open("client")) + 2 * frame(Begin(None, 0, 1, 1)), Condition.ILLEGAL_STATE),
        (frame(Open("client")) + frame(Begin(0, 0, 1, 1)), Condition.NOT_ALLOWED),
        (frame(Open("client")) + frame(Begin(None, 0, 1, 1), channel=40000), Condition.NOT_ALLOWED),
        (frame(Open("client")) + frame(Accepted()), Condition.ILLEGAL_STATE),
    ],
)
def test_the_connection_ends_with_its_error(octets: bytes, expected: Condition) -> None:
    peer = Peer()
    events = peer.say(HEADER, octets)
    closed = events[-1]
    assert isinstance(closed, Closed)
    assert closed.problem is not None
    assert closed.problem.condition is expected
    said = peer.heard()
    assert isinstance(said[0], Open)
    assert condition(said) == expected.value
    # Later frames have no effect but the client's own close.
    assert peer.say(frame(Begin(None, 0, 1, 1))) == []
    assert peer.say(frame(Close())) == ([] if expected is Condition.FRAMING_ERROR else [Closed(None)])


def test_the_clients_close_may_come_together_with_the_frame_that_ends_the_connection(peer: Peer) -> None:
    broken, ignored = frames.write(0, b"\x41"), frame(Begin(None, 0, 1, 1))
    error = performatives.write(Error("amqp:x", "tired"))
    ended, failed, closed = peer.say(broken + ignored + frame(Close(error)) + ignored)
    assert ended == ConnectionEnded()
    assert isinstance(failed, Closed)
    assert failed.problem is not None
    assert closed == Closed(Error("amqp:x", "tired"))
    assert condition(peer.heard()) == Condition.DECODE_ERROR.value


def test_after_two_broken_frames_in_one_read_nothing_is_waited_for(peer: Peer) -> None:
    broken = frames.write(0, b"\x41")
    assert len(peer.say(broken + broken + frame(Close()))) == 2
    assert peer.connection.stage is Stage.CLOSED


def test_the_client_closes(peer: Peer) -> None:
    link = peer.attach_receiver()
    error = performatives.write(Error("amqp:x", "tired"))
    assert peer.say(frame(Close(error))) == [ConnectionEnded(), Closed(Error("amqp:x", "tired"))]
    assert not link.is_attached
    assert peer.heard() == [Close()]


def test_the_client_is_told_after_its_links_have_ended(peer: Peer) -> None:
    peer.attach_receiver()
    peer.heard()
    for event in peer.connection.feed(frame(End())):
        assert isinstance(event, SessionEnded)
        assert peer.heard() == []
    assert peer.heard() == [End()]
    for event in peer.connection.feed(frame(Close())):
        assert peer.heard() == ([] if isinstance(event, ConnectionEnded) else [Close()])


def test_the_server_closes(peer: Peer) -> None:
    link = peer.attach_receiver()
    problem = LinkProblem(Condition.CONNECTION_FORCED, "the server stops")
    closing = peer.connection.close(problem)
    assert not link.is_attached
    assert peer.heard() == []
    peer.connection.put(closing)
    assert condition(peer.heard()) == "amqp:connection:forced"
    assert peer.connection.close(problem) == b""
    assert peer.say(frame(End()), frame(Close())) == [Closed(None)]


def test_a_broken_connection_detaches_its_links(peer: Peer) -> None:
    link = peer.attach_receiver()
    peer.connection.lost()
    assert not link.is_attached


def test_heartbeats(peer: Peer) -> None:
    assert peer.say(frames.HEARTBEAT) == []
    assert peer.say(frames.HEARTBEAT * 1000) == [Pause()] * 3
    peer.connection.heartbeat()
    assert peer.connection.take() == frames.HEARTBEAT


@pytest.mark.parametrize(
    ("idle_time_out", "seconds"), [(None, None), (0, None), (1, 0.1), (200, 0.1), (300, 0.15)]
)
def test_how_often_a_client_wants_to_hear_something(idle_time_out: int | None, seconds: float | None) -> None:
    peer = Peer()
    peer.say(HEADER)
    assert peer.connection.heartbeat_seconds is None
    peer.say(frame(Open("client", idle_time_out=idle_time_out)))
    assert peer.connection.heartbeat_seconds == seconds


@given(st.lists(st.integers(1, 400), max_size=30), st.data())
def test_octets_may_arrive_in_any_portions(sizes: list[int], data: st.DataObject) -> None:
    said = HEADER + frame(Open("client")) + frame(Begin(None, 0, 100, 100))
    said += frame(Attach("s", 0, False, target=target(), initial_delivery_count=0))
    peer = Peer()
    seen: list[str] = []
    while said:
        size = data.draw(st.integers(1, len(said)))
        seen += [type(event).__name__ for event in peer.say(said[:size])]
        said = said[size:]
    assert seen == ["Opening", "Attaching"]


@given(st.lists(st.binary(max_size=50), max_size=6), st.booleans())
def test_any_octets_are_events_or_the_end(some: list[bytes], framed: bool) -> None:
    connection = AmqpConnection(OFFER)
    peer = Peer()
    peer.open()
    link = peer.attach_sender()
    for octets in some:
        list(connection.feed(octets))
        peer.say(frames.write(0, octets) if framed else octets)
    assert link.credit <= 100


def with_flows(peer: Peer, count: int) -> list[SendingLink]:
    """Attach links, and let the server tell the credit of each."""
    links = [peer.attach_receiver(handle, f"{handle}") for handle in range(count)]
    for link in links:
        link.drained()
    return links


def test_many_flows_leave_in_portions_and_transfers_that_waited_follow_them(peer: Peer) -> None:
    links = with_flows(peer, 2 * FLOWS_AT_ONCE + 1)
    links[0].session.outgoing.wait(links[0], frame(Transfer(0, more=True), b"x"))
    peer.say(frame(Flow(0, 9, 0, 1)))
    assert not peer.connection.may_flush
    first = peer.heard()
    assert len(first) == FLOWS_AT_ONCE
    assert peer.connection.output == (len(links) - FLOWS_AT_ONCE) * FLOW_OCTETS
    assert not peer.connection.may_flush
    second = peer.heard()
    assert peer.connection.may_flush
    assert peer.connection.output
    peer.connection.flush()
    *third, transfer = peer.heard()
    assert isinstance(transfer, Transfer)
    assert [said.handle for said in (*first, *second, *third) if isinstance(said, Flow)] == [
        *range(len(links))
    ]
    assert not peer.connection.output


def test_what_is_left_of_many_flows_is_freed_with_a_lost_connection(peer: Peer) -> None:
    with_flows(peer, 2 * FLOWS_AT_ONCE + 1)
    peer.heard()
    peer.connection.lost()
    assert len(list(peer.connection.free())) > FLOWS_AT_ONCE
    assert len(peer.heard()) == FLOWS_AT_ONCE + 1
