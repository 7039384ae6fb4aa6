"""Routes of the compiled codec, from Publish lines straight to the connections of subscribers."""

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq_storage import codec, plain, routes
from omq_storage.blocks import Block
from omq_storage.routes import PlainRoute

if TYPE_CHECKING:
    from omq_storage._codec import Lane, Pass, Route, Spans

pytestmark = pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")

MOST = 1 << 20
OWNER = object()


@dataclass(eq=False)
class Outlet:
    """A connection that can take messages at once, or cannot."""

    clear: bool = True
    filled: bool = False

    def has_room(self) -> bool:
        return self.clear and not self.filled

    def is_filled(self) -> bool:
        return self.filled


def lane(*outlets: Outlet) -> "Lane":
    return codec.native.Lane(outlets)


def route(topic: int, to: "Lane | None" = None, first: int = 1, reserved: int = 1000) -> "Route":
    made = codec.native.Route(topic, first, reserved)
    made.open(to)
    return made


def lines(*messages: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"(Publish %s %s)\n" % message for message in messages)


def deal(
    routes: "dict[bytes, Route]", data: bytes, allowed: set[bytes] | None = None, largest: int = MOST
) -> "tuple[Pass, dict[bytes, list[bytes]], int]":
    """Route lines; return what was routed, the bodies of the rest by their topics, and where it stopped."""
    passed = codec.native.Pass(codec.native.Routes(routes), allowed, largest)
    dealt, position = codec.native.deal_lines(data, 0, MOST, passed)
    return passed, {topic: spans.bodies() for topic, spans in dealt}, position


def test_messages_get_ids_in_their_topics_and_lie_in_the_order_of_their_lines() -> None:
    both = lane(Outlet(), Outlet())
    routes = {b"a": route(7, both, first=3), b"b": route(8, both), b"c": route(9, lane(Outlet()))}
    data = lines((b"a", b"1"), (b"b", b"22"), (b"a", b"333"), (b"c", b"4"), (b"b", b'"\\065\\n"'))
    passed, rest, position = deal(routes, data)
    assert (rest, position, passed.messages, passed.is_full) == ({}, len(data), 5, False)
    assert passed.lanes[0] is both
    frames = [plain.frames_of(*each)[0] for each in ((7, 3, [b"1"]), (8, 1, [b"22"]), (7, 4, [b"333"]))]
    assert passed.frames == [
        b"".join(frames) + plain.frames_of(8, 2, [b"A\n"])[0],
        plain.frames_of(9, 1, [b"4"])[0],
    ]
    assert passed.counts == [4, 1]
    a = routes[b"a"]
    assert (a.next_id, a.messages_in, a.octets_in, a.messages_out, a.octets_out) == (5, 2, 38, 4, 76)


def test_topics_without_subscribers_only_count() -> None:
    routes = {b"a": route(1)}
    passed, rest, _ = deal(routes, lines((b"a", b"x"), (b"a", b"yy")))
    assert (passed.lanes, passed.frames, passed.messages, rest) == ([], [], 2, {})
    a = routes[b"a"]
    assert (a.next_id, a.messages_in, a.octets_in, a.messages_out, a.octets_out) == (3, 2, 37, 0, 0)


def test_an_unroutable_message_is_left_with_its_followers_in_the_topic() -> None:
    here = lane(Outlet())
    shut = route(4, here)
    shut.close()
    routes = {
        b"full": route(1, here, first=10, reserved=11),
        b"large": route(2, here),
        b"busy": route(3, lane(Outlet(), Outlet(clear=False))),
        b"shut": shut,
        b"barred": route(5, here),
    }
    names = (b"full", b"large", b"busy", b"shut", b"barred", b"unknown")
    data = lines(*((name, body) for body in (b"1", b"2" * 70_000, b"3") for name in names))
    passed, rest, position = deal(routes, data, allowed=set(names) - {b"barred"})
    assert position == len(data)
    assert passed.messages == 2
    large = b"2" * 70_000
    assert rest == {
        b"full": [large, b"3"],
        b"large": [large, b"3"],
        **{name: [b"1", large, b"3"] for name in (b"busy", b"shut", b"barred", b"unknown")},
    }
    assert [routes[name].next_id for name in (b"full", b"large", b"busy", b"shut", b"barred")] == [
        11,
        2,
        1,
        1,
        1,
    ]
    passed, rest, _ = deal({b"a": route(1, here)}, lines((b"a", b"123"), (b"a", b"1234")), largest=3)
    assert (passed.messages, rest) == (1, {b"a": [b"1234"]})


