"""Identities of levels: misplaced files, and interrupted starts."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from storage_helpers import bodies_of, numbered, problems, read_all
from test_storage_repair import SampleInterpreter, change, contents, filled, repaired

from omq_storage import store as store_module
from omq_storage.backup import backup
from omq_storage.catalogue import MESSAGE_IDS_SKIPPED, StoreCatalogue
from omq_storage.environment import Environment
from omq_storage.errors import DamagedFile, Limit, StoreFull
from omq_storage.identity import IDENTITY_KEY, LevelIdentity, pack_identity, read_identity
from omq_storage.inspection import inspect
from omq_storage.levels import Level
from omq_storage.repair import repair
from omq_storage.store import Store, lock_store, read_format
from omq_storage.topics import TopicRecord

ARCHIVE = Path(__file__).parent.parent / "data" / "store" / "store-1.tar.xz"


def opened(path: Path, boot_id: str = "first") -> Store:
    return Store.open(path, map_size=1 << 28, boot_id=boot_id)


def resumes(path: Path) -> dict[str, int]:
    with opened(path) as store:
        return {record.name.decode(): record.resume for record in store.catalogue.topics()}


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name(one.name + ".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.mark.parametrize("what", ["data.mdb", "directories"])
@pytest.mark.parametrize(("one", "other"), [("strong", "weak"), ("weak", "async"), ("strong", "async")])
def test_exchanged_levels_are_reported_and_moved_back(
    tmp_path: Path, what: str, one: str, other: str
) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    name = what if what == "data.mdb" else ""
    exchange(path / one / name, path / other / name)
    with pytest.raises(DamagedFile, match="is not the right one: it belongs to the level"):
        opened(path)
    found = problems(path)
    assert (
        f"The file {path / one / 'data.mdb'} is not the right one: it belongs to the level {other}." in found
    )
    sentences = repaired(path)
    assert f"The file data.mdb of {one} was put into {other}, where it belongs." in sentences
    assert problems(path) == []
    assert contents(path) == whole
    assert set(resumes(path).values()) == {0}  # no id was skipped
    assert not list(path.glob("*.damaged-*"))


def test_three_exchanged_levels_are_moved_back_despite_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    exchange(path / "strong" / "data.mdb", path / "weak" / "data.mdb")
    exchange(path / "weak" / "data.mdb", path / "async" / "data.mdb")
    rename = Path.rename
    for moves in range(7):
        copy = shutil.copytree(path, tmp_path / f"copy-{moves}")
        left = [moves]

        def cut_short(self: Path, target: Path, left: list[int] = left) -> Path:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", cut_short)
        try:
            repaired(copy)
        except KeyboardInterrupt:
            pass
        monkeypatch.undo()
        repaired(copy)
        assert problems(copy) == []
        assert contents(copy) == whole


def test_exchanged_checkpoints_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(filled(path)):
        shutil.copytree(path, tmp_path / "cut")
    exchange(tmp_path / "cut" / "weak" / "checkpoint", tmp_path / "cut" / "async" / "checkpoint")
    data = {file: file.read_bytes() for file in (tmp_path / "cut").rglob("data.mdb")}
    with pytest.raises(DamagedFile, match="checkpoint is not the right one: it belongs to the level"):
        opened(tmp_path / "cut", "second")
    assert data == {file: file.read_bytes() for file in (tmp_path / "cut").rglob("data.mdb")}
    with lock_store(tmp_path / "cut"):
        repair(tmp_path / "cut", SampleInterpreter(), "second", lambda _: None, map_size=1 << 28)
    assert problems(tmp_path / "cut") == []
    assert contents(tmp_path / "cut") == contents(path)


def test_a_checkpoint_is_not_written_into_a_file_of_another_level(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(filled(path)):
        shutil.copytree(path, tmp_path / "cut")
    cut = tmp_path / "cut"
    exchange(cut / "strong" / "data.mdb", cut / "weak" / "data.mdb")
    before = (cut / "weak" / "data.mdb").read_bytes()
    with pytest.raises(DamagedFile, match="it belongs to the level"):
        opened(cut, "second")
    with lock_store(cut):
        inspect(cut, "second", lambda _: None)
    assert (cut / "weak" / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("level", list(Level))
def test_a_level_of_an_earlier_day_is_reported_and_its_ids_are_not_reused(
    tmp_path: Path, level: Level
) -> None:
    path = filled(tmp_path / "store")
    shutil.copytree(path / level.value, tmp_path / "earlier")
    topic = 2 * list(Level).index(level)
    with opened(path) as store:
        store.level(level).append([numbered(topic, 1001, 10)])
        store.catalogue.reserve({topic: 1011})
    whole = contents(path)
    shutil.rmtree(path / level.value)
    shutil.copytree(tmp_path / "earlier", path / level.value)
    with pytest.raises(DamagedFile, match="it is older than the rest of the store"):
        opened(path)
    assert any("it is older than the rest of the store" in sentence for sentence in problems(path))
    repaired(path)
    assert problems(path) == []
    whole[topic] = [(id, body) for id, body in whole[topic] if id <= 1000]
    assert contents(path) == whole
    assert resumes(path)[f"{level.value} news"] == 1011


def test_an_older_checkpoint_file_is_reported(tmp_path: Path) -> None:
    """It may record a clean close although the level was not closed."""
    path = filled(tmp_path / "store")
    earlier = (path / "weak" / "checkpoint").read_bytes()
    opened(path).close()
    (path / "weak" / "checkpoint").write_bytes(earlier)
    with pytest.raises(DamagedFile, match="weak/checkpoint is not the right one: it is older"):
        opened(path)
    whole = contents(shutil.copytree(filled(tmp_path / "same"), tmp_path / "same-copy"))
    repaired(path)
    assert contents(path) == whole


def test_one_level_tells_that_all_the_rest_is_of_an_earlier_day(tmp_path: Path) -> None:
    path, earlier = filled(tmp_path / "store"), tmp_path / "earlier"
    shutil.copytree(path, earlier)
    for _ in range(2):  # the levels may be of one start less than the newest, which was interrupted
        opened(path).close()
    shutil.rmtree(earlier / "strong")
    shutil.copytree(path / "strong", earlier / "strong")
    older = str([one for one in problems(earlier) if "it is older than the rest of the store" in one])
    files = {name: str(earlier / name / "data.mdb") for name in ("catalogue", "strong", "weak", "async")}
    assert [name for name, file in files.items() if file in older] == ["catalogue", "weak", "async"]


def test_a_catalogue_of_an_earlier_day_is_reported_and_its_ids_are_not_reused(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    shutil.copytree(path / "catalogue", tmp_path / "earlier")
    with opened(path) as store:
        later = store.catalogue.create(b"later", "news", "weak", True, reserved=11).id
        store.level(Level.WEAK).append([numbered(later, 1, 10), numbered(2, 1001, 10)])
    whole = contents(path)
    shutil.rmtree(path / "catalogue")
    shutil.copytree(tmp_path / "earlier", path / "catalogue")
    with pytest.raises(DamagedFile, match="newer than the catalogue"):
        opened(path)
    sentences = problems(path)
    assert len(sentences) == 1
    assert "catalogue/data.mdb is not the right one: it is older than the rest" in sentences[0]
    repaired(path)
    assert problems(path) == []
    assert contents(path) == whole
    assert all(resume > MESSAGE_IDS_SKIPPED for resume in resumes(path).values())


@pytest.mark.parametrize("name", ["catalogue", "strong", "weak"])
def test_a_file_of_another_store_is_refused(tmp_path: Path, name: str) -> None:
    path, other = filled(tmp_path / "store"), tmp_path / "other"
    with opened(other) as store:
        store.catalogue.create(b"something else", "news", "weak", True, reserved=11)
        for level in Level:
            store.level(level).append([numbered(0, 1, 3)])
    whole = contents(path)
    shutil.rmtree(path / name)
    shutil.copytree(other / name, path / name)
    with pytest.raises(DamagedFile, match="it belongs to another store"):
        opened(path)
    assert any(f"{name}/data.mdb is not the right one" in sentence for sentence in problems(path))
    sentences = repaired(path)
    assert problems(path) == []
    if name == "catalogue":
        assert contents(path) == whole
        assert not any(record_name == "something else" for record_name in resumes(path))
    else:
        level = Level(name)
        lost = [2 * list(Level).index(level), 2 * list(Level).index(level) + 1]
        assert contents(path) == {**whole, **{topic: [] for topic in lost}}
        assert f"{name}: nothing of '{name} news' could be saved." in sentences
        assert resumes(path)[f"{name} news"] == 1001


def test_a_level_of_a_backup_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    backup(path, tmp_path / "backup", "first", lambda _: None)
    shutil.rmtree(path / "weak")
    shutil.copytree(tmp_path / "backup" / "weak", path / "weak")
    with pytest.raises(DamagedFile, match="it belongs to another store"):
        opened(path)


def test_a_damaged_identity_is_reported(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    for name in ("weak", "catalogue"):
        copy = shutil.copytree(path, tmp_path / f"copy-{name}")
        file = copy / name / "data.mdb"
        content = file.read_bytes()
        key = b"\xa5store\xd9\x20"
        at = content.index(key)
        while at >= 0:  # every copy of it
            change(file, at + len(key), b"?")
            at = content.find(key, at + 1)
        with pytest.raises(DamagedFile, match=f"{name}/data.mdb is"):
            opened(copy)
        repaired(copy)
        assert problems(copy) == []
        assert contents(copy) == whole


class Killed(BaseException):
    """Stands for SIGKILL: no code after it runs."""


def test_an_identity_is_read_from_its_own_table_only(tmp_path: Path) -> None:
    path = filled(tmp_path / "store") / "weak"
    own = read_identity(path)
    assert own is not None
    other = LevelIdentity("another", Level.STRONG, 1)
    with (
        lmdb.open(str(path), max_dbs=16, map_size=1 << 28) as environment,
        environment.begin(environment.open_db(b"a"), write=True) as transaction,
    ):
        transaction.put(IDENTITY_KEY, pack_identity(other))
    assert read_identity(path) == own


def steps(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """Interrupt a start before its Nth step that changes something."""
    done = [0]

    def counted(owner: type, name: str) -> None:
        real: Callable[..., object] = getattr(owner, name)

        def step(*arguments: object, **options: object) -> object:
            if done[0] == before:
                raise Killed
            done[0] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, step)

    counted(StoreCatalogue, "set_lineage")
    counted(StoreCatalogue, "settle")
    counted(Environment, "__init__")
    counted(Environment, "identify")
    monkeypatch.setattr(Environment, "close", lambda self, clean=True: self._database.close())


@pytest.mark.parametrize("before", range(9))
def test_a_start_that_is_interrupted_after_a_power_failure_forgets_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    path = filled(tmp_path / "store")
    with opened(path) as store:
        store.catalogue.reserve({2: 2001})
        store.level(Level.WEAK).append([numbered(2, 1001, 10)])  # seen, and lost by the cut
        shutil.copytree(path, tmp_path / "cut")
    cut = tmp_path / "cut"
    steps(monkeypatch, before)
    try:
        with opened(cut, "second") as store:
            store.catalogue.settle({2: range(1, 2001)})
    except Killed:
        pass
    else:
        pytest.fail("the start has fewer steps")
    monkeypatch.undo()
    with opened(cut, "second") as store:
        told = {recovery.level for recovery in store.recoveries if recovery.rolled_back}
        assert {Level.WEAK, Level.ASYNC} == told
        store.catalogue.settle({2: range(1, 2001)})
    with opened(cut, "second") as store:
        assert not any(recovery.rolled_back for recovery in store.recoveries)
        assert store.catalogue.topics()[2].resume == 2001
    assert problems(cut) == []


def test_a_start_that_is_refused_for_another_level_forgets_no_loss(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    with opened(path) as store:
        store.level(Level.WEAK).append([numbered(2, 1001, 10)])
        shutil.copytree(path, tmp_path / "cut")
    cut = tmp_path / "cut"
    change(cut / "async" / "data.mdb", 8192, os.urandom(8192))
    with pytest.raises(DamagedFile):
        opened(cut, "second")
    with lock_store(cut):
        repair(cut, SampleInterpreter(), "second", lambda _: None, map_size=1 << 28)
    with opened(cut, "second") as store:
        assert Level.WEAK in {recovery.level for recovery in store.recoveries if recovery.rolled_back}


def test_a_level_of_a_file_system_that_was_mounted_again_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMQ_MOUNT_ID", "one")
    path = filled(tmp_path / "store")
    with opened(path) as store:
        store.level(Level.WEAK).append([numbered(2, 1001, 10)])
        for copy in ("again", "same", "unknown"):
            shutil.copytree(path, tmp_path / copy)
    monkeypatch.setenv("OMQ_MOUNT_ID", "two")
    with opened(tmp_path / "again") as store:
        assert [recovery.rolled_back for recovery in store.recoveries] == [False, True, True]
        assert "Its file system was mounted again" in store.recoveries[1].what
        assert store.level(Level.WEAK).extent(2).last == 1000
    for mount, copy in (("one", "same"), ("", "unknown")):
        monkeypatch.setenv("OMQ_MOUNT_ID", mount)
        with opened(tmp_path / copy) as store:
            assert not any(recovery.rolled_back for recovery in store.recoveries)
            assert store.level(Level.WEAK).extent(2).last == 1010


def can_mount() -> bool:
    return os.geteuid() == 0 and all(
        shutil.which(name) for name in ("mount", "umount", "mkfs.ext4", "losetup")
    )


ON_A_DISK = """
import os, sys
from pathlib import Path
from omq_storage.levels import Level
from omq_storage.store import Store
sys.path.insert(0, sys.argv[2])
from storage_helpers import numbered
store = Store.open(Path(sys.argv[1]), map_size=1 << 24, boot_id="first")
print([recovery.rolled_back for recovery in store.recoveries])
store.level(Level.WEAK).append([numbered(1, store.level(Level.WEAK).extent(1).next + 1, 10)])
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not can_mount(), reason="only root may mount")
def test_a_real_file_system_that_is_mounted_again(tmp_path: Path) -> None:
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mounted], capture_output=True, check=False).returncode:
        pytest.skip("there is no loop device")

    def start() -> str:
        environment = {name: value for name, value in os.environ.items() if name != "OMQ_MOUNT_ID"}
        command: list[str | Path] = [
            sys.executable,
            "-c",
            ON_A_DISK,
            mounted / "store",
            Path(__file__).parent,
        ]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    try:
        assert start() == "[False, False, False]\n"
        assert start() == "[False, False, False]\n"  # only the process ended
        subprocess.run(["umount", mounted], check=True)
        subprocess.run(["mount", "-o", "loop", image, mounted], check=True)
        assert start() == "[False, True, True]\n"
    finally:
        subprocess.run(["umount", mounted], check=True)


