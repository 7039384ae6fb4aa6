"""HTTP/1.1 as a server reads and answers it: octets in, requests out, one at a time, in their order.

It uses h11, which gets exactly one head at a time. So the size of a head and the number of its lines are
bounded before they are parsed, and pipelined requests wait unparsed until those before them are answered.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import urlsplit

import h11

HEAD_OCTETS = 8 << 10
"""The most octets of the head of a request."""

HEAD_LINES = 64
"""The most lines of the head of a request: each costs some microseconds."""

NO_STORE = (("Cache-Control", "no-store"),)
"""The header fields of an answer that is out of date at once."""

_HEAD_END = re.compile(rb"\n\r?\n")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The head of a request, and whether a body follows it."""

    method: str
    target: str
    """The target as it was sent."""
    path: str
    """The path in the target, not decoded."""
    authority: str
    """The host that the request is for: the authority in the target, or else the field Host. Empty without
    both.
    """
    fields: Sequence[tuple[bytes, bytes]]
    """The header fields; their names are lower-case."""
    has_body: bool

    def field(self, name: bytes) -> str | None:
        """Return the value of a header field; the values of a repeated one, joined; None without it."""
        values = [value for found, value in self.fields if found == name]
        return b", ".join(values).decode("latin-1") if values else None


@dataclass(frozen=True, slots=True)
class BadRequest:
    """The received octets are no request, or one that is too large: answer it, and end the connection."""

    status: int
    why: str


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer to a request."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    fields: tuple[tuple[str, str], ...] = ()
    """Header fields besides those that every answer has."""
    ends: bool = False
    """Whether the connection ends with this answer."""

    @classmethod
    def text(
        cls, status: int, line: str, fields: tuple[tuple[str, str], ...] = (), *, ends: bool = False
    ) -> "HttpAnswer":
        """Return an answer of one line."""
        return cls(status, line.encode() + b"\n", fields=fields, ends=ends)


class Requests:
    """The server's side of one connection. After `next` returned a request, call `answer` before `next`."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        """Create a connection without requests. `fields` are the header fields of every answer."""
        self._fields = fields
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_OCTETS)
        self._received = bytearray()
        self._searched = 0
        self._method = b""
        """The method of the request that h11 has read and that is not answered. An answer to HEAD has no
        body.
        """
        self.is_over = False
        """Whether no further request can follow."""

    @property
    def has_begun(self) -> bool:
        """Whether a part of a request was received that is not returned yet."""
        return bool(self._received)

    def feed(self, octets: bytes) -> None:
        """Take received octets."""
        self._received += octets

    def rest(self) -> bytes:
        """Take the octets that were received after the last request."""
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def next(self) -> HttpRequest | BadRequest | None:
        """Return the next request, or None if it has not arrived yet."""
        if not self._searched:
            blank = len(self._received) - len(self._received.lstrip(b"\r\n"))
            del self._received[:blank]  # RFC 9112, section 2.2: empty lines before a request are ignored
        end = _HEAD_END.search(self._received, max(0, self._searched - 3))
        size = len(self._received) if end is None else end.end()
        if size > HEAD_OCTETS:
            if self._received.find(b"\n", 0, HEAD_OCTETS) < 0:
                return self._refused(414, f"a request line has at most {HEAD_OCTETS} octets")
            return self._refused(431, f"the head of a request has at most {HEAD_OCTETS} octets")
        if end is None:
            self._searched = size
            return None
        self._searched = 0
        head = bytes(self._received[:size])
        del self._received[:size]
        if head.count(b"\n") > HEAD_LINES + 1:
            return self._refused(431, f"the head of a request has at most {HEAD_LINES} lines")
        return self._parse(head)

    def _parse(self, head: bytes) -> HttpRequest | BadRequest:
        self._http.receive_data(head)
        try:
            request = self._http.next_event()
            if not isinstance(request, h11.Request):
                return self._refused(400, "that is no request")
            self._method = request.method
            has_body = self._http.next_event() is h11.NEED_DATA
            target = request.target.decode("ascii")
            parts = urlsplit(target)
        except h11.RemoteProtocolError as problem:
            # Of the line that it refuses, h11 appends the representation of a Python object.
            return self._refused(problem.error_status_hint, str(problem).partition(": bytearray(")[0])
        except ValueError:
            return self._refused(400, "the target of the request cannot be read")
        fields = [(name, value) for name, value in request.headers]
        host = b"".join(value for name, value in fields if name == b"host").decode("latin-1")
        is_absolute = not target.startswith("/") and parts.scheme in ("http", "https")
        return HttpRequest(
            method=request.method.decode("ascii"),
            target=target,
            path=(parts.path or "/") if is_absolute else target.partition("?")[0],
            authority=parts.netloc if is_absolute else host,
            fields=fields,
            has_body=has_body,
        )

    def _refused(self, status: int, why: str) -> BadRequest:
        self.is_over = True
        return BadRequest(status, why)

    def answer(self, answer: HttpAnswer) -> list[bytes]:
        """Return the octets of the answer to the last request, in parts. One of them is the body itself: the
        connections that send one page have it once.
        """
        fields = [
            ("Date", formatdate(usegmt=True)),
            *self._fields,
            *answer.fields,
        ]
        if answer.status != 304:
            fields += [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        if answer.ends or self.is_over:
            fields.append(("Connection", "close"))
        reason = HTTPStatus(answer.status).phrase
        method, self._method = self._method, b""
        events: list[h11.Event] = [h11.Response(status_code=answer.status, headers=fields, reason=reason)]
        if answer.body and method != b"HEAD" and answer.status != 304:
            events.append(h11.Data(data=answer.body))
        events.append(h11.EndOfMessage())
        parts = [part for event in events for part in self._http.send_with_data_passthrough(event) or ()]
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.is_over = True
        return [part for part in parts if part]
