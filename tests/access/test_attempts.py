"""Attempts to connect queue up by network, also while the server tidies up, and leave nothing behind."""

import gc
import hashlib

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.access.clients import Clients
from omq.access.hashes import SecretHash
from omq.config import ClientConfig

CHEAP = SecretHash(1, 1, 1, bytes(16), bytes(32))
"""No secret fits it, and that is known at once."""


def cheap_hash(secret: bytes) -> str:
    """A hash that is made and checked at once, as it stands in a configuration."""
    salt = bytes(16)
    key = hashlib.scrypt(secret, salt=salt, n=2, r=1, p=1, maxmem=1 << 20, dklen=32)
    return str(SecretHash(1, 1, 1, salt, key))


@pytest.mark.parametrize(
    ("secret", "id", "is_known"),
    [
        (b"", b"alice:", True),
        (b"", b"alice", False),
        (b"", b"", False),
        (b":", b"alice::", True),
        (b"x" * 1018, b"alice:" + b"x" * 1018, True),
        (b"x" * 1019, b"alice:" + b"x" * 1019, False),
        (b"x" * 1024, b"alice:" + b"x" * 1024, False),
        (b"x" * 1024, b"alice:" + b"x" * 3000, False),
    ],
)
async def test_which_ids_prove_who_somebody_is(secret: bytes, id: bytes, is_known: bool) -> None:
    """A name, a colon and its secret, of at most 1,024 octets together; the same the second time."""
    clients = Clients([ClientConfig(name="alice", secret=cheap_hash(secret))])
    for host in ("192.0.2.1", "192.0.2.2"):
        assert (await clients.identify(id, host, "peer") is not None) is is_known


async def test_who_comes_later_waits_behind_those_who_wait_already(mock_clock: MockClock) -> None:
    clients = Clients([ClientConfig(name="alice", secret=str(CHEAP))])
    refused: list[int] = []

    async def guess(number: int) -> None:
        assert await clients.identify(b"alice:guess", "192.0.2.1", "peer") is None
        refused.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(guess, number)
            await wait_all_tasks_blocked()
        for second in range(4):
            # Each second one more is refused, and the newcomer of each second is behind all of them.
            while len(refused) <= second:
                await wait_all_tasks_blocked()
            mock_clock.jump(0.999)
            await wait_all_tasks_blocked()
            assert refused == list(range(second + 1))
            mock_clock.jump(0.001)
            clients.look()
            nursery.start_soon(guess, 4 + second)
        for _ in range(4):
            await wait_all_tasks_blocked(0.02)
            mock_clock.jump(1)
    assert refused == list(range(8))


async def test_a_network_that_guessed_is_not_forgotten_within_its_pause(mock_clock: MockClock) -> None:
    clients = Clients([ClientConfig(name="alice", secret=str(CHEAP))])
    assert await clients.identify(b"alice:guess", "192.0.2.1", "peer") is None
    refused = False

    async def guess() -> None:
        nonlocal refused
        assert await clients.identify(b"alice:guess", "192.0.2.1", "peer") is None
        refused = True

    mock_clock.jump(0.5)
    clients.look()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guess)
        await wait_all_tasks_blocked()
        # Secrets are checked one after another, so when this one was, the other could have been.
        assert await clients.identify(b"alice:guess", "elsewhere", "peer") is None
        assert not refused
        mock_clock.jump(0.5)
    assert refused


async def test_networks_that_guessed_are_forgotten(mock_clock: MockClock) -> None:
    clients = Clients([ClientConfig(name="alice", secret=str(CHEAP))])

    async def guess(networks: range) -> int:
        """How many objects there are after a guess from each of these networks, and a second."""
        for network in networks:
            assert (
                await clients.identify(b"alice:guess", f"10.0.{network // 256}.{network % 256}", "peer")
                is None
            )
        mock_clock.jump(1)
        clients.look()
        gc.collect()
        return len(gc.get_objects())

    before = await guess(range(300))
    assert await guess(range(300, 600)) < before + 100
