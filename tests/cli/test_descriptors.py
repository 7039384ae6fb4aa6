"""The server may use as many descriptors as the hard limit allows, whatever the soft limit is."""

import resource
import socket
import subprocess
import sys
from pathlib import Path

from server_command import READY

SOFT, HARD, CLIENTS = 40, 400, 200

START = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from omq.cli.server import main
main()
"""


def test_the_soft_limit_does_not_limit_connections(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= HARD
    program = START.format(soft=SOFT, hard=HARD)
    options = ["--listen", "127.0.0.1:0", "--store", str(tmp_path / "store")]
    with subprocess.Popen(
        [sys.executable, "-c", program, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().removeprefix(READY).rpartition(":")[2])
            clients = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(CLIENTS)]
            for client in clients:
                client.sendall(bytes(7) + b"\1")
            for client in clients:
                assert client.recv(8, socket.MSG_WAITALL) == bytes(7) + b"\1"
            for client in clients:  # all of them were there at once
                client.close()
        finally:
            process.terminate()
            process.wait(60)
