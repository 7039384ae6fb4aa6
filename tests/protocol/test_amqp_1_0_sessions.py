"""Sessions of AMQP 1.0: what they count, what waits for their windows, and which links may go on."""

from dataclasses import replace

import pytest
from amqp_1_0_helpers import Peer, condition, frame, source

from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.connection import HEADER, Stage
from omq.protocol.amqp_1_0.encoding import write
from omq.protocol.amqp_1_0.events import (
    Aborted,
    Attaching,
    Closed,
    ConnectionEnded,
    Credit,
    CreditUsed,
    Detached,
    Event,
    Opening,
    Part,
    Pause,
    SessionEnded,
    SettledByPeer,
    StoredRun,
    WindowOpened,
)
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
    Open,
    Transfer,
)
from omq.protocol.amqp_1_0.unsettled import RUNS_A_STEP

DATA = b"\0Su\xa0\1x"
ACCEPTED = performatives.write(Accepted())


def waiting(peer: Peer, link: SendingLink, size: int = 100, channel: int = 0) -> bytes:
    """Let a transfer wait for the window, and return its octets."""
    octets = frame(Transfer(0, more=True), b"x" * size, channel=channel)
    link.session.outgoing.wait(link, octets)
    return octets


def credit(peer: Peer, credit: int, window: int, handle: int = 0, *, channel: int = 0) -> list[Event]:
    return peer.say(frame(Flow(0, window, 0, 1, handle, 0, credit), channel=channel))


def test_a_window_is_never_negative(peer: Peer) -> None:
    link = peer.attach_receiver()
    credit(peer, 9, 1)
    link.session.outgoing.transferred(2)
    assert link.session.outgoing.room == 0
    peer.say(frame(Flow(None, 3, 0, 1)))  # the client has received none of them
    assert link.session.outgoing.room == 1
    assert link.session.outgoing.may_transfer
    peer.say(frame(Flow(1, 3, 0, 1)))
    assert link.session.outgoing.room == 2
    waiting(peer, link)
    assert link.session.outgoing.room == 0


def test_a_link_states_its_credit_behind_what_waits(peer: Peer) -> None:
    link = peer.attach_receiver()
    credit(peer, 5, 0)
    octets = waiting(peer, link)
    link.drained()
    assert peer.heard() == []
    assert peer.connection.waiting == len(octets)
    assert peer.say(frame(Flow(0, 1, 0, 1))) == []
    assert peer.connection.may_flush
    assert peer.connection.flush() == ()  # the window is used up
    transfer, flow = peer.heard()
    assert isinstance(transfer, Transfer)
    assert isinstance(flow, Flow)
    assert (flow.next_outgoing_id, flow.delivery_count, flow.link_credit) == (1, 5, 0)
    assert peer.connection.waiting == 0


def test_a_credit_that_waits_alone_needs_no_window(peer: Peer) -> None:
    link, other = peer.attach_receiver(), peer.attach_receiver(1, "other")
    credit(peer, 5, 0)
    waiting(peer, link)
    link.session.outgoing.tell(link)
    link.session.outgoing.tell(other)
    peer.say(frame(Flow(0, 1, 0, 1)))
    peer.connection.flush()
    assert [type(said) for said in peer.heard()] == [Transfer, Flow, Flow]


def test_portions_end_at_exactly_256_kib(peer: Peer) -> None:
    link = peer.attach_receiver()
    credit(peer, 5, 0)
    for _ in range(3):
        octets = waiting(peer, link, (128 << 10) - len(frame(Transfer(0, more=True))))
        assert len(octets) == 128 << 10
    peer.say(frame(Flow(0, 9, 0, 1)))
    assert peer.connection.flush() == ()
    assert len(peer.heard()) == 2
    assert peer.connection.may_flush
    assert peer.connection.flush() == (link,)
    assert len(peer.heard()) == 1
    assert not peer.connection.may_flush


def test_a_portion_of_one_octet_more_ends_it(peer: Peer) -> None:
    link = peer.attach_receiver()
    credit(peer, 5, 0)
    empty = len(frame(Transfer(0, more=True)))
    for size in ((256 << 10) - empty - 1, 10, 10):
        waiting(peer, link, size)
    peer.say(frame(Flow(0, 9, 0, 1)))
    assert peer.connection.flush() == ()
    assert len(peer.heard()) == 2


