"""The log of the server, as text and as JSON."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from server_command import COMMAND, run_server, running_server

from omq.config import LOG_AREAS
from omq_storage import codec

PACKAGE = Path(__file__).parents[1] / "storage" / "omq_storage"
HANDSHAKE = bytes(7) + b"\1"


def records(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def talk(port: int, octets: bytes) -> bytes:
    """Return all answers of the server to these octets until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(octets)
        answer = b""
        while data := client.recv(4096):
            answer += data
        return answer


def test_json_has_times_with_their_zone_and_fields_for_whom_and_what(tmp_path: Path) -> None:
    secret = subprocess.run([COMMAND, "--hash-secret"], input=b"sesame", capture_output=True, check=True)
    configuration = tmp_path / "omq.toml"
    configuration.write_text(
        f'[[clients]]\nname = "réader"\nsecret = "{secret.stdout.decode().strip()}"\nsubscribe = ["*"]\n'
    )
    options = ("--config", configuration, "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*options, "--log-format", "json", "--log-level", "debug") as server:
        assert talk(server.port, b"PRI * HTTP/2.0\r\n\r\n") == struct.pack(">q", -1)
        talk(server.port, HANDSHAKE + "(Connect 1 réader:open)\n".encode())
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(HANDSHAKE + "(Connect 1 réader:sesame)\n(Confirm 1)\n".encode())
            assert len(client.makefile("rb").read(21)) == 21
        status, _, log = server.stop()
    assert status == 0
    lines = records(log)
    for line in lines:
        time = datetime.fromisoformat(line["asctime"])
        assert time.utcoffset() is not None
        assert abs(datetime.now().astimezone() - time) < timedelta(minutes=2)
    stranger = next(line for line in lines if "HTTP" in line["message"])
    assert stranger["peer"].startswith("127.0.0.1:")
    assert not {"client", "topic"} & set(stranger)
    wrong = next(line for line in lines if "a wrong secret" in line["message"])
    assert (wrong["client"], wrong["peer"].rpartition(":")[0]) == ("réader", "127.0.0.1")
    known = next(line for line in lines if line["message"].endswith("' connected"))
    assert known["client"] == "réader"


def test_json_has_the_topic(tmp_path: Path) -> None:
    """After a power failure, the next start reports that a weak topic may have lost its last messages."""
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store", "--log-format", "json")
    with running_server(*options) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(HANDSHAKE + b"(Connect 1 x)\n(Publish t x)\n(Confirm 1)\n")
            assert len(client.makefile("rb").read(21)) == 21
        server.process.kill()
    environment = {**os.environ, "OMQ_BOOT_ID": "another"}
    with subprocess.Popen(
        [COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        log = process.communicate(timeout=60)[1]
    lost = next(line for line in records(log) if "may have been lost" in line["message"])
    assert (lost["topic"], lost["levelname"]) == ("t", "WARNING")


def test_the_level_of_every_area_of_the_server_can_be_set() -> None:
    omq = Path(__file__).parents[1] / "omq"
    clients = {"arrow", "bulk", "client", "replay", "spark"}
    loggers = {
        name
        for path in omq.rglob("*.py")
        for name in re.findall(r'getLogger\("omq\.(\w+)', path.read_text())
        if name not in clients
    }
    assert loggers == set(LOG_AREAS)
    document = (omq.parent / "docs" / "CONFIGURATION.md").read_text()
    (row,) = re.findall(r"^\| `log_levels` .*$", document, re.MULTILINE)
    listed = row.partition("The areas are ")[2].partition(";")[0]
    assert re.findall(r"`(\w+)`", listed) == list(LOG_AREAS)


@pytest.mark.parametrize("option", [["--log-format", "json"], ["--log-format=json"], ["--log-f", "json"]])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--listen", "nowhere"], "listen"),
        (["--config", "none.toml"], "none.toml"),
        (["--frobnicate"], "--frobnicate"),
        (["--store", "/dev/null"], "/dev/null"),
    ],
)
def test_refusals_to_start_are_json_too(
    option: list[str], wrong: list[str], said: str, tmp_path: Path
) -> None:
    done = run_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store", *wrong, *option)
    assert (done.returncode, done.stdout) == (2, "")
    last = records(done.stderr)[-1]
    assert said in last["message"]
    assert (last["levelname"], last["name"]) == ("ERROR", "omq.server")
    assert datetime.fromisoformat(last["asctime"]).utcoffset() is not None


WITHOUT_IT = """
import sys
sys.modules["omq_storage._codec"] = None  # importing it raises ImportError, as where it was not built
from omq.cli.server import main
main()
"""


def test_a_missing_compiled_codec_is_a_warning_that_says_how_to_get_it(tmp_path: Path) -> None:
    def first_line(**environment: str) -> str:
        with subprocess.Popen(
            [sys.executable, "-c", WITHOUT_IT, "--listen", "127.0.0.1:0", "--store", tmp_path / "store"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.terminate()
            return process.communicate(timeout=60)[1].splitlines()[0]

    line = first_line()
    assert " WARNING omq.server: plain Python codec" in line
    for word in ("install a C compiler", "gcc and python3-dev", "install omq-server again"):
        assert word in line
    assert first_line(OMQ_PLAIN="1").endswith(" INFO    omq.server: plain Python codec")


@pytest.mark.skipif(not codec.COMPILED, reason="the codec is not compiled")
@pytest.mark.parametrize("changed", [None, "native/lines.pxi", "_codec.pyx"])
def test_a_compiled_codec_that_is_older_than_its_source_is_a_warning(
    tmp_path: Path, changed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy" / "omq_storage"
    shutil.copytree(PACKAGE, copy)
    built = Path(codec.native.__file__ or "").name
    os.utime(copy / built)
    for each in ("_codec.pyx", *(f"native/{file.name}" for file in (copy / "native").iterdir())):
        os.utime(copy / each, (1, 1))
    if changed is not None:
        os.utime(copy / changed, (1 << 33, 1 << 33))
    monkeypatch.setenv("PYTHONPATH", str(copy.parent))
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        line = server.stop()[2].splitlines()[0]
    if changed is None:
        assert line.endswith(" INFO    omq.server: compiled codec")
    else:
        assert (
            f" WARNING omq.server: the compiled codec is older than its source ({Path(changed).name})" in line
        )


def test_a_server_that_stops_logs_how_many_lines_it_suppressed(tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path)
    with running_server(*options) as server:
        for _ in range(8):
            assert talk(server.port, b"PRI * HTTP/2.0\r\n") == b"\xff" * 8
        _, _, log = server.stop()
    lines = [line for line in log.splitlines() if "did not begin" in line or "what it speaks" in line]
    assert [line.endswith("connections did not begin as they must: 3 more") for line in lines] == [
        *([False] * 5),
        True,
    ]
