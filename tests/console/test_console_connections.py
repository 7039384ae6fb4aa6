"""The connection of the console: lost and made again, signed in, and shown among the others."""

import shutil
import signal
from pathlib import Path

import pytest
from server_command import RunningServer, configured_server, running_server

from omq import blocking
from omq.access.hashes import hash_of
from omq.client import ConnectionLost
from omq.model import Delivery

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium or chromium-driver is not installed", allow_module_level=True)

from pages import ATTACK, Page, origin, publish, tailing  # noqa: E402 - it imports selenium


def test_a_lost_connection_is_told_and_made_again(browser: Page, tmp_path: Path, kept_address: str) -> None:
    options = ("--listen", kept_address, "--store", tmp_path / "store")
    with running_server(*options) as running:
        with blocking.connect(f"omq://{kept_address}") as client:
            client.declare("tail")
            browser.open(origin(running), "#/topics/tail")
            tailing(browser, client, "tail")
            publish(client, "tail", "before")
        browser.sees(".messages .body", "before")
        running.stop()
        browser.sees("#banner", "The connection to the server was lost")
        assert browser.all("#banner")[0].is_displayed()
        browser.sees("#link", "Not connected")
        style = browser.script(
            "const { opacity, filter } = getComputedStyle(document.querySelector('main'));"
            "return [opacity, filter]"
        )
        assert style == ["1", "grayscale(1)"]  # what is shown is old, and its text keeps its contrast
        browser.click("#delete")
        browser.click("dialog [data-confirm]")
        browser.sees(".toast.bad", "not connected")
        assert browser.script("return location.hash") == "#/topics/tail"
    with running_server(*options):
        browser.sees("#link", "Connected")
        assert not browser.all("#banner")[0].is_displayed()
        with blocking.connect(f"omq://{kept_address}") as client:
            tailing(browser, client, "tail")
            publish(client, "tail", "after")
        browser.sees(".messages .body", "after")
        assert browser.texts(".messages .body") == ["after", "before"]
        assert not browser.all(".tail .empty")[0].is_displayed()  # the loss is not told any more
        browser.leave()
    # The browser itself reports that it could not connect; the console adds nothing.
    assert all("WebSocket" in error for error in browser.errors())


def test_a_silent_server_is_told_until_it_goes_on(browser: Page, tmp_path: Path) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as running:
        with blocking.connect(f"omq://{running.address}") as client:
            publish(client, "busy", "0")
        browser.open(origin(running))
        browser.sees(".title .counts", "1 ·")
        browser.sees("#link", "Connected")
        running.process.send_signal(signal.SIGSTOP)
        try:
            # The last numbers of the server may still be on their way: more time passes until none is left.
            browser.script(
                "const now = performance.now.bind(performance); let passed = 0;"
                "performance.now = () => now() + passed;"
                "window.passing = setInterval(() => { passed += 11_000; }, 500);"
            )
            browser.sees("#link", "Silent since ")
            assert (
                browser.script("return getComputedStyle(document.querySelector('main')).filter")
                == "grayscale(1)"
            )
        finally:
            browser.script("clearInterval(window.passing)")
            running.process.send_signal(signal.SIGCONT)
        browser.sees("#link", "Connected")
        assert browser.script("return getComputedStyle(document.querySelector('main')).filter") == "none"
        browser.leave()


def test_the_warnings_of_a_restarted_server_replace_those_before(
    browser: Page, tmp_path: Path, kept_address: str
) -> None:
    """Both servers number them from 1 on."""

    def warned(running: RunningServer, key: str) -> None:
        (tmp_path / "omq.toml").write_text(f"{key} = 7\n")
        running.process.send_signal(signal.SIGHUP)
        browser.sees(".log li", key)
        assert len(browser.texts(".log li")) == 1

    (tmp_path / "omq.toml").write_text("")
    options = ("--config", tmp_path / "omq.toml", "--listen", kept_address, "--store", tmp_path / "store")
    with running_server(*options) as running:
        browser.open(origin(running), "#/server")
        browser.sees(".figures", "Version")
        warned(running, "ping_seconds")
    (tmp_path / "omq.toml").write_text("")
    with running_server(*options) as running:
        warned(running, "stall_seconds")
        browser.leave()
    assert all("WebSocket" in error for error in browser.errors())


def test_a_topic_that_has_become_a_queue_keeps_its_messages(
    browser: Page, tmp_path: Path, kept_address: str
) -> None:
    """Nothing subscribes to it, nor to a topic that is gone, which would create it."""
    options = ("--listen", kept_address, "--store", tmp_path / "store")
    with running_server(*options) as running, blocking.connect(f"omq://{kept_address}") as client:
        client.declare("jobs")
        browser.open(origin(running), "#/topics/jobs")
        tailing(browser, client, "jobs")
    with (
        running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as running,
        blocking.connect(f"omq://{running.address}") as client,
    ):
        client.delete("jobs")
        client.declare("jobs", Delivery.ROUND_ROBIN)
        publish(client, "jobs", "1", "2", "3")
    with running_server(*options):
        browser.sees(".badge", "Queue")
        browser.sees(".messages .body", "3")
        with blocking.connect(f"omq://{kept_address}") as client:
            (jobs,) = client.topics()
            assert (jobs.messages, jobs.subscribers) == (3, 0)
            client.delete("jobs")
            browser.sees(".notice h1", "There is no such topic")
            assert not client.topics()
        browser.leave()
    assert all("WebSocket" in error for error in browser.errors())