def test_what_waits_is_dropped_with_its_link(peer: Peer) -> None:
    first, second = peer.attach_receiver(0, "a"), peer.attach_receiver(1, "b")
    credit(peer, 5, 0)
    credit(peer, 5, 0, 1)
    octets = waiting(peer, first)
    waiting(peer, second)
    session = second.session
    session.outgoing.begin_send()
    second.detach(LinkProblem(Condition.RESOURCE_DELETED, "the topic was deleted"))
    assert peer.connection.waiting == len(octets)
    peer.say(frame(Flow(0, 9, 0, 1)))
    assert session.outgoing.end_send() == ()
    assert first in peer.connection.flush()
    assert peer.connection.waiting == 0
    peer.heard()
    session.outgoing.forget(second, 3)  # nothing is left of it
    waiting(peer, second)
    assert peer.connection.waiting == 0


def test_links_go_on_when_all_that_waited_was_dropped_during_a_send(peer: Peer) -> None:
    first, second = peer.attach_receiver(0, "a"), peer.attach_receiver(1, "b")
    credit(peer, 5, 3)
    waiting(peer, first)
    session = first.session
    session.outgoing.begin_send()
    assert not session.outgoing.may_transfer
    first.detach()
    assert peer.connection.waiting == 0
    assert peer.connection.flush() == ()
    session.outgoing.end_send()
    assert peer.connection.may_flush
    assert second in peer.connection.flush()
    assert not peer.connection.may_flush


@pytest.mark.parametrize("how", ["end", "lost"])
def test_a_session_with_many_unsettled_deliveries_is_freed_in_steps(peer: Peer, how: str) -> None:
    link = peer.attach_receiver()
    count = 5 * RUNS_A_STEP
    for number in range(count):  # each is a run of its own, as of messages that come in no order
        link.session.begin(link, range(2 * number, 2 * number + 1), settled=False)
    left = []
    if how == "end":
        for event in peer.connection.feed(frame(End())):
            left.append(link.session.unsettled)
            assert isinstance(event, (Pause, SessionEnded))
    else:
        peer.connection.lost()
        left += [link.session.unsettled for _ in peer.connection.free()]
    assert list(dict.fromkeys(left)) == [4 * RUNS_A_STEP, 3 * RUNS_A_STEP, 2 * RUNS_A_STEP, RUNS_A_STEP, 0]


@pytest.mark.parametrize("settled", [True, False])
def test_many_unsettled_deliveries_are_settled_in_steps(peer: Peer, settled: bool) -> None:
    link = peer.attach_receiver()
    count = 3 * RUNS_A_STEP
    for number in range(count):
        link.session.begin(link, range(2 * number, 2 * number + 1), settled=False)
    ids: list[int] = []
    left = []
    for event in peer.connection.feed(frame(Disposition(True, 1, count + 7, settled, ACCEPTED))):
        assert isinstance(event, SettledByPeer)
        ids += [id for sent in event.sent for id in sent.ids]
        left.append(link.session.unsettled)
    assert ids == [*range(2, 2 * count, 2)]
    assert left == [2 * RUNS_A_STEP, RUNS_A_STEP, 1]
    answer = Disposition(False, 1, count + 7, True, ACCEPTED)
    assert peer.heard() == ([] if settled else [answer])


def test_a_session_that_ends_drops_what_waits(peer: Peer) -> None:
    link = peer.attach_receiver()
    credit(peer, 5, 0)
    waiting(peer, link)
    assert peer.say(frame(End())) == [SessionEnded((link,), None)]
    assert peer.connection.waiting == 0
    assert peer.connection.handles == 0
    assert not peer.connection.may_flush


def receivers_of_two_sessions(peer: Peer) -> tuple[SendingLink, SendingLink]:
    """Begin a second session on channel 7, and attach a receiver with credit to each session. Only the second
    session has a window, of two transfers.
    """
    peer.say(frame(Begin(None, 0, 9, 9), channel=7))
    peer.heard()
    first = peer.attach_receiver(0, "a")
    (event,) = peer.say(frame(Attach("b", 0, True, source=source()), channel=7))
    assert isinstance(event, Attaching)
    second = event.link
    assert isinstance(second, SendingLink)
    second.accept(second.attach.source, settles=False)
    credit(peer, 5, 0)
    credit(peer, 5, 2, channel=7)
    return first, second


def test_a_long_message_begins_while_nothing_waits_on_the_connection(peer: Peer) -> None:
    first, second = receivers_of_two_sessions(peer)
    assert second.session.outgoing.may_begin(3)  # longer than the window, and nothing waits
    waiting(peer, first)
    assert second.session.outgoing.may_begin(2)
    assert not second.session.outgoing.may_begin(3)
    assert not second.session.outgoing.may_transfer
    assert second.session.outgoing.unblocked() == ()
    peer.say(frame(Flow(0, 1, 0, 1)))
    assert set(peer.connection.flush()) == {first, second} or second.session.outgoing.may_transfer
    assert second.session.outgoing.may_begin(3)


