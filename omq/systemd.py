"""The interface of a service manager: the sockets that it passes, and notifications to it (sd_listen_fds(3),
sd_notify(3)).

Both are plain: a datagram to a socket that the environment names, and descriptors from 3 on.
"""

import os
import socket
import time
from collections.abc import MutableMapping

import trio
from msgspec import Struct

from omq.addresses import format_address
from omq.config import ConfigError

FIRST_DESCRIPTOR = 3


class Manager:
    """The service manager that started the server; without one, its methods do nothing."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET")
        self._environment = environment

    def tell(self, *fields: str) -> None:
        """Send `NAME=VALUE` fields. A manager that cannot be reached changes nothing for the server."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            # The socket of a manager is always read. If that is not so, the server does not wait for it.
            channel.setblocking(False)
            try:
                channel.sendto("\n".join(fields).encode(), address)
            except OSError:
                pass  # the manager sees that nothing comes, and acts on it

    def ready(self, status: str) -> None:
        """Tell systemd that the server serves."""
        self.tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Tell systemd that the configuration is being read again; `ready` says when that is done."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Tell systemd that the server stops."""
        self.tell("STOPPING=1")

    async def keep_alive(self) -> None:
        """Tell the watchdog that the event loop runs, twice in each of its periods, until cancelled."""
        microseconds = self._environment.get("WATCHDOG_USEC", "")
        if not microseconds.isdecimal() or self._environment.get("WATCHDOG_PID", _pid()) != _pid():
            return
        while True:
            self.tell("WATCHDOG=1")
            await trio.sleep(int(microseconds) / 2_000_000)


class PassedSockets(Struct, frozen=True):
    """Sockets that listen already, by the keys of the configuration whose addresses they replace."""

    listen: tuple[socket.socket, ...] = ()
    listen_tls: tuple[socket.socket, ...] = ()
    listen_http: tuple[socket.socket, ...] = ()

    def addresses(self) -> dict[str, list[str]]:
        """Return their addresses as keys of the configuration."""
        return {
            key: [format_address(*one.getsockname()[:2]) for one in getattr(self, key)]
            for key in ("listen", "listen_tls", "listen_http")
        }


def passed_sockets(environment: MutableMapping[str, str] = os.environ) -> PassedSockets | None:
    """Return the sockets that a service manager has passed; None if there are none. Raises ConfigError.

    The name of a socket (FileDescriptorName= of its unit) chooses what is spoken: `tls` TLS only, `http` HTTP
    only, and any other name all protocols.
    """
    count = environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if environment.pop("LISTEN_PID", "") != _pid() or not count.isdecimal() or int(count) == 0:
        return None
    found: dict[str, list[socket.socket]] = {"listen": [], "listen_tls": [], "listen_http": []}
    for number in range(int(count)):
        descriptor = FIRST_DESCRIPTOR + number
        try:
            os.set_inheritable(descriptor, False)
            passed = socket.socket(fileno=descriptor)
            listens = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as problem:
            raise ConfigError(f"LISTEN_FDS: descriptor {descriptor}: {problem.strerror}") from problem
        is_tcp = passed.family in (socket.AF_INET, socket.AF_INET6) and passed.type == socket.SOCK_STREAM
        if not listens or not is_tcp:
            raise ConfigError(f"LISTEN_FDS: descriptor {descriptor} is not a TCP socket that listens")
        name = names[number] if number < len(names) else ""
        found[{"tls": "listen_tls", "http": "listen_http"}.get(name, "listen")].append(passed)
    return PassedSockets(**{key: tuple(sockets) for key, sockets in found.items()})


def _pid() -> str:
    return str(os.getpid())
