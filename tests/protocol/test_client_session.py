"""A client's side of a connection: which command an answer or an Error belongs to, without a socket."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.model import FromBeginning, Topic
from omq.protocol import handshake
from omq.protocol.omq.client import (
    Answered,
    BlockFetched,
    ClientHandshake,
    ClientSession,
    Declined,
    Ended,
    Event,
    HandshakeFailed,
    MessagesGone,
    NotAnOmqServer,
    UnsolicitedError,
    UnsolicitedFrame,
)
from omq.protocol.omq.frames import FrameError, MessageRun, encode
from omq.protocol.omq.sentences import (
    RefusalKind,
    Sentence,
    gone,
    read_sentence,
    refusal_in,
    sentence,
    shortened,
)
from omq.protocol.omq.types import (
    Confirm,
    Confirmed,
    Error,
    Fetch,
    Frame,
    Message,
    Ping,
    Publish,
    StoredBlock,
    Subscribe,
    Subscribed,
    TopicList,
    Topics,
    Unsubscribed,
)
from omq_storage.blocks import encode as block_of
from omq_storage.blocks import pack, unpack_sent

PRICES = Topic(7, b"prices")


def session() -> ClientSession[str]:
    made = ClientSession[str](b"me")
    assert made.take_output() == b"(Connect 1 me)\n"
    return made


def events(of: ClientSession[str], *frames: Frame) -> list[Event[str]]:
    return list(of.feed(b"".join(map(encode, frames))))


# -- the greeting -------------------------------------------------------------------------------------------


def test_a_greeting_is_complete_with_its_last_octet() -> None:
    greeting = ClientHandshake()
    for octet in handshake.ACCEPTED[:-1]:
        assert not greeting.feed(bytes([octet]))
    assert greeting.missing == 1
    assert greeting.feed(handshake.ACCEPTED[-1:])


def test_a_server_of_another_version_refuses() -> None:
    with pytest.raises(HandshakeFailed, match=r"^does not speak version 1 of omq$"):
        ClientHandshake().feed(handshake.REFUSED)


def test_other_octets_come_from_no_omq_server() -> None:
    with pytest.raises(NotAnOmqServer, match=r"HTTP/1\.1"):
        ClientHandshake().feed(b"HTTP/1.1")


# -- commands and answers -----------------------------------------------------------------------------------


def test_output_is_given_once() -> None:
    client = session()
    client.say(Publish(b"t", b"x"))
    client.ask(Topics(), "list")
    assert client.take_output() == b"(Publish t x)\nTopics\n"
    assert client.take_output() == b""


def test_nothing_is_expected_of_a_command_that_cannot_be_encoded() -> None:
    client = session()
    start: Any = "beginning"
    with pytest.raises(AssertionError):
        client.ask(Subscribe(b"prices", start), "wrong")
    client.ask(Topics(), "list")
    assert client.take_output() == b"Topics\n"
    assert events(client, TopicList(())) == [Answered(Topics(), "list", TopicList(()))]


def test_answers_come_back_with_their_tokens_in_order() -> None:
    client = session()
    client.ask(Subscribe(b"prices", FromBeginning()), "first")
    client.ask(Confirm(3), "second")
    assert list(client.waiting) == ["first", "second"]
    assert events(client, Subscribed(PRICES), Confirmed(3)) == [
        Answered(Subscribe(b"prices", FromBeginning()), "first", Subscribed(PRICES)),
        Answered(Confirm(3), "second", Confirmed(3)),
    ]
    assert list(client.waiting) == []


def test_the_session_is_as_it_is_after_the_last_event_taken() -> None:
    """A reader that waits between two events must still see which commands are not answered."""
    client = session()
    client.ask(Confirm(1), "one")
    client.ask(Confirm(2), "two")
    found = client.feed(encode(Confirmed(1)) + encode(Confirmed(2)))
    next(found)
    assert list(client.waiting) == ["two"]


def test_an_error_that_names_a_waiting_command_declines_it() -> None:
    client = session()
    client.ask(Confirm(5), "confirm")
    text = b"Confirm 5: 2 published before it and after the last Confirm were refused"
    (event,) = events(client, Error(text))
    assert event == Declined(Confirm(5), "confirm", text, Sentence("Confirm", b"5", text[11:].decode()))
    assert list(client.waiting) == []


def test_an_error_about_something_else_leaves_the_command_waiting() -> None:
    client = session()
    client.ask(Confirm(5), "confirm")
    told = events(client, Error(b"Confirm 6: x"), Error(b"Publish t: full"), Error(b"nonsense"))
    assert [type(event) for event in told] == [UnsolicitedError, UnsolicitedError, UnsolicitedError]
    assert [event.sentence for event in told if isinstance(event, UnsolicitedError)][2] is None
    assert list(client.waiting) == ["confirm"]


@pytest.mark.parametrize("frame", [Confirmed(6), Subscribed(PRICES), TopicList(())])
def test_an_unsolicited_answer_is_refused(frame: Frame) -> None:
    client = session()
    client.ask(Confirm(5), "confirm")
    with pytest.raises(UnsolicitedFrame, match="answered what was not asked"):
        events(client, frame)


def test_a_subscription_that_the_server_ends() -> None:
    assert events(session(), Unsubscribed(PRICES)) == [Ended(PRICES)]


def test_missing_messages_are_told_of_subscriptions_and_fetches() -> None:
    client = session()
    client.ask(Subscribe(b"a b", FromBeginning()), "waits")
    text = sentence("Subscribe", b"a b", gone(3, 9, "they are damaged: badly"))
    assert events(client, Error(text)) == [
        MessagesGone("Subscribe", b'"a b"', 3, 9, "they are damaged: badly")
    ]
    assert list(client.waiting) == ["waits"]


def test_a_ping_is_acknowledged_and_no_event() -> None:
    client = session()
    assert events(client, Ping(1)) == []
    assert client.take_output().startswith(b"(Ack")


def test_messages_come_as_runs() -> None:
    (run,) = events(session(), Message(1, 7, b"a"), Message(2, 7, b"b"))
    assert isinstance(run, MessageRun)
    assert (run.topic, list(run.ids), list(run.bodies)) == (7, [1, 2], [b"a", b"b"])


def test_blocks_belong_to_the_fetch_whose_turn_it_is() -> None:
    client = session()
    client.ask(Fetch(b"prices", 1, 10), "one")
    client.ask(Fetch(b"prices", 11, 10), "two")
    value = bytes(60)
    assert events(client, StoredBlock(value)) == [BlockFetched("one", value)]
    client.end_fetch()
    assert events(client, StoredBlock(value)) == [BlockFetched("two", value)]
    (event,) = events(client, Error(b"Fetch prices: the topic was deleted"))
    assert isinstance(event, Declined)
    with pytest.raises(UnsolicitedFrame, match="a block that nobody fetched"):
        events(client, StoredBlock(value))
    with pytest.raises(RuntimeError):
        client.end_fetch()


def test_an_invalid_frame_is_reported_after_earlier_events() -> None:
    client = session()
    client.ask(Confirm(1), "one")
    found = client.feed(encode(Confirmed(1)) + b"\0\0\0\0")
    assert isinstance(next(found), Answered)
    with pytest.raises(FrameError):
        next(found)


def test_an_end_in_the_middle_of_a_frame_is_seen() -> None:
    client = session()
    assert list(client.feed(encode(Ping(1))[:-1])) == []
    assert client.is_within_a_frame


def test_a_real_block_passes_through() -> None:
    block = block_of(7, 1, [b"x"], 0)
    client = session()
    client.ask(Fetch(b"prices", 1, 1), "f")
    (event,) = events(client, StoredBlock(bytes(pack(block))))
    assert isinstance(event, BlockFetched)
    assert unpack_sent(event.value).count == 1


# -- sentences ----------------------------------------------------------------------------------------------

arguments = st.none() | st.binary(min_size=1, max_size=300) | st.text('ab: "\\').map(str.encode).filter(len)


@given(st.sampled_from(["Connect", "Subscribe", "From_x"]), arguments, st.text("ab: x\n"))
def test_a_sentence_is_read_as_it_was_written(constructor: str, argument: bytes | None, what: str) -> None:
    said = read_sentence(sentence(constructor, argument, what))
    assert said is not None
    assert said.answers(constructor, argument)
    assert said.what == what
    assert said.argument == (None if argument is None else shortened(argument))


@given(st.binary(max_size=40))
def test_any_octets_can_be_read_as_a_sentence_or_not(text: bytes) -> None:
    said = read_sentence(text)
    assert said is None or text.startswith(said.constructor.encode())


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (b"Connect: no client has this name and secret", RefusalKind.UNKNOWN_CLIENT),
        (b"Connect: this address has its 2 connections, the most it may have", RefusalKind.PASSING),
        (b"Fetch t: it took too long to read while others wait for its memory", RefusalKind.PASSING),
        (b'Fetch "a: b": the topic was deleted', RefusalKind.NO_TOPIC),
        # The name of a topic is none of the words.
        (b"Connect: this client may not subscribe to 'it has 2, the most it may have' any more",
         None),
        (b'Fetch "x: there is no such topic": count cannot be negative', None),
        (b"Put t: there is no such topic, and this client may not declare it", None),
        (b"Put t: this client has its 2 unused leases, the most it may have", None),
        (b"Connect: an operator ended the connection", None),
        (b"Line too long: the line has more than 1024 octets", None),
    ],
)  # fmt: skip
def test_clients_recognise_a_refusal_by_its_command_and_its_words(
    text: bytes, refusal: RefusalKind | None
) -> None:
    assert refusal_in(text) is refusal


def test_connect_is_the_first_command() -> None:
    assert ClientSession[str](b"a b").take_output() == b'(Connect 1"a b")\n'
