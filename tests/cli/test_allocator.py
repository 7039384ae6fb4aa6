"""With glibc, freed memory stays with the process, unless there is much of it."""

import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_command import RunningServer, running_server

from omq.cli.allocator import MUCH_OCTETS

PROGRAM = """
import resource, sys
from omq.cli.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def fill():
    # Pieces of the size of LMDB's pages, as a commit allocates them, and one of a block.
    held = [bytearray(4096) for _ in range(1000)] + [bytearray(1 << 19) for _ in range(8)]
    del held

fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_reused_without_mapping_it_again() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", PROGRAM, how]
        return int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)

    assert faults("kept") * 20 < faults("as it comes")


def mib_of(server: RunningServer) -> int:
    """Return the anonymous memory of the process."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) >> 10


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.05)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_much_freed_memory_is_returned_to_the_system(tmp_path: Path) -> None:
    """Also when memory in use lies behind it."""
    config = tmp_path / "omq.toml"
    config.write_text("memory_bytes = 1_073_741_824\n")
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store", "--config", config)
    with running_server(*options) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(30)
        client.sendall(b"\0\0\0\0\0\0\0\1(Connect 1 test)\n")
        assert client.recv(8) == b"\0\0\0\0\0\0\0\1"

        def until_confirmed() -> None:
            client.sendall(b"(Confirm 7)\n")
            received = b""
            while not received.endswith(b"\0\0\0\x09\6\0\0\0\0\0\0\0\7"):
                received += client.recv(65536)

        before = mib_of(server)
        line = b'(Publish %s "' + b"x" * 1000 + b'")\n'
        topics = [b"t%d" % number for number in range(3)]
        for topic in (*topics, b"kept"):
            client.sendall(b"(Declare %s Round_robin Transient)\n" % topic)
        for topic in topics * 50:
            client.sendall((line % topic) * 1000)
            until_confirmed()
            client.sendall((line % b"kept") * 20)
            until_confirmed()
        assert mib_of(server) - before > 140
        for topic in topics:
            client.sendall(b"(Delete %s)\n" % topic)
        until_confirmed()
        eventually(lambda: mib_of(server) - before < 20 + (MUCH_OCTETS >> 20))
