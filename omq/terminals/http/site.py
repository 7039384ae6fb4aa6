"""The answers of the HTTP server: its paths, the rights that they need, and the checks of each request."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import assert_never

import trio

from omq.access.rights import Right
from omq.access.session import Session
from omq.config import Config, parse_address
from omq.drivers.reasons import Reason, Refused
from omq.protocol.http.basic import CHALLENGE, read_basic
from omq.protocol.http.origins import AllowedOrigins
from omq.protocol.http.requests import NO_STORE, HttpAnswer, HttpRequest
from omq.terminals.connection.context import Context
from omq.terminals.connection.transport import Transport
from omq.terminals.http.pages import Page, load_pages
from omq.threads import in_thread

ALLOWED = ("GET", "HEAD")

FIELDS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
"""The header fields of every answer."""

AT_A_TIME = 4
"""The number of large answers that are made at a time."""

GONE_SECONDS = 1.0
"""The number of seconds of waiting after which a client that has finished sending gets no answer: it has
closed the connection meanwhile.
"""


@dataclass(frozen=True, slots=True)
class WatchedResource:
    """A resource that only clients with the right `watch` may read."""

    answer: Callable[[HttpRequest], Awaitable[HttpAnswer]]
    is_large: bool = False


@dataclass(frozen=True, slots=True)
class LivenessResource:
    """Tells anyone that the server is alive."""


@dataclass(frozen=True, slots=True)
class WebSocketResource:
    """A WebSocket, which anyone may open. It carries the omq protocol, whose `Connect` names the client."""


Resource = Page | WatchedResource | LivenessResource | WebSocketResource
"""The resource at one path. Its type says who may read it."""


def resources(pages: Mapping[str, Page], watched: Mapping[str, WatchedResource]) -> Mapping[str, Resource]:
    """Return all resources of a server, by their paths."""
    return {"/healthz": LivenessResource(), "/ws": WebSocketResource(), **watched, **pages}


@dataclass(frozen=True, slots=True)
class WebSocketRequest:
    """A request that asks for the WebSocket, from a page or a program that may open it."""


class Site:
    """All paths of a server. The connections of HTTP share it."""

    def __init__(self, context: Context, served: Mapping[str, Resource]) -> None:
        config = context.config
        self._context = context
        self._resources = served
        self._slots = trio.CapacityLimiter(AT_A_TIME)
        self._origins = AllowedOrigins.of((*_names(config), *config.http_hosts), config.http_origins)

    @classmethod
    async def load(cls, context: Context, watched: Mapping[str, WatchedResource]) -> "Site":
        """Read the pages, and make the site of a server."""
        return cls(context, resources(await in_thread(load_pages), watched))

    async def answer(
        self, request: HttpRequest, transport: Transport, held: AsyncExitStack
    ) -> HttpAnswer | WebSocketRequest:
        """Answer a request, or return that it may open the WebSocket. `held` ends when the answer is sent."""
        resource = self._resources.get(request.path)
        refusal = self._origins.check(request, transport.local(), is_encrypted=transport.is_encrypted)
        if refusal is None and isinstance(resource, WatchedResource | WebSocketResource):
            refusal = self._origins.check_read(request)
        if refusal is not None:
            return HttpAnswer.text(refusal.status, refusal.why, ends=True)
        answer = await self._answer(resource, request, transport, held)
        origin = request.field(b"origin")
        if isinstance(answer, HttpAnswer) and origin is not None and self._origins.is_foreign(origin):
            allowed = (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))
            return replace(answer, fields=(*answer.fields, *allowed))
        return answer

    async def _answer(
        self, resource: Resource | None, request: HttpRequest, transport: Transport, held: AsyncExitStack
    ) -> HttpAnswer | WebSocketRequest:
        if resource is None:
            return HttpAnswer.text(404, "there is no such page", ends=request.has_body)
        if request.method not in ALLOWED:
            return HttpAnswer.text(
                405,
                f"{request.path} accepts {' and '.join(ALLOWED)} only",
                (("Allow", ", ".join(ALLOWED)),),
                ends=request.has_body,
            )
        if request.has_body:
            return HttpAnswer.text(413, "a request has no body here", ends=True)
        match resource:
            case Page():
                return _page(resource, request)
            case WatchedResource():
                return await self._watch(resource, request, transport, held)
            case LivenessResource():
                return HttpAnswer.text(200, "ok", NO_STORE)
            case WebSocketResource():
                return WebSocketRequest()
            case _:
                assert_never(resource)

    async def _watch(
        self, resource: WatchedResource, request: HttpRequest, transport: Transport, held: AsyncExitStack
    ) -> HttpAnswer:
        access = self._context.access
        host = transport.host()
        id = b""
        if access.clients.are_known:
            if not transport.is_encrypted and not _is_loopback(host):
                why = "a name and a secret are accepted over TLS or from this machine only"
                return HttpAnswer.text(403, why, NO_STORE)
            shown = read_basic(request.field(b"authorization"))
            if shown is None:
                return _challenge("this needs the name and secret of a client with the right watch")
            id = shown
        session = None
        try:
            with trio.move_on_after(self._context.config.handshake_seconds):
                session = await access.connect(id, host, transport.peer())
        except Refused as refused:
            if refused.reason is Reason.QUOTA:
                return HttpAnswer.text(429, str(refused), NO_STORE)
            return _challenge(str(refused))
        if session is None:
            return HttpAnswer.text(503, "too many secrets are being checked: try again", NO_STORE)
        try:
            session.check_server(Right.WATCH)
            return await self._answer_within_limits(resource, request, session, transport, held)
        except Refused as refused:
            return HttpAnswer.text(403, str(refused), NO_STORE)
        finally:
            session.close()

    async def _answer_within_limits(
        self,
        resource: WatchedResource,
        request: HttpRequest,
        session: Session,
        transport: Transport,
        held: AsyncExitStack,
    ) -> HttpAnswer:
        """Make an answer when the limits allow it. Raises Refused.

        What may take long because of the client, such as its rate limit and the sending, takes only slots
        of this client: the slots of all clients are taken for the time of making an answer.
        """
        began = trio.current_time()
        if resource.is_large:
            await held.enter_async_context(session.large_answers)
        limit = session.rates.sent
        while True:
            if limit is not None:
                await limit.wait()
            async with self._slots if resource.is_large else nullcontext():
                if limit is not None and not limit.is_open():
                    continue  # another connection of this client was answered first
                if session.withdrawn is not None:
                    return _challenge(session.withdrawn)
                session.check_server(Right.WATCH)
                if trio.current_time() > began + GONE_SECONDS and transport.is_finished():
                    return HttpAnswer.text(408, "the client closed the connection", NO_STORE, ends=True)
                answer = await resource.answer(request)
                if limit is not None:
                    limit.spend(len(answer.body))
                return answer


def _challenge(why: str) -> HttpAnswer:
    return HttpAnswer.text(401, why, (("WWW-Authenticate", CHALLENGE), *NO_STORE))


def _page(page: Page, request: HttpRequest) -> HttpAnswer:
    fields = (("ETag", page.tag), ("Cache-Control", "no-cache"))
    known = [tag.strip().removeprefix("W/") for tag in (request.field(b"if-none-match") or "").split(",")]
    if page.tag in known or "*" in known:
        return HttpAnswer(304, fields=fields)
    return HttpAnswer(200, page.octets, page.content_type, fields)


def _names(config: Config) -> list[str]:
    """Return the hosts at which the configuration says to listen."""
    return [parse_address(address)[0] for address in config.listen + config.listen_tls + config.listen_http]


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
