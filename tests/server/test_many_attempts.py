"""Many attempts to connect at once: how many checks of others somebody with the right secret waits for.

The tests count how many attempts of others are refused meanwhile. Time stands still but for the jumps, so the
pause after a wrong secret does not end by itself, however long the checks take.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from omq.access.hashes import hash_of
from omq.config import ClientConfig
from omq.protocol.omq.types import Error

from .conversation import VERSION_ONE, Conversation, Host, serving

SECRET = b"hush-4711"
HASH = str(hash_of(SECRET))
NAMES = [f"client-{number}" for number in range(60)]
CLIENTS = [ClientConfig(name=name, secret=HASH) for name in NAMES]
MOST_CONNECTIONS = 2000

REFUSED = Error(b"Connect: no client has this name and secret")

A_FEW = 5
"""The number of checks of others that may end before that of the next in turn: it waits for at most two, and
more end while its Connect is on the way.
"""


class WaitingAttempts:
    """Connections that wait to be refused."""

    def __init__(self, host: Host, nursery: trio.Nursery) -> None:
        self.sent = self.refused = 0
        self._host = host
        self._nursery = nursery
        self._heard = trio.lowlevel.ParkingLot()

    async def attempt(self, address: str, id: bytes) -> None:
        """Connect from an address of this machine; what comes of it is counted."""
        conversation = await opened(self._host, address)
        await conversation.send(VERSION_ONE + b"(Connect 1 %s)\n" % id)
        assert await conversation.octets(8) == VERSION_ONE
        self.sent += 1
        self._nursery.start_soon(self._hear, conversation)

    async def _hear(self, conversation: Conversation) -> None:
        async with conversation.stream:
            assert await conversation.frame() == REFUSED
        self.refused += 1
        self._heard.unpark_all()

    async def reach(self, refused: int) -> None:
        """Wait until N (`refused`) attempts were refused."""
        while self.refused < refused:
            await self._heard.park()


@asynccontextmanager
async def strangers_at(store: Path) -> AsyncIterator[tuple[Host, WaitingAttempts]]:
    async with (
        serving(store, clients=CLIENTS, max_connections=MOST_CONNECTIONS) as host,
        trio.open_nursery() as nursery,
    ):
        yield host, WaitingAttempts(host, nursery)
        nursery.cancel_scope.cancel()


async def opened(host: Host, address: str) -> Conversation:
    """Return a connection from this address of this machine."""
    stream = await trio.open_tcp_stream("127.0.0.1", host.port, local_address=address)
    return Conversation(stream)


async def enter(host: Host, address: str, name: str) -> None:
    """Connect from this address with the right secret, and be let in."""
    conversation = await opened(host, address)
    async with conversation.stream:
        await conversation.send(VERSION_ONE + b"(Connect 1 %s:%s)\n" % (name.encode(), SECRET))
        assert await conversation.octets(8) == VERSION_ONE
        await conversation.confirm()


async def test_six_hundred_addresses_do_not_keep_newcomers_out(store: Path, mock_clock: MockClock) -> None:
    """They are in three networks. Once each of these had a turn, a newcomer of another network is next."""
    async with strangers_at(store) as (host, strangers):
        for number in range(600):
            address = f"127.1.{number // 200}.{1 + number % 200}"
            await strangers.attempt(address, b"client-0:guess-%d" % number)
        await strangers.reach(3)
        for number in range(1, 6):
            before = strangers.refused
            await enter(host, f"127.2.{number}.1", NAMES[number])
            assert strangers.refused - before <= A_FEW


async def test_fifty_attempts_from_one_address_do_not_keep_others_out(
    store: Path, mock_clock: MockClock
) -> None:
    """Whether they name one client or fifty, and neither somebody of the next address."""
    async with strangers_at(store) as (host, strangers):
        for number in range(25):
            await strangers.attempt("127.1.1.1", b"client-0:guess-%d" % number)
            await strangers.attempt("127.1.1.1", b"nobody-%d:guess" % number)
        await strangers.reach(1)
        await enter(host, "127.1.1.2", NAMES[1])
        await enter(host, "127.2.1.1", NAMES[2])
        assert strangers.refused == 1


async def test_guesses_at_one_name_do_not_keep_other_names_of_the_address_out(
    store: Path, mock_clock: MockClock
) -> None:
    """A client that is new behind the address of a guesser waits for two guesses at the most."""
    async with strangers_at(store) as (host, strangers):
        for number in range(50):
            await strangers.attempt("127.1.1.1", b"client-0:guess-%d" % number)
        await strangers.reach(1)
        for name in NAMES[1:4]:
            before = strangers.refused
            async with seconds_pass(mock_clock, strangers):
                await enter(host, "127.1.1.1", name)
            assert strangers.refused - before <= 2


async def test_guesses_at_many_names_delay_other_names_of_the_address_by_a_second_each(
    store: Path, mock_clock: MockClock
) -> None:
    """This is all that is promised to clients behind the address of a guesser."""
    async with strangers_at(store) as (host, strangers):
        for number in range(6):
            await strangers.attempt("127.1.1.1", b"nobody-%d:guess" % number)
        for number in range(6):
            await strangers.attempt("127.1.1.1", b"nobody-%d:another" % number)
        await strangers.reach(1)
        async with seconds_pass(mock_clock, strangers):
            await enter(host, "127.1.1.1", NAMES[1])
        assert strangers.refused <= 7


async def test_a_wrong_id_that_is_shown_again_keeps_no_other_client_waiting(
    store: Path, mock_clock: MockClock
) -> None:
    """Fifty processes that were left with an old secret do not delay one that has the new one."""
    async with strangers_at(store) as (host, strangers):
        await strangers.attempt("127.1.1.1", b"client-0:old")
        await strangers.reach(1)
        for _ in range(50):
            await strangers.attempt("127.1.1.1", b"client-0:old")
        mock_clock.jump(1)
        await enter(host, "127.1.1.1", NAMES[0])
        await strangers.reach(51)


@pytest.mark.parametrize("name", [b"client-0", b"nobody"])
async def test_a_wrong_id_waits_for_its_turn_each_time(
    store: Path, mock_clock: MockClock, name: bytes
) -> None:
    """So nobody can ask fast whether a neighbour behind the same address has tried an id."""
    async with strangers_at(store) as (host, strangers):
        await strangers.attempt("127.1.1.1", name + b":old")
        await strangers.reach(1)
        mock_clock.jump(1)
        await strangers.attempt("127.1.1.1", name + b":other")
        await strangers.reach(2)
        for _ in range(3):
            await strangers.attempt("127.1.1.1", name + b":old")
        await enter(host, "127.1.1.2", NAMES[1])
        assert strangers.refused == 2
        mock_clock.jump(1)
        await strangers.reach(5)


@asynccontextmanager
async def seconds_pass(clock: MockClock, strangers: WaitingAttempts) -> AsyncIterator[None]:
    """Let a second pass within the block whenever an attempt was refused, and not sooner."""

    async def pass_time() -> None:
        while True:
            before = strangers.refused
            clock.jump(1)
            await strangers.reach(before + 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_time)
        yield
        nursery.cancel_scope.cancel()
