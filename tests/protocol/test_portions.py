"""Translations of heads are kept where heads are short, and count towards what a step may do where not."""

import pytest

from omq.protocol.amqp.portions import Portion, Translation

MANY = 1000


def in_one_step(head: bytes) -> int:
    """Return the number of translations of this head in one step, up to a limit."""
    translation: Translation[bytes] = Translation(bytes.upper)
    portion = Portion()
    for count in range(MANY):
        if portion.is_spent:
            return count
        assert translation.of(portion, head) == head.upper()
    return MANY


@pytest.mark.parametrize(("octets", "count"), [(0, MANY), (1024, MANY), (1025, 5), (10_000, 1)])
def test_short_heads_are_translated_once(octets: int, count: int) -> None:
    assert in_one_step(b"x" * octets) == count


@pytest.mark.parametrize(("octets", "count"), [(0, 192), (63, 192), (64, 187), (64 * 6112, 1)])
def test_a_step_frames_heads_of_a_limited_size(octets: int, count: int) -> None:
    portion = Portion()
    for _ in range(count):
        assert not portion.is_spent
        portion.spend_framed(bytes(octets))
    assert portion.is_spent
