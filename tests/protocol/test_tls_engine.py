"""TLS without a socket: two engines that exchange their octets."""

from pathlib import Path

import pytest
from certificates import Authority
from hypothesis import given, settings
from hypothesis import strategies as st

from omq.config import Config
from omq.credentials import client_context
from omq.protocol.tls import RECORD_OCTETS, CertificateRefused, TlsEngine, TlsError
from omq.terminals.connection.certificates import Certificates


class Pair:
    """Return a client and a server after their handshake."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        shown = authority.issue("omq.test")
        server = Certificates(Config(tls_cert=str(shown.cert), tls_key=str(shown.key)))
        self.client = TlsEngine(client_context(authority.file, None, None), server_name="omq.test")
        self.server = server.engine()
        self.shake_hands()

    def shake_hands(self) -> None:
        done = [False, False]
        while not all(done):
            for number, one, other in ((0, self.client, self.server), (1, self.server, self.client)):
                done[number] = one.shake_hands()
                if octets := one.outgoing():
                    other.feed(octets)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair")


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, RECORD_OCTETS), max_size=6),
    st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    st.integers(1, 40_000),
)
def test_octets_arrive_as_they_were_however_they_are_cut(
    directory: Path, sizes: list[int], cuts: list[int], most: int
) -> None:
    pair = Pair(directory)
    plain = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    at = 0
    for size in sizes:
        pair.client.write(plain[at : at + size])
        at += size
    octets = pair.client.outgoing()
    got = b""
    at = number = 0
    while at < len(octets):
        cut = cuts[number % len(cuts)]
        pair.server.feed(octets[at : at + cut])
        at, number = at + cut, number + 1
        while data := pair.server.read(most):
            assert len(data) <= most
            got += data
        assert data is None
    assert got == plain
    assert pair.server.waiting == 0


def test_one_direction_ends_and_the_other_goes_on(directory: Path) -> None:
    """Also when received octets were not read yet at that moment."""
    pair = Pair(directory)
    pair.client.write(b"question")
    for _ in range(3):
        pair.server.write(b"a" * 10_000)
    octets = pair.server.outgoing()
    pair.client.feed(octets[:25_000])
    pair.client.finish()
    pair.client.finish()  # once is enough
    pair.server.feed(pair.client.outgoing())
    assert pair.server.read(100) == b"question"
    assert pair.server.read(100) == b""
    pair.client.feed(octets[25_000:])
    pair.server.write(b"z" * 10)
    pair.server.finish()
    pair.client.feed(pair.server.outgoing())
    got = b""
    while data := pair.client.read(7777):
        got += data
    assert data == b""
    assert got == b"a" * 30_000 + b"z" * 10


def test_an_end_without_close_notify(directory: Path) -> None:
    pair = Pair(directory)
    pair.client.write(b"whole")
    pair.client.write(b"cut off")
    pair.server.feed(pair.client.outgoing()[:-1])
    pair.server.feed(b"")
    assert pair.server.read(100) == b"whole"
    for _ in range(2):
        with pytest.raises(TlsError, match="the connection ended without a reason"):
            pair.server.read(100)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "wrong version number"),
        (b"", "the connection ended without a reason"),
        (bytes.fromhex("15030300020100"), "the connection ended without a reason"),  # close_notify
    ],
)
def test_a_handshake_with_a_peer_without_tls_fails(directory: Path, answer: bytes, problem: str) -> None:
    authority = Authority(directory)
    client = TlsEngine(client_context(authority.file, None, None), server_name="omq.test")
    assert not client.shake_hands()
    client.feed(answer)
    with pytest.raises(TlsError, match=problem) as raised:
        client.shake_hands()
    assert not isinstance(raised.value, CertificateRefused)


def test_octets_that_were_changed_in_transit(directory: Path) -> None:
    pair = Pair(directory)
    pair.client.write(b"x" * 100)
    octets = bytearray(pair.client.outgoing())
    octets[-1] ^= 1
    pair.server.feed(bytes(octets))
    for _ in range(2):
        with pytest.raises(TlsError):
            pair.server.read(100)
