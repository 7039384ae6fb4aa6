"""Clients of AMQP 1.0 that others wrote: Qpid Proton in Python and C, and rhea where Node has it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from server_command import running_server

proton = pytest.importorskip(
    "proton", reason="tools/test builds python-qpid-proton where there is a compiler"
)
utils = pytest.importorskip("proton.utils")
reactor = pytest.importorskip("proton.reactor")

SECONDS = 60
GUIDE = Path(__file__).parents[2] / "docs" / "AMQP-1.0.md"
EXAMPLE, SAID, RHEA_EXAMPLE = re.findall(r"```\w*\n(.*?)```", GUIDE.read_text(), re.DOTALL)[:3]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    store = tmp_path_factory.mktemp("proton") / "store"
    with running_server("--listen", "127.0.0.1:0", "--store", store) as server:
        yield server.port


@pytest.fixture
def connection(port: int) -> Iterator[object]:
    made = utils.BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=SECONDS, allowed_mechs="ANONYMOUS")
    yield made
    made.close()


def test_the_example_of_the_guide_prints_what_it_says(port: int) -> None:
    script = f"host, port = '127.0.0.1', {port}\n{EXAMPLE}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == SAID


def test_messages_come_back_as_they_were(connection: Any) -> None:
    sender = connection.create_sender("mirror")
    receiver = connection.create_receiver("mirror", credit=10)
    bodies = ["text", b"binary", {"a": [1, 2.5, None]}, 7, [True, "x"], "ü" * 300]
    for body in bodies:
        sender.send(proton.Message(body, subject="s", properties={"n": 1}, correlation_id="c", priority=9))
    for body in bodies:
        message = receiver.receive(timeout=SECONDS)
        receiver.accept()
        assert message.body == body
        assert (message.subject, message.properties, message.correlation_id) == ("s", {"n": 1}, "c")
        assert message.priority == 9


def test_a_long_message(connection: Any) -> None:
    body = bytes(range(256)) * 20_000
    sender = connection.create_sender("long")
    receiver = connection.create_receiver("long", credit=1)
    sender.send(proton.Message(body, inferred=True))
    assert receiver.receive(timeout=SECONDS).body == body
    receiver.accept()


def test_released_messages_come_again(connection: Any) -> None:
    sender = connection.create_sender("again")
    receiver = connection.create_receiver("again", credit=1)
    sender.send(proton.Message("x"))
    first = receiver.receive(timeout=SECONDS)
    receiver.release(delivered=False)
    second = receiver.receive(timeout=SECONDS)
    receiver.accept()
    assert first.body == second.body == "x"


def test_a_browser_takes_nothing(connection: Any) -> None:
    sender = connection.create_sender("browsed")
    bodies = ["first", "second", "long" * 100_000]
    for body in bodies:
        sender.send(proton.Message(body))
    for name, options in (("browser", reactor.Copy()), ("consumer", None)):
        receiver = connection.create_receiver("browsed", credit=10, name=name, options=options)
        for body in bodies:
            assert receiver.receive(timeout=SECONDS).body == body
            receiver.accept()
        receiver.close()


def test_a_node_that_is_refused(connection: Any) -> None:
    with pytest.raises(utils.LinkDetached, match="not-found"):
        connection.create_receiver("$management")
    assert connection.create_sender("after").link.state


RHEA = Path(__file__).with_name("rhea_conversation.js")
NODE_MODULES = Path(__file__).parents[2] / ".venv" / "rhea" / "node_modules"

TALKED = """\
messages
calls
large
drain
refusal
reject
"""


def rhea(arguments: Sequence[str | Path]) -> str:
    """Run a program in Node, which finds rhea; return its output. Skip the test where there is none."""
    paths = [str(NODE_MODULES), *os.environ.get("NODE_PATH", "").split(os.pathsep)]
    environment = {**os.environ, "NODE_PATH": os.pathsep.join(filter(None, paths))}
    try:
        found = subprocess.run(
            ["node", "-e", "require('rhea')"], capture_output=True, env=environment, timeout=60, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no Node")
    if found.returncode:
        pytest.skip("tools/test installs rhea where there is npm")
    done = subprocess.run(
        ["node", *arguments], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_rhea(port: int) -> None:
    assert rhea([RHEA, str(port)]) == TALKED


def test_the_example_with_rhea_prints_the_same(port: int) -> None:
    assert rhea(["-e", f"const host = '127.0.0.1', port = {port};\n{RHEA_EXAMPLE}"]) == SAID


C_EXAMPLES = Path("/usr/share/proton/examples/c")


@pytest.fixture(scope="module")
def c_clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the examples of Proton's C library, compiled."""
    if shutil.which("cc") is None or not C_EXAMPLES.is_dir():
        pytest.skip("tools/test installs libqpid-proton11-dev-examples where it can be installed")
    directory = tmp_path_factory.mktemp("proton-c")
    made = {name: directory / name for name in ("send", "send-abort", "receive")}
    for name, program in made.items():
        command: list[str | Path] = ["cc", "-o", program, C_EXAMPLES / f"{name}.c", "-lqpid-proton"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return made


def test_proton_in_c(port: int, c_clients: dict[str, Path]) -> None:
    def run(name: str, count: int) -> list[str]:
        command = [c_clients[name], "127.0.0.1", str(port), "c", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.splitlines()

    assert run("send-abort", 10) == ["10 messages started and aborted"]
    assert run("send", 500) == ["500 messages sent and acknowledged"]
    *bodies, last = run("receive", 500)
    assert last == "500 messages received"
    assert bodies == [f'{{"sequence"={number}}}' for number in range(1, 501)]
