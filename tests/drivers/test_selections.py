"""Part of a block that a subscriber is sent: its octets, and how many messages are in the first of them."""

import pytest

from omq.drivers.seam import Selection
from omq_storage.blocks import encode

BLOCK = encode(7, 10, [b"x" * size for size in (0, 5, 1, 30, 2, 2, 9)], 0)


@pytest.mark.parametrize(
    "ids",
    [
        range(10, 17),
        range(12, 17),
        range(16, 17),
        range(10, 13),
        range(11, 12),
        range(10, 17, 2),
        range(11, 17, 2),
        range(11, 17, 3),
        range(10, 16, 5),
        range(12, 17, 9),
    ],
)
def test_the_frames_of_a_selection_and_what_has_left_of_them(ids: range) -> None:
    selection = Selection(BLOCK, ids)
    frames = [bytes(BLOCK.frame(message)) for message in ids]
    assert bytes(selection.frames()) == b"".join(frames)
    for octets in range(sum(map(len, frames)) + 1):
        count, left = 0, octets
        while count < len(frames) and left >= len(frames[count]):
            left -= len(frames[count])
            count += 1
        assert selection.sent(octets) == (count, left)


def test_a_selection_of_many_messages_is_complete_with_octets_to_spare() -> None:
    block = encode(1, 1, [b"x"] * 1000, 0)
    for ids in (range(1, 1001), range(1, 1001, 2)):
        octets = len(Selection(block, ids).frames())
        assert Selection(block, ids).sent(octets) == (len(ids), 0)
        assert Selection(block, ids).sent(octets - 1) == (len(ids) - 1, octets // len(ids) - 1)
