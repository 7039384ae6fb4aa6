from pathlib import Path

import pytest

import omq
from omq.client import ConnectionFailed, connect
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
        omq.disconnect  # noqa: B018 - to look it up must fail


async def test_an_error_has_brackets_around_an_ipv6_address() -> None:
    with pytest.raises(ConnectionFailed, match=r"^cannot connect to \[::1\]:1: "):
        async with connect("omq://[::1]:1"):
            pass


def test_good_addresses() -> None:
    assert parse_url("omq://example.org:1") == ("example.org", 1, False)
    assert parse_url("omq://[::1]:99/") == ("::1", 99, False)
    assert parse_url("omqs://example.org") == ("example.org", 7730, True)
    assert parse_url("omq://example.org") == ("example.org", 7730, False)


def test_an_address_with_a_secret_in_it_is_refused_without_repeating_it() -> None:
    for url in ("omq://me:hidden@h:1", "omqs://me:hidden@h:x"):
        with pytest.raises(ValueError, match="omq://HOST:PORT") as caught:
            parse_url(url)
        assert "hidden" not in str(caught.value)


def test_certificates_need_tls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="omqs://"):
        connect("omq://127.0.0.1:1", ca=tmp_path)
    with pytest.raises(ValueError, match=r"nothing\.pem: No such file or directory"):
        connect("omqs://127.0.0.1:1", ca=tmp_path / "nothing.pem")
    (tmp_path / "text.pem").write_text("text")
    with pytest.raises(ValueError, match=r"text\.pem: no certificate in PEM"):
        connect("omqs://127.0.0.1:1", ca=tmp_path / "text.pem")
    with pytest.raises(ValueError, match=r"text\.pem: no certificate in PEM with its key"):
        connect("omqs://127.0.0.1:1", certificate=tmp_path / "text.pem")
