import pytest

import omq
from omq.client import connect
from omq.client.address import parse_url


@pytest.mark.parametrize(
    "url", ["", "host:1", "http://h:1", "omq://", "omq://h:x", "omq://h:1/path", "omq://h:99999"]
)
def test_bad_addresses(url: str) -> None:
    with pytest.raises(ValueError, match="omq://HOST:PORT"):
        connect(url)


def test_connect_is_at_the_top() -> None:
    assert omq.connect is connect
    with pytest.raises(AttributeError):
        omq.disconnect  # noqa: B018


def test_good_addresses() -> None:
    assert parse_url("omq://example.org:1") == ("example.org", 1)
    assert parse_url("omq://[::1]:99/") == ("::1", 99)
    assert parse_url("omq://example.org") == ("example.org", 7730)
