"""Sessions of connections and uses of leases, and the return of quotas where these fail."""

from pathlib import Path

import msgspec
import pytest
import trio
from counted_steps import counted_calls, watched
from served_control import Subscriber, connected, control, known
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.access.control import AccessControl, LeasedSession, QuotaUsedUp
from omq.access.leases import LeaseProblem, Principal
from omq.access.session import Session
from omq.config import ClientConfig, Config
from omq.drivers.feed import LeasedFeed
from omq.drivers.reasons import Reason, Refused
from omq.model import FromCurrent

HERE = "127.0.0.1"
RIGHTS = {"declare": ["*"], "publish": ["*"], "subscribe": ["*"]}


def principal() -> Principal:
    return Principal(HERE, b"known", None)


async def leased_feed(access: AccessControl, session: Session) -> bytes:
    """Return a lease for a feed, which takes the only subscription of the server."""
    lease = await access.leasing(session, principal()).lease_feed(b"t", FromCurrent())
    assert access.subscriptions.used == 1
    return lease


async def test_a_feed_whose_client_has_all_its_connections_is_closed(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with control(tmp_path, clients=[known("known", max_connections=1, **RIGHTS)]) as access:
        session = await connected(access, b"known:s")
        lease = await leased_feed(access, session)
        mock_clock.autojump_threshold = 0.01
        assert await access.use_lease(lease, HERE) is QuotaUsedUp.CLIENT
        assert (access.subscriptions.used, access.leased_connections.used) == (0, 0)
        assert await access.use_lease(lease, HERE) is LeaseProblem.USED
        assert access.leased_connections.used == 0


async def test_a_feed_whose_connection_goes_while_it_waits_for_a_place_is_closed(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with control(tmp_path, clients=[known("known", max_connections=1, **RIGHTS)]) as access:
        session = await connected(access, b"known:s")
        lease = await leased_feed(access, session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(access.use_lease, lease, HERE)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert (access.subscriptions.used, access.leased_connections.used) == (0, 0)


async def test_a_lease_of_a_client_that_is_gone_is_worth_nothing(tmp_path: Path) -> None:
    async with control(tmp_path, clients=[known("known", **RIGHTS), known("other")]) as access:
        session = await connected(access, b"known:s")
        lease = await leased_feed(access, session)
        await access.reload(Config(store=str(tmp_path), clients=[known("other")]))
        assert session.withdrawn == "the server's configuration does not have this client any more"
        assert await access.use_lease(lease, HERE) is LeaseProblem.NOT_VALID
        assert (access.subscriptions.used, access.leased_connections.used) == (0, 0)
        with pytest.raises(Refused) as refused:
            await connected(access, b"known:s")
        assert refused.value.reason is Reason.FORBIDDEN


async def test_a_lease_gives_a_session_of_its_client_until_that_is_closed(tmp_path: Path) -> None:
    async with control(
        tmp_path, clients=[known("known", max_connections=2, **RIGHTS)], max_dmp_connections=1
    ) as access:
        session = await connected(access, b"known:s")
        for _ in range(3):
            leases = [await access.leasing(session, principal()).lease_sink(b"t") for _ in range(2)]
            leased = await access.use_lease(leases[0], HERE)
            assert isinstance(leased, LeasedSession)
            assert leased.session.name == b"known"
            assert await access.use_lease(leases[1], HERE) is QuotaUsedUp.SERVER
            for _ in range(2):  # the second changes nothing
                leased.session.close()
            assert access.leased_connections.used == 0


async def test_a_connection_that_waits_for_a_place_is_refused_when_its_client_has_gone(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Time stands still, so the wait for a place does not end by itself."""
    async with control(tmp_path, clients=[known("known", max_connections=1), known("other")]) as access:
        first = await connected(access, b"known:s")
        refused: list[str] = []

        async def connect() -> None:
            with pytest.raises(Refused) as found:
                await connected(access, b"known:s")
            refused.append(str(found.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await wait_all_tasks_blocked()
            await access.reload(Config(store=str(tmp_path), clients=[known("other")]))
            first.close()
        assert refused == ["the server's configuration does not have this client any more"]


async def test_a_session_has_the_name_before_the_colon_also_where_no_secret_is_required(
    tmp_path: Path,
) -> None:
    async with control(tmp_path) as access:
        assert (await connected(access, b"somebody:hush:hush")).name == b"somebody"


async def test_a_feed_stays_open_while_its_lease_is_used(tmp_path: Path) -> None:
    async with control(tmp_path, max_subscriptions=1, client_share=1) as access:
        session = await connected(access)
        leased = await access.use_lease(await leased_feed(access, session), HERE)
        assert isinstance(leased, LeasedSession)
        assert isinstance(leased.what, LeasedFeed)
        assert not leased.what.is_over
        with pytest.raises(Refused):
            await session.open(b"t", FromCurrent(), Subscriber)
        leased.what.close()
        assert leased.what.is_over
        await session.open(b"t", FromCurrent(), Subscriber)


@pytest.mark.parametrize("later", [None, "other"])
async def test_a_certificate_that_is_no_longer_the_clients_proves_nothing(
    tmp_path: Path, later: str | None
) -> None:
    def clients(certificate: str | None) -> list[ClientConfig]:
        return [msgspec.structs.replace(known("known"), certificate=certificate)]

    async with control(tmp_path, clients=clients("name")) as access:
        found = access.clients.certified("name")
        assert found is not None
        name, identity = found
        assert (name, identity.withdrawn) == (b"known", None)
        await access.reload(Config(store=str(tmp_path), clients=clients("name")))
        assert access.clients.certified("name") == found
        await access.reload(Config(store=str(tmp_path), clients=clients(later)))
        assert identity.withdrawn == "the certificate of this connection is not that of its client any more"
        assert access.clients.certified("name") is None
        assert (access.clients.certified("other") is not None) is (later is not None)


async def test_a_certificate_names_one_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    configured = [msgspec.structs.replace(known("known"), certificate="card"), known("other")]
    async with control(tmp_path, clients=configured) as access:
        clients = access.clients
        found = clients.certified("card")
        assert found is not None
        for wanted in (b"", b"known"):
            assert clients.identify_certified("card", wanted, "peer") == found
        assert not caplog.records
        assert clients.identify_certified("card", b"other", "peer A") is None
        assert clients.identify_certified("unknown", b"", "peer B") is None
        assert clients.identify_certified(None, b"known", "peer B") is None
    first = next(one for one in caplog.records if "certificate" in one.getMessage())
    assert first.getMessage() == "peer A: it has not the certificate of this client"
    assert first.levelname == "WARNING"


async def test_thousands_of_clients_are_changed_in_steps(tmp_path: Path) -> None:
    """In the middle of it, no certificate proves that its owner is the client whose certificate it was."""
    count = 1000

    def config(certificate: str, **rights: list[str]) -> Config:
        clients = [known(f"{number}", **rights) for number in range(count)]
        return Config(
            store=str(tmp_path),
            clients=[
                msgspec.structs.replace(each, certificate=f"{certificate}{number}")
                for number, each in enumerate(clients)
            ],
        )

    async with control(tmp_path, clients=config("old").clients) as access:

        def changed() -> int:
            return sum(access.clients.certified(f"old{number}") is None for number in range(0, count, 10))

        async with trio.open_nursery() as nursery:
            with counted_calls() as calls:
                nursery.start_soon(access.reload, config("new", watch=["*"]))
                await wait_all_tasks_blocked()
        assert (changed(), calls.total > 20 * count, calls.longest < 2 * count) == (count // 10, True, True)
        await access.reload(config("old"))
        async with trio.open_nursery() as nursery:
            with watched(changed) as gone:
                nursery.start_soon(access.reload, config("new"))
                await wait_all_tasks_blocked()
        assert (gone.all[0], gone.all[-1]) == (0, count // 10)
        assert gone.largest_rise() < count // 20
