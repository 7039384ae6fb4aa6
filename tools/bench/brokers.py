"""The brokers that `--amqp` measures: omq-server, and rabbitmq-server with ports and files of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from omq_load import OmqSystem
from processes import cpu_seconds, memory
from systems import SOCKET_SECONDS, Kind, command_version
from workers import BenchFailure

_RABBIT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class Broker(ABC):
    """A broker under measurement."""

    name: str

    @abstractmethod
    def missing(self) -> str | None:
        """Return the reason why this broker cannot be measured here, or None."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def running(self, directory: Path) -> "AbstractContextManager[Running]":
        """Run it with its files in the directory, as a context."""


class Running:
    """A broker that runs."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def cpu_seconds(self) -> float:
        """Return the processor time so far, all threads."""
        return cpu_seconds(self.pid)

    def memory(self) -> tuple[int, int]:
        """Return the resident memory, all and anonymous, in octets."""
        return memory(self.pid)


class OmqBroker(Broker):
    """The server as it is built here."""

    name = "omq"

    def __init__(self, system: OmqSystem) -> None:
        self._system = system

    def missing(self) -> str | None:
        return self._system.missing()

    def version(self) -> str:
        return self._system.version()

    @contextmanager
    def running(self, directory: Path) -> Iterator[Running]:
        self._system.start(directory, Kind.LIVE)
        try:
            yield Running(self._system.port, self._system.pid)
        finally:
            self._system.stop()


class RabbitBroker(Broker):
    """rabbitmq-server, if it is installed: with its own epmd, cookie, ports and directories."""

    name = "rabbitmq"

    def missing(self) -> str | None:
        if not _RABBIT.exists() or shutil.which("epmd") is None:
            return "rabbitmq-server is not installed"
        return None

    def version(self) -> str:
        return command_version("dpkg-query", "-W", "rabbitmq-server").replace("\t", " ")

    @contextmanager
    def running(self, directory: Path) -> Iterator[Running]:
        directory.mkdir(parents=True, exist_ok=True)
        port, distribution, names = free_ports(3)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONFIG_FILE": str(directory / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none-env"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        }
        (directory / "plugins").write_text("[].\n")
        with (directory / "server.log").open("wb") as log:
            registry = subprocess.Popen(
                ["epmd", "-port", str(names), "-address", "127.0.0.1"],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            server = subprocess.Popen(
                [str(_RABBIT)],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            wait_for("rabbitmq-server", port, server, directory / "server.log")
            yield Running(port, _emulator(server.pid))
        finally:
            stop_server(server)
            registry.terminate()
            registry.wait()


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_for(name: str, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 2 * SOCKET_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise BenchFailure(f"{name} did not start: {log.read_text(errors='replace')[-500:]}")


def _emulator(script: int) -> int:
    """Return the process of the virtual machine, a descendant of the script that started it."""
    waiting = [script]
    while waiting:
        pid = waiting.pop()
        if Path(f"/proc/{pid}/comm").read_text().startswith("beam"):
            return pid
        for task in Path(f"/proc/{pid}/task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
    raise BenchFailure("rabbitmq-server has no virtual machine")


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """End the whole session of the server: its scripts, its virtual machine, and the helpers of that."""
    for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:
            break
        try:
            server.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    server.wait()
