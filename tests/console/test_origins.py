"""A real browser and pages of other sites: they can do nothing with a server on the same machine.

See docs/HTTP.md, "Which requests are refused".
"""

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_command import RunningServer, running_server

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium or chromium-driver is not installed", allow_module_level=True)

from pages import ARGUMENTS  # noqa: E402 - it imports selenium
from selenium import webdriver  # noqa: E402 - only where it is installed
from selenium.webdriver.chrome.options import Options  # noqa: E402 - only where it is installed
from selenium.webdriver.chrome.service import Service  # noqa: E402 - only where it is installed

PATIENCE = 60

WEBSOCKET = """
const [url, done] = arguments
const socket = new WebSocket(url)
socket.onopen = () => { socket.close(); done("open") }
socket.onerror = () => done("refused")
"""

FETCH = """
const [url, done] = arguments
fetch(url).then((answer) => done(answer.status), () => done("refused"))
"""


class SilentFileHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def other_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a site of somebody else, with an empty page."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text("<!doctype html><title>other</title>")
    handler = functools.partial(SilentFileHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield site.server_port
        site.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, other_site: int) -> Iterator[RunningServer]:
    """Yield a server that lets the pages of one foreign site in."""
    folder: Path = tmp_path_factory.mktemp("server")
    configuration = folder / "omq.toml"
    configuration.write_text(f'http_origins = ["http://friend.example:{other_site}"]\n')
    options = ("--config", configuration, "--listen", "127.0.0.1:0", "--store", folder / "store")
    with running_server(*options) as running:
        yield running


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    """Yield a browser for which all names lead to this machine, as an attacker's own do."""
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (*ARGUMENTS, "--host-resolver-rules=MAP *.example 127.0.0.1"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE)
    driver.set_page_load_timeout(PATIENCE)
    yield driver
    driver.quit()


def test_the_servers_own_pages_may_use_it(driver: webdriver.Chrome, server: RunningServer) -> None:
    for host in ("127.0.0.1", "localhost"):
        driver.get(f"http://{host}:{server.port}/healthz")
        assert driver.execute_async_script(WEBSOCKET, f"ws://{host}:{server.port}/ws") == "open"
        assert driver.execute_async_script(FETCH, "/metrics") == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1"])
def test_pages_of_other_sites_may_not(
    driver: webdriver.Chrome, server: RunningServer, other_site: int, host: str
) -> None:
    driver.get(f"http://{host}:{other_site}/")
    assert driver.title == "other"
    for name in ("127.0.0.1", "localhost", "evil.example"):
        assert driver.execute_async_script(WEBSOCKET, f"ws://{name}:{server.port}/ws") == "refused"
        assert driver.execute_async_script(FETCH, f"http://{name}:{server.port}/metrics") == "refused"


def test_pages_of_a_configured_site_may(
    driver: webdriver.Chrome, server: RunningServer, other_site: int
) -> None:
    driver.get(f"http://friend.example:{other_site}/")
    assert driver.execute_async_script(WEBSOCKET, f"ws://localhost:{server.port}/ws") == "open"
    assert driver.execute_async_script(FETCH, f"http://localhost:{server.port}/metrics") == 200


def test_a_name_that_leads_here_is_not_the_servers(driver: webdriver.Chrome, server: RunningServer) -> None:
    """DNS rebinding: for the browser, the server is a part of the attacker's site."""
    driver.get(f"http://evil.example:{server.port}/healthz")
    assert "Host is no address of this server" in driver.find_element("tag name", "body").text
    assert driver.execute_async_script(WEBSOCKET, f"ws://evil.example:{server.port}/ws") == "refused"
    assert driver.execute_async_script(FETCH, "/metrics") == 421
