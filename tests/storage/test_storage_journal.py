"""The journal of Strong: commits survive a power failure, whatever the disk has of the data file."""

import itertools
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from storage_helpers import bodies_of, numbered, open_level, read_all
from test_storage_repair import SampleInterpreter

from omq_storage import database, journal
from omq_storage.backup import backup
from omq_storage.environment import Environment, Position
from omq_storage.errors import DamagedFile, StoreError, StoreFailed, StoreFull
from omq_storage.inspection import inspect
from omq_storage.levels import Level
from omq_storage.repair import repair
from omq_storage.store import Store, lock_store

PAGE = 4096

Content = tuple[dict[int, list[tuple[int, bytes]]], dict[int, Position], dict[bytes, int]]
"""The messages of topics 1 to 3, the positions, and the sequence numbers of topic 1."""


def open_strong(path: Path, boot_id: str = "first", map_size: int = 1 << 30) -> Environment:
    return open_level(path, Level.STRONG, map_size=map_size, boot_id=boot_id)


def begin_journal(environment: Environment) -> None:
    """Make a commit, of topic 4: the first one creates a file of the journal, and takes a checkpoint."""
    environment.append([numbered(4, 0, 1)])


def content(environment: Environment) -> Content:
    messages = {topic: bodies_of(read_all(environment, topic)) for topic in (1, 2, 3)}
    return messages, environment.positions(), environment.sequences(1, [b"producer"])


def without_power(path: Path, to: Path, kept: bytes, disk: random.Random | None = None) -> Path:
    """Return a copy of the directory as a power failure may leave it: of each page that was written since the
    data file was ``kept``, the disk has the old or the new octets.  Without ``disk``, it has the old ones.
    """
    shutil.copytree(path, to)
    written = (path / "data.mdb").read_bytes()
    pages = []
    for begin in range(0, len(written), PAGE):
        old = kept[begin : begin + PAGE].ljust(PAGE, b"\0")
        pages.append(written[begin : begin + PAGE] if disk is not None and disk.random() < 0.5 else old)
    (to / "data.mdb").write_bytes(b"".join(pages))
    return to


def test_commits_survive_a_power_failure_without_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    begin_journal(environment)
    kept = (path / "data.mdb").read_bytes()
    checkpoint = (path / "checkpoint").read_bytes()
    for n in range(20):
        environment.append([numbered(1, 10 * n, 10)], {1: {b"producer": n}})
        environment.append([numbered(2, 10 * n, 10), numbered(3, n, 1)])
    environment.set_positions({2: Position(7)})
    environment.trim(2, 55)
    environment.drop(3)
    assert environment.usage().durable == environment.usage().transaction
    assert (path / "checkpoint").read_bytes() == checkpoint
    expected = content(environment)
    lost = without_power(path, tmp_path / "lost", kept)
    environment.close(clean=False)

    again = open_strong(lost, "second")
    assert again.replayed >= 40
    assert content(again) == expected
    again.append([numbered(1, 200, 10)])
    again.close(clean=False)
    again = open_strong(lost, "third")
    assert again.replayed == 1
    assert again.extent(1).last == 209
    again.close()
    again = open_strong(lost, "fourth")
    assert again.replayed == 0
    again.close()


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_of_pages_leads_to_all_commits(tmp_path: Path, seed: int) -> None:
    """Random changes of all kinds and sizes, starts after kills, power failures and clean ends."""
    chance = random.Random(seed)
    path = tmp_path / "strong"
    environment = open_strong(path)
    following = {1: 0, 2: 0, 3: 0}
    for start in range(8):
        sizes = chance.choice(((1,), (1, 1, 1, 10, 300, 6000)))
        begun = {
            "checkpoint": (path / "checkpoint").read_bytes(),
            "data": (path / "data.mdb").read_bytes(),
        }
        for _ in range(chance.choice((3, 40, 2 * journal.MOST_RECORDS + 30))):
            topic = chance.choice((1, 2, 3))
            count = chance.choice(sizes)
            size = chance.choice((20, 100, 1000)) if count < 6000 else 100
            match chance.randrange(100 if sizes == (1,) else 10):
                case 0:
                    environment.set_positions({topic: Position(following[topic])})
                case 1:
                    environment.trim(topic, max(0, following[topic] - 50))
                case 2:
                    environment.merge_small(topic, 0)
                case 3:
                    environment.checkpoint()
                case _:
                    sequences = {topic: {b"producer": following[topic]}}
                    environment.append([numbered(topic, following[topic], count, size)], sequences)
                    following[topic] += count
            now = (path / "checkpoint").read_bytes()
            if now != begun["checkpoint"]:
                begun = {"checkpoint": now, "data": (path / "data.mdb").read_bytes()}
        expected = content(environment)
        match chance.choice(("kill", "power", "power", "end")):
            case "kill":
                environment.close(clean=False)
                environment = open_strong(path)
            case "power":
                lost = without_power(path, tmp_path / f"lost-{start}", begun["data"], chance)
                environment.close(clean=False)
                path = lost
                environment = open_strong(path, f"boot {start}")
            case "end":
                environment.close()
                environment = open_strong(path, f"boot {start}")
        assert content(environment) == expected
    environment.close()