def full(*_: object) -> None:
    raise StoreFull(Limit.DISK, "There is no room on disk.")


def test_a_store_without_room_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "store")
    whole, form = contents(path), read_format(path)
    for owner, name in ((StoreCatalogue, "set_lineage"), (Environment, "identify")):
        monkeypatch.setattr(owner, name, full)
        with opened(path) as store:
            assert bodies_of(read_all(store.level(Level.WEAK), 2)) == whole[2]
        monkeypatch.undo()
        assert read_format(path) == form
        assert problems(path) == []
    assert contents(path) == whole


class ArchiveInterpreter(SampleInterpreter):
    """Interprets the records of omq, as far as the tests need it."""

    def level_of(self, record: TopicRecord) -> Level | None:
        return None if record.persistence == "Transient" else Level(record.persistence.lower())


@pytest.fixture
def of_format_1(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def test_a_store_of_format_1_gets_an_identity(of_format_1: Path) -> None:
    before = contents_of_levels(of_format_1, "fixture")
    assert json.loads((of_format_1 / "format").read_bytes()) == {"format": store_module.FORMAT}
    assert contents_of_levels(of_format_1, "another") == before
    exchange(of_format_1 / "strong" / "data.mdb", of_format_1 / "weak" / "data.mdb")
    with pytest.raises(DamagedFile, match="it belongs to the level"):
        opened(of_format_1)


@pytest.mark.parametrize("before", range(8))
def test_a_store_of_format_1_that_is_interrupted_meanwhile(
    of_format_1: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    whole = contents_of_levels(shutil.copytree(of_format_1, of_format_1.with_name("copy")), "fixture")
    steps(monkeypatch, before)
    with pytest.raises(Killed):
        opened(of_format_1, "fixture")
    monkeypatch.undo()
    with lock_store(of_format_1):
        assert inspect(of_format_1, "fixture", lambda _: None).problems == []
    assert contents_of_levels(of_format_1, "fixture") == whole
    assert json.loads((of_format_1 / "format").read_bytes()) == {"format": store_module.FORMAT}


def test_a_store_of_format_1_is_checked_repaired_and_backed_up(of_format_1: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(of_format_1, tmp_path / "copy")
    with lock_store(copy):
        assert inspect(copy, "fixture", lambda _: None).problems == []
    (copy / "async" / "data.mdb").write_bytes(b"")
    with lock_store(copy):
        assert repair(copy, ArchiveInterpreter(), "fixture", lambda _: None, map_size=1 << 28)
    assert json.loads((copy / "format").read_bytes()) == {"format": 1}
    contents_of_levels(copy, "fixture")
    whole = contents_of_levels(shutil.copytree(of_format_1, tmp_path / "opened"), "fixture")
    backup(of_format_1, tmp_path / "backup", "fixture", lambda _: None)
    assert contents_of_levels(tmp_path / "backup", "another") == whole


def contents_of_levels(path: Path, boot_id: str) -> dict[tuple[Level, int], list[tuple[int, bytes]]]:
    """Return every message of every level."""
    with Store.open(path, map_size=1 << 28, boot_id=boot_id) as store:
        return {
            (level, topic): bodies_of(read_all(store.level(level), topic))
            for level in Level
            for topic in store.level(level).extents()
        }