def test_a_topic_is_the_same_however_it_is_written() -> None:
    here = lane(Outlet())
    routes = {b"a": route(1, here)}
    passed, rest, position = deal(routes, b'(Publish a 1)\n(publish"a"2)\n(Publish "\\097" 3)\n')
    assert (passed.messages, rest) == (2, {})
    assert position == 28
    assert passed.frames == [plain.frames_of(1, 1, [b"1", b"2"])[0]]
    # Written with an escape, it stands alone.
    passed, rest, position = deal(routes, b'(Publish "\\097" 3)\n(Publish a 4)\n')
    assert (passed.messages, rest, position) == (0, {b'"\\097"': [b"3"]}, 19)


def test_a_pass_ends_where_messages_must_wait() -> None:
    full, other, blocked = Outlet(filled=True), Outlet(), Outlet(clear=False)
    waiting = lane(full)
    routes = {b"a": route(1, lane(other)), b"b": route(2, waiting), b"c": route(3, lane(full, other))}
    routes |= {b"d": route(4, lane(full, blocked))}
    data = lines((b"a", b"1"), (b"c", b"2"), (b"d", b"3"), (b"a", b"4"), (b"b", b"5"), (b"a", b"6"))
    passed, rest, position = deal(routes, data)
    # Nobody waits for the slower of two, nor for one that has something else to send.
    assert rest == {b"c": [b"2"], b"d": [b"3"]}
    assert (passed.messages, passed.is_full, passed.filled) == (2, True, waiting)
    assert data[position:] == lines((b"b", b"5"), (b"a", b"6"))


def test_one_pass_is_bounded() -> None:
    data = lines(*[(b"a", b"x")] * 5000)
    passed, rest, position = deal({b"a": route(1, lane(Outlet()), reserved=10_000)}, data)
    assert (passed.is_full, passed.messages, rest) == (True, 4096, {})
    assert position == 4096 * 14
    names = [b"t%03d" % number for number in range(200)]
    routes = {name: route(number, lane(Outlet())) for number, name in enumerate(names)}
    passed, rest, position = deal(routes, lines(*((name, b"x") for name in names)))
    assert passed.messages == len(passed.lanes) == 128  # each connection costs a system call
    assert list(rest) == names[128:]
    # Each further topic costs as much as several messages.
    names = [b"t%04d" % number for number in range(1500)]
    routes = {name: route(number, None) for number, name in enumerate(names)}
    data = lines(*((name, b"x") for name in names))
    passed, rest, position = deal(routes, data)
    assert (passed.is_full, passed.messages, rest) == (True, 1024, {})
    assert data[position:] == lines(*((name, b"x") for name in names[1024:]))
    # Topics that are not routed cost most: they end a pass, too.
    data = lines((b"a", b"x"), *((name, b"x") for name in names), (b"a", b"y"))
    passed, rest, position = deal({b"a": route(1, lane(Outlet()))}, data)
    assert (passed.is_full, passed.messages, list(rest)) == (True, 1, names[:1024])
    assert data[position:].startswith(lines((names[1024], b"x")))
    crowd = lane(*(Outlet() for _ in range(300)))
    assert deal({b"a": route(1, crowd)}, lines((b"a", b"x")))[0].messages == 1


