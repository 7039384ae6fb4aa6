"""The command `omq store`, as a shell runs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import SECONDS, Shell, running_server
from small_disk import DISK_OCTETS

from omq.blocking import connect

PAGE = 4096


def damaged(store: Path) -> None:
    file = store / "strong" / "data.mdb"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"second", b"SECOND"))


def test_check_backup_and_restore(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "backup"
    with running_server(tmp_path) as shell:
        shell.ok("declare", "notes", "--persistence", "strong")
        shell.ok("pub", "notes", "-", "--confirm", input=b"first\nsecond\n")
        done = shell.omq("store", "backup", str(copy), "--store", str(store))
        assert done.returncode == 0
        assert done.stdout.startswith(f"{copy}: ".encode())
        shell.ok("pub", "notes", "third", "--confirm")
        for command in ("check", "repair"):
            in_use = shell.omq("store", command, "--store", str(store))
            assert in_use.returncode == 3
            assert b"in use by another process" in in_use.stderr
    checked = shell.omq("store", "check", "--store", str(copy))
    assert checked.returncode == 0
    assert b"strong: 2 messages in" in checked.stdout
    assert checked.stdout.endswith(b"No damage was found.\n")
    # As the documentation says to restore: the store away, the backup in its place.
    store.rename(tmp_path / "lost")
    shutil.copytree(copy, store)
    with running_server(tmp_path) as shell:
        assert shell.ok("sub", "notes", "--from", "beginning", "--count", "2") == b"first\nsecond\n"
        shell.ok("pub", "notes", "after", "--confirm")
        row = shell.ok("topics").splitlines()[1].split()
        assert int(row[7]) > 1 << 32  # the third message's id is not given to another


def test_check_and_repair_of_a_damaged_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running_server(tmp_path) as shell:
        shell.ok("declare", "notes", "--persistence", "strong")
        # By one client and not by commands, which take so long to start that the server joins the blocks.
        with connect(shell.url) as client:
            for body in (b"first", b"second", b"third"):
                client.publish("notes", body)
                client.confirm()
    damaged(store)
    sentence = b"strong: messages 2 to 2 of 'notes' cannot be read."
    checked = shell.omq("store", "check", "--store", str(store))
    assert checked.returncode == 1
    assert sentence in checked.stdout.splitlines()
    assert b"omq store repair" in checked.stderr
    repaired = shell.omq("store", "repair", "--store", str(store))
    assert repaired.returncode == 0
    assert sentence in repaired.stdout.splitlines()
    assert repaired.stdout.endswith(b"The store can be used again.\n")
    assert shell.omq("store", "check", "--store", str(store)).returncode == 0
    with running_server(tmp_path) as shell:
        heard = shell.omq("sub", "notes", "--from", "beginning", "--count", "2")
        assert heard.stdout == b"first\nthird\n"
        assert b"2" in heard.stderr  # the gap is told


def damaged_store_of_another(tmp_path: Path) -> tuple[Path, Shell]:
    """Return a store that belongs to another user and has a damaged message, and the shell that made it."""
    store = tmp_path / "store"
    with running_server(tmp_path) as shell:
        shell.ok("declare", "notes", "--persistence", "strong")
        shell.ok("pub", "notes", "second", "--confirm")
    damaged(store)
    for path in (store, *store.rglob("*")):
        os.chown(path, 1234, 5678)
    return store, shell


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_repairs_still_belongs_to_the_owner_of_the_store(tmp_path: Path) -> None:
    store, shell = damaged_store_of_another(tmp_path)
    foreign = tmp_path / "foreign"
    foreign.write_text("of root, and not created here")
    (store / "linked").hardlink_to(foreign)
    (store / "symbolic").symlink_to(foreign)
    for command, files in (("check", ["lock"]), ("repair", ["lock", "strong/data.mdb", "strong.damaged-1"])):
        (store / "lock").unlink()
        shell.omq("store", command, "--store", str(store))
        for file in files:
            assert (store / file).exists()
        owners = {
            (status.st_uid, status.st_gid)
            for path in store.rglob("*")
            if path.name not in ("linked", "symbolic")
            for status in [path.stat()]
        }
        assert owners == {(1234, 5678)}
    assert foreign.stat().st_uid == 0


CANNOT_GIVE = """
import ctypes, sys
PR_CAPBSET_DROP, CAP_CHOWN = 24, 0
assert not ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_CHOWN, 0, 0, 0)
import os
os.execv(sys.executable, [sys.executable, "-c", "from omq.cli.start import main; main()", *sys.argv[1:]])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_that_may_give_nothing_away_still_reports_what_is_lost(tmp_path: Path) -> None:
    store, _ = damaged_store_of_another(tmp_path)
    command = [sys.executable, "-c", CANNOT_GIVE, "store", "repair", "--store", store]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    sentence = b"strong: messages 1 to 1 of 'notes' cannot be read."
    assert sentence in done.stdout.splitlines()
    assert done.stdout.endswith(b"The store can be used again.\n")
    last = f"omq: {store}: what root has created here still belongs to root: Operation not permitted"
    assert done.stderr.decode().splitlines()[-1] == last
    assert done.returncode == 0


