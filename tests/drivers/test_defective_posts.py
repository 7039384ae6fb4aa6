"""A post that raises what no store raises fails alone: the others of its topic and level are stored."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.memory import Memory
from omq.drivers.posts import LATE
from omq.drivers.problems import DEFECT
from omq.drivers.reasons import Failure
from omq.model import Delivery, Persistence, Persistent, Sync
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.store import Store


class Unencodable(Bodies):
    """Messages that no block takes."""

    def encode(self, topic: int, first: int, time: int, heads: Sequence[bytes] = ()) -> Block:
        raise ValueError("A block of 1073741824 octets is too large; it must stay under 1073741824.")

    def bodies(self) -> Sequence[bytes]:
        raise ValueError("A block of 1073741824 octets is too large; it must stay under 1073741824.")


async def failure(confirmation: Confirmation) -> Failure | None:
    settled = trio.Event()
    confirmation.listen(settled.set)
    with trio.fail_after(60):
        await settled.wait()
    return confirmation.failure


def kept(driver: Driver) -> list[bytes]:
    blocks = driver.environment.read(driver.topic.id, 0)
    return [bytes(frame[FRAME_HEADER:]) for block in blocks for frame in block.slices(block.first)]


@pytest.mark.parametrize("sync", Sync)
async def test_only_the_defective_post_fails(
    tmp_path: Path, sync: Sync, caplog: pytest.LogCaptureFixture
) -> None:
    persistence: Persistence = Persistent(sync)
    with Store.open(tmp_path, map_size=1 << 28) as store:
        async with trio.open_nursery() as nursery:
            memory = Memory(1 << 26)
            catalogue = Catalogue(Config(store=str(tmp_path)), store, memory, nursery)
            for writer in catalogue.writers.values():
                nursery.start_soon(writer.run)
            await catalogue.open_stored()
            topic = await catalogue.declare(b"t", Delivery.BROADCAST, persistence)
            other = await catalogue.declare(b"other", Delivery.BROADCAST, persistence)
            posts = [
                await topic.post(Bodies([b"1"])),
                await topic.post(Bodies([b"2"]), origins=[(b"producer", 1)]),
                await topic.post(Unencodable([b"never"])),
                await topic.post(Bodies([b"3"])),
                # Stored now, it would make what its producer posted before look repeated.
                await topic.post(Bodies([b"late"]), origins=[(b"producer", 2)]),
                await other.post(Bodies([b"4"])),
            ]
            assert [await failure(post) for post in posts] == [None, None, DEFECT, None, LATE, None]
            assert kept(topic) == [b"1", b"2", b"3"]
            assert kept(other) == [b"4"]
            assert memory.posted.used == 0
            nursery.cancel_scope.cancel()
    assert "a post failed by a defect of the server: 't'" in caplog.text