def test_a_flow_lets_a_blocked_session_go_on(peer: Peer) -> None:
    first, second = receivers_of_two_sessions(peer)
    waiting(peer, first)
    assert not second.session.outgoing.may_begin(3)
    assert peer.say(frame(Flow(0, 3, 0, 1), channel=7)) == [WindowOpened((second,))]
    assert second.session.outgoing.may_begin(3)
    # The end of the other session drops its transfer: that unblocks, too.
    assert not second.session.outgoing.may_begin(4)
    events = peer.say(frame(End()))
    assert events == [SessionEnded((first,), None), WindowOpened((second,))]


def test_a_flow_with_an_echo_is_answered(peer: Peer) -> None:
    link = peer.attach_receiver()
    events = peer.say(frame(Flow(0, 5, 0, 1, 0, 0, 3, echo=True)))
    assert events == [Credit(link)]
    assert peer.heard() == [Flow(0, 64, 0, 2**31 - 1, 0, 0, 3, 0)]
    assert peer.say(frame(Flow(0, 5, 0, 1, 0, 0, 3, drain=True, echo=True))) == [Credit(link)]
    assert peer.heard() == []  # the end of the drain answers it
    assert peer.say(frame(Flow(0, 5, 0, 1, 0, 0, 3))) == [Credit(link)]
    assert peer.heard() == []
    assert peer.say(frame(Flow(0, 5, 0, 1, 0, None, None))) == [Credit(link)]
    assert link.credit == 0
    assert peer.say(frame(Flow(0, 5, 0, 1))) == []
    assert peer.heard() == []


def test_a_flow_is_written_when_it_leaves(peer: Peer) -> None:
    """The transfers that are sent before it count, also if it was asked for earlier."""
    link = peer.attach_receiver()
    peer.say(frame(Flow(0, 5, 0, 1, 0, 0, 3, echo=True)), frame(Flow(0, 5, 0, 1, echo=True)))
    link.session.begin(link, range(1, 3), settled=True)
    link.session.outgoing.transferred(2)
    assert peer.heard() == [Flow(0, 64, 2, 2**31 - 1, 0, 2, 1, 0), Flow(0, 64, 2, 2**31 - 1)]


def test_a_flow_does_not_count_transfers_that_leave_with_it_and_after_it(peer: Peer) -> None:
    link = peer.attach_receiver()
    peer.say(frame(Flow(0, 0, 0, 1, 0, 0, 3)))
    link.session.outgoing.wait(link, frame(Transfer(0, more=False)))
    peer.say(frame(Flow(0, 5, 0, 1, echo=True)))
    peer.connection.flush()
    flow, transfer = peer.heard()
    assert flow == Flow(0, 64, 0, 2**31 - 1)
    assert isinstance(transfer, Transfer)


@pytest.mark.parametrize(
    ("count", "left"), [(0, (10, 0)), (10, (0, 10)), (11, (10, 0)), (2**32 - 1, (10, 0))]
)
def test_a_sender_skips_no_more_credit_than_it_has(peer: Peer, count: int, left: tuple[int, int]) -> None:
    link = peer.attach_sender(credit=10)
    used = [CreditUsed(link)] if left == (0, 10) else []
    assert peer.say(frame(Flow(0, 1, 0, 1, 1, count, 0))) == used
    assert (link.credit, link.delivery_count) == left
    assert peer.heard() == []


def test_a_sender_skips_credit_within_a_message(peer: Peer) -> None:
    """Its count may have this message already, or not yet."""
    link = peer.attach_sender(credit=10)
    peer.say(frame(Transfer(1, 0, b"t", more=True), b"x"))
    assert peer.say(frame(Flow(0, 1, 0, 1, 1, 0, 0)), frame(Flow(0, 1, 0, 1, 1, None, 0))) == []
    assert (link.credit, link.delivery_count) == (9, 1)
    assert peer.say(frame(Flow(0, 1, 0, 1, 1, 4, 0))) == [CreditUsed(link)]
    assert (link.credit, link.delivery_count) == (6, 4)


