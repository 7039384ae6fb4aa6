"""Files and directories of a store, its reserved disk space, and the checksums of its small records."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omq_storage.checksummed import verify, verify_and_decode, with_checksum
from omq_storage.errors import DamagedRecord
from omq_storage.files import (
    create,
    give_to_owner,
    has_room,
    make_directory,
    sync_directory,
    write_durably,
)
from omq_storage.mounts import UNKNOWN, is_same_mount, mount_id
from omq_storage.reserved_space import SPARE_FILE, SPARE_OCTETS, ReservedSpace

LIMITED = """
import resource, signal, sys
from pathlib import Path
from omq_storage.files import has_room
from omq_storage.reserved_space import ReservedSpace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), most))
folder = Path(sys.argv[1])
room = ReservedSpace(folder)
print((folder / "spare").stat().st_size)
with room.released():
    print((folder / "spare").stat().st_size)
print((folder / "spare").stat().st_size, has_room(folder / "file"))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
room.restore()
print((folder / "spare").stat().st_blocks * 512)
room.close()
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_and_directories_belong_to_their_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_directory(tmp_path / "one" / "two" / "three")
        with create(tmp_path / "file") as file:
            file.write(b"content")
        write_durably(tmp_path / "durable", b"first")
        ReservedSpace(tmp_path).close()
    finally:
        os.umask(before)
    for name in ("one", "one/two", "one/two/three"):
        assert mode(tmp_path / name) == 0o700
    for name in ("file", "durable", SPARE_FILE):
        assert mode(tmp_path / name) == 0o600
    make_directory(tmp_path / "one")  # it exists
    sync_directory(tmp_path)
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "file")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a longer content")
    path.chmod(0o644)
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    path.chmod(0o644)
    with create(path) as file:
        file.write(b"x")
    assert (path.read_bytes(), mode(path)) == (b"x", 0o600)


def test_a_directory_below_a_file_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "file" / "below" / "it"):
        with pytest.raises(NotADirectoryError) as raised:
            make_directory(path)
        assert raised.value.filename == str(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_of_a_directory_gets_nothing_of_another_that_takes_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, other = tmp_path / "theirs", tmp_path / "other"
    for parent, name in ((theirs, "made"), (other, "secret")):
        (parent / "store").mkdir(parents=True)
        (parent / "store" / name).touch()
    os.chown(theirs / "store", 1234, 5678)
    walk = os.fwalk

    def moved_before(*place: object, **options: object) -> object:
        theirs.rename(tmp_path / "moved")
        theirs.symlink_to(other)
        return walk(*place, **options)  # type: ignore[call-overload]  # as the caller does

    monkeypatch.setattr(os, "fwalk", moved_before)
    give_to_owner(theirs / "store")
    owners = [(tmp_path / file).stat().st_uid for file in ("moved/store/made", "other/store/secret")]
    assert owners == [1234, 0]


def test_the_reserved_space_is_released_and_taken_again(tmp_path: Path) -> None:
    room = ReservedSpace(tmp_path)
    spare = tmp_path / SPARE_FILE
    assert SPARE_OCTETS == 4 << 20

    def reserved() -> bool:
        status = spare.stat()
        return status.st_size == SPARE_OCTETS <= status.st_blocks * 512

    assert reserved()
    with room.released():
        assert spare.stat().st_size == 0
    assert reserved()
    with pytest.raises(KeyError), room.released():
        raise KeyError
    assert reserved()
    room.restore()
    assert reserved()
    room.close()
    room.close()
    assert reserved()
    # A file that is there is completed: one that is too short, and one that is a hole.
    for size in (0, 1, 12345, SPARE_OCTETS - 1):
        with spare.open("wb") as file:
            file.write(bytes(size))
        ReservedSpace(tmp_path).close()
        assert reserved()
    spare.unlink()
    with spare.open("wb") as file:
        file.truncate(SPARE_OCTETS)
    assert not reserved()
    ReservedSpace(tmp_path).close()
    assert reserved()


@pytest.mark.parametrize(
    ("limit", "octets", "has_more"),
    [
        (1 << 20, 1 << 20, False),
        ((1 << 20) + 5000, (1 << 20) + 5000 - 5000 % 4096, True),
        (8 << 20, 4 << 20, True),
    ],
)
def test_room_ends_at_the_limit_of_a_file(tmp_path: Path, limit: int, octets: int, has_more: bool) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    said = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path, str(limit)], check=True, capture_output=True, text=True
    ).stdout.split()
    first, released, again, room, restored = said
    assert (released, room) == ("0", str(has_more))
    assert int(restored) >= SPARE_OCTETS
    assert first == again
    # The last step may be a part of one, which does not count but is there.
    assert octets <= int(first) <= min(limit, SPARE_OCTETS)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", SPARE_FILE]


def test_room_for_a_mebibyte_is_found_where_there_is_some(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    assert has_room(tmp_path / "file")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FileNotFoundError):
        has_room(tmp_path / "missing")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_mount_is_the_same_unless_both_are_known_and_differ() -> None:
    assert is_same_mount("ext4 sda1 5 6", "ext4 sda1 5 6")
    assert not is_same_mount("ext4 sda1 5 6", "ext4 sda1 7 6")
    assert is_same_mount(UNKNOWN, "ext4 sda1 7 6")
    assert is_same_mount("ext4 sda1 7 6", UNKNOWN)
    assert is_same_mount(UNKNOWN, UNKNOWN)


def test_the_environment_may_name_the_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMQ_MOUNT_ID", "first")
    assert mount_id(tmp_path) == "first"
    assert mount_id(tmp_path / "missing") == "first"
    monkeypatch.setenv("OMQ_MOUNT_ID", "")
    assert mount_id(tmp_path) == UNKNOWN
    monkeypatch.delenv("OMQ_MOUNT_ID")
    assert mount_id(tmp_path) == mount_id(tmp_path)
    with pytest.raises(FileNotFoundError):
        mount_id(tmp_path / "missing")
    assert mount_id(Path("/proc")) == UNKNOWN  # it is on no disk


def test_a_record_belongs_to_its_table_and_key() -> None:
    stored = with_checksum(b"table", b"key", b"record")
    assert stored[4:] == b"record"
    assert verify(b"table", b"key", stored, "it") == b"record"
    empty = with_checksum(b"table", b"key", b"")
    assert (len(empty), verify(b"table", b"key", empty, "it")) == (4, b"")
    for table, key, octets in (
        (b"tabl", b"key", stored),
        (b"table", b"kez", stored),
        (b"tablek", b"ey", stored),
        (b"tabl", b"ekey", stored),
        (b"table", b"key", stored[:-1]),
        (b"table", b"key", stored + b"x"),
        (b"table", b"key", b"x" + stored[1:]),
        (b"table", b"key", stored[:3]),
        (b"table", b"key", b""),
    ):
        with pytest.raises(DamagedRecord, match=r"^The record of it is damaged\.$"):
            verify(table, key, octets, "it")
    with pytest.raises(DamagedRecord, match=r"^The record of it cannot be read: "):
        verify_and_decode(b"table", b"key", with_checksum(b"table", b"key", b"\xc1"), int, "it")
    with pytest.raises(DamagedRecord, match=r"^The record of it cannot be read: "):
        verify_and_decode(b"table", b"key", with_checksum(b"table", b"key", b"\xa1x"), int, "it")
    assert verify_and_decode(b"table", b"key", with_checksum(b"table", b"key", b"\x07"), int, "it") == 7