def test_a_large_commit_takes_a_checkpoint_instead(tmp_path: Path) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    environment.append([numbered(1, 0, 1)])
    checkpoint = (path / "checkpoint").read_bytes()
    environment.append([numbered(1, 1, database.MOST_RECORDED_OCTETS // 100)])
    assert (path / "checkpoint").read_bytes() != checkpoint
    expected = content(environment)
    lost = without_power(path, tmp_path / "lost", (path / "data.mdb").read_bytes())
    environment.close(clean=False)
    again = open_strong(lost, "second")
    assert (again.replayed, content(again)) == (0, expected)
    again.close()


def test_a_commit_of_very_many_keys_takes_a_checkpoint_instead(tmp_path: Path) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    checkpoint = (path / "checkpoint").read_bytes()
    environment.append([numbered(topic, 0, 1) for topic in range(database.MOST_CHANGES // 3 + 1)])
    assert (path / "checkpoint").read_bytes() != checkpoint
    environment.close()


def test_the_journal_and_the_data_file_do_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    sizes = []
    for n in range(10 * journal.MOST_RECORDS):
        environment.append([numbered(1, n, 1)])
        environment.trim(1, n - 10)
        sizes.append((path / "data.mdb").stat().st_size)
    assert sizes[-1] <= 1.1 * sizes[5 * journal.MOST_RECORDS]
    assert [(path / name).stat().st_size for name in journal.JOURNALS] == [journal.SMALLEST] * 2
    for n in range(100):
        environment.append([numbered(2, 3000 * n, 3000)])
    assert [(path / name).stat().st_size for name in journal.JOURNALS] == [journal.LARGEST] * 2
    environment.close()


def records(path: Path) -> list[int]:
    """Return the places of the records in a journal."""
    octets = (path / "journal-1").read_bytes()
    return [place for place in range(0, len(octets), PAGE) if octets.startswith(b"omqjrnal", place)]


def change_octet(file: Path, place: int) -> None:
    octets = bytearray(file.read_bytes())
    octets[place] ^= 1
    file.write_bytes(octets)


def test_a_torn_last_record_is_no_commit(tmp_path: Path) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    begin_journal(environment)
    kept = (path / "data.mdb").read_bytes()
    environment.append([numbered(1, 0, 10)])
    expected = content(environment)
    environment.append([numbered(1, 10, 100)])
    lost = without_power(path, tmp_path / "lost", kept)
    environment.close(clean=False)
    change_octet(lost / "journal-1", records(lost)[-1] + PAGE)
    again = open_strong(lost, "second")
    assert content(again) == expected
    again.append([numbered(1, 10, 1)])
    again.close(clean=False)
    again = open_strong(lost, "third")
    assert again.extent(1).last == 10
    again.close()


def test_a_damaged_record_before_others_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    begin_journal(environment)
    kept = (path / "data.mdb").read_bytes()
    for n in range(3):
        environment.append([numbered(1, n, 1)])
    lost = without_power(path, tmp_path / "lost", kept)
    environment.close(clean=False)
    change_octet(lost / "journal-1", records(lost)[1] + 100)
    with pytest.raises(DamagedFile, match=r"is damaged: it has lost the changes of transaction \d+; "):
        open_strong(lost, "second")
    # LMDB has all of it when only the process ended.
    change_octet(path / "journal-1", records(path)[1] + 100)
    again = open_strong(path)
    assert again.extent(1).last == 2
    again.close()


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: os.truncate(file, PAGE)], ids=["missing", "short"]
)
def test_a_power_failure_does_not_hide_that_a_journal_is_damaged(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Else commits that their publishers were told of would be lost, and their ids used again."""
    path = tmp_path / "strong"
    environment = open_strong(path)
    kept = (path / "data.mdb").read_bytes()
    checkpoint = (path / "checkpoint").read_bytes()
    for n in range(journal.MOST_RECORDS + 10):  # into the second file
        if (path / "checkpoint").read_bytes() != checkpoint:
            kept, checkpoint = (path / "data.mdb").read_bytes(), (path / "checkpoint").read_bytes()
        environment.append([numbered(1, n, 1)])
    lost = without_power(path, tmp_path / "lost", kept)
    environment.close(clean=False)
    damage(lost / "journal-2")
    before = {file.name: file.read_bytes() for file in lost.iterdir()}
    for _ in range(2):
        with pytest.raises(
            DamagedFile, match=r"The file \S+/journal-2 is (missing|damaged: it had \d+ octets)"
        ):
            open_strong(lost, "second")
    assert {file.name: file.read_bytes() for file in lost.iterdir()} == before
    # LMDB has all of it when only the process ended.
    damage(path / "journal-2")
    again = open_strong(path)
    assert again.extent(1).last == journal.MOST_RECORDS + 9
    again.close()


def append_many(environment: Environment, begin: int, end: int) -> None:
    for n in range(begin, end):
        environment.append([numbered(1, 100 * n, 100)])


@contextmanager
def no_larger_files(path: Path) -> Iterator[None]:
    """Let no file of this process grow beyond the data file in this directory."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((path / "data.mdb").stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_commit_leaves_no_record(tmp_path: Path) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    append_many(environment, 0, 150)
    with no_larger_files(path), pytest.raises(StoreFull):
        append_many(environment, 150, 400)
    expected = content(environment)
    lost = without_power(path, tmp_path / "lost", (path / "data.mdb").read_bytes())
    environment.close(clean=False)
    again = open_strong(lost, "second")
    assert content(again) == expected
    again.close()


def test_a_full_map_has_room_again_after_a_deletion(tmp_path: Path) -> None:
    environment = open_strong(tmp_path / "strong", map_size=1 << 20)
    with pytest.raises(StoreFull):
        append_many(environment, 0, 1000)
    following = environment.extent(1).next
    environment.trim(1, following - 500)
    append_many(environment, following // 100, following // 100 + 20)
    assert environment.extent(1).next == following + 2000
    environment.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_disk_that_refuses_the_journal_loses_nothing(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    environment.append([numbered(1, 0, 10)])
    expected = content(environment)
    real: Callable[..., object] = getattr(os, call)
    refused: list[bool] = []

    def refuse(descriptor: int, *rest: object) -> object:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path / "journal-1" and not refused:
            refused.append(True)
            raise OSError(5, "Input/output error")
        return real(descriptor, *rest)

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StoreError, match=r"The journal .* could not be written: .*Input/output error"):
        environment.append([numbered(1, 10, 10)])
    monkeypatch.undo()
    assert content(environment) == expected
    environment.append([numbered(1, 10, 5)])
    expected = content(environment)
    environment.close(clean=False)
    again = open_strong(path, "second")
    assert content(again) == expected
    again.close()


def test_nothing_is_written_after_a_record_that_cannot_be_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)
    environment.append([numbered(1, 0, 10)])

    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(StoreError, match="could not be written"):
        environment.append([numbered(1, 10, 10)])
    monkeypatch.undo()
    with pytest.raises(StoreFailed, match=r"journal of .* could not be changed, so nothing more is written"):
        environment.append([numbered(1, 10, 10)])
    assert environment.extent(1).last == 9
    environment.close(clean=False)


def test_without_room_for_a_journal_commits_take_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "strong"
    environment = open_strong(path)

    def full(file: Path) -> None:
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(journal, "create", full)
    for n in range(5):
        environment.append([numbered(1, 10 * n, 10)])
    assert not (path / "journal-1").exists()
    expected = content(environment)
    lost = without_power(path, tmp_path / "lost", (path / "data.mdb").read_bytes())
    environment.close(clean=False)
    again = open_strong(lost, "second")
    assert content(again) == expected
    again.close()


# -- in a store ---------------------------------------------------------------------------------------------


def open_store(path: Path, boot_id: str) -> Store:
    return Store.open(path, map_size=1 << 28, boot_id=boot_id)


def store_without_power(tmp_path: Path) -> Path:
    """Return a store after a power failure, whose journal has messages 0 to 29 of topic 1."""
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "store"
    store = open_store(path, "first")
    store.catalogue.create(b"one", "topic", "strong", True)
    begin_journal(store.level(Level.STRONG))
    kept = (path / "strong" / "data.mdb").read_bytes()
    for n in range(3):
        store.level(Level.STRONG).append([numbered(1, 10 * n, 10)])
    lost = tmp_path / "lost"
    shutil.copytree(path, lost)
    shutil.rmtree(lost / "strong")
    without_power(path / "strong", lost / "strong", kept)
    store.close(clean=False)
    return lost


def test_a_start_says_what_the_journal_had(tmp_path: Path) -> None:
    lost = store_without_power(tmp_path)
    with open_store(lost, "second") as store:
        (strong,) = (each for each in store.recoveries if each.level is Level.STRONG)
        assert "back at its last checkpoint" in strong.what
        assert strong.what.endswith("Commits that its journal had, and that are there again: 3.")
        assert not strong.rolled_back
        assert bodies_of(read_all(store.level(Level.STRONG), 1)) == bodies_of([numbered(1, 0, 30)])


def test_a_check_and_a_backup_have_what_the_journal_had(tmp_path: Path) -> None:
    lost = store_without_power(tmp_path)
    shutil.copytree(lost, tmp_path / "checked")
    with lock_store(tmp_path / "checked"):
        found = inspect(tmp_path / "checked", "second", lambda _: None)
    assert found.levels[Level.STRONG].found.extents[1].next == 30
    backup(lost, tmp_path / "copy", "second", lambda _: None)
    with open_store(tmp_path / "copy", "third") as store:
        assert store.level(Level.STRONG).extent(1).messages == 30


def test_the_journal_of_another_store_is_refused(tmp_path: Path) -> None:
    lost = store_without_power(tmp_path)
    other = store_without_power(tmp_path / "other")
    shutil.copy(other / "strong" / "journal-1", lost / "strong" / "journal-1")
    with pytest.raises(DamagedFile, match=r"journal-1 is not the right one: it belongs to another store"):
        open_store(lost, "second")
    with lock_store(lost):
        problems = inspect(lost, "second", lambda _: None).problems
    assert any("journal-1 is not the right one" in problem for problem in problems)


def test_a_repair_moves_the_journal_with_its_level(tmp_path: Path) -> None:
    lost = store_without_power(tmp_path)
    (lost / "strong").rename(lost / "between")
    (lost / "weak").rename(lost / "strong")
    (lost / "between").rename(lost / "weak")
    with lock_store(lost):
        report = repair(lost, SampleInterpreter(), "second", lambda _: None, map_size=1 << 28)
    assert "The file journal-1 of weak was put into strong, where it belongs." in report
    with open_store(lost, "second") as store:
        assert bodies_of(read_all(store.level(Level.STRONG), 1)) == bodies_of([numbered(1, 0, 30)])


def test_a_start_on_a_full_disk_has_what_the_journal_had(disk: Path, tmp_path: Path) -> None:
    path = disk / "store"
    store = open_store(path, "first")
    begin_journal(store.level(Level.STRONG))
    kept = (path / "strong" / "data.mdb").read_bytes()
    for n in range(60):
        store.level(Level.STRONG).append([numbered(1, 10 * n, 10)])
    for level in (Level.WEAK, Level.ASYNC):
        store.level(level).close()
    store.close(clean=False)
    shutil.move(path / "strong", tmp_path / "strong")
    without_power(tmp_path / "strong", path / "strong", kept)
    # The file of a power failure may be as short as that of the checkpoint.
    os.truncate(path / "strong" / "data.mdb", len(kept))
    with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        filler.writelines(itertools.repeat(bytes(PAGE)))
    with open_store(path, "second") as store:
        assert bodies_of(read_all(store.level(Level.STRONG), 1)) == bodies_of([numbered(1, 0, 600)])
