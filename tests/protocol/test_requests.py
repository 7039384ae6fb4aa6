"""HTTP without a socket: what is a request, the limits of its head, and the octets of answers."""

import pytest

from omq.protocol.http.requests import BadRequest, HttpAnswer, HttpRequest, Requests


def fed(*parts: bytes) -> tuple[Requests, HttpRequest | BadRequest | None]:
    """Return a connection that was fed these octets, and what its last search has found."""
    requests = Requests((("Server", "omq"),))
    found = None
    for part in parts:
        requests.feed(part)
        found = requests.next()
    return requests, found


def get(fields: bytes = b"", target: bytes = b"/x") -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: here\r\n%s\r\n" % (target, fields)


def padded(octets: int) -> bytes:
    """Return a head of this many octets."""
    return get(b"X: " + b"x" * (octets - len(get()) - len(b"X: \r\n")) + b"\r\n")


def test_a_head_has_8192_octets_at_most() -> None:
    assert len(padded(8192)) == 8192
    assert isinstance(fed(padded(8192))[1], HttpRequest)
    for octets in (padded(8193), padded(8193)[:-1] + b"y", padded(9000)[:8193]):
        requests, found = fed(octets)
        assert found == BadRequest(431, "the head of a request has at most 8192 octets")
        assert requests.is_over
    assert fed(padded(9000)[:8192])[1] is None


def test_a_request_line_has_8192_octets_at_most() -> None:
    line = b"GET /" + b"x" * 8186
    assert len(line) == 8191
    assert fed(line + b"\n" + b"y")[1] == BadRequest(431, "the head of a request has at most 8192 octets")
    assert fed(line + b"x\n")[1] == BadRequest(414, "a request line has at most 8192 octets")
    assert fed(line + b"x")[1] is None


def test_a_head_has_64_lines_at_most() -> None:
    most = get(b"a: b\r\n" * 62)
    assert most.count(b"\n") == 65  # the last one is the empty line
    assert isinstance(fed(most)[1], HttpRequest)
    assert fed(get(b"a: b\r\n" * 63))[1] == BadRequest(431, "the head of a request has at most 64 lines")


@pytest.mark.parametrize("head", [get(), get().replace(b"\r\n", b"\n"), b"\r\n\n" + get()])
def test_a_head_may_be_cut_anywhere(head: bytes) -> None:
    for cut in range(1, len(head)):
        requests, found = fed(head[:cut], head[cut:] + b"rest")
        assert isinstance(found, HttpRequest), cut
        assert (found.method, found.path, found.authority) == ("GET", "/x", "here")
        assert requests.has_begun
        assert requests.rest() == b"rest"
        assert not requests.has_begun
    requests, found = fed(*(bytes((octet,)) for octet in head))
    assert isinstance(found, HttpRequest)
    assert not requests.is_over


@pytest.mark.parametrize(
    ("target", "path", "authority"),
    [
        (b"/a/b?c=d", "/a/b", "here"),
        (b"/", "/", "here"),
        (b"*", "*", "here"),
        (b"http://there", "/", "there"),
        (b"http://there:80/a?b", "/a", "there:80"),
        (b"https://there/", "/", "there"),
        (b"ftp://there/a", "ftp://there/a", "here"),
        (b"//there/a", "//there/a", "here"),
    ],
)
def test_the_target_and_the_host_say_what_is_wanted(target: bytes, path: str, authority: str) -> None:
    _, found = fed(get(target=target))
    assert isinstance(found, HttpRequest)
    assert (found.target, found.path, found.authority) == (target.decode(), path, authority)
    assert not found.has_body


def test_repeated_fields_are_joined_and_bodies_seen() -> None:
    _, found = fed(get(b"A: 1\r\nB: 2\r\na: 3\r\nContent-Length: 1\r\n"))
    assert isinstance(found, HttpRequest)
    assert (found.field(b"a"), found.field(b"b"), found.field(b"c")) == ("1, 3", "2", None)
    assert found.has_body


def head_of(parts: list[bytes]) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Return the first line of an answer, its fields without the date, and its body."""
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    line, *rest = head.split(b"\r\n")
    fields = {name.lower(): value for name, _, value in (each.partition(b": ") for each in rest)}
    assert fields.pop(b"date").endswith(b" GMT")
    return line, fields, body


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_answers(method: str) -> None:
    requests, found = fed(get().replace(b"GET", method.encode()))
    assert isinstance(found, HttpRequest)
    answer = HttpAnswer.text(404, "nothing", (("Cache-Control", "no-store"),))
    line, fields, body = head_of(requests.answer(answer))
    assert line == b"HTTP/1.1 404 Not Found"
    assert fields == {
        b"server": b"omq",
        b"cache-control": b"no-store",
        b"content-type": b"text/plain; charset=utf-8",
        b"content-length": b"8",
    }
    assert body == (b"nothing\n" if method == "GET" else b"")
    assert not requests.is_over
    requests.feed(get())
    assert isinstance(requests.next(), HttpRequest)
    line, fields, body = head_of(requests.answer(HttpAnswer(304, b"ignored")))
    assert (line, fields, body) == (b"HTTP/1.1 304 Not Modified", {b"server": b"omq"}, b"")
    requests.feed(get())
    assert isinstance(requests.next(), HttpRequest)
    _, fields, _ = head_of(requests.answer(HttpAnswer(200, b"x", ends=True)))
    assert fields[b"connection"] == b"close"
    assert requests.is_over


def test_the_body_of_an_answer_is_not_copied() -> None:
    requests, _ = fed(get())
    body = b"x" * 1000
    parts = requests.answer(HttpAnswer(200, body))
    assert any(part is body for part in parts)
    assert all(parts)


@pytest.mark.parametrize(
    ("octets", "has_body"),
    [
        (b"nonsense\r\n\r\n", True),
        (b"GET http://[/ HTTP/1.1\r\nHost: a\r\n\r\n", True),
        (b"HEAD http://[/ HTTP/1.1\r\nHost: a\r\n\r\n", False),
    ],
)
@pytest.mark.parametrize("before", [None, "HEAD", "GET"])
def test_a_refused_request_is_the_last(octets: bytes, has_body: bool, before: str | None) -> None:
    requests = Requests((("Server", "omq"),))
    if before is not None:
        requests.feed(get().replace(b"GET", before.encode()))
        assert isinstance(requests.next(), HttpRequest)
        requests.answer(HttpAnswer.text(200, "yes"))
    requests.feed(octets)
    found = requests.next()
    assert isinstance(found, BadRequest)
    assert found.status == 400
    assert requests.is_over
    _, fields, body = head_of(requests.answer(HttpAnswer.text(400, "no")))
    assert fields[b"connection"] == b"close"
    assert body == (b"no\n" if has_body else b"")