@pytest.mark.parametrize("fields", [{}, {"rcv_settle_mode": 0}], ids=["as a run", "one by one"])
@pytest.mark.parametrize(("again", "expected"), [(4, None), (3, "amqp:not-allowed"), (2, "amqp:not-allowed")])
def test_delivery_ids_increase(peer: Peer, fields: dict[str, int], again: int, expected: str | None) -> None:
    peer.attach_sender(credit=10)

    def sent(*ids: int) -> bytes:
        made = [replace(Transfer(1, id, b"t", 0, True), **fields) for id in ids]
        return b"".join(frame(each, DATA) for each in made)

    events = peer.say(sent(2, 3))
    assert {type(event) for event in events} == ({Part} if fields else {StoredRun})
    peer.say(sent(again))
    said = peer.heard()
    assert said == [] if expected is None else condition(said) == expected


def test_a_run_takes_all_credit_and_no_more(peer: Peer) -> None:
    link = peer.attach_sender(credit=3)
    run = b"".join(frame(Transfer(1, id, b"t", 0, True), DATA) for id in range(3))
    (event,) = peer.say(run)
    assert isinstance(event, StoredRun)
    assert (link.credit, link.delivery_count) == (0, 3)
    events = peer.say(frame(Transfer(1, 3, b"t", 0, True), DATA))
    assert events == [Detached(link, None)]
    assert condition(peer.heard()) == "amqp:link:transfer-limit-exceeded"


@pytest.mark.parametrize(("size", "kind"), [(1000, StoredRun), (1001, Part)])
def test_a_run_has_no_message_above_the_limit(peer: Peer, size: int, kind: type) -> None:
    peer.attach_sender()
    octets = b"\0Su\xb0" + (size - 8).to_bytes(4, "big") + bytes(size - 8)
    assert [type(event) for event in peer.say(frame(Transfer(1, 0, b"t", 0, True), octets))] == [kind]


def test_a_run_within_a_message_is_refused(peer: Peer) -> None:
    peer.attach_sender()
    peer.say(frame(Transfer(1, 0, b"t", more=True), b"x"))
    peer.say(frame(Transfer(1, 1, b"t", 0, True), DATA))
    assert condition(peer.heard()) == "amqp:not-allowed"


@pytest.mark.parametrize("size", [1, 64])
def test_a_run_fills_the_window(peer: Peer, size: int) -> None:
    peer.attach_sender()
    run = b"".join(frame(Transfer(1, id, b"t", 0, True), DATA) for id in range(size))
    (event,) = peer.say(run)
    assert isinstance(event, StoredRun)
    said = peer.heard()
    assert said == ([] if size == 1 else [Flow(64, 64, 0, 2**31 - 1)])


def test_transfers_on_a_detached_link_count_for_the_session(peer: Peer) -> None:
    link = peer.attach_sender(1, "a")
    peer.attach_sender(2, "b")
    link.detach()
    peer.heard()
    assert peer.say(frame(Transfer(1, 5, b"t"), b"x"), frame(Transfer(1, None, b"t"), b"x")) == []
    peer.say(frame(Transfer(2, 5, b"t"), b"x"))
    assert condition(peer.heard()) == "amqp:not-allowed"


def test_a_delivery_that_was_settled_once_is_settled(peer: Peer) -> None:
    link = peer.attach_sender()
    events = peer.say(
        frame(Transfer(1, 0, b"t", settled=True, more=True), b"1"),
        frame(Transfer(1, more=True), b"2"),
        frame(Transfer(1, settled=False), b"3"),
        frame(Transfer(1, 1, b"t"), b"4"),
        frame(Transfer(1, 2, b"t", more=True), b"5"),
        frame(Transfer(1, more=True, aborted=True), b"6"),
        frame(Transfer(1, 3, b"t"), b"7"),
    )
    assert events == [
        Part(link, 0, True, b"1", True, False),
        Part(link, 0, True, b"2", False, False),
        Part(link, 0, True, b"3", False, True),
        Part(link, 1, False, b"4", True, True),
        Part(link, 2, False, b"5", True, False),
        Aborted(link),
        Part(link, 3, False, b"7", True, True),
    ]


def test_dispositions_that_settle_nothing(peer: Peer) -> None:
    link = peer.attach_receiver()
    credit(peer, 5, 9)
    session = link.session
    session.begin(link, range(10, 12), settled=False)
    assert peer.say(frame(Disposition(True, 0))) == []
    assert peer.say(frame(Disposition(True, 7, state=ACCEPTED))) == []
    assert peer.heard() == []
    assert session.unsettled == 2
    (event,) = peer.say(frame(Disposition(True, 0, 1, state=ACCEPTED)))
    assert isinstance(event, SettledByPeer)
    assert (event.state, event.told) == (Accepted(), ACCEPTED)
    assert peer.heard() == [Disposition(False, 0, 1, True, ACCEPTED)]
    assert session.unsettled == 0


