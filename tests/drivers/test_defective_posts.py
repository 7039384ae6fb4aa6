"""A post that raises what no store raises fails alone: the others of its topic and level are stored."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from served_drivers import kept, opened, settled

from omq.drivers.posts import LATE
from omq.drivers.problems import DEFECT
from omq.model import Persistent, Sync
from omq_storage.batches import Bodies
from omq_storage.blocks import Block


class Unencodable(Bodies):
    """Messages that no block takes."""

    def encode(self, topic: int, first: int, time: int, heads: Sequence[bytes] = ()) -> Block:
        raise ValueError("A block of 1073741824 octets is too large; it must stay under 1073741824.")

    def bodies(self) -> Sequence[bytes]:
        raise ValueError("A block of 1073741824 octets is too large; it must stay under 1073741824.")


@pytest.mark.parametrize("sync", Sync)
async def test_only_the_defective_post_fails(
    tmp_path: Path, sync: Sync, caplog: pytest.LogCaptureFixture
) -> None:
    persistence = Persistent(sync)
    async with opened(tmp_path / "store") as drivers:
        topic = await drivers.declare(persistence)
        other = await drivers.declare(persistence, name=b"other")
        posts = [
            await topic.post(Bodies([b"1"])),
            await topic.post(Bodies([b"2"]), origins=[(b"producer", 1)]),
            await topic.post(Unencodable([b"never"]), origins=[(b"producer", 2)]),
            await topic.post(Bodies([b"3"])),
            # Stored now, it would make what its producer posted before look repeated.
            await topic.post(Bodies([b"late"]), origins=[(b"producer", 3)]),
            await other.post(Bodies([b"4"])),
        ]
        assert [await settled(post) for post in posts] == [None, None, DEFECT, None, LATE, None]
        assert kept(topic) == [b"1", b"2", b"3"]
        assert kept(other) == [b"4"]
        assert drivers.memory.posted.used == 0
        assert sum(writer.statistics().failures for writer in drivers.catalogue.writers.values()) == 1
        assert (topic.statistics().failures, other.statistics().failures) == (1, 0)
    assert "a post failed by a defect of the server: 't'" in caplog.text
