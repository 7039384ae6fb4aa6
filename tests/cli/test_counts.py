"""SIGUSR1: the server logs how many connections and tasks it has."""

import re
import signal
import socket
from pathlib import Path

from server_command import RunningServer, running_server

HANDSHAKE = bytes(7) + b"\1"


def counts(server: RunningServer) -> tuple[int, int]:
    """Return the numbers of connections and tasks that the server logs."""
    server.process.send_signal(signal.SIGUSR1)
    assert server.process.stderr is not None
    while True:
        line = server.process.stderr.readline()
        assert line, "the log ended"
        told = re.search(r"SIGUSR1: (\d+) connections?, (\d+) tasks?$", line)
        if told is not None:
            return int(told[1]), int(told[2])


def test_connections_and_tasks_are_logged_and_return_to_zero(tmp_path: Path) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        connections, tasks = counts(server)
        assert connections == 0
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(5)]
        for client in clients:
            client.sendall(HANDSHAKE)
            assert client.recv(8, socket.MSG_WAITALL) == HANDSHAKE
        now = counts(server)
        assert now[0] == 5
        assert now[1] >= tasks + 5
        for client in clients:
            client.close()
        for _ in range(1000):
            if counts(server) == (0, tasks):
                break
        else:
            raise AssertionError("there are tasks left of connections that ended")
        assert server.stop()[0] == 0
