"""Reading a store from a process that does not serve it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from storage_helpers import bodies_of, numbered
from test_storage_repair import change

from omq_storage.blocks import Block
from omq_storage.errors import DamagedBlock, DamagedFile, NewerFormat, StoreError
from omq_storage.levels import Level
from omq_storage.reader import StoreReader, opened
from omq_storage.records import Extent
from omq_storage.store import Store, current_boot

NOBODY = 65534

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {helpers!r})
from storage_helpers import numbered
from omq_storage.levels import Level
from omq_storage.store import Store
with Store.open(Path({path!r}), map_size={map_size}) as store:
    environment = store.level(Level.WEAK)
    {statement}
"""


def filled(path: Path, blocks: int = 40) -> Path:
    """Return a store with two topics in Weak and one in Strong; blocks of ten messages, with a gap."""
    with Store.open(path, map_size=1 << 28) as store:
        for name, level in ((b"one", "weak"), (b"two", "strong"), (b"three", "weak")):
            topic = store.catalogue.create(name, "news", level, True).id
            store.level(Level(level)).append(
                [numbered(topic, 1 + 10 * at + 100 * (at >= 20), 10) for at in range(blocks)]
            )
    return path


def write(path: Path, statement: str, map_size: int = 1 << 28) -> None:
    """Run a statement on `environment`, which is Weak, in another process: the server's."""
    code = WRITER.format(
        helpers=str(Path(__file__).parent), path=str(path), statement=statement, map_size=map_size
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def ids_of(block: Block, wanted: range) -> list[tuple[int, bytes]]:
    return [one for one in bodies_of([block]) if one[0] in wanted]


def read(reader: StoreReader, topic: int, messages: range, level: Level = Level.WEAK) -> list[range]:
    """Return the ranges that are found, after a look at what is in them."""
    found = []
    for ids, messages_of in reader.use(level, topic, messages, ids_of):
        assert [id for id, _ in messages_of] == [*ids]
        assert all(body.startswith(b"%d/%d " % (topic, id)) for id, body in messages_of)
        found.append(ids)
    return found


def test_messages_are_read_as_they_were_stored(tmp_path: Path) -> None:
    reader = opened(filled(tmp_path / "store"))
    assert [(record.id, record.name) for record in reader.topics()] == [
        (0, b"one"),
        (1, b"two"),
        (2, b"three"),
    ]
    (octets,) = {reader.extent(level, topic).bytes for level, topic in ((Level.WEAK, 0), (Level.STRONG, 1))}
    assert reader.extent(Level.WEAK, 0) == Extent(1, 500, 400, octets)
    assert reader.extent(Level.STRONG, 1) == Extent(1, 500, 400, octets)
    assert reader.extent(Level.STRONG, 0) == reader.extent(Level.ASYNC, 0) == Extent()
    whole = [range(first, first + 10) for first in (*range(1, 200, 10), *range(301, 500, 10))]
    assert read(reader, 0, range(1000)) == whole
    assert read(reader, 1, range(1, 501), Level.STRONG) == whole
    # Only what was asked for, also of the first and the last block.
    assert read(reader, 0, range(15, 33)) == [range(15, 21), range(21, 31), range(31, 33)]
    assert read(reader, 0, range(15, 16)) == [range(15, 16)]
    assert read(reader, 0, range(195, 301)) == [range(195, 201)]
    assert read(reader, 0, range(195, 302)) == [range(195, 201), range(301, 302)]
    assert read(reader, 0, range(201, 301)) == []
    assert read(reader, 0, range(15, 15)) == []
    assert read(reader, 0, range(501, 600)) == []
    assert read(reader, 7, range(1, 600)) == []


def test_blocks_are_listed_up_to_a_limit(tmp_path: Path) -> None:
    reader = opened(filled(tmp_path / "store"))
    listed = reader.blocks(Level.WEAK, 0, 15, 3)
    assert [(info.first, info.count, info.last, info.next) for info in listed] == [
        (11, 10, 20, 21),
        (21, 10, 30, 31),
        (31, 10, 40, 41),
    ]
    assert [info.first for info in reader.blocks(Level.WEAK, 0, 0, 1)] == [1]
    assert [info.first for info in reader.blocks(Level.WEAK, 0, 200, 2)] == [191, 301]
    assert [info.first for info in reader.blocks(Level.WEAK, 0, 201, 2)] == [301, 311]
    assert [info.first for info in reader.blocks(Level.WEAK, 0, 495, 5)] == [491]
    assert reader.blocks(Level.WEAK, 0, 501, 5) == []
    assert len(reader.blocks(Level.WEAK, 0, 1, 1000)) == 40


def maps_of(path: Path) -> int:
    """Return the number of files below a path that this process has mapped."""
    return Path("/proc/self/maps").read_text().count(f"{path}/")


def test_the_reader_of_a_deleted_store_is_closed_when_nothing_uses_it(tmp_path: Path) -> None:
    gone, other = filled(tmp_path / "gone"), filled(tmp_path / "other")
    reader = opened(gone)
    mapped = maps_of(gone)
    assert mapped > 0
    shutil.rmtree(gone)
    opened(other)
    assert maps_of(gone) == mapped
    del reader
    assert maps_of(gone) == 0
    assert opened(other) is opened(other)


def test_a_process_has_one_reader_of_a_store(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    reader = opened(path)
    assert opened(path) is reader
    assert opened(tmp_path / "." / "store") is reader
    path.rename(tmp_path / "moved")
    other = opened(filled(path, blocks=1))
    assert other is not reader
    assert other.extent(Level.WEAK, 0).messages == 10
    assert opened(tmp_path / "moved") is reader
    assert reader.extent(Level.WEAK, 0).messages == 400


def test_messages_a_server_writes_meanwhile_are_read(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    reader = opened(path)
    assert reader.extent(Level.WEAK, 0).last == 500
    write(path, "environment.append([numbered(0, 501, 10)])")
    assert reader.extent(Level.WEAK, 0).last == 510
    # With a larger map than that of the reader.
    write(path, "environment.append([numbered(0, 511, 10)])", map_size=1 << 41)
    assert reader.extent(Level.WEAK, 0).last == 520
    assert read(reader, 0, range(500, 600)) == [range(500, 501), range(501, 511), range(511, 521)]
    write(path, "environment.append([numbered(0, 521, 10)])", map_size=1 << 42)
    assert read(reader, 0, range(515, 600)) == [range(515, 521), range(521, 531)]


def test_blocks_that_are_merged_meanwhile_are_read_once(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    results = opened(path).use(Level.WEAK, 0, range(1, 1000), ids_of)
    assert next(results)[0] == range(1, 11)
    assert next(results)[0] == range(11, 21)
    write(path, "environment.merge_small(0, 1)")
    rest = [*results]
    assert [ids for ids, _ in rest] == [range(21, 201), range(301, 501)]
    assert [id for _, found in rest for id, _ in found] == [*range(21, 201), *range(301, 501)]


def test_blocks_that_are_deleted_meanwhile_are_skipped(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    results = opened(path).use(Level.WEAK, 0, range(1, 1000), ids_of)
    assert next(results)[0] == range(1, 11)
    write(path, "environment.trim(0, 151)")
    assert [ids for ids, _ in results] == [
        *(range(at, at + 10) for at in (*range(151, 200, 10), *range(301, 500, 10)))
    ]


def test_a_damaged_block_raises_when_its_turn_comes(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    file = path / "weak" / "data.mdb"
    change(file, file.read_bytes().index(b"0/155 "), b"X")
    results = opened(path).use(Level.WEAK, 0, range(141, 1000), ids_of)
    assert next(results)[0] == range(141, 151)
    with pytest.raises(DamagedBlock) as raised:
        next(results)
    assert (raised.value.topic, raised.value.first, raised.value.last) == (0, 151, 160)
    assert read(opened(path), 0, range(161, 175)) == [range(161, 171), range(171, 175)]


def nothing(path: Path) -> None:
    shutil.rmtree(path)


def begun(path: Path) -> None:
    (path / "format").write_text('{"format": 2, "begun": true}')


@pytest.mark.parametrize("harm", [nothing, begun, lambda path: (path / "format").unlink()])
def test_a_folder_without_a_store_is_refused(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    path = filled(tmp_path / "store")
    harm(path)
    for call in (opened, StoreReader):
        with pytest.raises(StoreError) as raised:
            call(path)
        assert str(raised.value) == f"There is no store in {path}."


@pytest.mark.parametrize("name", ["catalogue", "strong", "weak", "async"])
def test_a_store_without_one_of_its_files_is_refused(tmp_path: Path, name: str) -> None:
    path = filled(tmp_path / "store")
    (path / name / "data.mdb").unlink()
    with pytest.raises(StoreError, match=f"There is no store in {path}"):
        opened(path)


def test_other_trouble_with_the_files_is_told(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as raised:
        opened(tmp_path / "file")
    assert str(raised.value) == f"The store {tmp_path / 'file'} cannot be read: Not a directory."
    (path / "weak" / "data.mdb").write_bytes(b"no environment" * 1000)
    with pytest.raises(StoreError, match=f"The environment {path / 'weak'} cannot be read"):
        opened(path)
    (path / "format").write_text('{"format": 5}')
    with pytest.raises(NewerFormat):
        opened(path)


@pytest.mark.parametrize("level", Level)
def test_a_store_that_must_go_back_to_a_checkpoint_first_is_refused(
    tmp_path: Path, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    store = Store.open(path, map_size=1 << 28)
    for other in {*Level} - {level}:
        store.level(other).close()
    store.close(clean=False)
    monkeypatch.setenv("OMQ_BOOT_ID", current_boot())
    opened(shutil.copytree(path, tmp_path / "killed")).topics()
    monkeypatch.setenv("OMQ_BOOT_ID", "another boot")
    with pytest.raises(
        StoreError, match=r"was not closed before the machine was started again; start omq-server"
    ):
        opened(path)


@contextmanager
def as_nobody(path: Path) -> Iterator[Path]:
    """Run the block without any privilege, with a copy of the store that belongs to this user."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        copy = shutil.copytree(path, folder / "store")
        if is_root:
            for name in (folder, copy, *copy.rglob("*")):
                os.chown(name, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield copy
        finally:
            if is_root:
                os.seteuid(0)
            for name in copy.rglob("*.mdb"):
                name.chmod(0o600)


@pytest.mark.parametrize(
    ("name", "mode", "what"), [("data.mdb", 0o200, "read"), ("lock.mdb", 0o400, "write")]
)
@pytest.mark.parametrize("part", ["catalogue", "async"])
def test_a_missing_permission_is_named(tmp_path: Path, name: str, mode: int, what: str, part: str) -> None:
    with as_nobody(filled(tmp_path / "store")) as path:
        (path / part / name).chmod(mode)
        with pytest.raises(StoreError) as raised:
            opened(path)
        assert str(raised.value) == (
            f"The store needs permission to {what} {path / part / name}: readers take part in its locking."
        )
        (path / part / name).chmod(0o600)
        assert len(opened(path).topics()) == 3


def test_a_data_file_without_its_end_is_refused(tmp_path: Path) -> None:
    """Reading beyond the end of the file would kill the process with SIGBUS."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        store = filled(Path(folder) / "store")
        for part in ("catalogue", "weak"):
            file = store / part / "data.mdb"
            whole = file.read_bytes()
            pages = len(whole) // 4096
            os.truncate(file, 4096 * (pages - 1))
            wanted = f"{part}/data.mdb is damaged: it ends after {pages - 1} pages, and has {pages}; "
            with pytest.raises(DamagedFile, match=wanted):
                opened(store)
            file.write_bytes(whole)
        assert len(opened(store).topics()) == 3
