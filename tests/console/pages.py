"""Opens the console in a browser, and looks at what a reader sees."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from server_command import RunningServer

from omq import blocking

PATIENCE = 60
"""The time limit for an expected event in seconds."""

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, where chromium has no sandbox
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-proxy-server",
    "--window-size=1400,900",
)

ATTACK = "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>"
"""A name or a body that changes the page where it is taken for HTML."""


class Page:
    """A browser with the console."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.origin = ""

    def open(self, origin: str, path: str = "") -> None:
        """Open the console of a server again, at a page."""
        self.origin = origin
        self.driver.get("about:blank")
        self.driver.get(f"{origin}/{path}")

    def leave(self) -> None:
        """Leave the console, before its server is stopped."""
        self.driver.get("about:blank")

    def go(self, path: str) -> None:
        """Follow a link within the console."""
        self.script(f"location.hash = {path!r}")

    def script(self, program: str, *arguments: object) -> Any:
        return self.driver.execute_script(program, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements, also of those that are scrolled away, in one look."""
        found: list[str] = self.script(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector
        )
        return found

    def until(self, condition: Callable[[], object], what: str | Callable[[], str]) -> None:
        """Wait until a condition holds. `what`: the error if it does not, or what returns it then."""
        try:
            WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda _: condition())
        except TimeoutException:
            pytest.fail(what if isinstance(what, str) else what())

    def sees(self, selector: str, text: str) -> None:
        """Wait until an element has this text in it."""
        self.until(
            lambda: any(text in each for each in self.texts(selector)),
            lambda: f"no {selector} has {text!r}, but: {self.texts(selector)}",
        )

    def click(self, selector: str, text: str = "") -> None:
        """Click on the first element that has this text, as soon as there is one."""
        self.sees(selector, text)
        next(each for each in self.all(selector) if text in (each.get_attribute("textContent") or "")).click()

    def type(self, selector: str, text: str) -> None:
        self.until(lambda: self.all(selector), f"there is no {selector}")
        self.all(selector)[0].send_keys(text)

    def errors(self) -> list[str]:
        """Return the errors of the browser's console, and forget them."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]  # Selenium has no type for it
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]


@contextmanager
def opened() -> Iterator[Page]:
    """Run a browser."""
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield Page(driver)
    finally:
        driver.quit()


def origin(server: RunningServer) -> str:
    """Return the address of a server's console."""
    return f"http://{server.address}"


def publish(client: blocking.Client, topic: str, *bodies: str) -> None:
    """Publish messages, and wait until they are confirmed."""
    client.publish_many(topic, [body.encode() for body in bodies])
    client.confirm()


def tailing(page: Page, client: blocking.Client, topic: str) -> None:
    """Wait until the tail of the page is subscribed."""
    page.until(
        lambda: any(each.topic == topic.encode() and each.subscribers for each in client.topics()),
        f"nobody is subscribed to {topic}",
    )
