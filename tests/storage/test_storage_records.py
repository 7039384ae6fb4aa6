"""The arithmetic of extents, index records and positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq_storage.errors import DamagedRecord
from omq_storage.records import (
    BlockRecord,
    Extent,
    Position,
    block_key,
    key_block,
    key_topic,
    missing_ids,
    pack_extent,
    pack_info,
    pack_position,
    topic_key,
    unpack_extent,
    unpack_info,
    unpack_position,
)
from omq_storage.runs import Run, runs_of


def info(first: int, count: int, octets: int) -> BlockRecord:
    return BlockRecord(first, count, 7, 8, octets)


def test_an_extent_follows_its_blocks() -> None:
    extent = Extent()
    assert extent.next == 0
    extent = extent.extended(5, 9, 100)
    assert (extent, extent.next) == (Extent(5, 9, 5, 100), 10)
    extent = extent.extended(20, 20, 30)
    assert (extent, extent.next) == (Extent(5, 20, 6, 130), 21)
    extent = extent.without_oldest(info(5, 5, 100))
    assert (extent, extent.next) == (Extent(10, 20, 1, 30), 21)
    extent = extent.emptied()
    assert (extent, extent.next) == (Extent(21, 20, 0, 0), 21)
    extent = extent.extended(25, 26, 3)
    assert (extent, extent.next) == (Extent(25, 26, 2, 3), 27)


def test_sums_that_were_guessed_never_fall_below_zero() -> None:
    assert Extent(1, 9, 3, 10).without_oldest(info(1, 4, 10)) == Extent(5, 9, 0, 0)
    assert Extent(1, 9, 3, 10).without_oldest(info(1, 3, 11)) == Extent(4, 9, 0, 0)
    assert Extent(1, 9, 3, 10).without_oldest(info(1, 2, 8)) == Extent(3, 9, 1, 2)


def test_the_ids_of_an_index_record() -> None:
    one = info(7, 3, 100)
    assert (one.last, one.next) == (9, 10)


@pytest.mark.parametrize(
    ("extent", "lost", "position", "following", "missing"),
    [
        (Extent(10, 99, 50, 1), range(0), 10, 15, (range(10, 15), True)),  # between stored messages
        (Extent(10, 99, 50, 1), range(0), 9, 10, (range(9, 10), False)),  # deleted
        (Extent(10, 99, 50, 1), range(3, 6), 1, 10, (range(1, 3), False)),  # deleted, up to the lost ones
        (Extent(10, 99, 50, 1), range(3, 6), 3, 10, (range(3, 6), True)),
        (Extent(10, 99, 50, 1), range(3, 6), 5, 10, (range(5, 6), True)),
        (Extent(10, 99, 50, 1), range(3, 6), 6, 10, (range(6, 10), False)),
        (Extent(10, 99, 50, 1), range(3, 20), 3, 10, (range(3, 10), True)),
        (Extent(10, 99, 50, 1), range(10, 20), 1, 10, (range(1, 10), False)),
        (Extent(10, 9, 0, 0), range(0), 12, 15, (range(12, 15), False)),  # nothing is stored
    ],
)
def test_ids_without_a_message_were_deleted_or_lost(
    extent: Extent, lost: range, position: int, following: int, missing: tuple[range, bool]
) -> None:
    assert missing_ids(extent, lost, position, following) == missing


def test_the_lowest_id_that_is_not_confirmed() -> None:
    assert Position(17).lowest == 17
    assert Position(17, (Run(9, 1, 0b110), Run(5, 2, 0b100, 3))).lowest == 9
    assert Position(17, (Run(5, 2, 0b100, 3), Run(10, 1, 1))).lowest == 9


def test_records_octet_for_octet() -> None:
    """The same in every version: a checksum of four octets, then big-endian numbers."""
    key = topic_key(3)
    assert key == b"\0\0\0\3"
    assert block_key(3, 258) == b"\0\0\0\3" + b"\0\0\0\0\0\0\1\2"
    assert pack_extent(key, Extent(1, 2, 3, 4))[4:] == b"".join(n.to_bytes(8, "big") for n in (1, 2, 3, 4))
    packed = pack_info(block_key(3, 1), BlockRecord(1, 2, 3, 4, 5, heads=True))
    assert packed[4:] == b"\0\0\0\2" + (3).to_bytes(8, "big") + b"\0\0\0\4\0\0\0\5\1"

    def position(*numbers: int) -> bytes:
        return b"".join(n.to_bytes(8, "big") for n in numbers)

    assert pack_position(key, Position(9))[4:] == position(9)
    assert pack_position(key, Position(9, (Run(4, 2, 0b11),)))[4:] == position(9, 4, 6)
    # Five ids take as much as a run of them with a bitmap of 64 bits less one number.
    four, five = Run(1, 1, 0b1111), Run(1, 1, 0b11111)
    assert pack_position(key, Position(9, (four,)))[4:] == position(9, 1, 2, 3, 4)
    assert pack_position(key, Position(9, (five,)))[4:] == position(9, 1, 1, 1, 0b11111) + b"\1"
    # Messages that were delivered before: a run without ids has their number of deliveries.
    again = Run(5, 1, 1, 2)
    assert pack_position(key, Position(9, (again,)))[4:] == position(9, 2, 1, 0, 5, 1, 1, 1) + b"\1"
    both = pack_position(key, Position(9, (again, Run(3, 1, 1), Run(7, 1, 1, 2), Run(8, 1, 1, 3))))
    assert both[4:] == (
        position(9, 3, 1, 1, 1)
        + position(2, 1, 0, 5, 1, 1, 1, 7, 1, 1, 1)
        + position(3, 1, 0, 8, 1, 1, 1)
        + b"\1"
    )


runs = st.builds(
    Run,
    st.integers(1, 1000),
    st.integers(1, 50),
    st.integers(1, (1 << 200) - 1),
    st.sampled_from([0, 0, 1, 7]),
)


@given(st.integers(0, 1 << 63), st.lists(runs, max_size=5))
def test_positions_are_read_as_they_were_stored(cursor: int, undone: list[Run]) -> None:
    key = topic_key(7)
    read = unpack_position(key, pack_position(key, Position(cursor, tuple(undone))))
    assert read.cursor == cursor
    told = sorted({(id, run.deliveries) for run in undone for id in run.ids()})
    assert sorted({(id, run.deliveries) for run in read.undone for id in run.ids()}) == told


def test_keys_and_records_of_other_lengths_are_damaged() -> None:
    assert key_topic(b"\0\0\0\7") == key_topic(b"\0\0\0\7and more") == 7
    assert key_block(block_key(7, 9)) == (7, 9)
    for key in (b"", b"\0\0\7"):
        with pytest.raises(DamagedRecord, match="The key"):
            key_topic(key)
    for key in (b"", topic_key(7), block_key(7, 9)[:-1], block_key(7, 9) + b"\0"):
        with pytest.raises(DamagedRecord, match="The key"):
            key_block(key)
    key = block_key(7, 9)
    stored = pack_info(key, info(9, 2, 3))
    assert unpack_info(key, stored) == info(9, 2, 3)
    for value in (b"", stored[:3], stored[:-1], stored + b"\0", pack_info(block_key(7, 8), info(8, 2, 3))):
        with pytest.raises(
            DamagedRecord, match="The record of the block from message 9 of topic 7 is damaged"
        ):
            unpack_info(key, value)
    with pytest.raises(DamagedRecord, match="The record of what is stored of topic 7 is damaged"):
        unpack_extent(topic_key(7), pack_extent(topic_key(8), Extent(1, 1, 1, 1)))
    with pytest.raises(DamagedRecord, match="The record of the position of topic 7 is damaged"):
        unpack_position(topic_key(7), pack_position(topic_key(8), Position(1)))


def test_runs_of_any_order_become_a_position() -> None:
    ids = [9, 3, 5, 7, 100, 1]
    read = unpack_position(topic_key(1), pack_position(topic_key(1), Position(101, runs_of(ids))))
    assert [id for run in read.undone for id in run.ids()] == sorted(ids)
