"""Requests that open a WebSocket, and those that do not; and the messages of an open one."""

import pytest
from wsproto.frame_protocol import FrameProtocol

from omq.protocol.http.websocket import NoUpgrade, WebSocket, accept

FIELDS = [
    (b"Host", b"localhost"), (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"), (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]  # fmt: skip


def test_the_fields_of_a_handshake_are_ascii() -> None:
    assert accept("GET", "/ws", FIELDS).startswith(b"HTTP/1.1 101 ")
    with pytest.raises(NoUpgrade, match="a header field of the handshake is not ASCII"):
        accept("GET", "/ws", [*FIELDS, (b"Sec-WebSocket-Protocol", b"\xff")])


def sent(*messages: bytes | str, ends: bool = True) -> WebSocket:
    """Return the server's side of a WebSocket on which a client has sent these messages, or parts of one."""
    client = FrameProtocol(client=True, extensions=[])
    socket = WebSocket()
    for number, message in enumerate(messages):
        socket.feed(bytes(client.send_data(message, fin=ends or number == len(messages) - 1)))
    return socket


@pytest.mark.parametrize(
    ("messages", "ends", "octets"),
    [
        (("",), True, b""),
        (("", "a", "", "b\n"), True, b"a\nb\n"),
        (("a\n", "b"), True, b"a\nb\n"),
        (("a\n", ""), False, b"a\n"),
        (("a", "b", ""), False, b"ab\n"),
        ((b"", b"a", b"b"), True, b"ab"),
    ],
)
def test_a_text_message_has_whole_lines(messages: tuple[bytes | str, ...], ends: bool, octets: bytes) -> None:
    read = sent(*messages, ends=ends).read()
    assert (read.octets, read.pong, read.has_more) == (octets, None, False)


@pytest.mark.parametrize("part", [1, 2])
def test_a_message_has_16_mib_at_most(part: int) -> None:
    for octets, is_closed in ((16 << 20, False), ((16 << 20) + 1, True)):
        parts = [bytes(octets // part), bytes(octets - octets // part)] if part > 1 else [bytes(octets)]
        socket = sent(*parts, ends=False)
        read = socket.read()
        while read.has_more and not socket.is_closed:
            read = socket.read()
        assert socket.is_closed is is_closed
        assert socket.close()[2:4] == (b"\x03\xf1" if is_closed else b"\x03\xe8")


@pytest.mark.parametrize(("count", "has_more"), [(31, False), (32, True), (33, True)])
def test_32_frames_are_read_at_a_time(count: int, has_more: bool) -> None:
    socket = sent(*[b"x"] * count)
    first = socket.read()
    assert (len(first.octets), first.has_more) == (min(count, 32), has_more)
    second = socket.read()
    assert (len(second.octets), second.has_more) == (max(count - 32, 0), False)
