"""A store of an older format, left by a killed server, is read by this version and by every later one."""

import tarfile
from pathlib import Path

import pytest

from omq.client import Client, FromBeginning, Gap, Message, TopicInfo, connect
from omq_storage.environment import Environment

from .conversation import InProcess, serving

ARCHIVES = Path(__file__).parent.parent / "data" / "store"


def body(topic: str, message: int) -> bytes:
    """Return the body that `make_store.py` beside the archive writes."""
    return f"{topic} {message}".encode() + b"." * (6000 if message % 50 == 0 else 0)


@pytest.fixture(params=["store-1.tar.xz", "store-2.tar.xz", "store-3.tar.xz"])
def unpacked(store: Path, request: pytest.FixtureRequest) -> Path:
    with tarfile.open(ARCHIVES / request.param) as archive:
        archive.extractall(store.parent, filter="data")
    return store


async def everything(client: Client, info: TopicInfo) -> list[Message]:
    """Return the kept messages of a topic."""
    found: list[Message] = []
    if info.messages:
        async with client.subscribe(info.topic, FromBeginning()) as messages:
            async for message in messages:
                found.append(message)
                if message.id == info.first + info.messages - 1:
                    break
    return found


def environment(host: InProcess, level: str) -> Environment:
    """Return the environment of a level."""
    return next(
        writer.environment for known, writer in host.server.catalogue.writers.items() if known.value == level
    )


async def are_whole(host: InProcess, client: Client, levels: list[str]) -> None:
    """Check that every message, head, position and sequence of these levels is as it was written."""
    topics = {info.topic.decode(): info for info in await client.topics()}
    for level in levels:
        for name, last in ((level, 150), (f"{level}-numbered", 10)):
            found = await everything(client, topics[name])
            assert [message.id for message in found] == list(range(1, last + 1))
            assert [message.body for message in found] == [body(name, id) for id in range(1, last + 1)]
        work = topics[f"{level}-work"]
        position = environment(host, level).positions()[work.id]
        undone = sorted(message for run in position.undone for message in run.ids())
        assert (position.cursor, undone) == (15, [3, *range(6, 15)])
        (first,) = environment(host, level).read(topics[f"{level}-numbered"].id, 1)
        assert first.has_heads
        async with client.subscribe(work.topic, credit=100) as messages:
            dealt = [await messages.__anext__() for _ in range(16)]
        assert {message.id for message in dealt} == {3, *range(6, 21)}
        assert all(message.body == body(f"{level}-work", message.id) for message in dealt)
        # Messages that this producer sends again are known.
        async with client.sink(f"{level}-numbered", producer="fixture") as sink:
            for message in range(1, 12):
                await sink.publish(body(f"{level}-numbered", message))
        again = {info.topic.decode(): info for info in await client.topics()}
        assert again[f"{level}-numbered"].messages == 11


async def test_after_a_killed_process_all_of_it_is_there(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMQ_BOOT_ID", "fixture")
    monkeypatch.setenv("OMQ_MOUNT_ID", "")
    async with serving(unpacked) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        topics = {info.topic.decode(): info for info in await client.topics()}
        assert "deleted" not in topics
        assert topics["passing"].last > 0
        found = await everything(client, topics["trimmed"])
        assert [message.id for message in found] == list(range(101, 106))
        assert [message.body for message in found] == [body("trimmed", id) for id in range(101, 106)]
        await are_whole(host, client, ["strong", "weak", "async"])


async def test_safe_messages_survive_a_power_failure(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMQ_BOOT_ID", "another")
    gaps: list[Gap] = []
    async with (
        serving(unpacked) as host,
        connect(f"omq://127.0.0.1:{host.port}", on_gap=gaps.append) as client,
    ):
        await are_whole(host, client, ["strong", "weak"])
        topics = {info.topic.decode(): info for info in await client.topics()}
        # The first checkpoint of Async would have come later.
        assert topics["async"].messages == 0
        assert topics["async"].last > 150
