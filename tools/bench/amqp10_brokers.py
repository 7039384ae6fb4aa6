"""The servers that `--amqp10` measures beside omq, and the C clients of Qpid Proton that load them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokers import Broker, Running, free_ports, stop_server, wait_for
from omq_load import OmqSystem
from systems import command_version

_EXAMPLES = Path("/usr/share/proton/examples/c")
MISSING_EXAMPLES = "the C examples of Qpid Proton are not installed (libqpid-proton11-dev-examples, gcc)"

ROUTER = """\
router {{ mode: standalone  id: bench  workerThreads: 1 }}
listener {{ host: 127.0.0.1  port: {port}  authenticatePeer: no  saslMechanisms: ANONYMOUS }}
address {{ prefix: multicast  distribution: multicast }}
address {{ prefix: unicast  distribution: balanced }}
"""


class TransientSystem(OmqSystem):
    """A server whose topics are transient unless their address says otherwise: a router stores nothing."""

    def configuration(self, directory: Path) -> str:
        return super().configuration(directory) + 'default_persistence = "transient"\n'


class RouterBroker(Broker):
    """qdrouterd with one thread, if it is installed."""

    name = "qdrouterd"

    def missing(self) -> str | None:
        return None if shutil.which("qdrouterd") else "qdrouterd is not installed"

    def version(self) -> str:
        return "qdrouterd " + command_version("qdrouterd", "--version")

    @contextmanager
    def running(self, directory: Path) -> Iterator[Running]:
        directory.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        configuration = directory / "router.conf"
        configuration.write_text(ROUTER.format(port=port))
        with (directory / "server.log").open("wb") as log:
            server = subprocess.Popen(
                ["qdrouterd", "-c", str(configuration)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            wait_for("qdrouterd", port, server, directory / "server.log")
            yield Running(port, server.pid)
        finally:
            stop_server(server)


def build_clients(directory: Path) -> dict[str, Path] | None:
    """Compile the C clients; None where that is not possible."""
    if shutil.which("gcc") is None or not _EXAMPLES.is_dir():
        return None
    made: dict[str, Path] = {}
    for name in ("send", "receive", "direct"):
        made[name] = directory / name
        subprocess.run(
            ["gcc", "-O1", "-o", made[name], _EXAMPLES / f"{name}.c", "-lqpid-proton"],
            check=True, capture_output=True,
        )  # fmt: skip
    return made


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process so far, as fine as the kernel counts it."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def direct_seconds(clients: dict[str, Path], count: int) -> float:
    """Return the processor time of proton's C `direct` for taking N (`count`) messages, and for sending as
    many: the same work without a server in the middle.
    """
    total = 0.0
    for name in ("send", "receive"):
        (port,) = free_ports(1)
        peer = subprocess.Popen(
            [clients["direct"], "127.0.0.1", str(port), "bench", str(count)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert peer.stdout is not None
        with peer.stdout:
            peer.stdout.readline()  # it listens
            client = subprocess.Popen(
                [clients[name], "127.0.0.1", str(port), "bench", str(count)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            while peer.stdout.read(65536):
                pass
        usage = os.wait4(peer.pid, 0)[2]
        peer.returncode = 0
        client.wait()
        total += usage.ru_utime + usage.ru_stime
    return total
