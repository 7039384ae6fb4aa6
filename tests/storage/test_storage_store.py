"""The whole store: its directory, its lock, and processes that die or run out of disk."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from storage_helpers import numbered, read_all

from omq_storage.errors import DamagedFile, NewerFormat, StoreError, StoreInUse
from omq_storage.levels import Level
from omq_storage.store import Store

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def first_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMQ_BOOT_ID", "first")


def open_small(path: Path, **options: str) -> Store:
    return Store.open(path, map_size=1 << 28, **options)


def test_a_store_is_made_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with open_small(path) as store:
        assert {p.name for p in path.iterdir()} == {
            "format",
            "lock",
            "spare",
            "catalogue",
            "strong",
            "weak",
            "async",
        }
        assert json.loads((path / "format").read_bytes()) == {"format": 4}
        assert [recovery.level for recovery in store.recoveries] == list(Level)
        assert not any(recovery.rolled_back for recovery in store.recoveries)
        topic = store.catalogue.create(b"prices", "broadcast", "weak", True).id
        for number, level in enumerate(Level):
            store.level(level).append([numbered(topic, number, 1)])
    store.close()
    with open_small(path, boot_id="second") as store:
        assert [record.name for record in store.catalogue.topics()] == [b"prices"]
        assert [read_all(store.level(level), 0) for level in Level] == [[numbered(0, n, 1)] for n in range(3)]
        assert not any(recovery.rolled_back for recovery in store.recoveries)


def test_a_power_failure_rolls_back_weak_and_async_but_never_strong(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for level in Level:
            store.level(level).append([numbered(1, 0, 1)])
        store.level(Level.WEAK).checkpoint()
        for level in Level:
            store.level(level).append([numbered(1, 1, 1)])
        shutil.copytree(tmp_path / "store", tmp_path / "lost")
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with open_small(tmp_path / "lost", boot_id="second") as store:
        assert [store.level(level).extent(1).messages for level in Level] == [2, 1, 0]
        assert [recovery.rolled_back for recovery in store.recoveries] == [False, True, True]
        assert all(recovery.what.endswith(".") for recovery in store.recoveries)
    with open_small(tmp_path / "killed") as store:
        assert [store.level(level).extent(1).messages for level in Level] == [2, 2, 2]
        assert not any(recovery.rolled_back for recovery in store.recoveries)


def test_a_store_is_open_in_one_process_only(tmp_path: Path) -> None:
    with open_small(tmp_path / "store"):
        with pytest.raises(StoreInUse, match="/store is in use"):
            open_small(tmp_path / "store")
        script = "import sys; from omq_storage.store import Store; Store.open(sys.argv[1])"
        other = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "store"],
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert "StoreInUse: The store" in other.stderr
    open_small(tmp_path / "store").close()


def test_a_path_that_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("")
    for name, sentence in (
        ("file", "cannot be opened: .*/file is no directory"),
        ("file/below", "cannot be opened: .*/file is no directory"),
        ("home", r"is not a store: it holds 'letter.txt'"),
    ):
        with pytest.raises(StoreError, match=sentence) as caught:
            open_small(tmp_path / name)
        assert str(tmp_path) in str(caught.value)
    assert sorted(p.name for p in (tmp_path / "home").iterdir()) == ["letter.txt"]


def test_the_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "store" / "lock").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"/store cannot be opened: .*/store/lock: Is a directory"):
        open_small(tmp_path / "store")


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is permitted to root")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(StoreError, match="Permission denied"):
        open_small(tmp_path / "closed")


@pytest.mark.parametrize("content", ["", "{}", "[]", "7", '{"format": 0}', '{"format": "1"}', "\0"])
def test_a_damaged_format_file(tmp_path: Path, content: str) -> None:
    open_small(tmp_path / "store").close()
    (tmp_path / "store" / "format").write_text(content)
    with pytest.raises(StoreError, match="is damaged"):
        open_small(tmp_path / "store")


def test_a_newer_format_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "format").write_text('{"format": 5}')
    with pytest.raises(NewerFormat, match="format 5"):
        open_small(tmp_path / "store")
    assert {p.name for p in (tmp_path / "store").iterdir()} == {"format", "lock"}


def test_a_store_opens_after_an_interrupted_first_start(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "lock").write_text("")
    (tmp_path / "store" / "format.new").write_text('{"for')
    open_small(tmp_path / "store").close()


def test_an_interrupted_first_start_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.catalogue.create(b"never seen by anybody", "broadcast", "weak", True)
    (path / "format").write_text('{"format": 1, "begun": true}')
    (path / "strong" / "data.mdb").write_bytes(os.urandom(10_000))
    (path / "weak" / "checkpoint").write_bytes(bytes(10))
    shutil.rmtree(path / "async")
    with open_small(path, boot_id="second") as store:
        assert store.catalogue.topics() == []
        assert not any(recovery.rolled_back for recovery in store.recoveries)
        assert json.loads((path / "format").read_bytes()) == {"format": 4}


@pytest.mark.parametrize("level", ["catalogue", "strong", "weak", "async"])
@pytest.mark.parametrize("harm", ["removed", "emptied", "cut", "meta", "page"])
def test_damage_that_LMDB_would_trust_is_refused(tmp_path: Path, level: str, harm: str) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        for number in range(40):
            store.catalogue.create(b"topic %d" % number, "broadcast", "weak", True)
            for each in Level:
                store.level(each).append([numbered(number, 0, 10)])
    file = path / level / "data.mdb"
    whole = file.read_bytes()
    match harm:
        case "removed":
            file.unlink()
        case "emptied":
            file.write_bytes(b"")
        case "cut":
            file.write_bytes(whole[: len(whole) // 2])
        case "meta":
            # One bit in the number of the older transaction makes it the newest.
            numbers = [int.from_bytes(whole[at : at + 8], "little") for at in (144, 4096 + 144)]
            at = 144 if numbers[0] < numbers[1] else 4096 + 144
            file.write_bytes(whole[: at + 2] + b"\1" + whole[at + 3 :])
        case "page":
            file.write_bytes(whole[:8192] + bytes(len(whole) - 8192))
    before = {each: each.read_bytes() for each in path.rglob("data.mdb")}
    with pytest.raises(DamagedFile, match=f"The file {file} is (missing|empty|damaged)"):
        open_small(path)
    assert {each: each.read_bytes() for each in path.rglob("data.mdb")} == before
    file.write_bytes(whole)
    open_small(path).close()


def test_a_missing_format_file_is_named(tmp_path: Path) -> None:
    open_small(tmp_path / "store").close()
    (tmp_path / "store" / "format").unlink()
    with pytest.raises(DamagedFile, match="store/format is missing"):
        open_small(tmp_path / "store")


def test_a_damaged_environment_is_reported_and_the_lock_is_released(tmp_path: Path) -> None:
    open_small(tmp_path / "store").close()
    good = (tmp_path / "store" / "strong" / "data.mdb").read_bytes()
    (tmp_path / "store" / "strong" / "data.mdb").write_bytes(b"no LMDB file" * 1000)
    for _ in range(2):
        with pytest.raises(StoreError, match="strong"):
            open_small(tmp_path / "store")
    (tmp_path / "store" / "strong" / "data.mdb").write_bytes(good)
    open_small(tmp_path / "store").close()


def environment() -> dict[str, str]:
    root = HERE.parent.parent
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{HERE}", "OMQ_BOOT_ID": "first"}


WRITER = """
import sys
from omq_storage.levels import Level
from omq_storage.store import Store
from storage_helpers import numbered
store = Store.open(sys.argv[1], map_size=1 << 30)
number = 0
while True:
    for level in Level:
        store.level(level).append([numbered(1, 10 * number, 10)], {1: {b"producer": number}})
        print(level.value, number, flush=True)
    if number % 7 == 3:
        store.level(Level.WEAK).checkpoint()
    number += 1