@given(
    st.lists(
        st.tuples(st.sampled_from((b"a", b"b", b"c")), st.binary(max_size=9).map(bytes.hex)), min_size=1
    ),
    st.integers(0, 1 << 12),
)
def test_unsent_messages_are_reported_by_topic(messages: list[tuple[bytes, str]], cut: int) -> None:
    here = lane(Outlet())
    routes = {name: route(number, here, first=5) for number, name in enumerate((b"a", b"b", b"c"))}
    # Between them are messages of another lane.
    elsewhere = {b"d": route(3, lane(Outlet()))}
    data = b"".join(lines((b"d", b"x"), (name, b'"%s"' % body.encode())) for name, body in messages)
    passed, _, _ = deal(routes | elsewhere, data)
    part = passed.part(passed.lanes.index(here))
    del passed  # the part does not need it
    frames = part.octets
    assert part.messages == len(messages)
    assert part.held == len(frames) + 4 * len(messages) + 8 * len({name for name, _ in messages})
    sent = cut % (len(frames) + 1)
    rest, behind = part.unsent(sent)
    # Sent, frame by frame, with what was sent of the last one.
    at, ids = 0, dict.fromkeys(routes, 5)
    expected: dict[bytes, tuple[int, int, int]] = {}
    begun = b""
    for name, body in messages:
        size = 17 + len(body)
        if at >= sent:
            first, count, octets = expected.get(name, (ids[name], 0, 0))
            expected[name] = (first, count + 1, octets + size)
        elif at + size > sent:
            begun = frames[sent : at + size]
        ids[name] += 1
        at += size
    assert rest == begun
    assert {id(own): numbers for own, *numbers in behind} == {
        id(routes[name]): list(numbers) for name, numbers in expected.items()
    }


def test_places_outside_are_refused() -> None:
    passed, _, _ = deal({b"a": route(1, lane(Outlet()))}, lines((b"a", b"x")))
    for place in (-1, 1):
        with pytest.raises(IndexError):
            passed.part(place)
    for sent in (-1, 19):
        with pytest.raises(ValueError, match="not within"):
            passed.part(0).unsent(sent)


@dataclass(eq=False)
class Owner:
    """The owner of a route, which opens it to some connections, or closes it."""

    route: "Route"
    to: "Lane | None"
    aimed: int = 0

    def aim(self) -> None:
        self.aimed += 1
        if self.to is not None:
            self.route.open(self.to, is_kept=True)


def test_messages_to_keep_are_returned_by_their_topics() -> None:
    shared, alone = lane(Outlet(), Outlet()), lane(Outlet())
    routes = {b"a": route(7, shared, first=3), b"b": route(8, shared), b"c": route(9, alone)}
    routes[b"a"].open(shared, is_kept=True)
    routes[b"c"].open(alone, is_kept=True)
    data = lines((b"a", b"1"), (b"b", b"22"), (b"c", b"4444"), (b"a", b'"\\065\\n"'), (b"c", b""))
    passed, rest, _ = deal(routes, data.replace(b" )", b' "")'))
    assert (rest, passed.messages) == ({}, 5)
    assert passed.kept() == [
        (routes[b"a"], 3, 2, *plain.frames_of(7, 3, [b"1", b"A\n"])),
        (routes[b"c"], 1, 2, *plain.frames_of(9, 1, [b"4444", b""])),
    ]
    assert (routes[b"a"].octets_in, routes[b"a"].octets_out) == (37, 74)


def test_the_owner_of_a_due_route_opens_it_for_the_next_message() -> None:
    everyone, some = Outlet(), Outlet(clear=False)
    routes = {name: route(number, lane(everyone)) for number, name in enumerate((b"a", b"b", b"c"))}
    a = routes[b"a"].owner = Owner(routes[b"a"], lane(everyone))
    routes[b"a"].open_later()
    assert (routes[b"a"].is_open, routes[b"a"].is_due) == (False, True)
    b = routes[b"b"].owner = Owner(routes[b"b"], None)
    routes[b"b"].open_later()
    c = routes[b"c"].owner = Owner(routes[b"c"], lane(everyone))
    routes[b"c"].open(lane(everyone, some))  # to one without room
    for _ in range(2):
        passed, rest, _ = deal(routes, lines(*((name, b"x") for name in routes)))
        assert list(rest) == [b"b"]
        assert passed.messages == 2
        assert [each[0] for each in passed.kept()] == [routes[b"a"], routes[b"c"]]
    assert (a.aimed, b.aimed, c.aimed) == (1, 1, 1)
    assert [each.is_due for each in routes.values()] == [False] * 3


