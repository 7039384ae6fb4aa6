"""Processes that are forked from one that has imported their program: importing takes nearly all the
processor time in which `omq` and `omq-server` start.

As a program this imports both once, and forks a process for each request. A request is JSON, and comes with
the three standard streams.
"""

import atexit
import ctypes
import gc
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any, AnyStr

from omq.cli.start import CACHED

AT_START = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "OMQ_PLAIN", "PYTHON", "TQDM")
"""Variables that Python, a library or a module looks at when it starts begin so."""

AS_RESTARTED = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": CACHED}
"""The environment with which `omq-server` starts Python again, in the same process, unless it is chosen."""

MOST_OCTETS = 1 << 20

PR_SET_CHILD_SUBREAPER = 36

Settings = tuple[tuple[str, str], ...]


def settings(environment: Mapping[str, str]) -> Settings:
    """Return the variables that have no effect any more on a forked process."""
    return tuple(sorted(item for item in environment.items() if item[0].startswith(AT_START)))


class Forked(subprocess.Popen[AnyStr]):
    """An `omq` or `omq-server`, which the first argument names, as `subprocess.Popen` starts it: a child of
    this process, too.
    """

    def _execute_child(self, args: Any, *more: Any) -> None:
        # Python's own method of this name starts the process, with descriptors that Popen has made.
        cwd, given = more[4], more[5]
        environment = dict(os.environ if given is None else given)
        if Path(args[0]).name == "omq-server":
            environment = AS_RESTARTED | environment
        request = {
            "arguments": [os.fsdecode(argument) for argument in args],
            "environment": environment,
            "directory": os.fsdecode(cwd or Path.cwd()),
        }
        streams = more[9:15]
        theirs = (streams[0], streams[3], streams[5])
        passed = [own if stream == -1 else stream for own, stream in enumerate(theirs)]
        self.pid = _parent(settings(environment)).fork(json.dumps(request).encode(), passed)
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]  # a method of CPython


def run_forked(
    arguments: Sequence[str | bytes | Path],
    input: AnyStr | None = None,
    seconds: float = 60,
    stdout: int | IO[bytes] = subprocess.PIPE,
    **given: Any,
) -> subprocess.CompletedProcess[AnyStr]:
    """Run one to its end, as `subprocess.run` does. Raises subprocess.TimeoutExpired."""
    pipe = subprocess.PIPE
    stdin = subprocess.DEVNULL if input is None else pipe
    with Forked[AnyStr](arguments, stdin=stdin, stdout=stdout, stderr=pipe, **given) as process:
        try:
            output, errors = process.communicate(input, timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


class Parent:
    """The process that forks others, which have these variables in their environment."""

    def __init__(self, variables: Settings) -> None:
        self._lock = Lock()
        self._requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Each forked process begins a measurement of its own.
        others = (*AT_START, "COVERAGE_PROCESS_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        with its:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=kept | dict(variables),
                pass_fds=[its.fileno()],
            )

    def fork(self, request: bytes, streams: list[int]) -> int:
        """Fork a process, and return its number. It becomes a child of this process as its parent ends."""
        with self._lock:
            adopt(True)
            try:
                socket.send_fds(self._requests, [request], streams)
                process = self._requests.recv(MOST_OCTETS)
                assert self._requests.recv(MOST_OCTETS) == b"forked", "the process that forks has ended"
            finally:
                adopt(False)
        return int(process)

    def end(self) -> None:
        self._requests.close()
        self._process.wait(60)


_parents: dict[Settings, Parent] = {}


def _parent(variables: Settings) -> Parent:
    if variables not in _parents:
        _parents[variables] = Parent(variables)
    return _parents[variables]


@atexit.register
def end_parents() -> None:
    """End the processes that fork others."""
    while _parents:
        _parents.popitem()[1].end()


def adopt(whether: bool) -> None:
    """Say whether processes whose parent ends become children of this process, if they descend from it."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0):
        raise OSError("this process cannot adopt others")


def serve(requests: socket.socket) -> None:
    """Fork a process for each request. In the forked process return when it is over, or raise SystemExit."""
    while True:
        request, streams, _, _ = socket.recv_fds(requests, MOST_OCTETS, 3)
        if not request:
            return
        between = os.fork()
        if between == 0:
            process = os.fork()
            if process:
                requests.send(b"%d" % process)
                signal.raise_signal(signal.SIGKILL)  # Python need not end in it
            requests.close()
            become(json.loads(request), streams)
            return
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)
        requests.send(b"forked")


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Run the program in this process."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv = request["arguments"]
    coverage.process_startup()  # if its variables are in the environment
    if Path(sys.argv[0]).name == "omq":
        start.main()
    start.serve()


if __name__ == "__main__":
    import coverage

    import omq.cli.client
    import omq.cli.reference
    import omq.cli.server
    import omq.cli.store  # noqa: F401 - here, and not in each process
    from omq.cli import start

    del sys.path[0]  # modules of tests
    inspect.stack()  # as coverage does when it starts, which takes long the first time
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