def test_a_client_says_why_it_detaches_or_ends(peer: Peer) -> None:
    error = Error("amqp:x", "tired")
    first, second = peer.attach_receiver(0, "a"), peer.attach_receiver(1, "b")
    assert peer.say(frame(Detach(0, True, performatives.write(error)))) == [Detached(first, error)]
    assert peer.heard() == [Detach(0, True)]
    assert peer.say(frame(End(performatives.write(error)))) == [SessionEnded((second,), error)]


def test_an_error_that_is_none(peer: Peer) -> None:
    link = peer.attach_receiver(0, "a")
    events = peer.say(frame(Detach(0, True, ACCEPTED)))
    assert Detached(link, None) in events or not link.is_attached
    closed = events[-1]
    assert isinstance(closed, Closed)
    assert closed.problem is not None
    assert condition(peer.heard()[-1:]) == "amqp:decode-error"
    other = Peer()
    other.open()
    assert other.say(frame(Close(ACCEPTED))) == [ConnectionEnded(), Closed(None)]
    assert other.heard() == [Close()]


def test_a_stolen_link_does_not_free_its_name(peer: Peer) -> None:
    first = peer.attach_receiver(0, "n")
    second = peer.attach_receiver(1, "n")
    assert not first.is_attached
    assert peer.say(frame(Detach(0, True))) == []
    events = peer.say(frame(Attach("n", 2, True, source=source())))
    assert events[0] == Detached(second, None)
    third = events[1]
    assert isinstance(third, Attaching)
    peer.say(frame(Detach(2, True)))
    peer.heard()
    assert len(peer.say(frame(Attach("n", 3, True, source=source())))) == 1
    assert peer.heard() == []


def test_the_other_terminus_may_be_a_coordinator(peer: Peer) -> None:
    coordinator = performatives.write(performatives.Coordinator())
    (event,) = peer.say(
        frame(Attach("n", 0, False, target=coordinator, source=source(), initial_delivery_count=0))
    )
    assert isinstance(event, Attaching)
    assert isinstance(event.link.target, performatives.Coordinator)
    assert peer.say(frame(Attach("m", 1, True, source=coordinator))) == []
    attach, detach = peer.heard()
    assert isinstance(attach, Attach)
    assert isinstance(detach, Detach)
    assert performatives.read_all(detach.error) == Error("amqp:invalid-field", "a source was expected")


def test_the_octets_that_the_caller_leaves_are_taken_later() -> None:
    peer = Peer()
    opening = HEADER + frame(Open("client")) + frame(Begin(None, 0, 9, 9))
    for event in peer.connection.feed(opening):
        assert isinstance(event, Opening)
        break
    assert peer.connection.stage is Stage.OPENING
    assert peer.connection.pending == len(frame(Begin(None, 0, 9, 9)))
    peer.connection.heartbeat()
    assert peer.connection.take()[-8:] == b"\0\0\0\x08\x02\0\0\0"
    peer.connection.open()
    assert list(peer.connection.feed(b"")) == []
    assert [type(said) for said in peer.heard()] == [Open, Begin]
    assert peer.connection.pending == 0


def test_a_link_with_an_address_of_any_type_is_attached(peer: Peer) -> None:
    (event,) = peer.say(frame(Attach("n", 0, True, source=source(write(True)))))
    assert isinstance(event, Attaching)


def test_flows_of_a_link_that_leave_together_are_one(peer: Peer) -> None:
    """A client would take the second answer of a drain for that of its next drain."""
    link = peer.attach_receiver()
    peer.attach_receiver(1, "other")
    for credit_now in (3, 5):
        peer.say(frame(Flow(0, 5, 0, 1, 0, 0, credit_now, drain=True)))
        link.drained()
    peer.say(frame(Flow(0, 5, 0, 1, 1, 0, 3, echo=True)))
    told = Flow(0, 64, 0, 2**31 - 1, 0, 5, 0, 0, drain=True)
    assert peer.heard() == [told, Flow(0, 64, 0, 2**31 - 1, 1, 0, 3, 0)]
    peer.say(frame(Flow(0, 5, 0, 1, 0, 5, 1, drain=True)))
    link.drained()
    assert peer.heard() == [Flow(0, 64, 0, 2**31 - 1, 0, 6, 0, 0, drain=True)]
