"""Every path and method of HTTP, with the right that it takes (docs/HTTP.md).

The table is exhaustive: a path of the server that is neither here nor a file of the console fails here.
Inside a WebSocket clients use the commands of omq: `test_operations.py` runs these there, too.
"""

from http import HTTPMethod
from pathlib import Path

import pytest

import omq
from omq.access.rights import Right
from omq.metrics.resources import watched_resources
from omq.terminals.http.pages import load_pages
from omq.terminals.http.site import resources

from .conversation import serving
from .http_conversation import ask, basic, request
from .test_operations import client

RIGHTS = {
    "/": None,
    "/healthz": None,
    "/ws": None,
    "/metrics": Right.WATCH,
    "/readyz": Right.WATCH,
}
"""The right that each path takes; None for one that anyone may use. The files of the console are not here."""

CONSOLE = Path(omq.__file__).parent / "console"

METHODS = sorted(HTTPMethod)


async def test_every_path_is_a_file_of_the_console_or_has_its_right_here(store: Path) -> None:
    files = {f"/{path.relative_to(CONSOLE)}" for path in CONSOLE.rglob("*") if path.is_file()}
    async with serving(store) as host:
        served = set(resources(load_pages(), watched_resources(host.server)))
    assert served - files == set(RIGHTS)


async def test_anyone_gets_the_files_of_the_console_and_nothing_else(store: Path) -> None:
    async with serving(store, clients=[client("nobody")]) as host:
        for path in load_pages():
            answered = await ask(host, request(path))
            file = CONSOLE / path.removeprefix("/") if path != "/" else CONSOLE / "index.html"
            assert (answered.status, answered.body) == (200, file.read_bytes()), path


@pytest.mark.parametrize("path", RIGHTS)
async def test_a_path_takes_exactly_its_right(store: Path, path: str) -> None:
    right = RIGHTS[path]
    clients = [
        client("with", *([right] if right else [])),
        client("without", *(each for each in Right if each is not right)),
    ]
    allowed = 426 if path == "/ws" else 200  # a request that offers no upgrade opens no WebSocket
    async with serving(store, clients=clients) as host:
        for method in METHODS:
            fields = [{}, *({"Authorization": basic(f"{name}:sesame")} for name in ("without", "with"))]
            answers = [await ask(host, request(path, method, **each)) for each in fields]
            statuses = [answered.status for answered in answers]
            if method not in (HTTPMethod.GET, HTTPMethod.HEAD):
                assert statuses == [405] * 3, method
            elif right is None:
                assert statuses == [allowed] * 3, method
            else:
                assert statuses == [401, 403, allowed], method
                refusal = b"this client may not %s the server\n" % right.value.encode()
                assert answers[1].body == (b"" if method is HTTPMethod.HEAD else refusal)
