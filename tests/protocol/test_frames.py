import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.model import Delivery, Persistent, Sync, Topic, TopicInfo, Transient
from omq.protocol.omq.frames import (
    DEFAULT_MAX_FRAME,
    Decoded,
    DroppedMessage,
    FrameDecoder,
    FrameError,
    MessageRun,
    encode,
)
from omq.protocol.omq.types import (
    Confirmed,
    Declared,
    Deleted,
    Error,
    Frame,
    Leased,
    Message,
    Ping,
    Subscribed,
    TopicList,
    Unsubscribed,
)

EXAMPLES: list[tuple[Frame, bytes]] = [
    (Error(b"no"), b"\x00\x00\x00\x03\x00no"),
    (Error(b""), b"\x00\x00\x00\x01\x00"),
    (Ping(0x52021D2E), b"\x00\x00\x00\x05\x01\x52\x02\x1d\x2e"),
    (
        Message(258, 7, b"body"),
        b"\x00\x00\x00\x11\x02\x00\x00\x00\x00\x00\x00\x01\x02\x00\x00\x00\x07body",
    ),
    (Message(1, 1, b""), b"\x00\x00\x00\x0d\x02\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01"),
    (Subscribed(Topic(7, b"prices")), b"\x00\x00\x00\x17\x03((id 7)(topic prices))"),
    (Unsubscribed(Topic(7, b"a b")), b"\x00\x00\x00\x15\x04" + b'((id 7)(topic"a b"))'),
    (Declared(Topic(0, b"x")), b"\x00\x00\x00\x12\x05((id 0)(topic x))"),
    (Leased(b"a lease"), b"\x00\x00\x00\x08\x07a lease"),
    (Confirmed(-2), b"\x00\x00\x00\x09\x06\xff\xff\xff\xff\xff\xff\xff\xfe"),
    (Deleted(Topic(12, b"x")), b"\x00\x00\x00\x13\x0a((id 12)(topic x))"),
    (TopicList(()), b"\x00\x00\x00\x03\x09()"),
]

topics = st.builds(Topic, st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=20))
infos = st.builds(
    TopicInfo,
    id=st.integers(0, 2**31 - 1),
    topic=st.binary(min_size=1, max_size=20),
    delivery=st.sampled_from(Delivery),
    persistence=st.sampled_from([Transient(), *map(Persistent, Sync)]),
    messages=st.integers(0, 2**62 - 1),
    bytes=st.integers(0, 2**62 - 1),
    first=st.integers(0, 2**62 - 1),
    last=st.integers(0, 2**62 - 1),
    subscribers=st.integers(0, 2**31),
)
messages = st.builds(Message, st.integers(0, 2**64 - 1), st.integers(0, 3), st.binary(max_size=30))
frames: st.SearchStrategy[Frame] = st.one_of(
    messages,
    messages,
    messages,
    st.builds(Error, st.binary(max_size=30)),
    st.builds(Ping, st.integers(0, 2**32 - 1)),
    st.builds(Subscribed, topics),
    st.builds(Unsubscribed, topics),
    st.builds(Declared, topics),
    st.builds(Confirmed, st.integers(-(2**63), 2**63 - 1)),
    st.builds(Leased, st.binary(max_size=300)),
    st.builds(TopicList, st.lists(infos, max_size=3).map(tuple)),
    st.builds(Deleted, topics),
)


def flat(found: list[Frame | MessageRun]) -> list[Frame]:
    """Return runs taken apart, to compare with what was sent one by one."""
    one_by_one: list[Frame] = []
    for item in found:
        if isinstance(item, MessageRun):
            one_by_one.extend(item.messages())
        else:
            one_by_one.append(item)
    return one_by_one


