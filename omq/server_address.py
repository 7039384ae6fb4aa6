"""The address of a server for its clients: `omq://host:port`, or `omqs://host:port` with TLS."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from omq.addresses import DEFAULT_PORT, format_address

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Address:
    """A server's host and port, and whether to connect with TLS."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return format_address(self.host, self.port)

    @property
    def url(self) -> str:
        """The address as a URL, as options contain it."""
        return f"{'omqs' if self.tls else 'omq'}://{self}"


@dataclass(frozen=True, slots=True)
class Security:
    """The TLS settings of a connection."""

    context: "ssl.SSLContext"
    name: str
    """The host name that the server's certificate must have: as given by the user, not the resolved address.
    """


def parse_url(url: str) -> Address:
    """Parse `omq://host[:port]` or `omqs://host[:port]`; an IPv6 address is in brackets.

    Raises ValueError. Its text does not repeat a URL that may contain a secret.
    """
    problem = f"{url!r} is no address of the form omq://HOST:PORT or omqs://HOST:PORT"
    if "@" in url:
        problem = (
            "an address has the form omq://HOST:PORT or omqs://HOST:PORT; the id has the name and the secret"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(problem) from None
    stray = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None
    if parts.scheme not in ("omq", "omqs") or not parts.hostname or port == 0 or stray:
        raise ValueError(problem)
    return Address(parts.hostname, DEFAULT_PORT if port is None else port, parts.scheme == "omqs")