def test_a_pass_opens_few_routes_and_keeps_messages_of_few_topics() -> None:
    names = [b"t%d" % number for number in range(300)]
    routes = {name: route(number) for number, name in enumerate(names)}
    to = lane(Outlet())
    for each in routes.values():
        each.owner = Owner(each, to)
        each.open_later()
    data = lines(*((name, b"x") for name in names))

    def passes() -> list[int]:
        counts = []
        position = 0
        while position < len(data):
            passed = codec.native.Pass(codec.native.Routes(routes), None, MOST)
            dealt, position = codec.native.deal_lines(data, position, MOST, passed)
            assert dealt == []
            assert passed.is_full or position == len(data)
            counts.append(passed.messages)
        return counts

    assert passes() == [64, 64, 64, 64, 44]
    assert passes() == [128, 128, 44]
    assert {each.owner.aimed for each in routes.values()} == {1}


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40), st.lists(st.integers(0, 9)))
def test_topics_are_found_whatever_came_and_went_before_them(
    changes: list[tuple[int, bool]], round_trip: list[int]
) -> None:
    table = codec.native.Routes()
    expected: dict[bytes, Route] = {}
    to = lane(Outlet())
    order = [b"topic-%d" % number for number in round_trip]
    for number, is_put in changes:
        name = b"topic-%d" % number
        if is_put:
            table[name] = expected[name] = route(number, to)
        elif name in expected:
            del table[name], expected[name]
        assert len(table) == len(expected)
        before = {each: expected[each].next_id for each in expected}
        passed = codec.native.Pass(table, None, MOST)
        dealt, _ = codec.native.deal_lines(lines(*((each, b"x") for each in order)), 0, MOST, passed)
        assert {topic for topic, _ in dealt} == {each for each in order if each not in expected}
        for each, next_id in before.items():
            assert expected[each].next_id == next_id + order.count(each)


def test_the_plain_route_has_the_same_numbers() -> None:
    for made in (codec.native.Route(4, 5, 6), PlainRoute(4, 5, 6)):
        assert (made.topic, made.next_id, made.reserved, made.is_open) == (4, 5, 6, False)
        made.owner = OWNER
        made.open(None, is_kept=True)
        assert (made.is_open, made.is_kept) == (True, True)
        made.open_later()
        assert (made.is_open, made.is_due, made.is_kept) == (False, True, False)
        made.open(None)
        assert (made.is_open, made.is_due, made.is_kept) == (True, False, False)
        made.open_later()
        made.close()
        assert not made.is_due
        assert (made.is_open, made.owner) == (False, OWNER)
        made.messages_in += 1
        made.octets_out -= 1
        counted = (made.messages_in, made.octets_in, made.messages_out, made.octets_out)
        assert counted == (1, 0, 0, -1)


def test_topics_have_the_numbers_that_the_compiled_codec_changes() -> None:
    assert routes.Route is codec.native.Route


def workers(*outlets: Outlet) -> "tuple[Lane, ...]":
    return tuple(codec.native.Lane((outlet,), competes=True) for outlet in outlets)


def worked(topic: int, *outlets: Outlet, reserved: int = 1000) -> "Route":
    made = codec.native.Route(topic, 1, reserved)
    made.open_workers(workers(*outlets))
    return made


def bodies_of(frames: bytes) -> list[bytes]:
    """Return the bodies of Message frames with one octet each."""
    return [frames[at + 17 : at + 18] for at in range(0, len(frames), 18)]


def shares(passed: "Pass") -> dict[int, list[bytes]]:
    """Return the bodies for each connection."""
    return {
        id(lane.outlets[0]): bodies_of(frames)
        for lane, frames in zip(passed.lanes, passed.frames, strict=True)
    }


