"""The modules that `omq-server` loads before it is ready."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from server_command import COMMAND, READY

from omq import blocking

LATER = {
    "asyncio",
    "omq.bulk",
    "omq.cli.client",
    "omq.cli.json_log",
    "omq.client",
    "omq.exchanges.dead_letters",
    "omq.metrics.metrics",
    "omq.protocol.amqp_0_9",
    "omq.protocol.amqp_1_0",
    "omq.protocol.dmp",
    "omq.replay",
    "omq.terminals.amqp_0_9",
    "omq.terminals.amqp_1_0",
    "omq.terminals.dmp",
    "omq.terminals.http",
    "anyio",
    "h11",
    "prometheus_client",
    "pythonjsonlogger",
    "shtab",
    "tqdm",
    "wsproto",
}
"""Modules that only some clients or options need: the server loads them when the first of these comes."""


def test_the_server_is_ready_before_it_loads_rarely_used_modules(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [COMMAND, "--listen", "127.0.0.1:0", "--store", tmp_path / "store"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline().startswith(READY), log.read_text()
        process.kill()
    loaded = [line.rpartition("|")[2].strip() for line in log.read_text().splitlines()]
    assert "omq.server" in loaded
    # The modules before this one belong to the interpreter, and to tools that the environment loads into it.
    while "site" in loaded:
        del loaded[: loaded.index("site") + 1]
    assert LATER & set(loaded) == set()


def test_a_server_that_cannot_tell_its_address_logs_it_and_serves(tmp_path: Path) -> None:
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(
            [COMMAND, "--listen", "127.0.0.1:0", "--store", tmp_path / "store"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        said = next(line for line in process.stderr if "standard output" in line or "Error" in line)
        told, _, address = said.rstrip().rpartition(READY)
        assert told.endswith("omq.server: standard output: No space left on device: ")
        with blocking.connect(f"omq://{address}") as client:
            client.topics()
        process.terminate()
        rest = process.stderr.read()
    assert "Error" not in rest
    assert process.returncode == 0


MOST_DATACLASSES = 60
"""The number of dataclasses that the server may make when it starts: each takes 0.4 ms, and a
`msgspec.Struct` 0.01.
"""

PROGRAM = """
import dataclasses, sys
import omq.cli.server
classes = {
    each
    for name, module in list(sys.modules.items()) if name.partition(".")[0] in ("omq", "omq_storage")
    for each in vars(module).values() if isinstance(each, type) and dataclasses.is_dataclass(each)
}
print(len(classes))
"""


def test_the_server_makes_few_dataclasses_when_it_starts() -> None:
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(made.stdout) <= MOST_DATACLASSES


@pytest.mark.parametrize("allocator", [{}, {"PYTHONMALLOC": "malloc"}], ids=["started again", "started once"])
def test_a_server_without_standard_streams_serves_and_no_file_takes_their_numbers(
    tmp_path: Path, allocator: dict[str, str]
) -> None:
    with subprocess.Popen(
        [
            "sh",
            "-c",
            'exec "$@" <&- 2>&-',
            "sh",
            COMMAND,
            "--listen",
            "127.0.0.1:0",
            "--store",
            tmp_path / "s",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **allocator},
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith(READY)
        open_files = Path("/proc", str(process.pid), "fd")
        assert {(open_files / number).readlink() for number in ("0", "2")} == {Path(os.devnull)}
        with blocking.connect(f"omq://{ready.removeprefix(READY).strip()}") as client:
            client.topics()
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == ""
    assert process.returncode == 0
