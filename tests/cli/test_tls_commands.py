"""TLS with the commands as users run them."""

import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

import pytest
import trustme
from certificates import Authority, add_pass_phrase
from cli_helpers import Shell
from server_command import run_server, running_server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def options(authority: Authority, tmp_path: Path) -> list[str | Path]:
    shown = authority.issue("127.0.0.1")
    return ["--store", tmp_path / "store", "--tls-cert", shown.cert, "--tls-key", shown.key]


def omq(url: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    shell = Shell("", Path())
    shell.url = url
    return shell.omq(*arguments, OMQ_CA=environment.get("ca", ""))


def test_the_commands_use_tls(authority: Authority, tmp_path: Path) -> None:
    listen = ("--listen-tls", "127.0.0.1:0")
    with running_server(*options(authority, tmp_path), *listen) as server:
        assert server.ready.endswith(" (TLS only)\n")
        address = server.address
        url = f"omqs://{address}"
        for arguments in (
            ["--ca", str(authority.file), "pub", "t", "hello", "--confirm"],
            ["--ca", str(authority.file), "pub", "--dmp", "t", "again"],
        ):
            done = omq(url, *arguments)
            assert (done.returncode, done.stderr) == (0, b"")
        done = omq(url, "sub", "t", "--from", "beginning", "--count", "2", ca=str(authority.file))
        assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\nagain\n", b"")
        for url, said in (
            (f"omqs://{address}", b"TLS: the certificate is not accepted: "),
            (
                f"omqs://{address}",
                b"; name the certificate of the authority that signed it with --ca or $OMQ_CA",
            ),
            (
                f"omq://{address}",
                b"during the handshake; perhaps the port speaks only TLS (omqs://), or only HTTP\n",
            ),
        ):
            done = omq(url, "ping")
            assert (done.returncode, done.stdout) == (1, b"")
            assert said in done.stderr
        port = address.rpartition(":")[2]
        done = omq(f"omqs://localhost:{port}", "--ca", str(authority.file), "ping")
        hint = b"'; connect to a name or an address for which the certificate is valid\n"
        assert done.stderr.endswith(hint)
        status, output, log = server.stop()
    assert (status, output) == (0, "")
    assert "Traceback" not in log


def test_the_log_says_that_clients_ended_their_connections(authority: Authority, tmp_path: Path) -> None:
    """Those of a subscription, a feed, a Watch, a Fetch and a replay: none of them broke."""
    given = [*options(authority, tmp_path), "--listen-tls", "127.0.0.1:0"]
    with running_server(*given) as server:
        url = f"omqs://{server.address}"
        for arguments in (
            ["pub", "t", "hello", "--dmp"],
            ["sub", "t", "--from", "beginning", "--count", "1"],
            ["sub", "t", "--from", "beginning", "--count", "1", "--dmp"],
            ["top", "--once", "--interval", "0.1"],
            ["topics", "--lag"],
            ["connections"],
            ["replay", "t", "--to", f"{url}/copy"],
        ):
            done = omq(url, *arguments, ca=str(authority.file))
            assert done.returncode == 0, done.stderr
        status, _, log = server.stop()
    assert status == 0
    ends = [line for line in log.splitlines() if " disconnected after " in line]
    assert len(ends) >= 10
    assert [line for line in ends if "its client ended it" not in line] == []


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_certificate_of_its_own_authority_is_not_trusted(tmp_path: Path, is_alone: bool) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "shown.pem", tmp_path / "shown.key"
    if is_alone:
        authority.cert_pem.write_to_path(cert)
        authority.private_key_pem.write_to_path(key)
    else:
        chain = [*issued.cert_chain_pems, authority.cert_pem]
        cert.write_bytes(b"".join(blob.bytes() for blob in chain))
        issued.private_key_pem.write_to_path(key)
    files = ("--tls-cert", cert, "--tls-key", key)
    with running_server("--store", tmp_path / "store", *files, "--listen-tls", "127.0.0.1:0") as server:
        done = omq(f"omqs://{server.address}", "ping")
        assert (done.returncode, done.stdout) == (1, b"")
        hint = b"; name the certificate of the authority that signed it with --ca or $OMQ_CA\n"
        assert done.stderr.endswith(hint)
        assert server.stop()[0] == 0


def test_an_unusable_file_of_a_connection_option_is_a_usage_error(tmp_path: Path) -> None:
    url = "omqs://127.0.0.1:1"  # nothing connects
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    missing = str(tmp_path / "nothing.pem")
    replay = ("replay", "t", "--to", "omqs://127.0.0.1:2/u")
    for arguments, problem in (
        (("--ca", missing, "ping"), f"{missing}: No such file or directory"),
        (("--cert", str(wrong), "ping"), f"{wrong}: no certificate in PEM"),
        (("--id-file", missing, "ping"), f"{missing}: No such file or directory"),
        (("--ca", missing, *replay), f"{missing}: No such file or directory"),
        ((*replay, "--to-ca", missing), f"{missing}: No such file or directory"),
    ):
        done = omq(url, *arguments)
        assert (done.returncode, done.stdout) == (2, b""), arguments
        assert done.stderr.startswith(b"usage: omq"), done.stderr
        assert problem.encode() in done.stderr


def test_sighup_reads_the_certificates_again(authority: Authority, tmp_path: Path) -> None:
    given = [*options(authority, tmp_path), "--listen", "127.0.0.1:0"]
    with running_server(*given) as server:
        url = f"omqs://{server.address}"
        assert omq(url, "ping", ca=str(authority.file)).returncode == 0
        assert server.process.stderr is not None

        other = Authority(tmp_path / "other")
        fresh = other.issue("127.0.0.1")
        Path(given[3]).write_bytes(fresh.cert.read_bytes())
        server.process.send_signal(signal.SIGHUP)
        line = read_until(server.process.stderr, "certificates")
        assert "kept the old certificates: tls_key: " in line
        assert omq(url, "ping", ca=str(authority.file)).returncode == 0

        Path(given[5]).write_bytes(fresh.key.read_bytes())
        server.process.send_signal(signal.SIGHUP)
        assert "reloaded the certificates" in read_until(server.process.stderr, "certificates")
        assert omq(url, "ping", ca=str(authority.file)).returncode == 1
        assert omq(url, "ping", ca=str(other.file)).returncode == 0
        assert server.stop()[0] == 0


def test_sighup_warns_of_a_certificate_that_expires_soon(authority: Authority, tmp_path: Path) -> None:
    given = [*options(authority, tmp_path), "--listen", "127.0.0.1:0"]
    with running_server(*given) as server:
        assert server.process.stderr is not None
        authority.issue("127.0.0.1", ends=datetime.now(UTC) + timedelta(days=3, hours=1))
        server.process.send_signal(signal.SIGHUP)
        assert " WARNING " in (line := read_until(server.process.stderr, "expires"))
        assert "tls_cert: " in line
        assert "in 3 days" in line
        assert server.stop()[0] == 0


def read_until(stream: IO[str], word: str) -> str:
    """Return the next line of a log that contains this word."""
    for line in stream:
        if word in line:
            return str(line)
    raise AssertionError(f"the log ended without {word}")


def refused(*given: str | Path) -> str:
    done = run_server("--listen", "127.0.0.1:0", *given)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr.splitlines()[-1]


def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    shown, other = authority.issue("127.0.0.1"), authority.issue("127.0.0.1", "other")
    text = tmp_path / "text.pem"
    text.write_text("text")
    store = ("--store", tmp_path / "store")
    cert, key = ("--tls-cert", shown.cert), ("--tls-key", shown.key)
    said = {
        refused(*store, *cert): "tls_key: it is needed beside tls_cert",
        refused(*store, *key): "tls_cert: it is needed beside tls_key",
        refused(*store, "--listen-tls", "127.0.0.1:0"): "listen_tls: it needs tls_cert and tls_key",
        refused(*store, "--tls-client-ca", "a.pem"): "tls_client_ca: it needs tls_cert and tls_key",
        refused(*store, *cert, "--tls-key", other.key): f"tls_key: {other.key}: not the key of {shown.cert}",
        refused(*store, *cert, "--tls-key", "no.pem"): "tls_key: no.pem: No such file or directory",
        refused(*store, "--tls-cert", text, *key): f"tls_cert, tls_key: {text} and {shown.key} are no"
        " certificate and key in PEM",
        refused(*store, *cert, *key, "--tls-client-ca", text): f"tls_client_ca: {text} has no certificate in"
        " PEM",
    }
    for line, wanted in said.items():
        assert line == f"omq-server: {wanted}"


def test_a_key_with_a_pass_phrase(authority: Authority, tmp_path: Path) -> None:
    shown = authority.issue("127.0.0.1")
    add_pass_phrase(shown.key)
    line = refused("--store", tmp_path / "store", "--tls-cert", shown.cert, "--tls-key", shown.key)
    assert line.startswith("omq-server: tls_key: a key with a pass phrase cannot be used")
