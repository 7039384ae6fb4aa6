"""The README's examples, run as they stand, and their output compared with what it shows."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from capture_file import packets, write
from programs import PATH, output_of_script
from relay import relaying
from server_command import RunningServer, running_server
from shark import AS_ROOT, needs_tshark

from omq.protocol.handshake import hello
from omq_storage.store import is_store

ROOT = Path(__file__).parents[1]

README = (ROOT / "README.md").read_text()


def blocks(heading: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a section: language and text."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return found


def test_every_package_that_the_scripts_install_is_listed() -> None:
    calls = re.compile(r"(?:\binstall_packages|\bmissing\+=\()((?: *[a-z][a-z0-9.+-]+)+)")
    installed = {
        name
        for script in ("tools/environment.sh", "tools/test")
        for names in calls.findall((ROOT / script).read_text())
        for name in names.split()
    }
    assert {"python3-venv", "openjdk-17-jre-headless", "gcc", "chromium-driver"} <= installed
    quick_start = README.partition("\n## Quick start\n")[2].partition("\n## ")[0]
    assert installed <= set(re.findall(r"`([^`\n]+)`", quick_start))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as running:
        yield running


def netcat_is_missing() -> str | None:
    """Return the reason why the conversation cannot run on this machine; None if it can."""
    if shutil.which("xxd") is None:
        return "xxd is not installed"
    if shutil.which("nc") is None:
        return "nc is not installed"
    said = subprocess.run(["nc", "-h"], capture_output=True, text=True, check=False)
    if "-N" not in said.stdout + said.stderr:
        return "nc is not that of OpenBSD: it has no option -N"
    return None


def test_the_conversation_with_netcat(server: RunningServer) -> None:
    missing = netcat_is_missing()
    if missing is not None:
        pytest.skip(missing)
    said = blocks("By hand, with netcat")
    assert [language for language, _ in said] == ["sh", "text", "sh", "text"]
    assert said[0][1].startswith("PORT=7730\n")
    for (_, script), (_, shown) in zip(said[::2], said[1::2], strict=True):
        # All that differs is the port, which the first block sets for both.
        ported = f"PORT={server.port}\n" + script.removeprefix("PORT=7730\n")
        assert output_of_script(ported) == shown


def test_a_second_server_on_another_port_with_another_store(server: RunningServer, tmp_path: Path) -> None:
    texts = [text for _, text in blocks("The server")]
    start, use = (text for text in texts if "7731" in text)
    command, *options = start.split()
    assert command == "omq-server"
    shown = {"127.0.0.1:7731": "127.0.0.1:0", "~/second-store": str(tmp_path / "second-store")}
    assert set(shown) <= set(options)
    with running_server(*(shown.get(word, word) for word in options)) as second:
        assert use.count("127.0.0.1:7731") == 2
        # Without either of the two addresses, the command would use the first server.
        first = f"omq://{server.address}"
        printed = output_of_script(
            use.replace("127.0.0.1:7731", second.address), PATH=PATH, OMQ_SERVER=first, HOME=str(tmp_path)
        )
        assert printed == "hello\n"
        assert output_of_script("omq topics --format json", PATH=PATH, OMQ_SERVER=first) == ""
        assert is_store(tmp_path / "second-store")


def test_the_commands_in_a_shell(server: RunningServer) -> None:
    check_shell_commands(server, Path(sys.executable).parent)


def check_shell_commands(server: RunningServer, commands: Path) -> None:
    """Run them with the installed commands of that folder, on a server without messages."""
    (script, shown) = (text for _, text in blocks("In a shell"))
    path = f"{commands}:{os.environ['PATH']}"
    printed = output_of_script(script, PATH=path, OMQ_SERVER=f"omq://{server.address}")
    assert mask(printed) == mask(shown)


def mask(printed: str) -> str:
    """Mask the figures that are not the same each time: the time of a round trip, and the octets that
    messages take in the store, which depend on whether they were merged into one block meanwhile.
    """
    printed, times = re.subn(r"^\d+\.\d{3} ms$", "N ms", printed, flags=re.MULTILINE)
    printed, octets = re.subn(
        r"(?<=strong              3)    [ \d]{3}\d(?=      1     3 )", " OCTETS", printed
    )
    assert (times, octets) == (1, 1)
    return printed


def test_the_python_client(server: RunningServer) -> None:
    check_python_client(server, Path(sys.executable).parent)


def check_python_client(server: RunningServer, commands: Path) -> None:
    """Run the program with the `python` of that folder."""
    (program, shown) = (text for _, text in blocks("In Python"))
    assert program.count("127.0.0.1:7730") == 1
    program = program.replace("127.0.0.1:7730", server.address)
    done = subprocess.run(
        [commands / "python", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == (shown, "")


async def repeat_by_hand(port: int) -> None:
    """Repeat the conversations of "By hand, with netcat", one connection each, without netcat."""
    for language, script in blocks("By hand, with netcat"):
        if language == "sh":
            lines = [line.encode() for line in re.findall(r"^ *echo '(.*)'$", script, re.MULTILINE)]
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(hello() + b"".join(line + b"\n" for line in lines))
                await stream.send_eof()
                async for _ in stream:
                    pass


async def write_capture(port: int, path: Path) -> None:
    """Write a capture of these conversations, recorded by a relay."""
    async with relaying(port) as relay:
        await repeat_by_hand(relay.port)
    write(path, packets(relay.said))


def captured(command: str, port: int, directory: Path) -> bool:
    """Return whether the README's command may capture the conversations, and has."""
    assert command.startswith("sudo tcpdump ")
    # It ends by itself behind the first hundred packets: there is no other way to know that they are written.
    words = command.replace("sudo tcpdump", "tcpdump -c 100").replace("7730", str(port)).split()
    if shutil.which(words[0]) is None:
        return False
    with subprocess.Popen(words, cwd=directory, stderr=subprocess.PIPE, text=True) as tcpdump:
        assert tcpdump.stderr is not None
        if not any("listening on" in line for line in tcpdump.stderr):
            return False
        trio.run(repeat_by_hand, port)
        for _ in range(50):
            socket.create_connection(("127.0.0.1", port)).close()
        tcpdump.wait(60)
    return True


@needs_tshark
def test_the_commands_for_wireshark(server: RunningServer, tmp_path: Path) -> None:
    (_, capture), (_, look), (_, shown) = blocks("On the wire, with Wireshark")
    port = server.port
    if not captured(capture, port, tmp_path):
        trio.run(write_capture, port, tmp_path / "omq.pcap")
        port = 7730
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    look = look.replace("omq.lua", f"omq.lua -o omq.port:{port}")
    printed = output_of_script(f"cd {tmp_path}\n{look}").replace(AS_ROOT, "")
    assert "omq" in printed.splitlines()[3].split()
    assert shown in printed
    bodies = printed.rpartition("Body: second\n")[2]
    assert "first note" in bodies
    assert "second" in bodies


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "deploy/README.md",
        "docs/CONFIGURATION.md",
        "docs/OPERATING.md",
        "docs/SECURITY.md",
        "docs/SPARK.md",
        "docs/CONSOLE.md",
        "omq/console/client/README.md",
    ],
)
def test_the_targets_of_links_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
        file = (ROOT / document).parent / target if target else ROOT / document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, anchor


def test_the_commands_of_the_readme_exist() -> None:
    for tool in ("tools/demo", "tools/test"):
        assert os.access(ROOT / tool, os.X_OK)
    assert "--peers" in (ROOT / "tools" / "bench" / "arguments.py").read_text()
