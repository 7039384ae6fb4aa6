"""LMDB behind its only user: what transactions see, and what becomes of its failures."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Condition, Event, Thread, current_thread

import lmdb
import pytest

from omq_storage.database import Database
from omq_storage.errors import DamagedFile, Limit, StoreError, StoreFailed, StoreFull
from omq_storage.reader_slots import SLOTS_KEPT
from omq_storage.readers_writer_lock import ReadersWriterLock

A, B, LATER = b"a", b"b", b"later"
PAGE = 4096
MAP = 1 << 22

READER = """
import lmdb, sys
with lmdb.open(sys.argv[1], readonly=True, max_dbs=4) as environment:
    transaction = environment.begin()
    print("reading", flush=True)
    sys.stdin.read()
"""


def open_database(path: Path, map_size: int = MAP, sync: bool = False) -> Database:
    path.mkdir(exist_ok=True)
    database = Database(path, (A, B), map_size=map_size, sync=sync, added=(LATER,))
    database.make_tables()
    return database


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "database")


def put(database: Database, *records: tuple[bytes, bytes], table: bytes = A) -> None:
    with database.writing() as writing:
        for key, value in records:
            writing.put(table, key, value)


def everything(database: Database, table: bytes = A) -> dict[bytes, bytes]:
    with database.reading() as reading:
        return dict(reading.cursor(table))


def test_a_block_is_committed_as_a_whole_or_not_at_all(database: Database) -> None:
    put(database, (b"1", b"one"), (b"2", b"two"))
    with suppress(KeyError), database.writing() as writing:
        writing.put(A, b"3", b"three")
        writing.delete(A, b"1")
        assert (writing.get(A, b"3"), writing.get(A, b"1")) == (b"three", None)
        raise KeyError
    assert everything(database) == {b"1": b"one", b"2": b"two"}
    with database.writing() as writing:
        writing.delete(A, b"1")
        writing.delete(A, b"not there")
        writing.put(A, b"2", b"another")
        writing.put_many(B, [(b"x", b"1"), (b"y", b"2")])
        writing.put(B, b"z", b"3", at_end=True)
    assert everything(database) == {b"2": b"another"}
    assert everything(database, B) == {b"x": b"1", b"y": b"2", b"z": b"3"}
    with database.reading() as reading:
        assert reading.get_many(B, [b"x", b"nothing", b"z"]) == {b"x": b"1", b"z": b"3"}
        assert (reading.has(A), reading.has(LATER)) == (True, False)


def test_a_reader_sees_the_state_of_its_beginning(database: Database) -> None:
    put(database, (b"1", b"one"))
    with database.reading() as reading:
        put(database, (b"1", b"other"), (b"2", b"two"))
        assert (reading.get(A, b"1"), reading.get(A, b"2")) == (b"one", None)
    assert everything(database) == {b"1": b"other", b"2": b"two"}


def test_views_are_not_copied(database: Database) -> None:
    put(database, (b"1", b"one"))
    for _ in range(2 * SLOTS_KEPT):  # with slots that copying readers have used, and the other way round
        with database.viewing() as get:
            found = get(A, b"1")
            assert isinstance(found, memoryview)
            assert bytes(found) == b"one"
            assert get(A, b"2") is None
        with database.reading() as reading:
            assert isinstance(reading.get(A, b"1"), bytes)


def test_tables_are_made_when_asked_for(tmp_path: Path) -> None:
    database = open_database(tmp_path / "database")
    made = database.room().transaction
    database.make_tables()
    assert database.room().transaction == made  # nothing was missing, so nothing was written
    database.make_tables(added=True)
    put(database, (b"1", b"one"), table=LATER)
    database.close()
    database = open_database(tmp_path / "database")
    assert everything(database, LATER) == {b"1": b"one"}
    database.close()


def test_tables_that_are_not_ours_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "database"
    open_database(path).close()
    with lmdb.open(str(path), max_dbs=4) as environment, environment.begin(write=True) as transaction:
        transaction.drop(environment.open_db(B, transaction))
    with pytest.raises(DamagedFile) as raised:
        Database(path, (A, B), map_size=MAP, sync=False)
    advice = '"omq store check" reports the details, "omq store repair" saves what can be saved'
    assert str(raised.value) == f"The file {path / 'data.mdb'} is damaged: There is no table 'b'.  {advice}."
    with lmdb.open(str(path), max_dbs=4) as environment:
        environment.open_db(B, dupsort=True)
    with pytest.raises(DamagedFile, match=r"The table 'b' has another order\."):
        Database(path, (A, B), map_size=MAP, sync=False)
    Database(path, (A,), map_size=MAP, sync=False).close()


def test_room_is_measured_in_pages_and_readers(database: Database, tmp_path: Path) -> None:
    before = database.room()
    assert before.map_size == MAP
    put(database, (b"large", bytes(100 * PAGE)))
    after = database.room()
    assert after.transaction == before.transaction + 1
    assert after.used >= before.used + 100 * PAGE
    assert after.used % PAGE == 0
    assert after.used == (tmp_path / "database" / "data.mdb").stat().st_size
    assert after.readers == SLOTS_KEPT
    snapshots = [database.snapshot() for _ in range(SLOTS_KEPT + 3)]
    assert database.room().readers == SLOTS_KEPT + 3
    for snapshot in snapshots:
        snapshot.release()
    del snapshots, snapshot
    with database.reading():
        assert SLOTS_KEPT <= database.room().readers <= SLOTS_KEPT + 3


def test_a_snapshot_keeps_its_pages(database: Database, tmp_path: Path) -> None:
    for number in range(20):
        put(database, (b"1", b"%d" % number * 1000))
    snapshot = database.snapshot()
    file = tmp_path / "database" / "data.mdb"
    assert snapshot.number == database.room().transaction
    assert snapshot.head == file.read_bytes()[: 2 * PAGE]
    for number in range(50):
        put(database, (b"1", b"other %d" % number * 1000))
    held = database.room().used
    database.sync()
    content = file.read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    (other / "data.mdb").write_bytes(snapshot.head + content[2 * PAGE :])
    earlier = open_database(other)
    assert everything(earlier) == {b"1": b"19" * 1000}
    earlier.close()
    snapshot.release()
    for number in range(50):
        put(database, (b"1", b"third %d" % number * 1000))
    assert database.room().used <= held + 4 * PAGE  # the pages are used again


def test_a_full_map_is_told_with_its_size(tmp_path: Path) -> None:
    database = open_database(tmp_path / "database", 1 << 16)
    with pytest.raises(StoreFull) as raised:
        put(database, (b"1", bytes(1 << 17)))
    assert raised.value.limit is Limit.MAP
    assert str(raised.value) == f"The map of {tmp_path / 'database'} is full; it may have {1 << 16} octets."
    assert everything(database) == {}
    database.reopen(1 << 18)
    assert database.room().map_size == (1 << 16) + (1 << 18)
    put(database, (b"1", bytes(1 << 17)))
    database.reopen()
    assert database.room().map_size == (1 << 16) + (1 << 18)
    assert everything(database) == {b"1": bytes(1 << 17)}
    database.close()


def test_a_refusal_ends_writing_but_not_reading(database: Database) -> None:
    put(database, (b"1", b"one"))
    database.refuse_writes("The disk failed.")
    with pytest.raises(StoreFailed, match=r"^The disk failed\.$"):
        put(database, (b"2", b"two"))
    assert everything(database) == {b"1": b"one"}
    database.close()


def test_a_closed_database_says_so(database: Database, tmp_path: Path) -> None:
    put(database, (b"1", b"one"))
    database.close()
    database.close()
    assert not database.panicked()
    for call in (
        lambda: everything(database),
        lambda: put(database, (b"2", b"two")),
        database.snapshot,
        database.sync,
        database.room,
        database.reader_check,
        database.reopen,
        database.viewing().__enter__,
    ):
        with pytest.raises(StoreError) as raised:
            call()
        assert str(raised.value) == f"The store in {tmp_path / 'database'} was closed."
    assert everything(open_database(tmp_path / "database")) == {b"1": b"one"}


def test_a_database_that_could_not_be_opened_again_is_opened_later(
    database: Database, tmp_path: Path
) -> None:
    put(database, (b"1", b"one"))
    path = tmp_path / "database"
    assert not database.panicked()
    path.rename(tmp_path / "elsewhere")
    path.touch()  # which is no directory
    for _ in range(2):
        with pytest.raises(StoreError, match=f"The environment {path} failed: .*Not a directory"):
            database.reopen(1 << 20)
        assert database.panicked()
        with pytest.raises(StoreError) as raised:
            everything(database)
        assert str(raised.value) == f"The environment {path} could not be opened again yet."
    path.unlink()
    (tmp_path / "elsewhere").rename(path)
    database.reopen()
    assert not database.panicked()
    assert everything(database) == {b"1": b"one"}
    database.close()


def test_a_database_that_could_not_be_opened_again_is_closed(database: Database, tmp_path: Path) -> None:
    (tmp_path / "database").rename(tmp_path / "elsewhere")
    (tmp_path / "database").touch()
    with pytest.raises(StoreError):
        database.reopen()
    database.close()
    assert not database.panicked()
    (tmp_path / "database").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "database")
    open_database(tmp_path / "database").close()


def test_the_slot_of_a_killed_reader_is_freed(database: Database, tmp_path: Path) -> None:
    assert database.reader_check() == 0
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path / "database")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        assert database.room().readers == SLOTS_KEPT + 1
        assert database.reader_check() == 0
        reader.send_signal(signal.SIGKILL)
    assert database.reader_check() == 1
    assert database.reader_check() == 0


def test_other_users_may_not_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_database(tmp_path / "database").close()
    finally:
        os.umask(before)
    for name in ("data.mdb", "lock.mdb"):
        assert (tmp_path / "database" / name).stat().st_mode & 0o777 == 0o600


@pytest.fixture
def until_it_waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Thread], None]:
    """Return a function that returns when a thread waits for a condition, such as that of a lock."""
    waiting: set[Thread] = set()
    wait = Condition.wait

    def noted_wait(condition: Condition, timeout: float | None = None) -> bool:
        waiting.add(current_thread())
        return wait(condition, timeout)

    def until(thread: Thread) -> None:
        while thread not in waiting:
            time.sleep(0.001)

    monkeypatch.setattr(Condition, "wait", noted_wait)
    return until


def test_a_readers_writer_lock_admits_many_readers_or_one_writer(
    until_it_waits: Callable[[Thread], None],
) -> None:
    lock = ReadersWriterLock()
    inside, leave, written, read = Event(), Event(), Event(), Event()

    def share() -> None:
        with lock.shared():
            inside.set()
            leave.wait(60)

    def write() -> None:
        with lock.exclusive():
            written.set()

    def read_later() -> None:
        with lock.shared():
            assert written.is_set()  # the writer has waited for longer
            read.set()

    threads = [Thread(target=share)]
    threads[0].start()
    assert inside.wait(60)
    with lock.shared():  # beside the other one
        threads.append(Thread(target=write))
        threads[-1].start()
        until_it_waits(threads[-1])
        assert not written.is_set()
        threads.append(Thread(target=read_later))
        threads[-1].start()
        until_it_waits(threads[-1])
        assert not read.is_set()
    assert not written.is_set()  # one of the two is still inside
    leave.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert written.is_set()
    assert read.is_set()
    with lock.exclusive():
        threads = [Thread(target=write), Thread(target=read_later)]
        written.clear()
        for thread in threads:
            thread.start()
            until_it_waits(thread)
        assert not written.is_set()
        written.set()  # so that the reader may come first now
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_lock_file_has_no_hole_that_a_full_disk_could_not_fill(tmp_path: Path) -> None:
    """LMDB maps the file, and a process that writes into such a hole is killed by SIGBUS."""
    lock = tmp_path / "database" / "lock.mdb"
    lock.parent.mkdir()
    with lmdb.open(str(lock.parent), max_readers=1024):
        made_by_lmdb = lock.stat().st_size
    for _ in range(2):  # what is there already, and a new one
        open_database(lock.parent).close()
        status = lock.stat()
        assert status.st_size == made_by_lmdb
        assert status.st_blocks * 512 >= made_by_lmdb
        lock.unlink()


def test_a_full_disk_refuses_an_environment_whose_lock_file_it_cannot_hold(disk: Path) -> None:
    """LMDB would make the file with holes, and its first write there would kill the process by SIGBUS."""
    script = """
import sys
from pathlib import Path
from omq_storage.database import Database
Database(Path(sys.argv[1]), (b"a",), map_size=1 << 20, sync=False).close()
"""
    path = disk / "database"
    open_database(path).close()
    lock = path / "lock.mdb"

    def run() -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
        return done.returncode, done.stderr

    with (disk / "rest").open("wb", buffering=0) as rest, suppress(OSError):
        while rest.write(bytes(PAGE)):
            pass
    assert run() == (0, "")  # its lock file has all its blocks already
    room = lock.stat().st_blocks * 512
    lock.unlink()
    with (disk / "rest").open("ab", buffering=0) as rest:
        rest.write(bytes(room))
    status, reason = run()
    assert status == 1
    assert f"StoreFull: There is no room on disk for {path}: " in reason
    (disk / "rest").unlink()
    assert run() == (0, "")