def test_a_client_signs_in(browser: Page, tmp_path: Path) -> None:
    page = browser
    page.errors()
    secret = hash_of(b"sesame")
    configuration = (
        f'[[clients]]\nname = "alice"\nsecret = "{secret}"\n'
        'declare = ["*"]\npublish = ["*"]\nsubscribe = ["*"]\nwatch = ["*"]\n'
        f'[[clients]]\nname = "bob"\nsecret = "{secret}"\nsubscribe = ["*"]\n'
        f'[[clients]]\nname = "carol"\nsecret = "{secret}"\nsubscribe = ["*"]\nwatch = ["prices"]\n'
        f'[[clients]]\nname = "dave"\nsecret = "{secret}"\npublish = ["none"]\n'
    )
    with configured_server(tmp_path, configuration) as running:
        page.open(origin(running))
        page.sees(".login h1", "Sign in")
        page.type("input[name=username]", "alice")
        page.type("input[name=secret]", "wrong\ue007")
        page.sees(".login [role=alert]", "No client has this name and secret")
        page.type("input[name=secret]", "sesame\ue007")
        page.sees("#client", "alice")
        page.go("#/server")
        page.sees(".log li", "a wrong secret for 'alice'")
        page.go("#/topics")
        with blocking.connect(f"omq://{running.address}", id="alice:sesame") as client:
            publish(client, "prices", "1")
            publish(client, "other", "1")
        page.sees(".rows .col-name", "prices")
        page.driver.refresh()  # the secret is kept for the tab, and nowhere else
        page.sees(".rows .col-name", "prices")
        assert page.script("return [localStorage.length, document.cookie]") == [0, ""]
        page.click("#sign-out")
        page.sees(".login h1", "Sign in")
        assert page.script("return sessionStorage.length") == 0
        # A client without the right to watch sees its topics, and is told about the rest.
        page.type("input[name=username]", "bob")
        page.type("input[name=secret]", "sesame\ue007")
        page.sees(".rows .col-name", "prices")
        page.go("#/server")
        page.sees(".notice h1", "need the right to watch all topics")
        page.sees(".notice code", 'watch = ["*"]')
        page.go("#/connections")
        page.sees(".empty", "This client may not watch the server")
        page.go("#/topics")
        page.sees(".rows .col-name", "other")
        assert page.texts(".rows .col-behind") == ["–", "–"]  # only Watch tells that
        page.click("#sign-out")
        # One that may watch some topics sees the others, too.
        page.type("input[name=username]", "carol")
        page.type("input[name=secret]", "sesame\ue007")
        page.sees(".rows .col-name", "other")
        assert sorted(page.texts(".rows .col-name")) == ["other", "prices"]
        assert sorted(page.texts(".rows .col-behind")) == ["0", "–"]
        page.click("#sign-out")
        # One without a right to any topic is not told that there are none.
        page.type("input[name=username]", "dave")
        page.type("input[name=secret]", "sesame\ue007")
        page.sees(".notice p", "this client has no right to any")
        page.leave()
        _, _, log = running.stop()
    assert "no client of that name" not in log  # the console does not try without a client
    # The browser itself reports that the server asks for a client; the console adds nothing.
    assert all("401" in error for error in page.errors())


def test_connections_are_shown_and_ended(page: Page, client: blocking.Client, server: RunningServer) -> None:
    publish(client, "read", "1")
    with blocking.connect(f"omq://{server.address}", id=ATTACK) as other:
        subscription = other.subscribe("read")
        page.open(origin(server), "#/connections")
        page.sees(".rows .col-client", ATTACK)
        page.type("input[type=search]", "onerror")
        page.sees(".title .counts", "1")
        page.click(".rows .col-client", ATTACK)
        page.sees("dialog h2", ATTACK)
        page.sees("dialog tbody", "read")
        page.click("dialog [data-disconnect]")
        page.click("dialog [data-confirm]")
        page.sees(".toast", "Disconnected")
        with pytest.raises(ConnectionLost):
            next(iter(subscription))
    page.until(lambda: not page.all(".rows .row"), "the connection is still shown")
    assert page.all("main img, dialog img") == []
    with blocking.connect(f"omq://{server.address}", id="gone"):
        page.open(origin(server), "#/connections")
        page.click(".rows .col-client", "gone")
        page.click("dialog [data-disconnect]")
        page.sees("dialog p", "gone from")
    page.click("dialog [data-confirm]")
    page.sees(".toast", "gone had ended this connection already")
    assert page.driver.title == "Connections · omq"


def test_connections_of_http_are_named_as_such(page: Page, server: RunningServer) -> None:
    page.open(origin(server), "#/connections")
    page.sees(".rows .col-client", "(HTTP)")
