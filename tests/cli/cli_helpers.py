"""Runs the `omq` command as a shell does: a process of its own, against a server of its own."""

import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from forked import Forked, run_forked

from omq.blocking import connect
from omq.watching import TopicWatch

OMQ = [sys.executable, "-c", "from omq.cli.start import main; main()"]
SECONDS = 60
WATCH_SECONDS = 0.1
"""The shortest period of a Watch."""


class Shell:
    """A shell whose OMQ_SERVER is set."""

    def __init__(self, address: str, directory: Path) -> None:
        self.url = f"omq://{address}"
        self.directory = directory

    def omq(
        self,
        *arguments: str | bytes,
        input: bytes = b"",
        stdout: int | IO[bytes] = subprocess.PIPE,
        **environment: str,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end."""
        return run_forked(["omq", *arguments], input, SECONDS, stdout, env=self.environment | environment)

    def ok(self, *arguments: str | bytes, input: bytes = b"") -> bytes:
        """Return the output of a command that must succeed without any message on standard error."""
        done = self.omq(*arguments, input=input)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return Forked(
            ["omq", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "OMQ_SERVER": self.url}

    def wait_for_subscriber(self, topic: str) -> None:
        """Wait until the server counts a subscriber: its actions are not visible from outside otherwise."""
        watch_until(self.url, topic, lambda numbers: numbers.subscribers > 0)


def watch_until(
    url: str, topic: str, condition: Callable[[TopicWatch], bool], *, id: str = "watcher"
) -> None:
    """Watch a topic until its numbers meet a condition."""
    by = time.monotonic() + SECONDS
    with connect(url, id=id) as client, client.watch(WATCH_SECONDS) as rounds:
        for round in rounds:
            found = [each.topic for each in round.topics.values() if each.topic.topic == topic.encode()]
            if any(map(condition, found)):
                return
            assert time.monotonic() < by, found


@contextmanager
def running_server(directory: Path, *arguments: str, port: int = 0) -> Iterator[Shell]:
    place = ("--listen", f"127.0.0.1:{port}", "--store", str(directory / "store"))
    command = ["omq-server", *place, *arguments]
    log = (directory / "server.log").open("wb")
    with log, Forked[bytes](command, stdout=subprocess.PIPE, stderr=log) as process:
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            assert words[:3] == [b"omq-server", b"listening", b"on"], (directory / "server.log").read_text()
            yield Shell(words[3].decode(), directory)
        finally:
            process.terminate()
            process.wait(SECONDS)


def right_aligned(head: str, row: str) -> set[str]:
    """Return the headings of a table that end where the cells of a row end."""
    return {
        heading[0]
        for heading in re.finditer(r"\S+(?: \S+)*", head)
        if row[heading.end() - 1 :][:1] not in ("", " ") and row[heading.end() :][:1] in ("", " ")
    }


def on_a_terminal(shell: Shell, *arguments: str, stream: str = "stdout") -> bytes:
    """Return the output of a command on this standard stream, which is a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = {
        name: value for name, value in shell.environment.items() if name not in ("COLUMNS", "LINES")
    }
    with Forked[bytes](["omq", *arguments], env=environment, **{stream: theirs}) as process:
        os.close(theirs)
        written = b""
        try:
            while octets := os.read(ours, 4096):
                written += octets
        except OSError:
            pass  # the terminal is gone with its last user
        assert process.wait(SECONDS) == 0
    os.close(ours)
    return written.replace(b"\r\n", b"\n")  # which a terminal makes of a line feed
