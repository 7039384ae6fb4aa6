"""Sessions and links of AMQP 1.0: how they begin and end."""

import tracemalloc

import pytest
from amqp_1_0_helpers import Peer, condition, frame, source, target
from measuring import untraced

from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.connection import (
    Stage,
)
from omq.protocol.amqp_1_0.encoding import write
from omq.protocol.amqp_1_0.events import (
    Attaching,
    Detached,
    SessionEnded,
)
from omq.protocol.amqp_1_0.link import SendingLink
from omq.protocol.amqp_1_0.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Source,
    Transfer,
)
from omq.protocol.amqp_1_0.session import MOST_HANDLES, MOST_LINKS


def test_a_session_ends_and_the_others_go_on(peer: Peer) -> None:
    other = peer.say(frame(Begin(None, 0, 9, 9), channel=7))
    assert other == []
    (begun,) = peer.heard()
    assert isinstance(begun, Begin)
    assert begun.remote_channel == 7
    link = peer.attach_receiver()
    assert peer.say(frame(Transfer(5, 0, b"t"))) == [SessionEnded((link,), None)]
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
    assert peer.say(frame(End())) == [SessionEnded((link,), None)]
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
    assert [event for event in events if isinstance(event, SessionEnded)] == [
        SessionEnded((receiver, sender), None)
    ]
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


@untraced()
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
    long = source(write("x" * 50_000))

    def refuse(handle: int) -> None:
        (event,) = peer.say(frame(Attach("n" * 1000 + f"{handle}", handle, True, source=long)))
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
