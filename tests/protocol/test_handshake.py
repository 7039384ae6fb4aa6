import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol import handshake
from omq.protocol.handshake import Amqp0_9, Amqp1_0, Dmp, Http, Omq, OtherAmqp, Protocol, Tls, UnknownVersion


@pytest.mark.parametrize(
    ("octets", "protocol"),
    [
        ("0000000000000001", Omq(1)),
        ("0000000000000002", UnknownVersion(2)),
        ("0000000000000000", UnknownVersion(0)),
        ("ffffffffffffffff", UnknownVersion(-1)),
        ("0100000000000000", UnknownVersion(1 << 56)),
        ("414d51500a010001", Dmp()),
        ("414d51500a010002", OtherAmqp(b"AMQP\x0a\x01\x00\x02")),
        ("414d515000000901", Amqp0_9(b"AMQP\x00\x00\x09\x01")),
        ("414d515001010009", Amqp0_9(b"AMQP\x01\x01\x00\x09")),
        ("414d515000010000", Amqp1_0(b"AMQP\x00\x01\x00\x00")),
        ("414d515003010000", Amqp1_0(b"AMQP\x03\x01\x00\x00")),
        ("1603010200010001", Tls()),
        ("1603030000000000", Tls()),
        ("1602000000000000", UnknownVersion(0x1602 << 48)),
        ("505249202a204854", UnknownVersion(0x505249202A204854)),  # HTTP/2: "PRI * HT"
        ("474554202f204854", Http(b"GET / HT")),
        (b"HEAD /x ".hex(), Http(b"HEAD /x ")),
        (b"POST / H".hex(), Http(b"POST / H")),
        (b"OPTIONS ".hex(), Http(b"OPTIONS ")),
        (b"CONNECT ".hex(), Http(b"CONNECT ")),
        (b"GETX / H".hex(), UnknownVersion(0x47455458202F2048)),
    ],
)
def test_each_row_of_the_table(octets: str, protocol: Protocol) -> None:
    assert handshake.recognise(bytes.fromhex(octets)) == protocol


def test_the_answers_are_octet_exact() -> None:
    assert handshake.hello() == handshake.ACCEPTED == bytes.fromhex("0000000000000001")
    assert handshake.REFUSED == b"\xff" * 8
    assert handshake.answer_to_other(OtherAmqp(b"AMQP\x0a\x01\x00\x02")) == b"AMQP\x0a\x01\x00\x01"
    assert handshake.answer_to_other(OtherAmqp(b"AMQP\x01\x01\x08\x00")) == b"AMQP\x00\x00\x09\x01"


@given(st.binary(max_size=20).filter(lambda octets: len(octets) != handshake.LENGTH))
def test_anything_but_eight_octets_is_refused(octets: bytes) -> None:
    with pytest.raises(ValueError, match="8 octets"):
        handshake.recognise(octets)


@given(st.binary(min_size=8, max_size=8))
def test_any_eight_octets_are_recognised(octets: bytes) -> None:
    protocol = handshake.recognise(octets)
    match protocol:
        case Omq(version) | UnknownVersion(version):
            assert handshake.hello(version) == octets
        case Amqp0_9(header) | Amqp1_0(header) | OtherAmqp(header):
            assert header == octets
        case Dmp():
            assert octets == handshake.DMP_HEADER
        case Tls():
            assert octets[:2] == b"\x16\x03"
