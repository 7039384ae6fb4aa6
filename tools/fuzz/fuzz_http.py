"""Targets: requests of HTTP, and octets of a client through a WebSocket."""

from fuzz_checks import Target, check_pieces, check_sentence, in_pieces

from omq.protocol.http.origins import AllowedOrigins
from omq.protocol.http.requests import HEAD_OCTETS, BadRequest, HttpAnswer, HttpRequest, Requests
from omq.protocol.http.websocket import NoUpgrade, WebSocket, accept

_NOT_UTF_8 = b"\x88\x02\x03\xef"
"""A Close with the code 1007."""

_ORIGINS = AllowedOrigins.of(["omq.example"], ["https://friend.example"])


def check_requests(data: bytes) -> None:
    """Check that the answers are the same with the input in pieces or whole; a head that is kept has
    a bound.
    """
    check_pieces(data, _answers)


def _answers(pieces: list[bytes], _: int) -> list[HttpRequest | BadRequest]:
    requests = Requests(())
    found: list[HttpRequest | BadRequest] = []
    for piece in pieces:
        requests.feed(piece)
        while not requests.is_over and (request := requests.next()) is not None:
            found.append(request)
            if isinstance(request, BadRequest):
                check_sentence(request.why)
                requests.answer(HttpAnswer.text(request.status, request.why, ends=True))
                return found
            _check_request(request)
            requests.answer(HttpAnswer.text(200, "ok", ends=request.has_body))
    assert requests.is_over or len(requests.rest()) <= HEAD_OCTETS + sum(map(len, pieces))
    return found


def _check_request(request: HttpRequest) -> None:
    refusal = _ORIGINS.check(request, "127.0.0.1", is_encrypted=False)
    if refusal is not None:
        check_sentence(refusal.why)
    try:
        octets = accept(request.method, request.target, request.fields)
    except NoUpgrade as problem:
        check_sentence(str(problem))
    else:
        assert octets.startswith(b"HTTP/1.1 101 ")


def check_websocket(data: bytes) -> None:
    """Check that the octets of the stream, and the code of Close, are the same in pieces or whole. Text that
    is not UTF-8 may be read up to where that is known.
    """
    _, pieces = in_pieces(data)
    octets, *end = _stream([b"".join(pieces)])
    found, *found_end = _stream(pieces)
    assert found_end == end, (found_end, end)
    assert found == octets or (end[1] == _NOT_UTF_8 and found.startswith(octets)), (found, octets)


def _stream(pieces: list[bytes]) -> tuple[bytes, bool, bytes]:
    websocket = WebSocket()
    octets = b""
    for piece in pieces:
        websocket.feed(piece)
        has_more = True
        while has_more and not websocket.is_closed:
            read = websocket.read()
            octets += read.octets
            has_more = read.has_more
            assert read.pong is None or len(read.pong) <= 2 + 125
        if websocket.is_closed:
            break
    return octets, websocket.is_closed, websocket.close()


_GET = b"GET /ws?x HTTP/1.1\r\nHost: localhost:7730\r\n"
_UPGRADE = (
    _GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\nOrigin: http://localhost:7730\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)

TARGETS = (
    Target(
        "requests",
        "requests of HTTP, in pieces",
        check_requests,
        (
            b"\0" + _GET + b"\r\n" + _GET + b"\r\n",
            b"\1\x80" + _UPGRADE,
            b"\0POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
            b"\0GET http://omq.example/ HTTP/1.0\r\n\r\n",
            b"\0HEAD http://[/ HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\0HEAD * HTTP/1.1\nHost: [::1]:80\nTransfer-Encoding: chunked\n\n0\n\n",
        ),
        (
            b"\r\n",
            b"Host: ",
            b"Content-Length: ",
            b"Connection: close",
            b"Upgrade: ",
            b"HTTP/1.1",
            b"http://[",
        ),
        longest=1000,
    ),
    Target(
        "websocket",
        "frames of a WebSocket, in pieces",
        check_websocket,
        (
            b"\0\x82\x88\0\0\0\0" + bytes(7) + b"\1\x81\x83\0\0\0\0abc",
            b"\1\x40\x01\x81\1\2\3\4a\x80\x81\1\2\3\4b\x89\x80\0\0\0\0\x88\x82\0\0\0\0\3\xe8",
            b"\0\x82\xfe\x01\x00\0\0\0\0" + bytes(256),
            b"\0\x82\xff\0\0\0\0\0\1\0\0\0\0\0\0xyz",
        ),
        (b"\x81\x80", b"\x82\x80", b"\x88\x80", b"\x89\x80", b"\x8a\x80", bytes(4), b"\xfe", b"\xff"),
        longest=600,
    ),
)
