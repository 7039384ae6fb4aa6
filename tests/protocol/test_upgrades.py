"""Requests that open a WebSocket, and those that do not."""

import pytest

from omq.protocol.http.websocket import NoUpgrade, accept

FIELDS = [
    (b"Host", b"localhost"), (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"), (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]  # fmt: skip


def test_the_fields_of_a_handshake_are_ascii() -> None:
    assert accept("GET", "/ws", FIELDS).startswith(b"HTTP/1.1 101 ")
    with pytest.raises(NoUpgrade, match="a header field of the handshake is not ASCII"):
        accept("GET", "/ws", [*FIELDS, (b"Sec-WebSocket-Protocol", b"\xff")])
