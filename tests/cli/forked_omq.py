"""Starts the `omq` command in processes that are forked.

As a program it imports the command once, and forks a process for each request: importing takes most of the
processor time of a command. The request is JSON, and comes with the three standard streams.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import IO

import coverage

AT_START = ("LANG", "LC_", "LD_", "OMQ_PLAIN", "PYTHON", "TQDM")
"""Variables that Python or a module looks at when it starts begin so."""

MOST_OCTETS = 1 << 20
STREAMS = 3


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have no effect any more on a forked process."""
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


class ForkedOmq:
    """Runs commands one after another."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._settings = settings(os.environ)
        self._lock = Lock()

    def can_run(self, environment: Mapping[str, str]) -> bool:
        """Return whether a forked process behaves as one that is started with these variables."""
        return settings(environment) == self._settings

    def run(
        self, arguments: Sequence[str | bytes], input: bytes, environment: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end, as subprocess.run does. Raises subprocess.TimeoutExpired."""
        words = [os.fsdecode(argument) for argument in arguments]
        request = json.dumps(
            {"arguments": words, "environment": dict(environment), "directory": str(Path.cwd())}
        )
        output: dict[int, bytes] = {}
        with self._lock, ExitStack() as stack:
            pipes = [os.pipe() for _ in range(STREAMS)]
            theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
            socket.send_fds(self._requests, [request.encode()], theirs)
            for stream in theirs:
                os.close(stream)
            files = [stack.enter_context(os.fdopen(pipes[0][1], "wb", buffering=0))]
            files += [stack.enter_context(os.fdopen(pipe[0], "rb")) for pipe in pipes[1:]]

            def write() -> None:
                with files[0] as file:
                    _write_all(file, input)

            def read(number: int) -> None:
                output[number] = files[number].read()

            threads = [Thread(target=write), *(Thread(target=read, args=(number,)) for number in (1, 2))]
            for thread in threads:
                thread.start()
            process = int(self._requests.recv(MOST_OCTETS))
            self._requests.settimeout(seconds)
            try:
                status = int(self._requests.recv(MOST_OCTETS))
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                self._requests.settimeout(None)
                self._requests.recv(MOST_OCTETS)
                raise subprocess.TimeoutExpired(words, seconds) from None
            finally:
                # They would block the end of this block: a file that a thread reads cannot be closed.
                for thread in threads:
                    thread.join()
        return subprocess.CompletedProcess(words, status, output[1], output[2])


def _write_all(file: IO[bytes], octets: bytes) -> None:
    try:
        while octets:
            octets = octets[file.write(octets) :]
    except BrokenPipeError:
        pass  # the command does not read all


@contextmanager
def forked_omq() -> Iterator[ForkedOmq]:
    """Start this program. At the end of the block it ends."""
    from measuring import unmeasured  # which the program does not find

    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with its, unmeasured():  # each forked process begins a measurement of its own
            process = subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )
        yield ForkedOmq(ours)
    assert process.wait(60) == 0


def serve(requests: socket.socket) -> None:
    """Run one command for each request. In the forked process return when it is over, or raise SystemExit."""
    while True:
        request, streams, _, _ = socket.recv_fds(requests, MOST_OCTETS, STREAMS)
        if not request:
            return
        process = os.fork()
        if process == 0:
            requests.close()
            become(json.loads(request), streams)
            return
        requests.send(b"%d" % process)
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(process, 0)
        requests.send(b"%d" % os.waitstatus_to_exitcode(status))


def become(request: dict[str, object], streams: Sequence[int]) -> None:
    """Run the command in this process."""
    from omq.cli.start import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    match request:
        case {"arguments": list(words), "environment": dict(environment), "directory": str(directory)}:
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(directory)
            sys.argv = ["omq", *words]
            coverage.process_startup()  # if its variables are in the environment
        case _:
            raise ValueError(request)
    main()


if __name__ == "__main__":
    import omq.cli.client
    import omq.cli.reference
    import omq.cli.store  # noqa: F401 - here, and not in each command

    serve(socket.socket(fileno=int(sys.argv[1])))
