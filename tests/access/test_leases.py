"""Leases: how long they last, how often they can be used, and who hears of them."""

import pytest
from trio.testing import MockClock

from omq.access.clients import ClientAccount, Identity
from omq.access.leases import USED_SECONDS, DmpEnd, LeasedSink, LeaseProblem, Leases, Principal
from omq.access.rights import EVERYTHING
from omq.drivers.seam import Unavailable
from omq.model import Topic

SINK = LeasedSink(Topic(0, b"t"))


@pytest.fixture
def identity() -> Identity:
    return Identity(ClientAccount(EVERYTHING))


@pytest.fixture
def principal() -> Principal:
    return Principal("here", b"tester", None)


async def test_a_lease_can_be_used_for_exactly_its_time(
    mock_clock: MockClock, identity: Identity, principal: Principal
) -> None:
    leases = Leases(60, 10, same_host=True)
    first, second = [leases.grant(SINK, principal, identity) for _ in range(2)]
    mock_clock.jump(59.999)
    assert not isinstance(leases.use(first, "here"), LeaseProblem)
    assert (len(leases), identity.client.leases.used, list(principal.leases)) == (1, 1, [second])
    mock_clock.jump(0.001)
    assert leases.use(second, "here") is LeaseProblem.NOT_VALID
    assert (len(leases), identity.client.leases.used, list(principal.leases)) == (0, 0, [])


async def test_leases_end_one_after_another(
    mock_clock: MockClock, identity: Identity, principal: Principal
) -> None:
    leases = Leases(60, 10, same_host=True)
    granted = []
    for _ in range(3):
        granted.append(leases.grant(SINK, principal, identity))
        mock_clock.jump(10)
    left = []
    for _ in range(6):
        leases.expire()
        left.append(len(leases))
        mock_clock.jump(10)
    assert left == [3, 3, 3, 2, 1, 0]
    assert [leases.use(each, "here") for each in granted] == [LeaseProblem.NOT_VALID] * 3


async def test_a_second_use_is_told_from_a_guess_for_ten_minutes(
    mock_clock: MockClock, identity: Identity, principal: Principal
) -> None:
    assert USED_SECONDS == 600
    leases = Leases(60, 1, same_host=True)
    lease = leases.grant(SINK, principal, identity)
    assert not isinstance(leases.use(lease, "here"), LeaseProblem)
    mock_clock.jump(599.999)
    assert leases.use(lease, "here") is LeaseProblem.USED
    mock_clock.jump(0.001)
    assert leases.use(lease, "here") is LeaseProblem.NOT_VALID


async def test_a_lease_has_192_random_bits(identity: Identity, principal: Principal) -> None:
    leases = Leases(60, 10, same_host=True)
    granted = {leases.grant(SINK, principal, identity) for _ in range(10)}
    assert len(granted) == 10
    assert {len(lease) for lease in granted} == {32}  # of base64


async def test_a_principal_says_whether_its_client_was_told() -> None:
    told: list[tuple[DmpEnd, bytes, str | Unavailable]] = []

    async def report(end: DmpEnd, topic: bytes, what: str | Unavailable) -> None:
        told.append((end, topic, what))

    principal = Principal("here", b"tester", report)
    assert await principal.report(DmpEnd.SINK, b"t", "1 message refused") is True
    principal.end()
    assert await principal.report(DmpEnd.SINK, b"t", "1 message refused") is False
    assert told == [(DmpEnd.SINK, b"t", "1 message refused")]
    assert await Principal("here", b"tester", None).report(DmpEnd.FEED, b"t", "gone") is False
