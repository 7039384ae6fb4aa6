"""Large messages are read as blocks from a server and from a store, and copied to another server."""

from pathlib import Path

import pytest
from replay_helpers import bodies, replay
from serving_stores import serving

from omq.bulk.access import Access, Gap
from omq.bulk.local import LocalStore
from omq.bulk.remote import RemoteServer, RetryPolicy, parse_servers
from omq_storage import fragments
from omq_storage.blocks import Block

LARGE = [b"first", b"".join(b"%07d\n" % n for n in range(150_000)), b"x" * 2_000_000, b"last"]


@pytest.mark.parametrize("way", ["server", "store"])
def test_large_messages_are_copied(tmp_path: Path, way: str) -> None:
    with serving(tmp_path / "source") as source, serving(tmp_path / "target") as target:
        source.publish("t", LARGE, sink=True)
        place = ("--server", source.url) if way == "server" else ("--path", str(source.store))
        assert replay(*place, "t", "--to", target.url) == 0
        assert bodies(target.address, "t") == LARGE
        with LocalStore(str(target.store)) as local:
            (topic,) = local.topics().values()
            infos = [local.block_at(topic, message, 5) for message in range(1, 5)]
        assert [info.bytes > 1_000_000 for info in infos if info is not None] == [False, True, True, False]


def found(access: Access) -> list[int | Gap]:
    """Return the octets of each block of the only topic, and the gaps."""

    def octets(block: Block, messages: range) -> int:
        return block.size

    (topic,) = access.topics().values()
    return list(access.fetch(topic, 1, topic.next, octets))


def test_a_message_that_is_too_large_for_a_block_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "source") as source:
        source.publish("t", LARGE, sink=True)
        # The limit is 1 GiB: too much for a test.
        monkeypatch.setattr(fragments, "FRAMES_LIMIT", 1_900_000)
        with LocalStore(str(source.store)) as local:
            gap = Gap(3, 3, "it has 2000000 octets, too many for a block")
            assert found(local) == [22, 1_200_017, gap, 21]
        with RemoteServer(parse_servers(source.address), RetryPolicy(0)) as server:
            assert found(server) == [22, 1_200_017, 2_000_017, 21]
