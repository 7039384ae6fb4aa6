"""With glibc, freed memory stays with the process, unless there is much of it."""

import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from measuring import unmeasured
from server_command import RunningServer, configured_server, running_server

from omq.cli.allocator import FIRST_LOOKS, LITTLE_OCTETS, MOST_LOOKS, MUCH_OCTETS, Returns
from omq.cli.start import CACHED

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


PIECES = """
import ctypes, sys
from omq.cli.allocator import _Counts, keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
pieces = [library.malloc(64) for _ in range(10_000)]
for piece in pieces:
    library.free(piece)
library.mallinfo2.restype = _Counts
print(library.mallinfo2().fsmblks)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_small_pieces_are_joined_when_they_are_freed() -> None:
    """Otherwise all of them are joined at once some time."""

    def apart(how: str) -> int:
        command = [sys.executable, "-c", PIECES, how]
        return int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)

    assert apart("kept") < apart("as it comes") // 100


def mib_of(server: RunningServer) -> int:
    """Return the anonymous memory of the process."""
    return kib_of(server) >> 10


def kib_of(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.05)  # no event tells when another process returns memory: one can only look again


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_new_store_takes_no_more_memory_than_an_old_one(tmp_path: Path) -> None:
    """The server opens a part of a new store twice. LMDB asks for 2 MiB of zeros each time."""

    def kib_of_an_idle_one() -> int:
        with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
            return kib_of(server)

    first, second = kib_of_an_idle_one(), kib_of_an_idle_one()
    assert first < second + 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_much_freed_memory_is_returned_to_the_system(tmp_path: Path) -> None:
    """Also when memory in use lies behind it."""
    with (
        configured_server(tmp_path, "memory_bytes = 1_073_741_824\n") as server,
        socket.create_connection(("127.0.0.1", server.port)) as client,
    ):
        client.settimeout(60)
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
        eventually(lambda: mib_of(server) - before < 20)


def connected(port: int, network: int) -> socket.socket:
    """Return a client with an address of this network: each address has a share of what there is."""
    client = socket.create_connection(
        ("127.0.0.1", port), timeout=60, source_address=(f"127.0.0.{network}", 0)
    )
    client.sendall(b"\0\0\0\0\0\0\0\1(Connect 1 test)\n")
    assert client.recv(8) == b"\0\0\0\0\0\0\0\1"
    return client


def ask(client: socket.socket, commands: list[bytes]) -> None:
    """Send them, and wait until all are done."""
    sending = threading.Thread(target=client.sendall, args=(b"".join(commands) + b"(Confirm 7)\n",))
    sending.start()
    received = b""
    while not received.endswith(b"\0\0\0\x09\6\0\0\0\0\0\0\0\7"):
        received = received[-100:] + client.recv(1 << 20)
    sending.join()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize(
    ("connections", "topics"),
    [pytest.param(25, 2000, id="subscriptions"), pytest.param(1250, 1, id="connections")],
)
def test_the_memory_of_a_crowd_is_given_back_within_seconds(
    tmp_path: Path, connections: int, topics: int
) -> None:
    """Also the memory of Python's objects, of which a few stay in every place."""
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store", "--log-level", "error")
    with unmeasured(), running_server(*options) as server:
        with closing(connected(server.port, 1)) as client:
            ask(client, [b"(Declare t%d Broadcast Transient)\n" % number for number in range(topics)])
        before = mib_of(server)
        with ExitStack() as crowd:
            for number in range(connections):
                client = crowd.enter_context(closing(connected(server.port, 1 + number // 50)))
                ask(client, [b"(Subscribe t%d From_current)\n" % each for each in range(topics)])
            assert mib_of(server) - before > 12
        eventually(lambda: mib_of(server) - before <= 10)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize("chosen", ["malloc", "pymalloc"])
def test_objects_are_in_the_memory_of_the_c_library_unless_another_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    if chosen != "malloc":
        monkeypatch.setenv("PYTHONMALLOC", chosen)
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*options, forked=False) as server:
        environment = Path(f"/proc/{server.process.pid}/environ").read_bytes().split(b"\0")
        assert b"PYTHONMALLOC=" + chosen.encode() in environment
        assert (b"GLIBC_TUNABLES=" + CACHED.encode() in environment) == (chosen == "malloc")
        assert server.stop()[0] == 0


class Library:
    """A C library that keeps what is free until it is told to trim."""

    def __init__(self) -> None:
        self.used, self.free, self.trims, self.counts = 100 << 20, 0, 0, 0

    def in_use(self) -> int:
        self.counts += 1
        return self.used

    def resident(self) -> int:
        return self.used + self.free + (20 << 20)

    def trim(self) -> None:
        self.trims += 1
        self.free = 0


def looks_before_trims(freed: int, looks: int, calm: int = 0) -> list[int]:
    """Return the numbers of the looks at which memory is returned, if N (`freed`) octets are free before each
    of them, except for the first ones (`calm`), before which nothing is free.
    """
    library = Library()
    returns = Returns(library)
    trims = []
    for look in range(1, looks + 1):
        if look > calm:
            library.free = max(library.free, freed)
        if returns.look():
            trims.append(look)
    return trims


def test_memory_that_comes_back_each_time_is_given_back_less_and_less_often() -> None:
    assert looks_before_trims(LITTLE_OCTETS, 100) == []
    assert looks_before_trims(2 * LITTLE_OCTETS, 100) == [2, 6, 14, 30, 54, 78]


def test_memory_comes_back_if_it_is_free_within_twice_the_patience() -> None:
    assert looks_before_trims(2 * LITTLE_OCTETS, 20, calm=FIRST_LOOKS) == [4, 8, 16]
    assert looks_before_trims(2 * LITTLE_OCTETS, 20, calm=FIRST_LOOKS + 1) == [5, 7, 11, 19]


def test_memory_in_use_at_a_return_is_returned_later() -> None:
    library = Library()
    returns = Returns(library)
    load = 2 * MUCH_OCTETS
    library.used += load
    library.free = MUCH_OCTETS
    assert returns.look() == MUCH_OCTETS
    counts = library.counts
    for _ in range(3 * MOST_LOOKS):
        assert returns.look() == 0
    assert counts < library.counts <= counts + 7  # to count takes long, and there is nothing to return
    library.used -= load
    library.free = load
    assert sum(returns.look() for _ in range(2 * MOST_LOOKS)) == load
    assert library.free == 0
    counts = library.counts
    for _ in range(5 * MOST_LOOKS):
        assert returns.look() == 0
    assert library.counts == counts


def test_less_than_much_is_returned_too_when_a_load_is_gone() -> None:
    library = Library()
    returns = Returns(library)
    load = MUCH_OCTETS // 2
    library.used += load
    library.free = MUCH_OCTETS
    assert returns.look() == MUCH_OCTETS
    library.used -= load
    library.free = load
    # Soon, since the clients of a load leave one after another: so it may be returned in the middle.
    assert sum(returns.look() for _ in range(4 * FIRST_LOOKS)) == load
