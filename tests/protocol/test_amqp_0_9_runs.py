"""Runs of messages and acknowledgements of AMQP 0-9-1 end where the common form ends, with either codec."""

import pytest
from amqp_0_9_helpers import NO_PROPERTIES, PERSISTENT, call, publish

from omq.protocol.amqp_0_9 import runs
from omq.protocol.amqp_0_9.frames import FRAME, FrameType, frame, header_frame, method_frame
from omq.protocol.amqp_0_9.methods import BasicAck, BasicNack, BasicPublish
from omq.protocol.amqp_0_9.runs import RunLimits

LIMITS = RunLimits(100, 4088)
ONE = publish(1, b"key", b"body", b"exchange")
METHOD = method_frame(1, BasicPublish(b"exchange", b"key"))
HEADER = header_frame(1, NO_PROPERTIES, 4)
BODY = frame(FrameType.BODY, 1, b"body")


pytestmark = pytest.mark.usefixtures("each_codec")


def taken(octets: bytes, at: int = 0, limits: RunLimits = LIMITS) -> tuple[list[bytes], int]:
    """Return the bodies of the run at a position, and its end."""
    run, end = runs.take_publishes(octets, at, 1, limits)
    if run is None:
        return [], end
    assert (run.channel, run.exchange, run.routing_key) == (1, b"exchange", b"key")
    assert len(run.heads) == run.batch.count
    return [bytes(body) for body in run.batch.bodies()], end


def test_the_parts_are_those_of_a_message() -> None:
    assert METHOD + HEADER + BODY == ONE
    assert taken(b"?" + ONE, 1) == ([b"body"], 1 + len(ONE))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_incomplete_message_ends_a_run(count: int) -> None:
    whole = ONE * count
    for cut in range(len(ONE)):
        assert taken(whole + ONE[:cut]) == ([b"body"] * count, len(whole))
        assert taken(ONE[:cut]) == ([], 0)


def changed(octets: bytes, at: int, octet: int) -> bytes:
    return octets[:at] + bytes((octet,)) + octets[at + 1 :]


