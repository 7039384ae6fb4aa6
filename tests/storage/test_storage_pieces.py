"""Large messages read piece by piece give the same octets as when read whole."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest
from storage_helpers import NOON, numbered, open_level, whole

from omq_storage.blocks import FRAME_HEADER, Block, encode
from omq_storage.environment import Environment
from omq_storage.errors import DamagedBlock
from omq_storage.lookup import LargeBlock
from omq_storage.pieces import CHECKED_OCTETS, InBlock, VerifiedBodies
from omq_storage.records import BLOCKS, block_key

MIB = 1 << 20


def large(first: int, sizes: list[int], heads: tuple[bytes, ...] = ()) -> Block:
    """Return a body in which every MiB is different."""
    bodies = [b"".join(b"%07d " % n for n in range(first, first + size // 8 + 1))[:size] for size in sizes]
    return encode(1, first, bodies, NOON, heads)


@pytest.mark.parametrize("octets", [64 << 10, 99_991, MIB, 3 * MIB])
@pytest.mark.parametrize("heads", [(), (b"", b"head", b"x" * 1000)])
def test_pieces_make_up_the_message(environment: Environment, octets: int, heads: tuple[bytes, ...]) -> None:
    block = large(5, [3 * MIB + 17, 2 * CHECKED_OCTETS, 100], heads)
    environment.append([numbered(1, 0, 5), block, numbered(1, 8, 5), numbered(2, 0, 100)])
    for message in range(5, 8):
        assert whole(environment, 1, message, octets) == block.frame(message)[FRAME_HEADER:]
        looked_at = environment.bodies.open_message(1, message)
        assert looked_at is not None
        assert looked_at.head == (heads[message - 5] if heads else b"")


def test_an_empty_message_is_one_empty_piece(environment: Environment) -> None:
    environment.append([large(5, [0, MIB, 0])])
    for message in (5, 7):
        looked_at = environment.bodies.open_message(1, message)
        assert looked_at is not None
        assert looked_at.size == 0
        assert environment.bodies.read_piece(looked_at, 0, MIB) == b""


def test_a_block_above_the_limit_is_not_read(environment: Environment) -> None:
    small, block = numbered(1, 0, 5), large(5, [2 * MIB])
    environment.append([small, block])
    with pytest.raises(LargeBlock) as caught:
        environment.read_stored(1, 5, MIB, largest=MIB)
    assert caught.value.octets > 2 * MIB
    assert [found.block for found in environment.read_stored(1, 0, MIB, largest=MIB)] == [small]
    assert [found.block for found in environment.read_stored(1, 5, MIB)] == [block]


def test_a_deleted_message_is_not_found(environment: Environment) -> None:
    environment.append([large(5, [2 * MIB]), numbered(1, 6, 5)])
    looked_at = environment.bodies.open_message(1, 5)
    assert looked_at is not None
    environment.trim(1, 6)
    assert environment.bodies.read_piece(looked_at, MIB, 100) is None
    assert environment.bodies.open_message(1, 5) is None
    assert environment.bodies.open_message(1, 11) is None


def test_a_message_is_opened_again_after_its_block_was_merged(environment: Environment) -> None:
    blocks = [numbered(1, first, 1, size=100_000) for first in range(4)]
    environment.append(blocks)
    looked_at = environment.bodies.open_message(1, 3)
    assert looked_at is not None
    environment.merge_small(1, 0)
    assert environment.bodies.read_piece(looked_at, 0, 100) is None
    assert whole(environment, 1, 3, 999) == blocks[3].frame(3)[FRAME_HEADER:]


def test_a_message_is_found_while_its_block_is_merged(environment: Environment) -> None:
    rounds, together = 150, 8

    def grow() -> None:
        for first in range(1, rounds * together, together):
            environment.append([numbered(1, message, 1) for message in range(first, first + together)])
            environment.merge_small(1, first)

    environment.append([numbered(1, 0, 1)])
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(grow)
        looks = 0
        while not growing.done():
            newest = environment.extent(1).last
            for message in range(max(0, newest - together), newest + 1):
                looked_at = environment.bodies.open_message(1, message)
                assert looked_at is not None
                looks += looked_at.id == message
        growing.result()
    assert looks > rounds


def test_damage_is_detected_before_and_after_a_message_was_opened(
    environment: Environment, tmp_path: Path
) -> None:
    block = large(5, [3 * MIB])
    environment.append([block])
    looked_at = environment.bodies.open_message(1, 5)
    assert looked_at is not None
    assert isinstance(looked_at.place, InBlock)
    environment.close()
    with lmdb.open(str(tmp_path / "weak"), max_dbs=16, map_size=1 << 30) as raw:
        table = raw.open_db(BLOCKS)
        with raw.begin(write=True) as transaction:
            value = bytearray(transaction.get(block_key(1, 5), db=table) or b"")
            value[looked_at.place.at + MIB + 5] ^= 1
            transaction.put(block_key(1, 5), bytes(value), db=table)
    environment = open_level(tmp_path / "weak")
    assert environment.bodies.read_piece(looked_at, 0, 100) is not None
    assert environment.bodies.read_piece(looked_at, MIB, 100) is None
    with pytest.raises(DamagedBlock, match="its checksum is wrong"):
        environment.bodies.open_message(1, 5)


def test_the_newest_verified_bodies_are_remembered() -> None:
    """The pieces of one that is not known are compared with the checksums of the whole body again."""
    bodies, most = VerifiedBodies(), 1 << 14
    for body in range(most):
        bodies.add(body)
        assert bodies.has(body)
    assert bodies.has(0)
    bodies.add(most)
    assert [bodies.has(body) for body in (0, 1, most)] == [False, True, True]
    bodies.discard(1)
    assert not bodies.has(1)