def test_workers_take_turns_from_pass_to_pass() -> None:
    a, b, c = Outlet(), Outlet(), Outlet()
    topic = worked(7, a, b, c)
    for messages, expected in [("vw", [b"v", b"w", None]), ("xyz", [b"y", b"z", b"x"])]:
        passed, rest, _ = deal({b"t": topic}, lines(*((b"t", body.encode()) for body in messages)))
        assert rest == {}
        assert shares(passed) == {
            id(each): [body] for each, body in zip((a, b, c), expected, strict=True) if body is not None
        }
        assert sorted(passed.counts) == [1] * len(messages)
    assert (topic.next_id, topic.turn) == (6, 2)
    assert (topic.messages_in, topic.messages_out) == (5, 5)
    assert topic.octets_in == topic.octets_out == 5 * 18


def test_a_worker_without_room_is_passed_over() -> None:
    a, full, c = Outlet(), Outlet(filled=True), Outlet()
    topic = worked(7, a, full, c)
    passed, rest, _ = deal({b"t": topic}, lines(*((b"t", body) for body in (b"1", b"2", b"3"))))
    assert rest == {}
    assert shares(passed) == {id(a): [b"1", b"3"], id(c): [b"2"]}


def test_publishers_wait_while_all_workers_are_filled_and_move() -> None:
    a, b = Outlet(filled=True), Outlet(filled=True)
    passed, rest, position = deal({b"t": worked(7, a, b)}, lines((b"t", b"1")))
    assert (rest, position, passed.is_full) == ({}, 0, True)
    assert passed.filled is not None
    assert passed.filled.outlets == (a, b)
    # One of them takes nothing at all: the owner decides.
    passed, rest, _ = deal({b"t": worked(7, a, Outlet(clear=False))}, lines((b"t", b"1")))
    assert rest == {b"t": [b"1"]}
    assert passed.filled is None


def test_messages_of_workers_and_of_subscribers_lie_apart() -> None:
    a, b = Outlet(), Outlet()
    both = {b"w": worked(7, a, b), b"s": route(8, lane(a, b))}
    passed, _, _ = deal(both, lines((b"w", b"1"), (b"s", b"2"), (b"w", b"3"), (b"s", b"4")))
    assert [
        (lane.competes, bodies_of(frames)) for lane, frames in zip(passed.lanes, passed.frames, strict=True)
    ] == [
        (True, [b"1"]),
        (False, [b"2", b"4"]),
        (True, [b"3"]),
    ]
    assert [passed.part(place).competes for place in range(3)] == [True, False, True]


def test_a_pass_sends_nothing_to_a_worker_whose_turn_it_is_not() -> None:
    a, b, c = Outlet(), Outlet(), Outlet()
    topic = worked(7, a, b, c)
    for body, outlet in zip((b"v", b"w", b"x", b"y"), (a, b, c, a), strict=True):
        passed, _, _ = deal({b"t": topic}, lines((b"t", body)))
        assert shares(passed) == {id(outlet): [body]}


def test_no_worker_misses_its_turn_where_a_pass_has_enough_connections() -> None:
    outlets = [Outlet() for _ in range(3 * 50)]
    topics = {
        b"t%02d" % number: worked(number, *outlets[3 * number : 3 * number + 3]) for number in range(50)
    }
    got: dict[int, list[bytes]] = {}
    left = [(name, body) for name in topics for body in (b"1", b"2", b"3")]
    while left:
        passed, rest, _ = deal(topics, lines(*left))
        assert rest == {}
        assert 0 < len(passed.lanes) <= 128
        for outlet, found in shares(passed).items():
            got.setdefault(outlet, []).extend(found)
        left = left[passed.messages :]
    assert [got[id(outlet)] for outlet in outlets] == [[b"1"], [b"2"], [b"3"]] * 50


def test_a_lane_that_competes_has_one_connection() -> None:
    with pytest.raises(ValueError, match="cannot be one"):
        codec.native.Lane((Outlet(), Outlet()), competes=True)
    made = codec.native.Route(1, 1, 10)
    with pytest.raises(ValueError, match="no workers"):
        made.open_workers(())
    with pytest.raises(ValueError, match="a lane of its own"):
        made.open_workers((lane(Outlet()),))
    assert not made.is_open


