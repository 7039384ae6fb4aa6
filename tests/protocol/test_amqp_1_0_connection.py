"""The server's side of AMQP 1.0, without a socket."""

import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp_1_0 import frames, performatives
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.connection import (
    FLUSHED_OCTETS,
    FRAMES_IN_TURN,
    HEADER,
    MAX_FRAME,
    SASL_HEADER,
    AmqpConnection,
    Stage,
)
from omq.protocol.amqp_1_0.events import (
    Aborted,
    Attaching,
    Authenticating,
    Closed,
    Credit,
    Detached,
    Event,
    Outcome,
    Part,
    Pause,
    WindowOpened,
)
from omq.protocol.amqp_1_0.frames import FrameType
from omq.protocol.amqp_1_0.link import SendingLink
from omq.protocol.amqp_1_0.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Performative,
    Received,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Transfer,
)
from omq.protocol.amqp_1_0.session import MOST_HANDLES, MOST_LINKS, WINDOW
from omq.protocol.amqp_1_0.transfers import Framing
from omq.protocol.amqp_1_0.types import write
from tests.protocol.amqp_1_0_helpers import OFFER, Peer, frame, source, target

ACCEPTED = performatives.write(Accepted())
RELEASED = performatives.write(Released())


@pytest.fixture
def peer() -> Peer:
    made = Peer()
    made.open()
    return made


def condition(said: list[Performative]) -> str:
    """Return the condition with which the only detach, end or close among these came."""
    errors = [one.error for one in said if isinstance(one, Detach | End | Close)]
    assert len(errors) == 1
    error = performatives.read_all(errors[0])
    assert isinstance(error, Error)
    return error.condition


# -- the beginning ------------------------------------------------------------------------------------------


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
    # What follows has no effect but the client's own close.
    assert peer.say(frame(Begin(None, 0, 1, 1))) == []
    assert peer.say(frame(Close())) == ([] if expected is Condition.FRAMING_ERROR else [Closed(None)])


def test_the_client_closes(peer: Peer) -> None:
    link = peer.attach_receiver()
    error = performatives.write(Error("amqp:x", "tired"))
    assert peer.say(frame(Close(error))) == [Detached(link, None), Closed(Error("amqp:x", "tired"))]
    assert peer.heard() == [Close()]


def test_the_server_closes(peer: Peer) -> None:
    link = peer.attach_receiver()
    problem = LinkProblem(Condition.CONNECTION_FORCED, "the server stops")
    assert list(peer.connection.close(problem)) == [Detached(link, None)]
    assert condition(peer.heard()) == "amqp:connection:forced"
    assert list(peer.connection.close(problem)) == []
    assert peer.say(frame(End()), frame(Close())) == [Closed(None)]


def test_a_broken_connection_detaches_its_links(peer: Peer) -> None:
    link = peer.attach_receiver()
    assert list(peer.connection.lost()) == [Detached(link, None)]
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


# -- sessions and links -------------------------------------------------------------------------------------


def test_a_session_ends_and_the_others_go_on(peer: Peer) -> None:
    other = peer.say(frame(Begin(None, 0, 9, 9), channel=7))
    assert other == []
    (begun,) = peer.heard()
    assert isinstance(begun, Begin)
    assert begun.remote_channel == 7
    link = peer.attach_receiver()
    assert peer.say(frame(Transfer(5, 0, b"t"))) == [Detached(link, None)]
    assert condition(peer.heard()) == "amqp:session:unattached-handle"
    assert peer.say(frame(Transfer(5, 0, b"t"))) == []  # it crossed the end
    assert peer.say(frame(End())) == []
    assert peer.heard() == []
    assert peer.say(frame(Flow(0, 1, 0, 1, echo=True), channel=7)) == []
    assert isinstance(peer.heard()[0], Flow)
    assert peer.say(frame(Begin(None, 0, 9, 9))) == []  # the channel can be used again
    assert isinstance(peer.heard()[0], Begin)