"""


def test_a_killed_process_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path / "store"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    appended = {}
    try:
        for line in writer.stdout:
            name, number = line.split()
            appended[Level(name)] = int(number)
            if int(number) == 20:
                break
    finally:
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read()
        writer.wait()
        writer.stdout.close()
    for line in rest.split("\n")[:-1]:
        name, number = line.split()
        appended[Level(name)] = int(number)
    with open_small(tmp_path / "store") as store:
        for level in Level:
            blocks = read_all(store.level(level), 1)
            assert len(blocks) in (appended[level] + 1, appended[level] + 2)
            assert blocks == [numbered(1, 10 * n, 10) for n in range(len(blocks))]
            assert store.level(level).sequences(1, [b"producer"]) == {b"producer": len(blocks) - 1}
            assert store.level(level).reader_check() == 0
        assert not any(recovery.rolled_back for recovery in store.recoveries)


DISK_FULL = """
import resource
import sys
from omq_storage.environment import Position
from omq_storage.errors import Limit, StoreFull
from omq_storage.levels import Level
from omq_storage.store import Store
from storage_helpers import numbered, read_all
store = Store.open(sys.argv[1], map_size=1 << 30)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
for level in Level:
    environment = store.level(level)
    first, blocks = 0, []
    for turn in range(3):
        try:
            while True:
                block = numbered(1, first, 100)
                environment.append([block])
                blocks.append(block)
                first = block.next
        except StoreFull as full:
            assert full.limit is Limit.DISK, full
        assert read_all(environment, 1) == blocks
        environment.trim(1, blocks[len(blocks) // 2].first)
        blocks = blocks[len(blocks) // 2 :]
        assert read_all(environment, 1) == blocks
        environment.checkpoint()
        environment.set_positions({1: Position(turn)})
        environment.checkpoint()
        environment.append([numbered(1, first, 100)])
        blocks.append(numbered(1, first, 100))
        first += 100
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for level in Level:
    first = store.level(level).extent(1).next
    store.level(level).append([numbered(1, first + n, 1) for n in range(5000)])
store.close()
print("done")
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit of the file size stands in for a full disk: the same writes fail."""
    writer = subprocess.run(
        [sys.executable, "-c", DISK_FULL, tmp_path / "store"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (writer.stdout, writer.stderr) == ("done\n", "")
    with open_small(tmp_path / "store") as store:
        assert all(store.level(level).extent(1).messages > 5000 for level in Level)


def test_a_level_may_have_a_tebibyte(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        assert {store.level(level).usage().map_size for level in Level} == {1 << 40}