@given(st.lists(st.tuples(st.sampled_from([b"t", b"u"]), st.integers(0, 40)), min_size=1), st.integers(0))
def test_unsent_messages_of_a_worker_can_be_given_to_others(
    messages: list[tuple[bytes, int]], cut: int
) -> None:
    a, b = Outlet(), Outlet()
    both = {b"t": worked(7, a, b), b"u": worked(8, a)}
    passed, rest, _ = deal(both, lines(*((name, b"x" * max(1, length)) for name, length in messages)))
    assert rest == {}
    for place, octets in enumerate(passed.frames):
        part = passed.part(place)
        cut %= len(octets) + 1
        begun, count = part.begun(cut)
        whole = cut
        if begun is not None:
            found, id, frame, rest = begun
            assert 0 < len(rest) < len(frame)
            whole += len(rest)
            assert octets[:whole].endswith(frame)
            assert frame.endswith(rest)
            assert int.from_bytes(frame[5:13]) == id
            assert int.from_bytes(frame[13:17]) == found.topic
        runs = part.unsent_runs(cut)
        assert b"".join(frames for *_, frames, _ in runs) == octets[whole:]
        assert count + sum(run[2] for run in runs) == part.messages == passed.counts[place]
        for found, first, count, frames, offsets in runs:
            block = Block(found.topic, first, count, 0, frames, offsets)
            for id in range(first, first + count):
                frame = bytes(block.frame(id))
                assert 4 + int.from_bytes(frame[:4]) == len(frame)
                assert int.from_bytes(frame[5:13]) == id
                assert int.from_bytes(frame[13:17]) == found.topic
    for outside in (-1, len(octets) + 1):
        with pytest.raises(ValueError, match="is not within"):
            part.begun(outside)
        with pytest.raises(ValueError, match="is not within"):
            part.unsent_runs(outside)


def envelopes(*bodies: bytes, heads: dict[int, bytes] | None = None, options: int = 0) -> "Spans":
    """Return the spans of envelopes with these options; `heads` has the heads of some by their numbers."""
    data = b""
    for number, body in enumerate(bodies):
        head = (heads or {}).get(number, bytes(4))
        data += struct.pack(">I", len(head) + 4 + len(body)) + head
        data += struct.pack(">I", options << 24 | len(body)) + body
    spans = codec.native.Spans(data)
    assert spans.take_envelopes(0, MOST, 1000, 1000) == (len(data), 4)
    return spans


def test_envelopes_are_dealt_up_to_the_first_one_with_a_head() -> None:
    to = lane(Outlet())
    routes = codec.native.Routes({b"a": route(7, to, first=3)})
    spans = envelopes(b"1", b"22", b"3", b"4", heads={2: b"\0\1k\0\0"})
    passed = codec.native.Pass(routes, None, MOST)
    assert spans.deal(passed, 7, b"a") == 2
    assert (passed.lanes, passed.counts, routes[b"a"].next_id) == ([to], [2], 5)
    assert passed.frames == [plain.frames_of(7, 3, [b"1", b"22"])[0]]


def test_envelopes_that_cannot_be_dealt_change_nothing() -> None:
    routes = codec.native.Routes(
        {b"a": route(7, lane(Outlet())), b"full": route(8, lane(Outlet(clear=False)))}
    )
    for spans, topic, name, largest in (
        (envelopes(b"1", options=1), 7, b"a", MOST),
        (envelopes(b"1"), 6, b"a", MOST),  # the topic of the lease was deleted, and another one has its name
        (envelopes(b"1"), 7, b"b", MOST),
        (envelopes(b"1"), 8, b"full", MOST),
        (envelopes(b"123"), 7, b"a", 2),
    ):
        assert spans.deal(codec.native.Pass(routes, None, largest), topic, name) == 0
    assert [routes[name].next_id for name in (b"a", b"full")] == [1, 1]


def test_envelopes_are_dealt_as_far_as_a_pass_has_room() -> None:
    routes = codec.native.Routes({b"a": route(7, lane(Outlet()), reserved=3)})
    spans = envelopes(b"1", b"2", b"3")
    assert spans.deal(codec.native.Pass(routes, None, MOST), 7, b"a") == 2  # there are no more ids
    assert routes[b"a"].next_id == 3