OTHERS = {
    "another method": call(1, BasicAck(1)),
    "another class": changed(METHOD, 8, 61) + HEADER + BODY,
    "immediate": method_frame(1, BasicPublish(b"exchange", b"key", False, True)) + HEADER + BODY,
    "a channel of its own": publish(2, b"key", b"body", b"exchange"),
    "the method on another channel": changed(METHOD, 2, 2) + HEADER + BODY,
    "the header on another channel": METHOD + changed(HEADER, 2, 2) + BODY,
    "the body on another channel": METHOD + HEADER + changed(BODY, 2, 2),
    "no header": METHOD + METHOD,
    "no body": METHOD + HEADER + METHOD + HEADER + BODY,
    "the method does not end": changed(METHOD, len(METHOD) - 1, 0) + HEADER + BODY,
    "the header does not end": METHOD + changed(HEADER, len(HEADER) - 1, 0) + BODY,
    "the body does not end": METHOD + HEADER + changed(BODY, len(BODY) - 1, 0),
    "a header of another class": METHOD + changed(HEADER, FRAME.size + 1, 61) + BODY,
    "a header with a weight": METHOD + changed(HEADER, FRAME.size + 3, 1) + BODY,
    "two body frames": publish(1, b"key", b"body", b"exchange", frame_max=10),
    "a longer body frame": METHOD + HEADER + frame(FrameType.BODY, 1, b"body!"),
    "a shorter body frame": METHOD + HEADER + frame(FrameType.BODY, 1, b"bod"),
    "a flag without a property": METHOD + header_frame(1, b"\0\1", 4) + BODY,
    "a property that is missing": METHOD + header_frame(1, b"\x80\0", 4) + BODY,
    "octets behind the properties": METHOD + header_frame(1, NO_PROPERTIES + b"x", 4) + BODY,
    "a table that is cut": METHOD + header_frame(1, b"\x20\0\0\0\0\1", 4) + BODY,
    "a body above the limit": publish(1, b"key", bytes(101), b"exchange"),
    "names that exceed the method": frame(FrameType.METHOD, 1, b"\0\x3c\0\x28\0\0\x09exchange\x03ke\0"),
    "a key without its length": frame(FrameType.METHOD, 1, b"\0\x3c\0\x28\0\0\x08exchange\0") + HEADER + BODY,
    "no names": frame(FrameType.METHOD, 1, b"\0\x3c\0\x28\0\0") + HEADER + BODY,
    "octets behind the key": frame(FrameType.METHOD, 1, b"\0\x3c\0\x28\0\0\x08exchange\x03key\0\0"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_another_form_ends_a_run(other: bytes) -> None:
    for count in (0, 1, 2, 3):
        assert taken(ONE * count + other + ONE) == ([b"body"] * count, count * len(ONE))


@pytest.mark.parametrize(
    ("body", "frame_max", "is_taken"), [(100, 4088, True), (40, 40, True), (41, 40, False)]
)
def test_bodies_of_exactly_the_limits_are_taken(body: int, frame_max: int, is_taken: bool) -> None:
    octets = publish(1, b"key", bytes(body), b"exchange")
    for count in (1, 2, 3):
        found = taken(octets * count, limits=RunLimits(100, frame_max))
        assert found == (([bytes(body)] * count, count * len(octets)) if is_taken else ([], 0))


def test_empty_bodies_and_others_in_one_run() -> None:
    sizes = (0, 0, 3, 3, 0, 4, 3)
    octets = [publish(1, b"key", bytes(size), b"exchange") for size in sizes]
    assert taken(b"".join(octets)) == ([bytes(size) for size in sizes], sum(map(len, octets)))


def test_a_head_of_exactly_64_kib_is_taken() -> None:
    for size, is_taken in ((65536, True), (65537, False)):
        names = len(b"\x08exchange\x03key")
        entry = size - names - 2 - 4 - len(b"\x01xS") - 4
        table = (entry + 7).to_bytes(4, "big") + b"\x01xS" + entry.to_bytes(4, "big") + bytes(entry)
        octets = publish(1, b"key", b"x", b"exchange", b"\x20\0" + table)
        run, end = runs.take_publishes(octets, 0, 1, RunLimits(100, 1 << 20))
        assert (run is not None, end) == (is_taken, len(octets) if is_taken else 0)
        if run is not None:
            assert len(run.heads[0]) == size


def test_messages_with_different_heads_are_one_run() -> None:
    octets = publish(1, b"key", b"1", b"exchange") + publish(1, b"key", b"2", b"exchange", PERSISTENT) * 2
    run, end = runs.take_publishes(octets, 0, 1, LIMITS)
    assert run is not None
    assert end == len(octets)
    names = b"\x08exchange\x03key"
    assert list(run.heads) == [names + NO_PROPERTIES, names + PERSISTENT, names + PERSISTENT]
    assert run.properties == 0x1000
    assert not run.mandatory


def test_mandatory_messages_are_a_run_of_their_own() -> None:
    mandatory = publish(1, b"key", b"body", b"exchange", mandatory=True)
    run, end = runs.take_publishes(mandatory * 2 + ONE, 0, 1, LIMITS)
    assert run is not None
    assert (run.mandatory, run.batch.count, end) == (True, 2, 2 * len(mandatory))


@pytest.mark.parametrize("most", [512, 513, 1024])
def test_the_plain_code_takes_512_messages_at_a_time(most: int) -> None:
    for octets in (ONE, publish(1, b"key", b"", b"exchange")):
        run, end = runs.take_publishes_plain(octets * most, 0, 1, LIMITS)
        assert run is not None
        assert (run.batch.count, end) == (512, 512 * len(octets))


ACK = call(1, BasicAck(5))


def acks(*tags: int, multiple: tuple[int, ...] = ()) -> bytes:
    return b"".join(call(1, BasicAck(tag, tag in multiple)) for tag in tags)


@pytest.mark.parametrize(
    ("octets", "ranges"),
    [
        (acks(1, 2, 3), [(1, 3)]),
        (acks(1, 3, 4), [(1, 1), (3, 4)]),
        (acks(3, 2, 2, 3), [(3, 3), (2, 2), (2, 3)]),
        (acks(1, 5, 6, multiple=(5,)), [(1, 1), (0, 5), (6, 6)]),
        (acks(0, 1, multiple=(0,)), [(0, 0), (1, 1)]),
        (acks(7, 8, multiple=(7, 8)), [(0, 7), (0, 8)]),
    ],
)
def test_neighbours_are_one_range(octets: bytes, ranges: list[tuple[int, int]]) -> None:
    assert runs.take_acks(octets, 0, 1) == (ranges, len(octets))
    assert runs.take_acks(b"?" + octets, 1, 1) == (ranges, 1 + len(octets))
    for cut in range(1, len(ACK)):
        assert runs.take_acks(octets + ACK[:cut], 0, 1) == (ranges, len(octets))


@pytest.mark.parametrize(
    "other",
    [
        acks(0), call(2, BasicAck(5)), call(1, BasicNack(5)), changed(ACK, len(ACK) - 1, 0),
        changed(ACK, len(ACK) - 2, 2), changed(ACK, 0, 2), changed(ACK, 8, 61), changed(ACK, 6, 14),
    ],
)  # fmt: skip
def test_what_is_no_acknowledgement_ends_a_run(other: bytes) -> None:
    for count in (0, 1, 2):
        found, end = runs.take_acks(ACK * count + other + ACK, 0, 1)
        assert (found, end) == ([(5, 5)] * count, count * len(ACK))


def test_4096_acknowledgements_are_taken_at_a_time() -> None:
    for count, taken in ((4095, 4095), (4096, 4096), (4097, 4096)):
        octets = ACK * count
        found, end = runs.take_acks(octets, 0, 1)
        assert (len(found), end) == (taken, taken * len(ACK))
