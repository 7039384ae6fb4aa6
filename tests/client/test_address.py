from pathlib import Path

import pytest

import omq
from omq.bulk.remote import parse_servers
from omq.client import ConnectionFailed, connect
from omq.server_address import Address, parse_url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:1",
        "http://h:1",
        "omq://",
        "omq://h:x",
        "omq://h:1/path",
        "omq://h:99999",
        "omq://h:0",
        "omq://h?x",
    ],
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
    for url, address in [
        ("omq://example.org:1", Address("example.org", 1)),
        ("omq://[::1]:99/", Address("::1", 99)),
        ("omqs://example.org", Address("example.org", 7730, tls=True)),
        ("omq://Example.org", Address("example.org", 7730)),
    ]:
        assert parse_url(url) == address
        assert parse_servers(url) == (address,)
        assert parse_url(address.url) == address


def test_bulk_readers_take_several_addresses_also_without_omq_in_front() -> None:
    assert parse_servers("a, b:1,[::1],[::1]:2/") == (
        Address("a", 7730),
        Address("b", 1),
        Address("::1", 7730),
        Address("::1", 2),
    )
    for text in [
        "",
        "a,",
        "a:x",
        "a:0",
        "a:99999",
        "::1",
        "a?b",
        "a/b",
        "http://a",
        "omq://a?b",
        "[a",
        "a b:c",
    ]:
        with pytest.raises(ValueError, match="form HOST:PORT, omq://HOST:PORT or omqs://HOST:PORT"):
            parse_servers(text)
    with pytest.raises(ValueError, match="or none"):
        parse_servers("omqs://a,b")


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
