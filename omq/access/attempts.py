"""Whose secret is checked next.

One check takes some hundredths of a second of processor time, and strangers can ask for as many checks as
they have connections. So checks are done one at a time and in turns. The next turn goes to whoever's last
wrong secret was longest ago, and before all others to those that had none: first by network, then by address
within the network, then by name behind the address. So many attempts from one network delay another network
by no more than the check that is under way. A check that was begun counts as a wrong secret unless the secret
was right, so nobody keeps a place by closing the connection before the answer.

After each wrong secret, nobody behind the same address is checked for a second: that bounds how fast somebody
can guess. An id that was wrong before, from the same address, takes no further check and causes no further
pause, so nobody waits for a client that tries an old secret again and again. But it waits for its turn behind
the address like any other id. If it were refused at once, the time of the answer would tell, as fast as
anybody can ask, which ids a neighbour behind the same address has tried. In all of this, names that exist and
names that do not are treated alike.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import trio

from omq.access.marks import Marks
from omq.access.turns import Turns
from omq.threads import in_thread

PAUSE_SECONDS = 1.0
"""How long nobody else behind the same address is checked after a wrong secret."""

IPV4_NETWORK_BITS, IPV6_ADDRESS_BITS, IPV6_NETWORK_BITS = 24, 64, 48
"""How many leading bits are the same within a network, and within what counts as one address of IPv6: what is
usually given to one site, and to one customer or link."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an attempt comes from."""

    network: str
    address: str

    @classmethod
    def of(cls, host: str) -> "Origin":
        """The origin of a host's address; what is no address is its own network."""
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
    """An address behind which somebody waits, or that has to wait itself."""

    def __init__(self, names: Turns) -> None:
        self.names = names
        self.paused_until = -1.0


class Attempts:
    """The turns of all attempts to connect whose secret has to be checked."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._wrong_networks, self._wrong_addresses, self._wrong_names = Marks(), Marks(), Marks()
        self._wrong_ids = Marks()
        self._turns = Turns(self._wrong_networks.time)
        self._networks: dict[bytes, Turns] = {}
        self._addresses: dict[bytes, _Address] = {}
        self._thread = trio.CapacityLimiter(1)

    async def check(
        self, host: str, id: bytes, name: bytes, *, was_shown: Callable[[], bool], fits: Callable[[], bool]
    ) -> bool:
        """Whether an id is right: call `fits` in a thread when it is this attempt's turn.

        There is no need to when `was_shown` says that the same id was right on another connection meanwhile.
        """
        origin = Origin.of(host)
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
                self._wrong_ids.mark(id)
                return False
            addresses = self._networks.setdefault(network, Turns(self._wrong_addresses.time))
            async with addresses.turn(address), self._turns.turn(network):
                if was_shown():
                    return True
                is_right = False
                try:
                    is_right = await in_thread(fits, limiter=self._thread, abandon_on_cancel=True)
                    if not is_right:
                        self._wrong_ids.mark(id)
                finally:
                    if not is_right:
                        self._wrong_networks.mark(network)
                        self._wrong_addresses.mark(address)
                        self._wrong_names.mark(name)
                        here.paused_until = trio.current_time() + PAUSE_SECONDS
                return is_right

    def look(self) -> None:
        """Forget what is over. Called about every second."""
        now = trio.current_time()
        for address, here in list(self._addresses.items()):
            if not here.names.in_use and here.paused_until <= now:
                del self._addresses[address]
        for network, addresses in list(self._networks.items()):
            if not addresses.in_use:
                del self._networks[network]
        for marks in (self._wrong_networks, self._wrong_addresses, self._wrong_names, self._wrong_ids):
            marks.forget()

    def _digest(self, kind: bytes, *parts: bytes) -> bytes:
        """A key for something that strangers chose: of 32 octets, and nobody can read a secret in it."""
        whole = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, *parts))
        return hmac.digest(self._key, whole, "sha256")


def _leading(address: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int) -> str:
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))
