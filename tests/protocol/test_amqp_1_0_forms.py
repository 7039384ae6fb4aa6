"""Runs of transfers end where the common form ends, with either codec."""

import pytest

from omq.protocol.amqp_1_0 import frames, runs, stored
from omq.protocol.amqp_1_0.stored import BodyKind

MAX_FRAME = 65536
DATA = b"\x00\x53\x75\xa0\x01x"
TAG = b"\xa0\x01t"


pytestmark = pytest.mark.usefixtures("each_codec")


def transfer(
    *values: bytes, message: bytes = DATA, channel: int = 3, count: int | None = None, wide: bool = False
) -> bytes:
    """Return the frame of a transfer with these fields, as they are encoded."""
    fields, number = b"".join(values), len(values) if count is None else count
    if wide:
        head = b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + number.to_bytes(4, "big")
    else:
        head = b"\xc0" + bytes((len(fields) + 1, number))
    return frames.write(channel, b"\x00\x53\x14" + head + fields, message)


def plain(delivery: int, message: bytes = DATA) -> bytes:
    return transfer(b"\x43", b"\x70" + delivery.to_bytes(4, "big"), TAG, message=message)


def taken(octets: bytes, at: int = 0, max_frame: int = MAX_FRAME) -> tuple[int, int]:
    """Return the number of messages in the run at a position, and its end."""
    run, end = runs.take_transfers(octets, at, max_frame)
    return (0 if run is None else run.batch.count), end


FORMS = {
    "one octet of each number": (b"\x52\x05", b"\x52\x09", TAG),
    "four octets of each number": (b"\x70\0\0\0\x05", b"\x70\0\0\0\x09", TAG),
    "no tag": (b"\x43", b"\x43", b"\xa0\0"),
    "a tag of 32 octets": (b"\x43", b"\x43", b"\xa0\x20" + bytes(32)),
    "nulls": (b"\x43", b"\x43", TAG, *[b"\x40"] * 8),
    "all that may be said": (
        b"\x43", b"\x43", TAG, b"\x43", b"\x41", b"\x42", b"\x40", b"\x40", b"\x42", b"\x42", b"\x41",
    ),
    "all that is false": (
        b"\x43", b"\x43", TAG, b"\x52\0", b"\x42", b"\x42", b"\x40", b"\x40", b"\x42", b"\x42", b"\x42",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS.keys())
def test_common_forms_of_a_transfer(values: tuple[bytes, ...], wide: bool) -> None:
    octets = transfer(*values, wide=wide)
    run, end = runs.take_transfers(b"?" + octets, 1, MAX_FRAME)
    assert run is not None
    assert (run.channel, run.longest, end) == (3, len(DATA), 1 + len(octets))
    assert run.settled is (len(values) > 4 and values[4] == b"\x41")
    assert (run.handle, run.delivery, run.last) == ((5, 9, 9) if values[1].endswith(b"\x09") else (0, 0, 0))
    for cut in range(len(octets)):
        assert taken(octets[:cut]) == (0, 0)
    assert taken(octets, max_frame=len(octets)) == (1, len(octets))
    assert taken(octets, max_frame=len(octets) - 1) == (0, 0)


OTHERS = {
    "two fields": (b"\x43", b"\x43"),
    "twelve fields": (b"\x43", b"\x43", TAG, *[b"\x40"] * 9),
    "no handle": (b"\x40", b"\x43", TAG),
    "no delivery-id": (b"\x43", b"\x40", TAG),
    "no delivery-tag": (b"\x43", b"\x43", b"\x40"),
    "a long form of the tag": (b"\x43", b"\x43", b"\xb0\0\0\0\1t"),
    "a tag of 33 octets": (b"\x43", b"\x43", b"\xa0\x21" + bytes(33)),
    "a tag beyond the list": (b"\x43", b"\x43", b"\xa0\x05t"),
    "a message-format": (b"\x43", b"\x43", TAG, b"\x52\x01"),
    "a message-format of another type": (b"\x43", b"\x43", TAG, b"\x41"),
    "more": (b"\x43", b"\x43", TAG, b"\x40", b"\x40", b"\x41"),
    "a receive mode": (b"\x43", b"\x43", TAG, b"\x40", b"\x40", b"\x40", b"\x50\x00"),
    "a state": (b"\x43", b"\x43", TAG, *[b"\x40"] * 4, b"\x00\x53\x24\x45"),
    "resume": (b"\x43", b"\x43", TAG, *[b"\x40"] * 5, b"\x41"),
    "aborted": (b"\x43", b"\x43", TAG, *[b"\x40"] * 6, b"\x41"),
    "settled of another type": (b"\x43", b"\x43", TAG, b"\x40", b"\x43"),
}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS.keys())
def test_another_form_of_a_transfer_ends_a_run(values: tuple[bytes, ...], wide: bool) -> None:
    octets = transfer(*values, wide=wide)
    assert taken(octets + plain(1)) == (0, 0)


@pytest.mark.parametrize("count", [3, 5])
def test_a_wrong_count_of_fields_ends_a_run(count: int) -> None:
    values = (b"\x43", b"\x43", TAG, b"\x40")
    for wide in (False, True):
        assert taken(transfer(*values, wide=wide)) == (1, len(transfer(*values, wide=wide)))
        assert taken(transfer(*values, count=count, wide=wide)) == (0, 0)
        assert taken(transfer(b"\x43", TAG, count=3, wide=wide)) == (0, 0)