def test_the_client_ends_a_session(peer: Peer) -> None:
    link = peer.attach_receiver()
    assert peer.say(frame(End())) == [Detached(link, None)]
    assert peer.heard() == [End()]


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (frame(Attach("n", 0, True, source=source())), Condition.HANDLE_IN_USE),
        (frame(Attach("n", MOST_HANDLES, True, source=source())), Condition.NOT_ALLOWED),
        (frame(Attach("n", 5, False, target=target())), Condition.INVALID_FIELD),
        (frame(Detach(9)), Condition.UNATTACHED_HANDLE),
        (frame(Flow(0, 1, 0, 1, 9)), Condition.UNATTACHED_HANDLE),
        (frame(Transfer(0, 0, b"t")), Condition.NOT_ALLOWED),
        (frame(Transfer(1, None, b"t")), Condition.INVALID_FIELD),
        (frame(Transfer(1, 5, b"t")) + frame(Transfer(1, 5, b"t")), Condition.NOT_ALLOWED),
        (frame(Transfer(1, 5, b"t")) + frame(Transfer(1, 4, b"t")), Condition.NOT_ALLOWED),
        (frame(Transfer(1, 5, b"t", more=True)) + frame(Transfer(1, 6, b"t")), Condition.NOT_ALLOWED),
        (frame(Disposition(True, 0, state=source())), Condition.INVALID_FIELD),
    ],
)
def test_the_session_ends_with_its_error(peer: Peer, octets: bytes, expected: Condition) -> None:
    receiver, sender = peer.attach_receiver(0), peer.attach_sender(1)
    events = peer.say(octets)
    assert [event for event in events if isinstance(event, Detached)] == [
        Detached(receiver, None), Detached(sender, None)
    ]  # fmt: skip
    assert condition(peer.heard()) == expected.value
    assert peer.connection.stage is Stage.RUNNING


def test_attaches_are_answered(peer: Peer) -> None:
    said = Attach(
        "n", 3, True, 2, 1, source(), target(), desired_capabilities=("x",), properties=b"\xc1\x01\x00"
    )
    (event,) = peer.say(frame(said))
    assert isinstance(event, Attaching)
    link = event.link
    assert isinstance(link, SendingLink)
    assert isinstance(link.source, Source)
    link.accept(said.source, settles=False)
    assert peer.heard() == [
        Attach("n", 0, False, 2, 0, source(), target(), initial_delivery_count=0)
    ]  # fmt: skip
    assert peer.say(frame(Detach(3, closed=True))) == [Detached(link, None)]
    assert peer.heard() == [Detach(0, closed=True)]


def test_a_refused_link_is_attached_without_its_terminus_and_detached(peer: Peer) -> None:
    for role, count in ((True, None), (False, 0)):
        said = Attach("n", 3, role, source=source(), target=target(), initial_delivery_count=count)
        (event,) = peer.say(frame(said))
        assert isinstance(event, Attaching)
        event.link.refuse(LinkProblem(Condition.NOT_FOUND, "there is no such topic"))
        attach, detach = peer.heard()
        assert isinstance(attach, Attach)
        assert (attach.source if role else attach.target) == b"\x40"
        assert condition([detach]) == "amqp:not-found"
        assert peer.say(frame(Detach(3, closed=True))) == []
        assert peer.heard() == []


def test_the_lowest_free_handle_is_used(peer: Peer) -> None:
    links = [peer.attach_receiver(handle, f"{handle}") for handle in range(4)]
    assert [link.handle for link in links] == [0, 1, 2, 3]
    peer.say(frame(Detach(2, closed=True)), frame(Detach(1, closed=True)))
    assert [peer.attach_receiver(handle, f"{handle}").handle for handle in (9, 8, 7)] == [1, 2, 4]


def test_the_links_of_a_connection_are_limited(peer: Peer) -> None:
    sessions = MOST_LINKS // MOST_HANDLES
    for channel in range(1, sessions + 1):
        peer.say(frame(Begin(None, 0, 9, 9), channel=channel))
        for handle in range(MOST_HANDLES):
            peer.say(frame(Attach(f"{channel} {handle}", handle, True, source=source()), channel=channel))
    assert peer.heard()
    assert peer.say(frame(Attach("one more", 0, True, source=source()))) == []
    attach, detach = peer.heard()
    assert isinstance(attach, Attach)
    assert condition([detach]) == "amqp:resource-limit-exceeded"
    # Those that are refused count, too, until the client detaches them.
    for handle in range(1, MOST_HANDLES):
        peer.say(frame(Attach(f"more {handle}", handle, True, source=source())))
    peer.heard()
    peer.say(frame(Begin(None, 0, 9, 9), channel=99))
    assert peer.say(frame(Attach("too many", 0, True, source=source()), channel=99)) == []
    assert condition([peer.heard()[1]]) == "amqp:resource-limit-exceeded"
    peer.say(frame(Detach(0, closed=True)), frame(Detach(1, closed=True)))
    peer.heard()
    assert peer.say(frame(Attach("one more", 0, True, source=source()))) == []
    assert len(peer.heard()) == 2
    peer.say(frame(End(), channel=1))
    peer.heard()
    assert len(peer.say(frame(Attach("a last one", 1, True, source=source())))) == 1


