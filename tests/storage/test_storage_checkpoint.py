"""The state of an environment without syncs after power failures, kills and disk failures."""

import errno
import os
import shutil
import threading
from pathlib import Path

import lmdb
import pytest
from checkpoint_files import SLOT, newest_slot, without_slot
from storage_helpers import bodies_of, numbered, open_level, panicking, read_all

from omq_storage.checkpoint import needs_recovery, recover
from omq_storage.database import Database
from omq_storage.environment import Environment, Position
from omq_storage.errors import StoreError, StoreFailed
from omq_storage.levels import Level


def image(environment: Environment, path: Path, to: Path) -> Path:
    """Return a copy of the directory, as if the power failed after all writes reached the disk."""
    environment.usage()  # raises when it is closed
    shutil.copytree(path, to)
    return to


def test_a_power_failure_returns_to_the_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "weak"
    environment = open_level(path)
    first = [numbered(1, 0, 10), numbered(2, 0, 10)]
    environment.append(first)
    environment.set_positions({1: Position(5)})
    environment.checkpoint()
    assert environment.usage().durable == environment.usage().transaction
    for n in range(1, 50):
        environment.append([numbered(1, 10 * n, 10)])
        environment.trim(2, 10)
    environment.set_positions({1: Position(400)})
    assert environment.usage().durable < environment.usage().transaction
    everything = read_all(environment, 1)
    lost = image(environment, path, tmp_path / "lost")
    killed = image(environment, path, tmp_path / "killed")
    environment.close()

    recovered = recover(lost, "second")
    assert recovered.rolled_back
    assert "last checkpoint" in recovered.what
    assert recover(lost, "second") == recovered  # interrupted and done again
    again = open_level(lost, boot_id="second")
    assert read_all(again, 1) == first[:1]
    assert read_all(again, 2) == first[1:]
    assert again.positions() == {1: Position(5)}
    again.append([numbered(1, 10, 10)])
    again.close(clean=False)
    assert not recover(lost, "second").rolled_back
    again = open_level(lost, boot_id="second")
    assert again.extent(1).last == 19
    again.close()

    assert not recover(killed, "first").rolled_back
    again = open_level(killed)
    assert read_all(again, 1) == everything
    assert again.extent(2).messages == 0
    assert again.positions() == {1: Position(400)}
    again.close()


def test_no_page_of_a_checkpoint_is_overwritten(tmp_path: Path) -> None:
    """Old blocks are deleted and many are written afterwards; every block of the checkpoint stays intact."""
    path = tmp_path / "weak"
    environment = open_level(path)
    for n in range(100):
        environment.append([numbered(1, 100 * n, 100)])
    environment.checkpoint()
    kept = read_all(environment, 1)
    for n in range(100, 400):
        environment.append([numbered(1, 100 * n, 100)])
        environment.trim(1, 100 * (n - 20))
        environment.merge_small(1, 0)
    lost = image(environment, path, tmp_path / "lost")
    environment.checkpoint()
    later = image(environment, path, tmp_path / "later")
    expected = bodies_of(read_all(environment, 1))
    environment.close()
    again = open_level(lost, boot_id="second")
    assert read_all(again, 1) == kept
    again.close()
    again = open_level(later, boot_id="second")
    assert bodies_of(read_all(again, 1)) == expected
    again.close()


def test_after_a_clean_close_another_boot_changes_nothing(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 0, 10)])
    environment.close()
    assert recover(tmp_path / "weak", "second").what == "It was closed cleanly."
    environment = open_level(tmp_path / "weak", boot_id="second")
    assert environment.extent(1).messages == 10
    environment.append([numbered(1, 10, 10)])
    lost = image(environment, tmp_path / "weak", tmp_path / "lost")
    environment.close()
    environment = open_level(lost, boot_id="third")
    assert environment.extent(1).messages == 10
    environment.close()


def test_a_checkpoint_without_anything_new_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 0, 10)])
    environment.checkpoint()
    before = (tmp_path / "weak" / "checkpoint").read_bytes()
    monkeypatch.setattr(Database, "sync", lambda self: pytest.fail("synced"))
    environment.checkpoint()
    assert (tmp_path / "weak" / "checkpoint").read_bytes() == before
    monkeypatch.undo()
    environment.close()


