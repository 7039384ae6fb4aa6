"""The allowed origins of requests: the names of this server, and the pages that may use it.

A page of any site can make a browser send requests to any address that the browser reaches, this machine's
own among them, and can open WebSockets there. The browser adds the field Origin, which names the site of the
page, or at least Sec-Fetch-Site. And an attacker can let the name of his own site resolve to the address of
this server (DNS rebinding). Then the field Host has that name. So these fields are checked.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from omq.protocol.http.requests import HttpRequest

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]@/\s]+))(?::[0-9]{0,5})?")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not answered as it wants."""

    status: int
    why: str


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """The names under which this server may be addressed, and the foreign origins that may use it."""

    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def of(cls, hosts: Iterable[str], origins: Iterable[str]) -> "AllowedOrigins":
        """Compare names and origins without regard to case."""
        return cls(frozenset(map(_name, hosts)), frozenset(origin.lower() for origin in origins))

    def check(self, request: HttpRequest, local: str, *, is_encrypted: bool) -> Refusal | None:
        """Return the refusal of a request that came to the address `local`; None if it is not refused."""
        found = _AUTHORITY.fullmatch(request.authority)
        if found is None:
            return Refusal(400, "the request needs a field Host with a name or an address")
        if not self._is_own(_name(found[1] or found[2]), local):
            return Refusal(421, "Host is no address of this server and not in http_hosts")
        origin = request.field(b"origin")
        if origin is None:
            return None  # see `check_read` for the requests of pages to which browsers do not add it
        own = f"{'https' if is_encrypted else 'http'}://{request.authority}"
        if origin.lower() in (own.lower(), *self.origins):
            return None
        return Refusal(403, "Origin is not this server's own and not in http_origins")

    def check_read(self, request: HttpRequest) -> Refusal | None:
        """Return the refusal of a request for a file that only the server's own pages may load; None if it is
        not refused.

        Browsers do not add Origin to all requests of pages of other sites, for example not to those for an
        image or a script. They add Sec-Fetch-Site to these, inside TLS and for loopback addresses.
        """
        site = request.field(b"sec-fetch-site")
        if site in ("cross-site", "same-site") and request.field(b"origin") is None:
            return Refusal(403, "this is not for the pages of other sites")
        return None

    def is_foreign(self, origin: str) -> bool:
        """Return whether the configuration names this origin."""
        return origin.lower() in self.origins

    def _is_own(self, name: str, local: str) -> bool:
        if name in self.hosts:
            return True
        address = _address(local)
        if name == "localhost":
            return address is not None and address.is_loopback
        return address is not None and _address(name) == address


def _name(host: str) -> str:
    return host.lower().removesuffix(".")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