def test_a_refused_link_keeps_no_data_of_the_client(peer: Peer) -> None:
    long = source(write("x" * 30_000))

    def refuse(handle: int) -> None:
        (event,) = peer.say(frame(Attach("n" * 20_000 + f"{handle}", handle, True, source=long)))
        assert isinstance(event, Attaching)
        event.link.refuse(LinkProblem(Condition.NOT_FOUND, "there is no such topic"))
        peer.heard()

    refuse(0)
    tracemalloc.start()
    try:
        for handle in range(1, 100):
            refuse(handle)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("terminus", "expected"),
    [
        (b"\x00\x53\x28\xc0\x03\x02\x40\x41", "amqp:decode-error"),
        (performatives.write(Accepted()), "amqp:invalid-field"),
        (target(), "amqp:invalid-field"),
    ],
)
def test_a_malformed_terminus_is_refused(peer: Peer, terminus: bytes, expected: str) -> None:
    assert peer.say(frame(Attach("n", 0, True, source=terminus))) == []
    attach, detach = peer.heard()
    assert isinstance(attach, Attach)
    assert condition([detach]) == expected


def test_a_link_is_stolen_by_one_of_the_same_name(peer: Peer) -> None:
    first = peer.attach_receiver(0, "n")
    events = peer.say(frame(Attach("n", 1, True, source=source())))
    assert events[0] == Detached(first, None)
    assert isinstance(events[1], Attaching)
    assert condition(peer.heard()[:1]) == "amqp:link:stolen"
    # The other direction has names of its own.
    assert isinstance(peer.say(frame(Attach("n", 2, False, initial_delivery_count=0)))[0], Attaching)


# -- messages in --------------------------------------------------------------------------------------------


def test_whole_messages_come_as_they_were_sent(peer: Peer) -> None:
    link = peer.attach_sender(credit=3)
    events = peer.say(
        frame(Transfer(1, 7, b"t", 0, True), b"one"), frame(Transfer(1, 8, b"t", 0, False), b"two")
    )
    assert events == [Part(link, 7, True, b"one", True, True), Part(link, 8, False, b"two", True, True)]
    assert (link.credit, link.delivery_count) == (1, 2)


def test_messages_of_several_frames_come_in_parts(peer: Peer) -> None:
    link, other = peer.attach_sender(1, "a"), peer.attach_sender(2, "b")
    events = peer.say(
        frame(Transfer(1, 0, b"t", more=True), b"1"),
        frame(Transfer(2, 1, b"t"), b"small"),
        frame(Transfer(1, more=True), b"2"),
        frame(Transfer(1, 0, settled=True), b"3"),
        frame(Transfer(2, 2, b"t", more=True), b"4"),
        frame(Transfer(2, aborted=True)),
        frame(Transfer(2, 3, b"t", aborted=True)),
        frame(Transfer(2, 4, b"t"), b"5"),
    )
    assert events == [
        Part(link, 0, False, b"1", True, False),
        Part(other, 1, False, b"small", True, True),
        Part(link, 0, False, b"2", False, False),
        Part(link, 0, True, b"3", False, True),
        Part(other, 2, False, b"4", True, False),
        Aborted(other),
        Aborted(other),
        Part(other, 4, False, b"5", True, True),
    ]
    assert (link.credit, other.credit) == (99, 96)