def test_a_backup_with_a_check_tells_of_damage(tmp_path: Path) -> None:
    with running_server(tmp_path) as shell:
        shell.ok("declare", "notes", "--persistence", "strong")
        shell.ok("pub", "notes", "second", "--confirm")
        whole = shell.omq(
            "store", "backup", str(tmp_path / "whole"), "--store", str(tmp_path / "store"), "--check"
        )
        assert (whole.returncode, whole.stdout.splitlines()[-1]) == (0, b"No damage was found.")
    damaged(tmp_path / "store")
    given = ("--store", str(tmp_path / "store"))
    assert shell.omq("store", "backup", str(tmp_path / "copy"), *given).returncode == 0
    checked = shell.omq("store", "backup", str(tmp_path / "checked"), *given, "--check")
    assert checked.returncode == 1
    assert b"the store is damaged" in checked.stderr
    assert (tmp_path / "checked" / "strong").is_dir(), "what is whole of it may be all that there is"


@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
def test_a_closed_output_changes_nothing_in_the_result_of_a_check(tmp_path: Path, is_damaged: bool) -> None:
    store = tmp_path / "store"
    with running_server(tmp_path) as shell:
        shell.ok("declare", "notes", "--persistence", "strong")
        shell.ok("pub", "notes", "second", "--confirm")
    if is_damaged:
        damaged(store)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        checked = shell.omq("store", "check", "--store", str(store), stdout=writing)
    finally:
        os.close(writing)
    assert checked.returncode == int(is_damaged)
    assert (b"the store is damaged" in checked.stderr) == is_damaged
    assert b"Broken pipe" not in checked.stderr


def test_an_output_without_room_fails_a_check(tmp_path: Path) -> None:
    with running_server(tmp_path) as shell:
        shell.ok("ping")
    with Path("/dev/full").open("wb") as full:
        checked = shell.omq("store", "check", "--store", str(tmp_path / "store"), stdout=full)
    assert checked.returncode == 1
    assert checked.stderr.endswith(b"omq: standard output: No space left on device\n")


def modes(store: Path) -> dict[str, int]:
    """Return the modes of a store's directory and of everything in it."""
    return {str(path): path.stat().st_mode & 0o777 for path in (store, *store.rglob("*"))}


def is_private(store: Path) -> bool:
    """Return whether only the owner may access any of it."""
    wanted = {str(path): 0o700 if path.is_dir() else 0o600 for path in (store, *store.rglob("*"))}
    return modes(store) == wanted


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_stores_backups_and_repairs_are_readable_by_the_owner_alone(tmp_path: Path, umask: int) -> None:
    store, copy = tmp_path / "deep" / "store", tmp_path / "backup"
    before = os.umask(umask)  # what commands that are started here inherit
    try:
        with running_server(tmp_path, "--store", str(store)) as shell:
            shell.ok("declare", "notes", "--persistence", "strong")
            shell.ok("pub", "notes", "second", "--confirm")
            assert is_private(store)
            assert shell.omq("store", "backup", str(copy), "--store", str(store)).returncode == 0
        assert is_private(tmp_path / "deep")
        assert is_private(copy)
        damaged(store)
        (store / "format").write_bytes(b"damaged")
        assert shell.omq("store", "repair", "--store", str(store)).returncode == 0
        with running_server(tmp_path, "--store", str(store)):
            pass
        assert any(".damaged-" in path for path in modes(store))
    finally:
        os.umask(before)
    assert {path: mode for path, mode in modes(store).items() if mode & 0o077 and "damaged" not in path} == {}


def test_new_files_in_a_store_of_wider_rights_are_private(tmp_path: Path) -> None:
    """Its directories keep modes that were widened, for example for readers of a group."""
    store = tmp_path / "store"
    with running_server(tmp_path):
        pass
    for path in (store, *store.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for lock in store.rglob("lock*"):
        lock.unlink()
    (store / "format.new").write_bytes(b"of an interrupted start")
    (store / "weak" / "checkpoint.new").write_bytes(b"")
    with running_server(tmp_path):
        pass
    assert all(mode == 0o600 for path, mode in modes(store).items() if "lock" in Path(path).name)
    assert modes(store)[str(store)] == 0o755


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    shell = Shell("127.0.0.1:1", tmp_path)
    for command in (["check"], ["repair"], ["backup", str(tmp_path / "to")]):
        done = shell.omq("store", *command, "--store", str(tmp_path / "nothing"))
        assert done.returncode == 1
        assert b"There is no store in" in done.stderr
    # A directory that is something else is left as it is.
    other = tmp_path / "other"
    (other / "strong").mkdir(parents=True)
    for command in ("check", "repair"):
        assert b"There is no store in" in shell.omq("store", command, "--store", str(other)).stderr
    assert [entry.name for entry in other.iterdir()] == ["strong"]
    assert shell.omq("store").returncode == 2
    assert b"check" in shell.omq("store", "--help").stdout
    assert b"store" in shell.omq("--help").stdout


def test_a_backup_to_a_full_disk_says_which_directory_it_is(tmp_path: Path, disk: Path) -> None:
    copy, rest = disk / "copy", disk / "rest"
    with running_server(tmp_path) as shell:
        shell.ok("pub", "notes", "first", "--confirm")
    given = ("store", "backup", str(copy), "--store", str(tmp_path / "store"))
    for room in range(0, DISK_OCTETS, 1 << 17):
        rest.write_bytes(bytes(DISK_OCTETS - room - PAGE))
        done = shell.omq(*given)
        if done.returncode == 0:
            break
        assert done.returncode == 1
        *_, reason = done.stderr.decode().splitlines()
        assert str(copy) in reason
        assert "No space left on device" in reason
        assert list(disk.iterdir()) == [rest]
    assert room > 1 << 17
