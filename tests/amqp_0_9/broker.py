"""The cases of the probe: what each one asks of a broker, and how it reaches it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .raw_client import Client


@dataclass
class Broker:
    """A broker under test. `close` closes all connections that were made to it here."""

    address: tuple[str, int]
    user: str = "guest"
    secret: str = "guest"
    clients: list[Client] = field(default_factory=list)

    def reach(self) -> Client:
        """Return a connection on which nothing was sent."""
        client = Client(self.address)
        self.clients.append(client)
        return client

    def connect(self, **given: Any) -> Client:
        """Return a connection after its handshake."""
        client = self.reach()
        client.shake_hands(given.pop("user", self.user), given.pop("secret", self.secret), **given)
        return client

    def channel(self, **given: Any) -> Client:
        """Return a connection with channel 1."""
        client = self.connect(**given)
        client.open()
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.clients.clear()


Case = Callable[[Broker], str]

CASES: dict[str, Case] = {}
"""The cases by name, in the order in which they are written."""


def case(function: Case) -> Case:
    """Make a function a case, which is named as it."""
    return named(function.__name__.replace("_", " "))(function)


def named(name: str) -> Callable[[Case], Case]:
    """Make a function a case of this name."""

    def add(function: Case) -> Case:
        assert name not in CASES
        CASES[name] = function
        return function

    return add