@pytest.mark.parametrize("torn", [0, 1])
def test_a_torn_checkpoint_leaves_the_previous_one(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "weak"
    environment = open_level(path)
    states = []
    for n in range(4 + torn):
        environment.append([numbered(1, 10 * n, 10)])
        if n == 3 + torn:
            before = (path / "checkpoint").read_bytes()
        environment.checkpoint()
        states.append(environment.extent(1).last)
    after = (path / "checkpoint").read_bytes()
    lost = image(environment, path, tmp_path / "lost")
    environment.close()
    slot = 0 if before[:SLOT] != after[:SLOT] else SLOT
    cut = slot + 100
    changed = after[:cut] + before[cut : slot + SLOT] + after[slot + SLOT :]
    (lost / "checkpoint").write_bytes(changed)
    assert changed != after
    environment = open_level(lost, boot_id="second")
    assert environment.extent(1).last == states[-2]
    environment.close()


@pytest.mark.parametrize("content", [None, b"", b"x" * 2 * SLOT, bytes(2 * SLOT)])
def test_without_a_good_checkpoint_file_the_data_is_kept(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weak"
    environment = open_level(path)
    environment.append([numbered(1, 0, 10)])
    environment.close()
    if content is None:
        (path / "checkpoint").unlink()
    else:
        (path / "checkpoint").write_bytes(content)
    recovered = recover(path, "first")
    assert recovered.rolled_back  # nobody knows what a power failure may have taken
    assert str(path / "checkpoint") in recovered.what
    environment = open_level(path)
    assert read_all(environment, 1) == [numbered(1, 0, 10)]
    environment.append([numbered(1, 10, 10)])
    environment.close()
    assert not recover(path, "second").rolled_back


@pytest.mark.parametrize("first", [b"\0", b"\xff"])
def test_a_checkpoint_with_a_wrong_magic_number_is_ignored(tmp_path: Path, first: bytes) -> None:
    path = tmp_path / "weak"
    open_level(path).close()
    content = bytearray((path / "checkpoint").read_bytes())
    for begin in (0, SLOT):
        assert bytes(content[begin : begin + 1]) not in (b"\0", b"\xff")
        content[begin : begin + 1] = first
    (path / "checkpoint").write_bytes(content)
    assert recover(path, "first").rolled_back


def test_damage_to_one_slot_of_a_clean_checkpoint_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "weak"
    environment = open_level(path)
    environment.append([numbered(1, 0, 10)])
    environment.checkpoint()
    environment.append([numbered(1, 10, 10)])
    environment.close()
    whole = (path / "checkpoint").read_bytes()
    for begin in (0, SLOT):
        damaged = bytearray(whole)
        damaged[begin + 20] ^= 1
        (path / "checkpoint").write_bytes(damaged)
        assert recover(path, "second").what == "It was closed cleanly."


def test_writers_go_on_while_a_checkpoint_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 0, 10)])
    syncing, written = threading.Event(), threading.Event()
    sync = Database.sync

    def slow(self: Database) -> None:
        syncing.set()
        assert written.wait(60)
        sync(self)

    monkeypatch.setattr(Database, "sync", slow)
    checkpoint = threading.Thread(target=environment.checkpoint)
    checkpoint.start()
    assert syncing.wait(60)
    environment.append([numbered(1, 10, 10)])
    assert environment.extent(1).messages == 20
    written.set()
    checkpoint.join()
    monkeypatch.undo()
    lost = image(environment, tmp_path / "weak", tmp_path / "lost")
    environment.close()
    environment = open_level(lost, boot_id="second")
    assert environment.extent(1).messages == 10
    environment.close()


def test_a_failed_sync_ends_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 0, 10)])
    environment.checkpoint()
    environment.append([numbered(1, 10, 10)])

    def fail(self: Database) -> None:
        raise StoreError("The disk is broken.")

    monkeypatch.setattr(Database, "sync", fail)
    with pytest.raises(StoreFailed, match="nothing more is written"):
        environment.checkpoint()
    monkeypatch.undo()
    for ask in (lambda: environment.append([numbered(1, 20, 1)]), environment.checkpoint, environment.close):
        with pytest.raises(StoreFailed, match="nothing more is written"):
            ask()
    # Not even the same boot may trust what the kernel still shows.
    assert recover(tmp_path / "weak", "first").rolled_back
    environment = open_level(tmp_path / "weak")
    assert environment.extent(1).messages == 10
    environment.close()


def test_a_checkpoint_file_that_cannot_be_written_keeps_both_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weak"
    environment = open_level(path)
    environment.append([numbered(1, 0, 100)])
    environment.checkpoint()
    environment.trim(1, 100)
    real = os.fdatasync

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreError, match="could not be written"):
        environment.checkpoint()
    monkeypatch.setattr(os, "fdatasync", real)
    for n in range(1, 20):
        environment.append([numbered(1, 100 * n, 100)])
        environment.trim(1, 100 * n)
    # Either slot may be what a start finds: the new one as it is, or the one before if the new one is torn.
    one = image(environment, path, tmp_path / "one")
    two = image(environment, path, tmp_path / "two")
    content = (two / "checkpoint").read_bytes()
    (two / "checkpoint").write_bytes(without_slot(content, newest_slot(content)))
    environment.checkpoint()
    assert environment.usage().durable == environment.usage().transaction
    environment.close()
    again = open_level(one, boot_id="second")
    assert again.extent(1).messages == 0
    again.close()
    again = open_level(two, boot_id="second")
    assert read_all(again, 1) == [numbered(1, 0, 100)]
    again.close()