@pytest.mark.parametrize(
    "other",
    [
        plain(1), plain(3), transfer(b"\x52\x01", b"\x52\x02", TAG),
        transfer(b"\x43", b"\x52\x02", TAG, channel=4),
        transfer(b"\x43", b"\x52\x02", TAG, b"\x40", b"\x41"), plain(2, b""),
        plain(2)[:4] + b"\x03" + plain(2)[5:], plain(2)[:5] + b"\x01" + plain(2)[6:],
        plain(2)[:10] + b"\x15" + plain(2)[11:], plain(2)[:8] + b"\x01" + plain(2)[9:],
    ],
)  # fmt: skip
def test_a_run_has_consecutive_messages_of_one_link(other: bytes) -> None:
    octets = plain(0) + plain(1)
    assert taken(octets + plain(2)) == (3, 3 * len(plain(0)))
    assert taken(octets + other + plain(3)) == (2, len(octets))


def test_delivery_ids_begin_again_at_0() -> None:
    octets = plain(2**32 - 2) + plain(2**32 - 1) + plain(0) + plain(1)
    assert taken(octets) == (4, len(octets))


BEFORE = {
    "empty lists": b"\x00\x53\x70\x45\x00\x53\x73\x45",
    "short forms": b"".join(
        b"\x00\x53%c%c\x01\0" % pair for pair in ((0x70, 0xC0), (0x72, 0xC1), (0x73, 0xC0), (0x74, 0xC1))
    ),
    "long forms": b"".join(
        b"\x00\x53%c%c\0\0\0\x04\0\0\0\0" % pair
        for pair in ((0x70, 0xD0), (0x72, 0xD1), (0x73, 0xD0), (0x74, 0xD1))
    ),
}
CONTENTS = {
    "data": (b"\x00\x53\x75\xa0\x02hi", BodyKind.DATA, b"hi"),
    "wide data": (b"\x00\x53\x75\xb0\0\0\0\x02hi", BodyKind.DATA + stored.WIDE, b"hi"),
    "long data": (b"\x00\x53\x75\xb0\0\0\x01\0" + bytes(256), BodyKind.DATA, bytes(256)),
    "most wide data": (b"\x00\x53\x75\xb0\0\0\0\xff" + bytes(255), BodyKind.DATA + stored.WIDE, bytes(255)),
    "text": (b"\x00\x53\x77\xa1\x02hi", BodyKind.TEXT, b"hi"),
    "wide text": (b"\x00\x53\x77\xb1\0\0\0\x02hi", BodyKind.TEXT + stored.WIDE, b"hi"),
    "binary": (b"\x00\x53\x77\xa0\x02hi", BodyKind.BINARY, b"hi"),
    "a number": (b"\x00\x53\x77\x52\x07", BodyKind.SECTIONS, b"\x00\x53\x77\x52\x07"),
    "a map": (b"\x00\x53\x77\xc1\x01\x00", BodyKind.SECTIONS, b"\x00\x53\x77\xc1\x01\x00"),
}  # fmt: skip


@pytest.mark.parametrize("before", [b"", *BEFORE.values()], ids=["nothing", *BEFORE.keys()])
@pytest.mark.parametrize(("octets", "form", "body"), CONTENTS.values(), ids=CONTENTS.keys())
def test_messages_of_a_run_are_stored_as_single_ones(
    before: bytes, octets: bytes, form: int, body: bytes
) -> None:
    message = before + octets
    run, _ = runs.take_transfers(plain(0, message) + plain(1, message), 0, MAX_FRAME)
    assert run is not None
    assert [bytes(each) for each in run.batch.bodies()] == [body] * 2
    assert run.longest == len(message)
    made = stored.store(message)
    assert made.body == body
    assert run.heads == ([made.head] * 2 if made.head else None)
    if made.head:
        around = stored.around(made.head)
        assert around is not None
        assert (around.form, around.before) == (form, before)


@pytest.mark.parametrize(
    "message",
    [
        b"\x00\x53\x71\xc1\x01\x00" + DATA, b"\x00\x53\x73\x45\x00\x53\x70\x45" + DATA, DATA + DATA,
        b"\x00\x53\x70\x45\x00\x53\x70\x45" + DATA, DATA + b"\x00\x53\x78\xc1\x01\x00",
        DATA[:-1], DATA + b"x",
        b"\x00\x53\x72\x45" + DATA, b"\x00\x53\x70\xc1\x01\x00" + DATA, b"\x00\x53\x74\xc0\x01\x00" + DATA,
        b"\x00\x53\x76\x45", b"\x00\x53\x70\x45", b"\x01" + DATA, b"\x00\x54\x75\xa0\x01x",
        b"\x00\x53\x77\x00\xa3\x01s\x41", b"\x00\x53\x77\x52", b"\x00\x53\x77\x41\x41", b"\x00\x53\x77\x3f",
        b"\x00\x53\x75\xa1\x01x", b"\x00\x53\x75\xb0\0\0\0", b"\x00\x53\x77",
        b"\x00\x53\x70\xc0\x09\x00" + DATA,
    ],
)  # fmt: skip
def test_another_form_of_a_message_ends_a_run(message: bytes) -> None:
    octets = plain(0)
    assert taken(octets + plain(1, message) + plain(2)) == (1, len(octets))


@pytest.mark.parametrize("body", [DATA, b"\x00\x53\x77\x41"])
def test_60000_octets_may_stand_before_a_body(body: bytes) -> None:
    for octets, count in ((60_000, 1), (60_001, 0)):
        size = octets - 8
        before = b"\x00\x53\x74\xd1" + size.to_bytes(4, "big") + bytes(size)
        assert len(before) == octets
        assert taken(plain(0, before + body), max_frame=1 << 20)[0] == count
