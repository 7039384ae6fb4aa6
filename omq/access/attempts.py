"""Schedule the checks of secrets, so that wrong secrets from one network do not delay the others.

One check takes some hundredths of a second of processor time, and an attacker can request as many checks as
it has connections. So checks run one at a time, and the origins of the attempts take turns. The next turn
goes to the origin whose last wrong secret is longest ago; origins without a wrong secret come before all
others. Turns are given first by network, then by address within the network, then by client name behind the
address. So attempts from one network delay another network by at most the one check that is running. A check
that was started counts as a wrong secret unless the secret was right, so closing the connection before the
answer gains nothing.

After each wrong secret, no secret from the same address is checked for one second. This bounds the rate of
guesses. An id that was wrong before from the same address needs no new check and causes no new pause, so
other clients do not wait for one that retries an old secret. But it waits for its turn behind the address
like any other id. If it were refused at once, the response time would reveal which ids a neighbour behind the
same address has tried. Names that exist and names that do not exist are treated in the same way throughout.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Callable

import trio
from msgspec import Struct

from omq.access.recent_events import RecentEvents
from omq.access.turns import Turns
from omq.threads import in_thread

PAUSE_SECONDS = 1.0
"""The number of seconds after a wrong secret in which no other secret from the same address is checked."""

IPV4_NETWORK_BITS, IPV6_ADDRESS_BITS, IPV6_NETWORK_BITS = 24, 64, 48
"""The prefix lengths of an address range that counts as one network, and of one that counts as one IPv6
address. They are what a provider usually assigns to one site, and to one customer or link.
"""


class AttemptOrigin(Struct, frozen=True):
    """The origin of an attempt to connect."""

    network: str
    address: str

    @classmethod
    def of(cls, host: str) -> "AttemptOrigin":
        """Return the origin of a host's address. A host that is not an IP address is a network of its own."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return cls(host, host)
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is None:
                return cls(_leading(address, IPV6_NETWORK_BITS), _leading(address, IPV6_ADDRESS_BITS))
            address = address.ipv4_mapped
        return cls(_leading(address, IPV4_NETWORK_BITS), str(address))


class _Address:
    """An address with waiting attempts, or one that is paused after a wrong secret."""

    def __init__(self, names: Turns) -> None:
        self.names = names
        self.paused_until = -1.0


class Attempts:
    """All attempts to connect whose secret must be checked."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._wrong_networks, self._wrong_addresses, self._wrong_names = (
            RecentEvents(),
            RecentEvents(),
            RecentEvents(),
        )
        self._wrong_ids = RecentEvents()
        self._turns = Turns(self._wrong_networks.time)
        self._networks: dict[bytes, Turns] = {}
        self._addresses: dict[bytes, _Address] = {}
        self._thread = trio.CapacityLimiter(1)

    async def check(
        self, host: str, id: bytes, name: bytes, *, was_shown: Callable[[], bool], fits: Callable[[], bool]
    ) -> bool:
        """Return whether an id is right: wait for the turn of this attempt, then call `fits` in a thread.

        The check is skipped if `was_shown` says that the same id was right on another connection meanwhile.
        """
        origin = AttemptOrigin.of(host)
        network = self._digest(b"network", origin.network.encode())
        behind = origin.address.encode()
        address = self._digest(b"address", behind)
        name = self._digest(b"name", behind, name)
        id = self._digest(b"id", behind, id)
        here = self._addresses.setdefault(address, _Address(Turns(self._wrong_names.time)))
        async with here.names.turn(name):
            await trio.sleep_until(here.paused_until)
            if was_shown():
                return True
            if id in self._wrong_ids:
                self._wrong_ids.record(id)
                return False
            addresses = self._networks.setdefault(network, Turns(self._wrong_addresses.time))
            async with addresses.turn(address), self._turns.turn(network):
                if was_shown():
                    return True
                is_right = False
                try:
                    is_right = await in_thread(fits, limiter=self._thread, abandon_on_cancel=True)
                    if not is_right:
                        self._wrong_ids.record(id)
                finally:
                    if not is_right:
                        self._wrong_networks.record(network)
                        self._wrong_addresses.record(address)
                        self._wrong_names.record(name)
                        here.paused_until = trio.current_time() + PAUSE_SECONDS
                return is_right

    def forget_wrong_ids(self) -> None:
        """Forget ids that were wrong: the secrets have changed, so check them again."""
        self._wrong_ids.clear()

    def look(self) -> None:
        """Forget origins that no longer matter. Called about every second."""
        now = trio.current_time()
        for address, here in list(self._addresses.items()):
            if not here.names.in_use and here.paused_until <= now:
                del self._addresses[address]
        for network, addresses in list(self._networks.items()):
            if not addresses.in_use:
                del self._networks[network]
        for events in (self._wrong_networks, self._wrong_addresses, self._wrong_names, self._wrong_ids):
            events.forget()

    def _digest(self, kind: bytes, *parts: bytes) -> bytes:
        """Return a key of 32 octets for input of a stranger; it does not reveal a secret in that input."""
        whole = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, *parts))
        return hmac.digest(self._key, whole, "sha256")


def _leading(address: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int) -> str:
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))
