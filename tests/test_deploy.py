"""The files in deploy/: checked by their own programs, and run as far as they can be run here."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from programs import PATH, output_of
from server_command import COMMAND, READY, RunningServer, run_server, running_server

DEPLOY = Path(__file__).parents[1] / "deploy"
BIN = Path(sys.executable).parent

VERSION_ONE = bytes(7) + b"\1"


def needs(program: str) -> pytest.MarkDecorator:
    found = shutil.which(program) or shutil.which(program, path=BIN)
    return pytest.mark.skipif(found is None, reason=f"{program} is not installed")


run = partial(output_of, PATH=PATH)


# -- what their own programs say ---------------------------------------------------------------------------


def test_the_sample_configuration_can_be_used() -> None:
    done = run_server("--config", DEPLOY / "omq.toml", "--check-config")
    assert (done.returncode, done.stdout) == (0, "omq-server: the configuration can be used\n")


@pytest.fixture
def installed_units(tmp_path: Path) -> list[Path]:
    """Return the units with the paths of programs that are installed here."""
    paths = {"/opt/omq/bin": str(BIN), "/usr/local/bin/omq-backup": str(DEPLOY / "systemd" / "omq-backup")}
    units = [
        *DEPLOY.glob("systemd/*.service"),
        *DEPLOY.glob("systemd/*.socket"),
        *DEPLOY.glob("systemd/*.timer"),
    ]
    assert len(units) == 4
    for unit in units:
        text = unit.read_text()
        for installed, here in paths.items():
            text = text.replace(installed, here)
        (tmp_path / unit.name).write_text(text)
    return sorted(tmp_path.iterdir())


@needs("systemd-analyze")
def test_the_units_are_valid(installed_units: list[Path]) -> None:
    assert run("systemd-analyze", "verify", "--man=no", *installed_units) == ""
    broken = installed_units[0].with_name("broken.service")
    broken.write_text(installed_units[0].read_text().replace("UMask=0077", "UMask=rarely"))
    with pytest.raises(AssertionError):
        assert run("systemd-analyze", "verify", "--man=no", broken) == ""


@needs("systemd-analyze")
@pytest.mark.parametrize("unit", ["omq.service", "omq-backup.service"])
def test_the_services_are_exposed_to_little(unit: str) -> None:
    command = ("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=24")
    found = re.search(r"Overall exposure level for \S+: (\S+)", run(*command, DEPLOY / "systemd" / unit))
    assert found is not None
    if unit == "omq.service":
        assert f"an exposure of {found[1]} of 10" in (DEPLOY / "README.md").read_text()


def settings(unit: str, name: str) -> list[str]:
    """Return the values of a setting of a unit."""
    return re.findall(rf"^{name}=(.*)$", (DEPLOY / "systemd" / unit).read_text(), re.MULTILINE)


def test_a_backup_does_not_open_the_directory_of_the_store() -> None:
    """A StateDirectory has the mode of the last unit that was started: by default everybody may read it."""
    for unit in ("omq.service", "omq-backup.service"):
        assert settings(unit, "StateDirectory") == ["omq"]
        assert settings(unit, "StateDirectoryMode") == ["0700"]


def test_a_reload_fails_when_the_configuration_cannot_be_used(tmp_path: Path) -> None:
    check, tell = settings("omq.service", "ExecReload")
    assert tell == "/bin/kill -HUP $MAINPID"
    (start,) = settings("omq.service", "ExecStart")
    assert check == f"{start} --check-config"
    options = check.split()[1:]
    file = tmp_path / "omq.toml"
    for text, status in (("max_topics = 7\n", 0), ("max_topics = 0\n", 2)):
        file.write_text(text)
        done = run_server(*(str(file) if each == "/etc/omq/omq.toml" else each for each in options))
        assert done.returncode == status, done.stderr


@needs("hadolint")
def test_the_container_file_is_clean() -> None:
    assert run("hadolint", DEPLOY / "container" / "Dockerfile") == ""


@needs("shellcheck")
def test_the_backup_script_is_clean() -> None:
    assert run("shellcheck", DEPLOY / "systemd" / "omq-backup") == ""


# -- the backup, and the health check -----------------------------------------------------------------------


def test_backups_are_whole_and_the_last_ones_stay(tmp_path: Path) -> None:
    backups, store = tmp_path / "backups", tmp_path / "store"
    script = DEPLOY / "systemd" / "omq-backup"
    whole = ("2020-01-01T03-15-00Z", "2020-01-02T03-15-00Z", "mine")
    for name in (*whole, "2020-01-03T03-15-00Z.part", "2020-01-04T03-15-00Z.part.part"):
        (backups / name).mkdir(parents=True)
    with running_server("--listen", "127.0.0.1:0", "--store", store) as server:
        run("omq", "pub", "news", "kept", "--confirm", OMQ_SERVER=f"omq://{server.address}")
        run("sh", script, store, backups, "2")
        assert server.stop()[0] == 0
    old, new, other = sorted(path.name for path in backups.iterdir())
    assert (old, other) == ("2020-01-02T03-15-00Z", "mine")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d-\d\d-\d\dZ", new)
    with running_server("--listen", "127.0.0.1:0", "--store", backups / new) as server:
        address = f"omq://{server.address}"
        said = run("omq", "sub", "news", "--from", "beginning", "--count", "1", OMQ_SERVER=address)
    assert said == "kept\n"
    done = subprocess.run(["sh", script, store, backups], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "usage: omq-backup STORE DIRECTORY KEPT\n")
    for kept in ("", "0", "00", "-1", "two"):
        refused = subprocess.run(
            ["sh", script, store, backups, kept], capture_output=True, text=True, check=False
        )
        assert (refused.returncode, refused.stderr) == (2, "omq-backup: KEPT is a number of at least 1\n")
    with pytest.raises(AssertionError):
        run("sh", script, tmp_path / "missing", backups, "2")
    assert len(list(backups.iterdir())) == 3, "a backup that failed deletes none"


def test_a_backup_is_not_moved_into_one_of_the_same_second(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    date = tmp_path / "bin" / "date"
    date.write_text("#!/bin/sh\necho 2020-01-01T03-15-00Z\n")
    date.chmod(0o700)
    backups, store = tmp_path / "backups", tmp_path / "store"
    backups.mkdir()
    back_up = partial(output_of, "sh", DEPLOY / "systemd" / "omq-backup", store, backups, "2")
    with running_server("--listen", "127.0.0.1:0", "--store", store):
        back_up(PATH=f"{date.parent}:{PATH}")
        whole = sorted((backups / "2020-01-01T03-15-00Z").iterdir())
        with pytest.raises(AssertionError):
            back_up(PATH=f"{date.parent}:{PATH}")
    assert sorted((backups / "2020-01-01T03-15-00Z").iterdir()) == whole


def test_the_health_check_of_the_container(tmp_path: Path) -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text().replace("\\\n", "")
    (found,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)
    name, option, program = json.loads(found)
    assert (name, option) == ("python", "-c")
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        program = program.replace("7730", str(server.port))
        run(sys.executable, "-c", program)
        assert server.stop()[0] == 0
    with pytest.raises(AssertionError):
        run(sys.executable, "-c", program)


# -- what the server and a service manager tell each other --------------------------------------------------


@contextmanager
def managed(
    path: Path, address: str, *options: str | Path, **environment: str
) -> Iterator[tuple[RunningServer, socket.socket]]:
    """Yield a server that reports to a service manager at this address, and the manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        manager.settimeout(60)
        process = subprocess.Popen(
            [COMMAND, "--listen", "127.0.0.1:0", "--store", path / "store", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"NOTIFY_SOCKET": address} | environment,
        )
        with process:
            assert process.stdout is not None
            try:
                yield RunningServer(process, process.stdout.readline()), manager
            finally:
                if process.poll() is None:
                    process.kill()


