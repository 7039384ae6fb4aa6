"""Both sides of the DMP dialogue: what is said, word by word, and what happens when it is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp.client import (
    ClientDialogue,
    ClientEvent,
    ConnectionDeclined,
    DialogueError,
    FeedOctets,
    Greeted,
    HeaderDeclined,
    Purpose,
    Ready,
    SinkResponse,
)
from omq.protocol.dmp.responses import GREETING, LEASE_IN_USE, LEASE_NOT_VALID, Response, ResponseCode
from omq.protocol.dmp.server import (
    CloseConnection,
    EnvelopeOctets,
    FeedReady,
    LeaseAnswer,
    LeaseReceived,
    LeaseRefused,
    Send,
    ServerDialogue,
    SinkReady,
)

HEADER = b"AMQP\x0a\x01\x00\x01"
HELLO = Send(b"\x0d200 OK DP/0.1")


def said(octets: bytes) -> bytes:
    return bytes([len(octets)]) + octets


# -- responses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "beginning"),
    [
        (ResponseCode.OK, b"200 OK"),
        (ResponseCode.BAD_LEASE, b"402 BAD-LEASE Lease is not valid for this connection"),
        (ResponseCode.NO_ACCESS, b"403 NO-ACCESS "),
        (ResponseCode.NOT_FOUND, b"404 NOT-FOUND "),
        (ResponseCode.SYNTAX_ERROR, b"502 SYNTAX-ERROR "),
        (ResponseCode.INVALID, b"503 INVALID "),
        (ResponseCode.NOT_ALLOWED, b"530 NOT-ALLOWED "),
        (ResponseCode.NOT_IMPLEMENTED, b"540 NOT-IMPLEMENTED "),
        (ResponseCode.INTERNAL_ERROR, b"541 INTERNAL-ERROR "),
    ],
)
def test_each_code_has_its_indicator_and_words(code: ResponseCode, beginning: bytes) -> None:
    usual = dmp_responses.encode(dmp_responses.response(code))
    assert usual[0] == len(usual) - 1
    assert usual[1:].startswith(beginning)
    ours = dmp_responses.encode(dmp_responses.response(code, b"because"))
    assert ours == said(b"%d %s because" % (code, code.indicator))
    assert dmp_responses.decode(ours[1:]) == Response(code, code.indicator + b" because")
    assert dmp_responses.decode(usual[1:]).ok is (code == 200)


def test_nine_response_codes_are_defined() -> None:
    assert len(ResponseCode) == 9


@pytest.mark.parametrize(
    ("response", "octets"),
    [
        (dmp_responses.sink_ready(b"amq.direct"), b"200 OK Sink 'amq.direct' ready"),
        (dmp_responses.feed_ready(b"auto.0"), b"200 OK Feed 'auto.0' ready"),
        (dmp_responses.stored(12), b"200 OK 12 messages stored"),
        (LEASE_NOT_VALID, b"402 BAD-LEASE Lease is not valid for this connection"),
        (LEASE_IN_USE, b"402 BAD-LEASE Lease already acquired"),
        (Response(7), b"007"),
        (dmp_responses.sink_ready(b"n" * 235), b"200 OK Sink '" + b"n" * 235 + b"' ready"),
        (dmp_responses.sink_ready(b"n" * 236), b"200 OK Sink '" + b"n" * 232 + b"...' ready"),
        (dmp_responses.feed_ready(b"n" * 255), b"200 OK Feed '" + b"n" * 232 + b"...' ready"),
        (Response(502, b"x" * 251), b"502 " + b"x" * 251),
        (Response(502, b"x" * 252), b"502 " + b"x" * 248 + b"..."),
    ],
)
def test_responses_octet_by_octet(response: Response, octets: bytes) -> None:
    assert dmp_responses.encode(response) == said(octets)


@pytest.mark.parametrize("code", [-1, 1000])
def test_a_code_has_three_digits(code: int) -> None:
    with pytest.raises(ValueError, match="three digits"):
        dmp_responses.encode(Response(code))


@pytest.mark.parametrize("octets", [b"", b"20", b"2 0 OK", b"OK 200", b"\xb2\xb2\xb2", b"+20", b" 20"])
def test_a_response_begins_with_three_digits(octets: bytes) -> None:
    with pytest.raises(dmp_responses.ResponseError, match="instead of three digits"):
        dmp_responses.decode(octets)


def test_the_three_digits_are_enough() -> None:
    assert dmp_responses.decode(b"200") == Response(200)
    assert dmp_responses.decode(b"299whatever").code == 299


# -- the server ----------------------------------------------------------------------------------------------


def test_a_whole_dialogue_may_come_at_once() -> None:
    dialogue = ServerDialogue()
    assert dialogue.feed(HEADER + b"\x05lease" + b"messages") == [HELLO, LeaseReceived(b"lease")]
    assert dialogue.feed(b", more") == []
    assert dialogue.decide(SinkReady(b"s")) == [
        Send(said(b"200 OK Sink 's' ready")),
        EnvelopeOctets(b"messages, more"),
    ]
    assert dialogue.feed(b"and more") == [EnvelopeOctets(b"and more")]
    assert dialogue.feed(b"") == []


def test_octet_by_octet_each_answer_comes_with_the_last_octet() -> None:
    dialogue = ServerDialogue()
    octets = HEADER + b"\x02ab"
    answers = {at: events for at in range(len(octets)) if (events := dialogue.feed(octets[at : at + 1]))}
    assert answers == {7: [HELLO], 10: [LeaseReceived(b"ab")]}
    assert dialogue.decide(FeedReady(b"f")) == [Send(said(b"200 OK Feed 'f' ready"))]


@pytest.mark.parametrize("code", [code for code in ResponseCode if code is not ResponseCode.OK])
def test_a_refusal_is_the_last_word(code: ResponseCode) -> None:
    dialogue = ServerDialogue()
    dialogue.feed(HEADER + b"\x01lmessages")
    response = dmp_responses.response(code)
    assert dialogue.decide(LeaseRefused(response)) == [
        Send(dmp_responses.encode(response)),
        CloseConnection(),
    ]
    assert dialogue.feed(b"more") == []
    with pytest.raises(ValueError, match="no lease to decide on: the dialogue is over"):
        dialogue.decide(SinkReady(b"s"))


@pytest.mark.parametrize("header", [b"AMQP\x0a\x01\x00\x02", b"AMQP\x00\x00\x09\x01", b"GET / HT", bytes(8)])
def test_another_header_is_answered_with_ours(header: bytes) -> None:
    dialogue = ServerDialogue()
    assert dialogue.feed(header[:7]) == []
    assert dialogue.feed(header[7:] + b"\x01l") == [Send(HEADER), CloseConnection()]
    assert dialogue.feed(HEADER) == []


def test_an_empty_lease_is_not_answered() -> None:
    dialogue = ServerDialogue()
    assert dialogue.feed(HEADER) == [HELLO]
    assert dialogue.feed(b"\x00more") == [CloseConnection()]
    assert dialogue.feed(b"\x01l") == []


def test_a_lease_has_up_to_255_octets() -> None:
    lease = bytes(range(255))
    assert ServerDialogue().feed(HEADER + said(lease)) == [HELLO, LeaseReceived(lease)]


@pytest.mark.parametrize("octets", [b"", HEADER, HEADER + b"\x02l"])
def test_a_decision_needs_a_lease(octets: bytes) -> None:
    dialogue = ServerDialogue()
    dialogue.feed(octets)
    with pytest.raises(ValueError, match="no lease to decide on"):
        dialogue.decide(SinkReady(b"s"))


def test_a_second_decision_is_refused() -> None:
    dialogue = ServerDialogue()
    dialogue.feed(HEADER + b"\x01l")
    dialogue.decide(SinkReady(b"s"))
    with pytest.raises(ValueError, match="no lease to decide on"):
        dialogue.decide(SinkReady(b"s"))


# -- the client ----------------------------------------------------------------------------------------------


def test_the_client_begins_with_header_and_lease() -> None:
    assert ClientDialogue(b"lease", Purpose.SINK).start() == HEADER + b"\x05lease"


@pytest.mark.parametrize("lease", [b"", bytes(256)])
def test_a_lease_that_cannot_be_shown(lease: bytes) -> None:
    with pytest.raises(ValueError, match="lease"):
        ClientDialogue(lease, Purpose.FEED)


READY = Response(200, b"OK Sink 's' ready")


@pytest.mark.parametrize(
    ("purpose", "octets", "events"),
    [
        (Purpose.SINK, said(b"200 OK DP/0.1"), [Greeted(GREETING)]),
        (Purpose.SINK, said(b"200 OK DMP/0.1"), [Greeted(Response(200, b"OK DMP/0.1"))]),
        (
            Purpose.SINK,
            said(b"200 OK DP/0.1") + said(b"200 OK Sink 's' ready") + said(b"200 OK 3 messages stored"),
            [Greeted(GREETING), Ready(READY), SinkResponse(dmp_responses.stored(3))],
        ),
        (
            Purpose.SINK,
            said(b"200") * 3 + said(b"502 SYNTAX-ERROR no") + said(b"599"),
            [
                Greeted(Response(200)),
                Ready(Response(200)),
                SinkResponse(Response(200)),
                SinkResponse(Response(502, b"SYNTAX-ERROR no")),
                SinkResponse(Response(599)),
            ],
        ),
        (
            Purpose.FEED,
            said(b"200") * 2 + bytes(4) + b"more",
            [Greeted(Response(200)), Ready(Response(200)), FeedOctets(bytes(4) + b"more")],
        ),
        (Purpose.FEED, said(b"541") + said(b"200"), [ConnectionDeclined(Response(541))]),
        (
            Purpose.FEED,
            said(b"200") + said(b"402 BAD-LEASE Lease already acquired") + said(b"200"),
            [Greeted(Response(200)), ConnectionDeclined(LEASE_IN_USE)],
        ),
        (Purpose.FEED, b"AMQP\x00\x00\x09\x01?", [HeaderDeclined(b"AMQP\x00\x00\x09\x01")]),
        (Purpose.FEED, b"AMQP\x00\x00\x09", []),
        (Purpose.SINK, said(b"200" + b" " * 62), [Greeted(Response(200, b" " * 61))]),
    ],
)
def test_a_client_hears_the_responses_of_a_server(
    purpose: Purpose, octets: bytes, events: list[ClientEvent]
) -> None:
    assert ClientDialogue(b"l", purpose).feed(octets) == events
    slow = ClientDialogue(b"l", purpose)
    slowly = [event for at in range(len(octets)) for event in slow.feed(octets[at : at + 1])]
    received = b"".join(event.octets for event in slowly if isinstance(event, FeedOctets))
    together = [event for event in slowly if not isinstance(event, FeedOctets)]
    assert ([*together, FeedOctets(received)] if received else together) == events


def test_an_invalid_response_ends_the_dialogue_after_earlier_events() -> None:
    dialogue = ClientDialogue(b"l", Purpose.SINK)
    with pytest.raises(DialogueError, match="instead of three digits") as caught:
        dialogue.feed(said(b"200") + said(b"hello"))
    assert caught.value.before == [Greeted(Response(200))]


@given(
    st.sampled_from(
        [SinkReady(b"s"), FeedReady(b"f"), LeaseRefused(LEASE_NOT_VALID), LeaseRefused(Response(999, b"?"))]
    ),
    st.binary(min_size=1, max_size=255),
    st.binary(min_size=1, max_size=20),
)
def test_the_two_sides_understand_each_other(outcome: LeaseAnswer, lease: bytes, messages: bytes) -> None:
    purpose = Purpose.FEED if isinstance(outcome, FeedReady) else Purpose.SINK
    client, server = ClientDialogue(lease, purpose), ServerDialogue()
    events = server.feed(client.start() + messages)
    assert events[-1] == LeaseReceived(lease)
    events = [*events[:-1], *server.decide(outcome)]
    heard = client.feed(b"".join(event.octets for event in events if isinstance(event, Send)))
    assert heard[0] == Greeted(GREETING)
    if isinstance(outcome, LeaseRefused):
        assert heard[1:] == [ConnectionDeclined(outcome.response)]
        assert events[-1] == CloseConnection()
    else:
        assert [type(event) for event in heard[1:]] == [Ready]
        assert events[-1] == EnvelopeOctets(messages)
        passed = client.feed(b"\x03200")
        assert passed == [FeedOctets(b"\x03200") if purpose is Purpose.FEED else SinkResponse(Response(200))]
