"""Clients and their secrets, with the commands as users run them."""

import re
import socket
import struct
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from certificates import Authority
from cli_helpers import Shell
from forked import run_forked
from server_command import COMMAND, run_server, running_server

from omq.access.hashes import read_hash


def hash_secret(given: bytes) -> subprocess.CompletedProcess[bytes]:
    return run_forked([COMMAND, "--hash-secret"], given)


def test_the_hash_of_a_secret() -> None:
    done = hash_secret(b"open sesame\n")
    assert (done.returncode, done.stderr) == (0, b"")
    hash = read_hash(done.stdout.decode().removesuffix("\n"))
    assert hash.fits(b"open sesame")
    assert not hash.fits(b"open sesame\n")
    assert hash_secret(b"open sesame").stdout != done.stdout, "the salt is another"
    for nothing in (b"", b"\n"):
        done = hash_secret(nothing)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr == b"omq-server: --hash-secret: there is no secret on standard input\n"


def test_a_secret_cannot_come_from_a_closed_standard_input() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" --hash-secret <&-', COMMAND], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"omq-server: --hash-secret: there is no secret on standard input\n"


@pytest.mark.parametrize("option", ["--hash-secret", "--help", "--version"])
def test_an_option_whose_result_cannot_be_printed_fails_with_one_line(option: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run_forked([COMMAND, option], b"sesame", stdout=full)
    assert (done.returncode, done.stderr) == (
        1,
        b"omq-server: standard output: No space left on device\n",
    )


def test_a_client_and_its_rights(tmp_path: Path) -> None:
    hash = hash_secret(b"sesame\n").stdout.decode().strip()
    configuration = tmp_path / "omq.toml"
    configuration.write_text(
        f"""
        [[clients]]
        name = "reader"
        secret = "{hash}"
        subscribe = ["news"]
        declare = ["news"]
        """
    )
    (tmp_path / "id").write_text("reader:sesame\n")
    (tmp_path / "id").chmod(0o600)
    given = ("--config", configuration, "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*given, "--log-level", "debug") as server:
        shell = Shell(server.address, tmp_path)
        refused = (
            b"omq: the server said: Connect: no client has this name and secret\n"
            b"omq: give a name and a secret that the server knows, with --id-file or $OMQ_ID\n"
        )
        for command in (("ping",), ("topics",), ("sub", "news"), ("pub", "news", "x", "--dmp")):
            done = shell.omq(*command)
            assert (done.returncode, done.stderr) == (1, refused)
        done = shell.omq("ping", OMQ_ID="reader")
        assert b"\nomq: the id of --id-file or $OMQ_ID has no colon: it must be NAME:SECRET\n" in done.stderr
        done = shell.omq("ping", OMQ_ID="reader:open")
        assert (done.returncode, done.stderr) == (1, refused)
        done = shell.omq("pub", "news", "x")
        assert (done.returncode, b"no client has this name and secret" in done.stderr) == (1, True)
        done = shell.omq("--id-file", str(tmp_path / "id"), "ping")
        assert (done.returncode, done.stderr) == (0, b"")
        done = shell.omq("pub", "news", "x", "--confirm", OMQ_ID="reader:sesame")
        assert (done.returncode, done.stderr) == (
            1,
            b"omq: Publish news: this client may not publish to it\n",
        )
        done = shell.omq("pub", "news", "-", "--confirm", input=b"x\n" * 3, OMQ_ID="reader:sesame")
        several = b"omq: Publish news: 3 messages: this client may not publish to it\n"
        assert (done.returncode, done.stderr) == (1, several)
        done = shell.omq("sub", "news", "--count", "0", OMQ_ID="reader:sesame")
        assert (done.returncode, done.stderr) == (0, b"")
        status, _, log = server.stop()
    assert status == 0
    assert "sesame" not in log
    assert "'reader'" in log


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_an_id_file_that_others_can_read_causes_a_warning(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "my id"
    file.write_text("reader:sesame\n")
    file.chmod(mode)
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        done = Shell(server.address, tmp_path).omq("--id-file", str(file), "ping")
        assert done.returncode == 0
        warning = f"omq: {file}: other users may read the secret in it; `chmod 600 '{file}'` corrects it\n"
        assert done.stderr.decode() == ("" if mode == 0o600 else warning)


def test_an_id_file_of_replay_causes_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "id"
    file.write_text("reader:sesame\n")
    file.chmod(0o644)
    shell = Shell("127.0.0.1:1", tmp_path)
    done = shell.omq("replay", "t", "--to", f"{shell.url}/u", "--to-id-file", str(file))
    assert f"{file}: other users may read the secret in it".encode() in done.stderr


def test_an_id_file_that_cannot_be_used(tmp_path: Path) -> None:
    shell = Shell("127.0.0.1:1", tmp_path)
    (tmp_path / "two").write_text("one:secret\ntwo:secret\n")
    done = shell.omq("--id-file", str(tmp_path / "two"), "ping")
    assert done.returncode == 2
    assert b"must have one line, NAME:SECRET" in done.stderr
    assert b"one:secret" not in done.stderr
    done = shell.omq("--id-file", str(tmp_path / "none"), "ping")
    assert done.returncode == 2
    assert b"none: No such file or directory" in done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:0", "127.0.0.1.nip.io:0"])
def test_listening_elsewhere_without_clients_needs_an_option(tmp_path: Path, address: str) -> None:
    done = run_server("--listen", "127.0.0.1:0", "--listen", address, "--store", tmp_path / "store")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"omq-server: insecure: {address} can be reached from other machines, and without clients configured"
        " every client may do everything: configure clients, or allow that with --insecure\n"
    )
    assert not (tmp_path / "store").exists()


def test_the_server_logs_which_machines_can_reach_it(tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store")
    with running_server("--listen", "127.0.0.1:0", *store) as server:
        log = server.stop()[2]
    assert "INFO    omq.server: no client is configured: only programs on this machine can connect" in log
    with running_server("--listen", "0.0.0.0:0", "--insecure", *store) as server:
        log = server.stop()[2]
    assert (
        "WARNING omq.server: no client is configured: every client that can connect may do everything" in log
    )
    configuration = tmp_path / "omq.toml"
    hash = hash_secret(b"sesame\n").stdout.decode().strip()
    configuration.write_text(f'clients = [{{name = "one", secret = "{hash}"}}]')
    with running_server("--config", configuration, "--listen", "0.0.0.0:0", *store) as server:
        log = server.stop()[2]
    assert re.search(r"WARNING omq\.server: 0\.0\.0\.0:0: without TLS, others on the network can read", log)
    assert "no client is configured" not in log


def test_a_ping_does_not_measure_how_long_the_server_checks_the_secret(tmp_path: Path) -> None:
    """Since the answer to the first command waits for that, the time is that of a second one."""
    version = bytes(7) + b"\1"
    asked: list[bytes] = []

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            connection.sendall(version)
            lines.read(len(version))
            for line in lines:
                if found := re.fullmatch(rb"\(Confirm (\d+)\)\n", line):
                    asked.append(found[1])
                    connection.sendall(struct.pack(">IBQ", 9, 6, int(found[1])))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Thread(target=answer, args=[listener])
        server.start()
        done = Shell(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path).omq("ping", OMQ_ID="reader:sesame")
        server.join(60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(asked) == 2


def test_a_certificate_that_has_expired_is_told_where_the_configuration_is_checked(tmp_path: Path) -> None:
    """A server would start with it."""
    shown = Authority(tmp_path / "certificates").issue(
        "127.0.0.1", ends=datetime.now(UTC) - timedelta(hours=1)
    )
    done = run_server("--tls-cert", shown.cert, "--tls-key", shown.key, "--check-config")
    assert (done.returncode, done.stdout) == (0, "omq-server: the configuration can be used\n")
    (line,) = done.stderr.splitlines()
    assert f"tls_cert: a certificate in {shown.cert} has expired" in line


def test_options_correct_a_file_that_could_not_be_used_alone(tmp_path: Path) -> None:
    file = tmp_path / "omq.toml"
    file.write_text('listen = ["0.0.0.0:7730"]\n')

    def check(*options: str) -> tuple[int, str]:
        done = run_server("--config", file, "--check-config", *options)
        return done.returncode, done.stdout + done.stderr

    usable = (0, "omq-server: the configuration can be used\n")
    status, said = check()
    assert status == 2
    assert said.startswith(f"omq-server: {file}: insecure: 0.0.0.0:7730 can be reached from other machines")
    assert check("--insecure") == usable
    assert check("--listen", "127.0.0.1:7730") == usable
    # The file is not to blame for an option.
    file.write_text("")
    status, said = check("--listen", "0.0.0.0:7730")
    assert status == 2
    assert said.startswith("omq-server: insecure: 0.0.0.0:7730 can be reached from other machines")
