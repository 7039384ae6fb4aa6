"""The log-in of clients: PLAIN as an id of omq's clients."""

from msgspec import Struct


class Login(Struct, frozen=True):
    """A name and a secret. `id` is their form in a Connect of omq."""

    name: bytes
    secret: bytes

    @property
    def id(self) -> bytes:
        return self.name + b":" + self.secret


class BadLogin(Exception):
    """The response to the mechanism cannot be read; the message is for the client."""


def read_plain(response: bytes) -> Login:
    """Read `authorisation identity | 0 | name | 0 | secret` (RFC 4616). The identity is empty or the name: no
    client acts for another one.

    Raises BadLogin.
    """
    parts = response.split(b"\0", 2)
    if len(parts) != 3:
        raise BadLogin("the response to PLAIN has no name and secret")
    if parts[0] not in (b"", parts[1]):
        raise BadLogin("a client cannot act for another one")
    return Login(client_name(parts[1]), parts[2].removesuffix(b"\0"))


def client_name(name: bytes) -> bytes:
    """Return the name. Raises BadLogin for one that no client can have."""
    if b":" in name:  # it would end the name in an id
        raise BadLogin("a name has no colon")
    return name