def test_a_run_that_is_refused_is_read_twice_at_most(peer: Peer) -> None:
    """Not once for each of its frames: the time would grow with the square of their number."""
    seconds = []
    peer.attach_sender(1, "a", credit=1)
    peer.say(frame(Transfer(1, 0, b"t", 0, True), b"x"), frame(Transfer(1, 1, b"t", 0, True), b"x"))
    for fields in ({"rcv_settle_mode": 0}, {}):  # the first ones do not have the form of a run
        octets = b"".join(
            frame(Transfer(1, 2 + n, b"t", 0, True, **fields), b"\0Su\xa0\0") for n in range(8000)
        )
        begin = time.process_time()
        assert [type(event) for event in peer.say(octets)] == [Pause] * (8000 // FRAMES_IN_TURN)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 3 * seconds[0]


def test_more_messages_than_credit_detach_the_link(peer: Peer) -> None:
    link, other = peer.attach_sender(1, "a", credit=1), peer.attach_sender(2, "b")
    events = peer.say(
        frame(Transfer(1, 0, b"t"), b"1"), frame(Transfer(1, 1, b"t"), b"2"),
        frame(Transfer(1, 2, b"t"), b"3"),
        frame(Transfer(2, 3, b"t"), b"4"),
    )  # fmt: skip
    assert events == [
        Part(link, 0, False, b"1", True, True), Detached(link, None), Part(other, 3, False, b"4", True, True)
    ]  # fmt: skip
    assert condition(peer.heard()) == "amqp:link:transfer-limit-exceeded"


def test_the_window_is_renewed_at_half(peer: Peer) -> None:
    peer.attach_sender(credit=1000)
    for count in range(WINDOW // 2 - 1):
        peer.say(frame(Transfer(1, count, b"t"), b"x"))
    assert peer.heard() == []
    peer.say(frame(Transfer(1, 100, b"t"), b"x"))
    (flow,) = peer.heard()
    assert isinstance(flow, Flow)
    assert (flow.next_incoming_id, flow.incoming_window, flow.handle) == (WINDOW // 2, WINDOW, None)


def test_outcomes_of_the_server(peer: Peer) -> None:
    link = peer.attach_sender()
    session = link.session
    session.settle(3, 5, ACCEPTED)
    session.settle(6, 6, RELEASED)
    assert peer.heard() == [
        Disposition(True, 3, 5, True, ACCEPTED), Disposition(True, 6, None, True, RELEASED)
    ]  # fmt: skip
    assert peer.say(frame(Disposition(False, 3, 5, True))) == []


def test_a_sender_that_skips_credit_says_so(peer: Peer) -> None:
    link = peer.attach_sender(credit=10)
    assert peer.say(frame(Flow(0, 1, 0, 1, 1, 4, 0, echo=True))) == []
    assert (link.credit, link.delivery_count) == (6, 4)
    (flow,) = peer.heard()
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (4, 6)


# -- messages out -------------------------------------------------------------------------------------------


def send(peer: Peer, link: SendingLink, message: int, octets: bytes = b"x", *, settled: bool = False) -> None:
    """Send a message in one frame, as a terminal does."""
    session = link.session
    delivery = session.begin(link, range(message, message + 1), settled=settled)
    framing = Framing(session.channel, link.handle, 512)
    session.transferred(1)
    opening = framing.opening(delivery, message, len(octets), settled=settled, more=False)
    peer.connection.put(opening + octets)


def give(peer: Peer, credit: int, count: int = 0, *, drain: bool = False, window: int = 100) -> list[Event]:
    return peer.say(frame(Flow(0, window, 0, 1, 0, count, credit, drain=drain)))


def test_messages_are_sent_and_settled(peer: Peer) -> None:
    link = peer.attach_receiver()
    assert give(peer, 5) == [Credit(link)]
    for message in (10, 11, 12, 13):
        send(peer, link, message)
    assert (link.credit, link.delivery_count) == (1, 4)
    assert peer.heard()[1] == Transfer(0, 1, b"11", 0, False, False)
    assert peer.payloads == [b"x"] * 4
    told = Disposition(True, 1, 2, True, performatives.write(Modified(True)))
    (event,) = peer.say(frame(told))
    assert isinstance(event, Outcome)
    assert event.state == Modified(True)
    assert [(sent.link, list(sent.ids)) for sent in event.sent] == [(link, [11]), (link, [12])]
    assert peer.say(frame(told)) == []
    assert peer.heard() == []
    # Without `settled` the server settles, with the same state.
    (event,) = peer.say(frame(Disposition(True, 0, None, False, ACCEPTED)))
    assert peer.heard() == [Disposition(False, 0, None, True, ACCEPTED)]
    assert peer.say(frame(Disposition(True, 3, state=performatives.write(Received(0, 0))))) == []
    (event,) = peer.say(frame(Disposition(True, 3, settled=True)))
    assert isinstance(event, Outcome)
    assert event.state is None


def test_credit_is_counted_from_the_deliveries_the_client_has_seen(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5)
    send(peer, link, 1)
    send(peer, link, 2)
    give(peer, 5, count=1)  # it had seen one of the two
    assert link.credit == 4
    give(peer, 0, count=1)
    assert link.credit == 0


def test_a_drained_link_gives_its_credit_back(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5, drain=True)
    assert link.drain
    send(peer, link, 1)
    link.drained()
    _, flow = peer.heard()
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit, flow.drain) == (0, 5, 0, True)
    assert flow.available == 0


def test_waiting_transfers_stay_during_a_send(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5, window=1)
    session = link.session
    session.begin_send()
    send(peer, link, 1)
    session.wait(link, frame(Transfer(0, 1, b"t"), b"x"))
    assert peer.say(frame(Flow(1, 9, 0, 1))) == []
    assert [type(said) for said in peer.heard()] == [Transfer]
    session.forget(link, 1)
    session.wait(link, frame(Transfer(0, 1, b"u"), b"y"))
    assert session.end_send() == ()
    assert peer.connection.flush() == (link,)
    assert peer.heard() == [Transfer(0, 1, b"u")]


def test_the_window_of_the_client(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5, window=1)
    send(peer, link, 1)
    assert link.session.window == 0
    assert peer.say(frame(Flow(0, 1, 0, 1))) == []  # it has not received the transfer yet
    assert peer.say(frame(Flow(1, 1, 0, 1))) == [WindowOpened((link,))]


def test_messages_in_parts(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5)
    session = link.session
    framing = Framing(session.channel, link.handle, 512)
    first = session.begin(link, range(1, 2), settled=False)
    second = session.begin(link, range(2, 3), settled=True)
    for octets in (
        framing.opening(first, 1, 1, settled=False, more=True) + b"a",
        framing.continuation(1, more=True) + b"b",
        framing.continuation(1, more=False) + b"c",
        framing.opening(second, 2, 1, settled=True, more=True) + b"d",
    ):
        session.transferred(1)
        peer.connection.put(octets)
    assert peer.heard() == [
        Transfer(0, 0, b"1", 0, False, True), Transfer(0, more=True), Transfer(0),
        Transfer(0, 1, b"2", 0, True, True),
    ]  # fmt: skip
    assert peer.payloads == [b"a", b"b", b"c", b"d"]
    assert session.unsettled == 1


def test_unsent_deliveries_are_taken_back(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5)
    session = link.session
    send(peer, link, 1)
    session.begin(link, range(2, 5), settled=False)
    session.take_back(link, 3)
    assert (link.credit, link.delivery_count, session.unsettled, session.next_delivery) == (4, 1, 1, 1)
    send(peer, link, 2)
    assert [said.delivery_id for said in peer.heard() if isinstance(said, Transfer)] == [0, 1]


def test_messages_are_taken_back_after_the_client_lowers_its_credit(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5)
    session = link.session
    session.begin(link, range(1, 6), settled=False)
    give(peer, 2, count=1)  # three messages in all: two of these five are too many
    assert link.credit == 0
    session.take_back(link, 4)
    assert (link.credit, link.delivery_count) == (2, 1)


def test_frames_wait_for_the_window(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5, window=1)
    session = link.session
    send(peer, link, 1)
    assert not session.may_transfer
    for number in range(3):
        session.wait(link, frame(Transfer(0, number + 1, b"t"), b"%d" % number))
    session.forget(link, 1)
    peer.heard()
    assert peer.say(frame(Flow(1, 1, 0, 1))) == []
    assert peer.connection.flush() == ()
    assert peer.heard() == [Transfer(0, 1, b"t")]
    assert peer.say(frame(Flow(2, 9, 0, 1))) == []
    assert peer.connection.flush() == (link,)
    assert peer.heard() == [Transfer(0, 2, b"t")]


def test_frames_that_waited_leave_in_portions(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5, window=1)
    session = link.session
    send(peer, link, 1)
    waiting = [frame(Transfer(0, more=True), bytes(FLUSHED_OCTETS // 2 - 100)) for _ in range(5)]
    for each in waiting:
        session.wait(link, each)
    peer.heard()
    assert not peer.connection.may_flush
    assert peer.say(frame(Flow(1, 9, 0, 1))) == []
    for left, opened, heard in ((2, (), 3), (0, (link,), 2)):
        assert peer.connection.may_flush
        assert peer.connection.flush() == opened
        assert peer.connection.waiting == left * len(waiting[0])
        assert len(peer.heard()) == heard
    assert not peer.connection.may_flush


def test_a_detached_link_has_nothing_unsettled(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5)
    send(peer, link, 1)
    link.detach(LinkProblem(Condition.RESOURCE_DELETED, "the topic was deleted"))
    assert peer.say(frame(Disposition(True, 0, state=ACCEPTED, settled=True))) == []
    assert give(peer, 5) == []


# -- anything -----------------------------------------------------------------------------------------------


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