def test_a_reopened_store_writes_nothing_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reopened environment has no snapshot, so a write could reuse pages of the last checkpoint."""
    path = tmp_path / "weak"
    environment = open_level(path)
    environment.append([numbered(1, 0, 100), numbered(2, 0, 100)])
    environment.checkpoint()
    kept = read_all(environment, 1)
    environment.trim(1, 100)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreError, match="could not be written"):
        environment.reopen()
    for n in range(1, 20):
        with pytest.raises(StoreError, match="could not be written"):
            environment.append([numbered(2, 100 * n, 100)])
    lost = image(environment, path, tmp_path / "lost")
    monkeypatch.undo()
    content = (lost / "checkpoint").read_bytes()
    (lost / "checkpoint").write_bytes(without_slot(content, newest_slot(content)))
    # Once the checkpoint file can be written again, so can the environment.
    environment.append([numbered(2, 100, 100)])
    assert environment.extent(2).messages == 200
    environment.close()
    again = open_level(lost, boot_id="second")
    assert read_all(again, 1) == kept
    again.close()


def test_a_checkpoint_file_that_cannot_be_written_leaves_reader_slots_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = open_level(tmp_path / "weak")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    for n in range(100):
        environment.append([numbered(1, n, 1)])
        with pytest.raises(StoreError, match="could not be written"):
            environment.checkpoint()
    assert environment.usage().readers < 50
    monkeypatch.undo()
    environment.checkpoint()
    environment.checkpoint()
    assert environment.usage().durable == environment.usage().transaction
    environment.close()


@pytest.mark.parametrize("level", [Level.STRONG, Level.WEAK])
def test_an_environment_that_panicked_is_reopened(
    tmp_path: Path, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = panicking(monkeypatch)
    environment = open_level(tmp_path / "level", level)
    environment.append([numbered(1, 0, 10)])
    opened[-1].has_panicked = True
    with pytest.raises(StoreError, match="PANIC"):
        environment.read(1, 0)
    environment.append([numbered(1, 10, 10)])
    assert environment.extent(1).messages == 20
    if level is Level.WEAK:
        lost = image(environment, tmp_path / "level", tmp_path / "lost")
        again = open_level(lost, boot_id="second")
        assert again.extent(1).messages == 10
        again.close()
    environment.close()


def test_a_commit_begins_one_transaction_unless_the_environment_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = panicking(monkeypatch)
    environment = open_level(tmp_path / "level", Level.WEAK)

    def begun_by_commit(first: int) -> int:
        before = opened[-1].begun
        environment.append([numbered(1, first, 10)])
        return opened[-1].begun - before

    assert begun_by_commit(0) == 1
    opened[-1].has_panicked = True
    with pytest.raises(StoreError, match="PANIC"):
        environment.read(1, 0)
    opened[-1].has_panicked = False
    assert begun_by_commit(10) == 2  # the first one finds out that nothing is wrong any more
    assert begun_by_commit(20) == 1
    environment.close()


@pytest.mark.parametrize("level", [Level.STRONG, Level.WEAK])
def test_an_environment_that_could_not_be_reopened_is_reopened_later(
    tmp_path: Path, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because connections had taken all file descriptors."""
    environment = open_level(tmp_path / "level", level)
    environment.append([numbered(1, 0, 10)])

    def fail(*_: object, **__: object) -> None:
        raise lmdb.Error("Too many open files")

    monkeypatch.setattr(lmdb, "open", fail)
    with pytest.raises(StoreError, match="Too many open files"):
        environment.reopen()
    monkeypatch.undo()
    with pytest.raises(StoreError, match="could not be opened again yet"):
        environment.read(1, 0)
    environment.append([numbered(1, 10, 10)])
    assert environment.extent(1).messages == 20
    environment.close()


@pytest.mark.parametrize("boot_id", ["first", "second"])
@pytest.mark.parametrize("clean", [True, False])
def test_recovery_is_needed_after_a_machine_restart_without_a_clean_end(
    tmp_path: Path, clean: bool, boot_id: str
) -> None:
    path = tmp_path / "weak"
    environment = open_level(path)
    environment.append([numbered(1, 0, 10)])
    environment.close(clean)
    needed = not clean and boot_id != "first"
    assert needs_recovery(path, boot_id) is needed
    assert recover(path, boot_id).rolled_back is needed
