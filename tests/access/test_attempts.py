"""Attempts to connect queue up by network, also while the server tidies up, and leave nothing behind."""

import gc
import hashlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from quietness import quiet
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.access.attempts import Attempts
from omq.access.clients import Clients
from omq.access.hashes import SecretHash
from omq.config import ClientConfig

CHEAP = SecretHash(1, 1, 1, bytes(16), bytes(32))
"""No secret fits it, and that is known at once."""


def cheap_hash(secret: bytes) -> str:
    """Return a hash that is made and checked at once, as it stands in a configuration."""
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
async def test_an_id_is_accepted_only_with_its_name_and_secret(
    secret: bytes, id: bytes, is_known: bool
) -> None:
    """A name, a colon and its secret, of at most 1,024 octets together; the same the second time."""
    clients = Clients([ClientConfig(name="alice", secret=cheap_hash(secret))])
    for host in ("192.0.2.1", "192.0.2.2"):
        assert (await clients.identify(id, host, "peer") is not None) is is_known


async def test_a_late_attempt_waits_behind_earlier_ones(mock_clock: MockClock) -> None:
    clients = Clients([ClientConfig(name="alice", secret=str(CHEAP))])
    refused: list[int] = []

    async def guess(number: int) -> None:
        assert await clients.identify(b"alice:guess %d" % number, "192.0.2.1", "peer") is None
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
            await quiet()
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
        """Return the number of objects after a guess from each of these networks, and a second."""
        for network in networks:
            host = f"10.{network // 256}.{network % 256}.1"
            assert await clients.identify(b"alice:guess", host, "peer") is None
        mock_clock.jump(1)
        clients.look()
        gc.collect()
        return len(gc.get_objects())

    before = await guess(range(300))
    assert await guess(range(300, 600)) < before + 100


async def test_an_abandoned_check_still_delays_the_next() -> None:
    """A client that connects again and again occupies one thread."""
    attempts, over, last = Attempts(), threading.Event(), trio.Event()
    order: list[str] = []

    def first() -> bool:
        trio.from_thread.run_sync(begun.set)
        assert over.wait(60)
        order.append("first")
        return True

    def second() -> bool:
        order.append("second")
        trio.from_thread.run_sync(last.set)
        return True

    async def check(host: str, fits: Callable[[], bool]) -> None:
        assert await attempts.check(host, b"alice:x", b"alice", was_shown=lambda: False, fits=fits)

    begun = trio.Event()
    async with trio.open_nursery() as leaving:
        leaving.start_soon(check, "192.0.2.1", first)
        await begun.wait()
        leaving.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check, "198.51.100.1", second)
        with trio.move_on_after(0.2):
            await last.wait()
        over.set()
    assert order == ["first", "second"]


class SecretChecks:
    """Guesses at a secret whose check is held up; they are named by the host from which they come."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.refused: list[str] = []
        self._clients = Clients([ClientConfig(name="alice", secret=str(CHEAP))])
        self._guesses = 0
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}

    async def wait(self, *hosts: str, given_up: tuple[str, ...] = ()) -> None:
        """Let them wait, in this order, while the check of the first one is held up. Then let the clients of
        some go away.
        """
        go_on, check = threading.Event(), hashlib.scrypt

        def late(secret: bytes, **costs: Any) -> bytes:
            assert go_on.wait(60)
            return check(secret, **costs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hashlib, "scrypt", late)
            try:
                for host in hosts:
                    self._nursery.start_soon(self.guess, host)
                    await wait_all_tasks_blocked()
                for host in given_up:
                    self._scopes[host].cancel()
                    await wait_all_tasks_blocked()
            finally:
                go_on.set()

    async def guess(self, host: str) -> None:
        """Guess, another secret each time."""
        self._guesses += 1
        id = b"alice:guess %d" % self._guesses
        with trio.CancelScope() as self._scopes[host]:
            assert await self._clients.identify(id, host, "peer") is None
            self.refused.append(host)


@pytest.mark.parametrize(
    ("crowd", "newcomer", "is_next"),
    [
        (("192.0.2.1", "192.0.2.2", "192.0.2.255"), "192.0.3.1", True),
        (("192.0.2.1", "192.0.2.2", "::ffff:192.0.2.255"), "192.0.2.3", False),
        (("192.0.2.1", "192.0.2.2", "192.0.2.3"), "2001:db8::1", True),
        (("2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:ffff::1"), "2001:db8:1::1", True),
        (("2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:2::1"), "2001:db8:0:ffff::1", False),
        (("a path", "2001:db8::1", "192.0.2.1"), "192.0.3.1", False),
    ],
)
async def test_networks_come_before_addresses(crowd: tuple[str, ...], newcomer: str, is_next: bool) -> None:
    """A newcomer of a network without a wrong secret is next; one of a network with some waits in it."""
    async with trio.open_nursery() as nursery:
        guesses = SecretChecks(nursery)
        await guesses.wait(*crowd, newcomer)
    assert guesses.refused == ([crowd[0], newcomer, *crowd[1:]] if is_next else [*crowd, newcomer])


@pytest.mark.parametrize("host", ["10.0.{}.1", "10.0.0.{}"], ids=["networks", "addresses of a network"])
async def test_the_address_with_the_oldest_failure_has_the_first_turn(
    host: str, mock_clock: MockClock
) -> None:
    first, second, third, fourth, fifth = [host.format(number) for number in range(1, 6)]
    async with trio.open_nursery() as nursery:
        guesses = SecretChecks(nursery)
        for one in (first, second, third):
            await guesses.guess(one)
            mock_clock.jump(1)
        await guesses.wait(fourth, third, second, first, fifth)
    assert guesses.refused[3:] == [fourth, fifth, first, second, third]


async def test_the_name_whose_last_wrong_secret_is_longest_ago_comes_first(mock_clock: MockClock) -> None:
    clients = Clients([ClientConfig(name="alice", secret=str(CHEAP))])
    refused: list[bytes] = []
    heard = trio.Event()

    async def guess(id: bytes) -> None:
        nonlocal heard
        assert await clients.identify(id, "192.0.2.1", "peer") is None
        refused.append(id)
        heard.set()
        heard = trio.Event()

    await guess(b"alice:0")
    mock_clock.jump(1)
    await guess(b"bob:0")
    async with trio.open_nursery() as nursery:
        for id in (b"carol:1", b"bob:1", b"alice:1", b"bob:2", b"alice:2", b"dave:1"):
            nursery.start_soon(guess, id)
            await wait_all_tasks_blocked()
        for _ in range(6):
            mock_clock.jump(1)
            await heard.wait()
    assert refused[2:] == [b"carol:1", b"dave:1", b"alice:1", b"bob:1", b"alice:2", b"bob:2"]


async def test_a_guess_that_is_given_up_uses_its_turn() -> None:
    """Else a network could have the thread for itself, by attempts that do not wait for their answers."""
    async with trio.open_nursery() as nursery:
        guesses = SecretChecks(nursery)
        await guesses.wait("10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.2.1", given_up=("10.0.1.1",))
    assert guesses.refused == ["10.0.2.1", "10.0.1.2", "10.0.1.3"]
