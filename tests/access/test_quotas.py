"""The quotas of one client: its share of those of the server, and the keys of its own."""

import pytest
from msgspec.structs import asdict

from omq.access.quotas import ClientQuotas
from omq.config import ClientConfig, Config

SHARES = ClientQuotas.of(
    Config(
        store="s", max_connections=10, max_topics=20, max_leases=30, max_subscriptions=40, client_share=0.5
    )
)
OWN = {
    "max_connections": 1,
    "max_topics": 2,
    "max_leases": 3,
    "max_subscriptions": 4,
    "max_exchanges": 5,
    "max_bindings": 6,
}


def test_a_client_has_its_share_and_at_least_one() -> None:
    assert (
        ClientQuotas(
            connections=5,
            topics=10,
            leases=15,
            exchanges=5_000,
            bindings=50_000,
            subscriptions=20,
            watchers=50,
        )
        == SHARES
    )
    least = Config(store="s", max_connections=10, max_topics=199, max_leases=200, client_share=0.01)
    bounds = ClientQuotas.of(least)
    assert (bounds.connections, bounds.topics, bounds.leases, bounds.watchers) == (1, 1, 2, 1)


@pytest.mark.parametrize("key", OWN)
def test_a_key_of_a_client_replaces_one_quota(key: str) -> None:
    replaced = SHARES.replaced_by(ClientConfig(name="a", secret="", **{key: OWN[key]}))  # type: ignore[arg-type]  # the names decide the types
    for name, quota in asdict(replaced).items():
        assert quota == (OWN[key] if f"max_{name}" == key else getattr(SHARES, name))


def test_without_keys_of_its_own_a_client_keeps_its_share() -> None:
    assert SHARES.replaced_by(ClientConfig(name="a", secret="")) == SHARES
