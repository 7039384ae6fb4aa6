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


@pytest.mark.parametrize(
    ("octets", "shown"),
    [
        (b"GET / HTTP", "47 45 54 20 2f 20 48 54 (GET / HT), which is HTTP"),
        (b"PRI * HTTP", "50 52 49 20 2a 20 48 54 (PRI * HT), which is HTTP/2"),
        (b"SSH-2.0-", "53 53 48 2d 32 2e 30 2d (SSH-2.0-), which is SSH"),
        (b"\x16\x03\x01\x02\x00\x01\x7f\x7e", "16 03 01 02 00 01 7f 7e (.......~), which is TLS"),
        (b"AMQP\x00\x00\x09\x01", "41 4d 51 50 00 00 09 01 (AMQP....), which is AMQP 0-9-1"),
        (b"AMQP\x01\x01\x00\x09", "41 4d 51 50 01 01 00 09 (AMQP....), which is AMQP 0-9"),
        (b"AMQP\x01\x01\x00\x0a", "41 4d 51 50 01 01 00 0a (AMQP....), which is AMQP 0-10"),
        (b"AMQP\x01\x01\x08\x00", "41 4d 51 50 01 01 08 00 (AMQP....), which is AMQP 0-8"),
        (b"AMQP\x00\x01\x00\x00", "41 4d 51 50 00 01 00 00 (AMQP....), which is AMQP 1.0"),
        (b"AMQP\x02\x01\x00\x00", "41 4d 51 50 02 01 00 00 (AMQP....), which is AMQP 1.0 with TLS"),
        (b"AMQP\x03\x01\x00\x00", "41 4d 51 50 03 01 00 00 (AMQP....), which is AMQP 1.0 with SASL"),
        (b"AMQP\x03", "41 4d 51 50 03 (AMQP.), which is AMQP"),
        (b"*1\r\n$4\r\n", "2a 31 0d 0a 24 34 0d 0a (*1..$4..), which is Redis"),
        (b"\x10\x10\x00\x04MQTT", "10 10 00 04 4d 51 54 54 (....MQTT), which is MQTT"),
        (b"\x10\x90\x01\x00\x06MQI", "10 90 01 00 06 4d 51 49 (.....MQI), which is MQTT"),
        (b"\x10\x10\x00\x05MQTT", "10 10 00 05 4d 51 54 54 (....MQTT)"),
        ((2).to_bytes(8, "big"), "00 00 00 00 00 00 00 02 (........), which is omq of version 2"),
        ((65535).to_bytes(8, "big"), "00 00 00 00 00 00 ff ff (........), which is omq of version 65535"),
        ((65536).to_bytes(8, "big"), "00 00 00 00 00 01 00 00 (........)"),
        (bytes(8), "00 00 00 00 00 00 00 00 (........)"),
        (bytes(6) + b"\x02", "00 00 00 00 00 00 02 (.......)"),
        (b"\x1f\x20~\x7f", "1f 20 7e 7f (. ~.)"),
        (b"", " ()"),
    ],
)
def test_the_beginning_of_a_connection_is_shown(octets: bytes, shown: str) -> None:
    assert handshake.shown(octets) == shown


def test_a_method_of_http_ends_with_a_space() -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"):
        octets = f"{method} /xxxxx".encode()[:8]
        assert handshake.recognise(octets) == Http(octets)
        octets = f"{method}X/xxxxx".encode()[:8]
        if len(method) < 8 and b"X" in octets:
            assert isinstance(handshake.recognise(octets), UnknownVersion)