@pytest.mark.parametrize(("frame", "octets"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_each_frame_octet_by_octet(frame: Frame, octets: bytes) -> None:
    assert encode(frame) == octets
    assert flat(FrameDecoder().feed(octets)) == [frame]


@given(st.lists(frames, max_size=20), st.data())
def test_any_frames_in_any_pieces_come_back_in_order(sent: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(map(encode, sent))
    decoder = FrameDecoder()
    found: list[Frame | MessageRun] = []
    position = 0
    while position < len(wire):
        end = position + data.draw(st.integers(1, len(wire)))
        found += decoder.feed(wire[position:end])
        position = end
    assert flat(found) == sent
    assert decoder.unfinished == 0


def test_octet_by_octet_each_frame_comes_with_its_last_octet() -> None:
    wire = b"".join(octets for _, octets in EXAMPLES)
    ends = [sum(len(octets) for _, octets in EXAMPLES[: n + 1]) for n in range(len(EXAMPLES))]
    decoder = FrameDecoder()
    arrived = [n + 1 for n in range(len(wire)) if decoder.feed(wire[n : n + 1])]
    assert arrived == ends


def test_consecutive_messages_of_one_topic_are_one_run() -> None:
    sent = [Message(1, 5, b"a"), Message(2, 5, b"b"), Message(9, 6, b"c"), Message(3, 5, b"d")]
    found = FrameDecoder().feed(b"".join(map(encode, sent)))
    assert found == [
        MessageRun(5, [1, 2], [b"a", b"b"]),
        MessageRun(6, [9], [b"c"]),
        MessageRun(5, [3], [b"d"]),
    ]


def test_another_frame_between_messages_keeps_its_place() -> None:
    sent: list[Frame] = [Message(1, 5, b"a"), Ping(3), Message(2, 5, b"b")]
    assert FrameDecoder().feed(b"".join(map(encode, sent))) == [
        MessageRun(5, [1], [b"a"]),
        Ping(3),
        MessageRun(5, [2], [b"b"]),
    ]


def test_messages_of_a_run_are_whole_and_frozen() -> None:
    (message,) = MessageRun(5, [1], [b"a"]).messages()
    assert message == Message(1, 5, b"a")
    assert hash(message) == hash(Message(1, 5, b"a"))
    with pytest.raises(AttributeError):
        message.id = 2  # type: ignore[misc]  # the assignment must fail


@pytest.mark.parametrize(
    "octets",
    [
        b"\x00\x00\x00\x00",  # no type
        b"\x00\x00\x00\x01\x0c",  # unknown types
        b"\x00\x00\x00\x01\xff",
        b"\x00\x00\x00\x01\x01",  # Ping without its time
        b"\x00\x00\x00\x06\x01\x00\x00\x00\x00\x00",  # Ping with more
        b"\x00\x00\x00\x0c\x02" + b"\x00" * 11,  # Message one octet short of its ids
        b"\x00\x00\x00\x0c\x02" + b"\x00" * 11 + encode(Ping(1)),  # the same with a good frame behind it
        b"\x00\x00\x00\x01\x02",
        b"\x00\x00\x00\x05\x06\x00\x00\x00\x01",  # Confirmed with four octets
        b"\x00\x00\x00\x01\x03",  # Subscribed without a topic
        b"\x00\x00\x00\x03\x05()",
        b"\x00\x00\x00\x03\x09((",
        b"\x00\x00\x00\x05\x09(())",
    ],
)
def test_malformed_frames_are_refused(octets: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(octets)


def test_frames_before_a_bad_one_are_not_lost() -> None:
    with pytest.raises(FrameError) as caught:
        FrameDecoder().feed(
            encode(Message(1, 5, b"a")) + encode(Error(b"good bye")) + b"\x00\x00\x00\x01\x63"
        )
    assert caught.value.before == [MessageRun(5, [1], [b"a"]), Error(b"good bye")]


def test_the_limit_counts_as_the_length_does() -> None:
    just = encode(Message(1, 5, b"x" * 87))
    assert FrameDecoder(max_frame=100).feed(just) == [MessageRun(5, [1], [b"x" * 87])]
    assert FrameDecoder(max_frame=99).feed(just) == [DroppedMessage(5, 1, 87)]


@pytest.mark.parametrize("pieces", [1, 3, 16, 17, 18, 90, 110, 1000])
def test_messages_above_the_limit_are_dropped_and_told(each_codec: None, pieces: int) -> None:
    """Each as soon as its header is there, and nothing of its body is held."""
    bodies = [b"a", b"x" * 90, b"y" * 500, b"", b"z" * 87]
    wire = b"".join(encode(Message(id, 5, body)) for id, body in enumerate(bodies, 1))
    decoder = FrameDecoder(max_frame=100)
    found: list[Decoded] = []
    for start in range(0, len(wire), pieces):
        found += decoder.feed(wire[start : start + pieces])
    told = [each for each in found if isinstance(each, DroppedMessage)]
    assert told == [DroppedMessage(5, 2, 90), DroppedMessage(5, 3, 500)]
    runs = [each for each in found if isinstance(each, MessageRun)]
    assert [(id, body) for run in runs for id, body in zip(run.ids, run.bodies, strict=True)] == [
        (1, b"a"),
        (4, b""),
        (5, b"z" * 87),
    ]
    assert [each for each in found if not isinstance(each, DroppedMessage)] == runs
    assert not decoder.is_within_a_frame


def test_a_message_above_the_limit_is_told_before_its_body_comes() -> None:
    wire = encode(Message(1, 5, b"x" * 100))
    decoder = FrameDecoder(max_frame=99)
    assert decoder.feed(wire[:16]) == []
    assert decoder.feed(wire[16:17]) == [DroppedMessage(5, 1, 100)]
    assert decoder.unfinished == 0
    assert decoder.is_within_a_frame  # the end of the stream would come too early
    assert decoder.feed(wire[17:-1]) == []
    assert decoder.feed(wire[-1:] + encode(Error(b"next"))) == [Error(b"next")]


@pytest.mark.parametrize("pieces", [1, 2], ids=["at once", "in two pieces"])
def test_the_limit_is_the_same_for_every_type(pieces: int) -> None:
    just = encode(Error(b"x" * 99))
    for limit in (100, 101):
        decoder = FrameDecoder(max_frame=limit)
        cut = len(just) // pieces
        assert decoder.feed(just[:cut]) + decoder.feed(just[cut:]) == [Error(b"x" * 99)]
    with pytest.raises(FrameError, match="above the limit of 99"):
        FrameDecoder(max_frame=99).feed(just)


def test_an_oversized_frame_is_refused_before_it_arrives() -> None:
    with pytest.raises(FrameError, match="limit"):
        FrameDecoder().feed(struct.pack(">IB", DEFAULT_MAX_FRAME + 1, 0))
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">I", DEFAULT_MAX_FRAME + 1)) == []
    with pytest.raises(FrameError, match="limit"):
        decoder.feed(b"\0")  # its type: it is no Message, whose body would be dropped


def test_a_large_frame_in_many_small_pieces_is_linear() -> None:
    # Anything quadratic would move 16 MiB sixty thousand times over, and not end within hours.
    body = bytes(16 * 2**20)
    wire = encode(Message(1, 5, body))
    decoder = FrameDecoder()
    found: list[Decoded] = []
    for start in range(0, len(wire), 256):
        found += decoder.feed(wire[start : start + 256])
    assert found == [MessageRun(5, [1], [body])]