def told(manager: socket.socket) -> dict[str, str]:
    """Return the next message."""
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_the_manager_is_told_of_start_reload_and_stop(kind: str, tmp_path: Path) -> None:
    address = f"@omq-test-{os.getpid()}" if kind == "abstract" else str(tmp_path / "notify")
    with managed(tmp_path, address) as (server, manager):
        assert told(manager) == {"READY": "1", "STATUS": f"serving on {server.address}"}
        server.process.send_signal(1)
        reloading = told(manager)
        assert (reloading["RELOADING"], reloading["MONOTONIC_USEC"].isdecimal()) == ("1", True)
        assert told(manager)["READY"] == "1"
        assert server.stop()[0] == 0
        assert told(manager) == {"STOPPING": "1"}


def test_the_watchdog_hears_from_the_event_loop(tmp_path: Path) -> None:
    with managed(tmp_path, str(tmp_path / "notify"), WATCHDOG_USEC="200000") as (server, manager):
        heard = [told(manager) for _ in range(4)]
        assert heard.count({"WATCHDOG": "1"}) == 3
        assert server.stop()[0] == 0


def test_a_watchdog_of_another_process_is_not_answered(tmp_path: Path) -> None:
    environment = {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    with managed(tmp_path, str(tmp_path / "notify"), **environment) as (server, manager):
        assert "READY" in told(manager)
        assert server.stop()[0] == 0
        assert told(manager) == {"STOPPING": "1"}


def test_a_manager_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    with managed(tmp_path, str(tmp_path / "notify")) as (server, manager):
        manager.close()
        server.process.send_signal(1)
        assert server.stop()[0] == 0


def activated(path: Path, names: str, *sockets: socket.socket) -> "subprocess.Popen[str]":
    """Start a server with sockets as descriptors from 3 on."""
    moves = " ".join(f"{3 + number}<&{each.fileno()}" for number, each in enumerate(sockets))
    script = f'export LISTEN_PID=$$ LISTEN_FDS={len(sockets)} LISTEN_FDNAMES={names}; exec "$@" {moves}'
    return subprocess.Popen(
        ["bash", "-c", script, "bash", COMMAND, "--store", path / "store"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[each.fileno() for each in sockets],
    )


@contextmanager
def far(*sockets: socket.socket) -> Iterator[list[socket.socket]]:
    """Yield the same sockets, with descriptors that no others are moved over."""
    import fcntl

    moved = [socket.socket(fileno=fcntl.fcntl(each.fileno(), fcntl.F_DUPFD, 50)) for each in sockets]
    try:
        yield moved
    finally:
        for each in moved:
            each.close()


def test_sockets_that_the_manager_passes_are_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        with far(one, two) as sockets, activated(tmp_path, "omq:http", *sockets) as process:
            assert process.stdout is not None
            ports = [each.getsockname()[1] for each in (one, two)]
            assert process.stdout.readline() == f"{READY}127.0.0.1:{ports[0]}\n"
            assert process.stdout.readline() == f"{READY}127.0.0.1:{ports[1]} (HTTP only)\n"
            with socket.create_connection(("127.0.0.1", ports[0]), timeout=60) as client:
                client.sendall(VERSION_ONE)
                assert client.recv(8, socket.MSG_WAITALL) == VERSION_ONE
            process.terminate()
            process.communicate(timeout=60)
        # The manager still listens: a client that comes now waits for the next start.
        socket.create_connection(("127.0.0.1", ports[0]), timeout=60).close()


def test_sockets_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    with socket.socket() as unbound, socket.create_server(("0.0.0.0", 0)) as reachable:
        for passed, why in (
            (unbound, "LISTEN_FDS: descriptor 3 is not a TCP socket that listens"),
            (reachable, "can be reached from other machines"),
        ):
            with far(passed) as sockets, activated(tmp_path, "omq", *sockets) as process:
                output, log = process.communicate(timeout=60)
            assert (process.returncode, output) == (2, "")
            assert why in log
