"""Messages on links of AMQP 1.0, in and out: credit, windows and outcomes."""

import time
from typing import Any

import pytest
from amqp_1_0_helpers import Peer, condition, frame
from measuring import untraced

from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.connection import (
    FLUSHED_OCTETS,
    FRAMES_IN_TURN,
)
from omq.protocol.amqp_1_0.events import (
    Aborted,
    Credit,
    CreditUsed,
    Detached,
    Event,
    Part,
    Pause,
    SettledByPeer,
    StoredRun,
    WindowOpened,
)
from omq.protocol.amqp_1_0.link import SendingLink
from omq.protocol.amqp_1_0.performatives import (
    Accepted,
    Disposition,
    Flow,
    Modified,
    Received,
    Released,
    Transfer,
)
from omq.protocol.amqp_1_0.session import WINDOW
from omq.protocol.amqp_1_0.transfers import Framing

ACCEPTED = performatives.write(Accepted())

RELEASED = performatives.write(Released())


def test_whole_messages_come_as_they_were_sent(peer: Peer) -> None:
    link = peer.attach_sender(credit=3)
    events = peer.say(
        frame(Transfer(1, 7, b"t", 0, True), b"one"), frame(Transfer(1, 8, b"t", 0, False), b"two")
    )
    assert events == [Part(link, 7, True, b"one", True, True), Part(link, 8, False, b"two", True, True)]
    assert (link.credit, link.delivery_count) == (1, 2)


def test_messages_that_are_alike_are_one_run(peer: Peer) -> None:
    peer.attach_sender(credit=3)
    alike = (frame(Transfer(1, n, b"t", 0, True), b"\0Su\xa0\1%d" % n) for n in range(3))
    (event,) = peer.say(*alike)
    assert isinstance(event, StoredRun)
    assert [bytes(body) for body in event.run.batch.bodies()] == [b"0", b"1", b"2"]


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


@untraced()
def test_a_run_that_is_refused_is_read_twice_at_most(peer: Peer) -> None:
    """Not once for each of its frames: the time would grow with the square of their number."""
    seconds = []
    peer.attach_sender(1, "a", credit=1)
    peer.say(frame(Transfer(1, 0, b"t", 0, True), b"x"), frame(Transfer(1, 1, b"t", 0, True), b"x"))
    ways: list[dict[str, Any]] = [{"rcv_settle_mode": 0}, {}]
    for fields in ways:  # the first ones do not have the form of a run
        octets = b"".join(
            frame(Transfer(1, 2 + n, b"t", 0, True, **fields), b"\0Su\xa0\0") for n in range(8000)
        )
        begin = time.process_time()
        assert [type(event) for event in peer.say(octets)] == [Pause] * (8000 // FRAMES_IN_TURN)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 3 * seconds[0]


@pytest.mark.parametrize("fields", [{"rcv_settle_mode": 0}, {}], ids=["one by one", "as a run"])
def test_more_transfers_than_the_window_end_the_session(peer: Peer, fields: dict[str, Any]) -> None:
    """The client knows a window when the flow has left that tells it, and not before."""
    peer.attach_sender(credit=1000)

    def transfers(first: int, count: int) -> bytes:
        ids = range(first, first + count)
        return b"".join(frame(Transfer(1, id, b"t", 0, True, **fields), b"\0Su\xa0\0") for id in ids)

    peer.say(transfers(0, WINDOW // 2))
    assert len(peer.heard()) == 1
    peer.say(transfers(WINDOW // 2, WINDOW))
    assert all(isinstance(said, Flow) for said in peer.heard())
    peer.say(transfers(WINDOW // 2 + WINDOW, WINDOW + 1))
    assert condition(peer.heard()) == "amqp:session:window-violation"


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
    assert peer.say(frame(Flow(0, 1, 0, 1, 1, 4, 0, echo=True))) == [CreditUsed(link)]
    assert (link.credit, link.delivery_count) == (6, 4)
    (flow,) = peer.heard()
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit) == (4, 6)


def send(peer: Peer, link: SendingLink, message: int, octets: bytes = b"x", *, settled: bool = False) -> None:
    """Send a message in one frame, as a terminal does."""
    session = link.session
    delivery = session.begin(link, range(message, message + 1), settled=settled)
    framing = Framing(session.channel, link.handle, 512)
    session.outgoing.transferred(1)
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
    assert isinstance(event, SettledByPeer)
    assert event.state == Modified(True)
    assert [(sent.link, list(sent.ids)) for sent in event.sent] == [(link, [11]), (link, [12])]
    assert peer.say(frame(told)) == []
    assert peer.heard() == []
    # Without `settled` the server settles, with the same state.
    (event,) = peer.say(frame(Disposition(True, 0, None, False, ACCEPTED)))
    assert peer.heard() == [Disposition(False, 0, None, True, ACCEPTED)]
    assert peer.say(frame(Disposition(True, 3, state=performatives.write(Received(0, 0))))) == []
    (event,) = peer.say(frame(Disposition(True, 3, settled=True)))
    assert isinstance(event, SettledByPeer)
    assert event.state is None


def test_a_client_that_settles_with_a_state_that_is_no_outcome_tells_none(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 1)
    send(peer, link, 10)
    state = performatives.write(Received(0, 0))
    (event,) = peer.say(frame(Disposition(True, 0, settled=True, state=state)))
    assert isinstance(event, SettledByPeer)
    assert (event.state, event.told) == (None, b"")
    assert link.session.unsettled == 0


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
    session.outgoing.begin_send()
    send(peer, link, 1)
    session.outgoing.wait(link, frame(Transfer(0, 1, b"t"), b"x"))
    assert peer.say(frame(Flow(1, 9, 0, 1))) == []
    assert [type(said) for said in peer.heard()] == [Transfer]
    session.outgoing.forget(link, 1)
    session.outgoing.wait(link, frame(Transfer(0, 1, b"u"), b"y"))
    assert session.outgoing.end_send() == ()
    assert peer.connection.flush() == (link,)
    assert peer.heard() == [Transfer(0, 1, b"u")]


def test_the_window_of_the_client(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5, window=1)
    send(peer, link, 1)
    assert link.session.outgoing.room == 0
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
        session.outgoing.transferred(1)
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
    assert not session.outgoing.may_transfer
    for number in range(3):
        session.outgoing.wait(link, frame(Transfer(0, number + 1, b"t"), b"%d" % number))
    session.outgoing.forget(link, 1)
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
        session.outgoing.wait(link, each)
    peer.heard()

    def may_flush() -> bool:
        return peer.connection.may_flush

    assert not may_flush()
    assert peer.say(frame(Flow(1, 9, 0, 1))) == []
    for left, opened, heard in ((2, (), 3), (0, (link,), 2)):
        assert may_flush()
        assert peer.connection.flush() == opened
        assert peer.connection.waiting == left * len(waiting[0])
        assert len(peer.heard()) == heard
    assert not may_flush()


def test_a_detached_link_has_nothing_unsettled(peer: Peer) -> None:
    link = peer.attach_receiver()
    give(peer, 5)
    send(peer, link, 1)
    link.detach(LinkProblem(Condition.RESOURCE_DELETED, "the topic was deleted"))
    assert peer.say(frame(Disposition(True, 0, state=ACCEPTED, settled=True))) == []
    assert give(peer, 5) == []
