"""The looks of the console, and its use by keyboard and with a screen reader, in a real browser."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from server_command import RunningServer, running_server

from omq import blocking
from omq.watching import Limits

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium or chromium-driver is not installed", allow_module_level=True)

from pages import Page, origin, publish  # noqa: E402 - it imports selenium


def test_dark_and_light_and_narrow(page: Page, client: blocking.Client, server: RunningServer) -> None:
    publish(client, "other", "1")
    page.open(origin(server))
    page.sees(".rows .col-name", "other")
    grounds = set()
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        grounds.add(page.script("return getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    narrow = {"width": 380, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    try:
        for path in ("#/topics", "#/topics/other", "#/connections", "#/server"):
            page.go(path)
            page.until(lambda: page.all("main h1"), "there is no page")
            assert page.script("return document.documentElement.scrollWidth") <= 380
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


CUT_OFF = """
    const pen = document.createElement("canvas").getContext("2d");
    const padding = (style) => parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
    const hidden = [...document.querySelectorAll("input[placeholder]")].filter((each) => {
        const style = getComputedStyle(each);
        pen.font = style.font;
        return pen.measureText(each.placeholder).width > each.clientWidth - padding(style);
    });
    const chosen = [...document.querySelectorAll("select")].filter((each) => {
        const style = getComputedStyle(each);
        pen.font = style.font;
        const widest = Math.max(...[...each.options].map((option) => pen.measureText(option.text).width));
        return widest > each.clientWidth - padding(style) - 16; // the arrow
    });
    const wide = [...document.querySelectorAll("main, .tabs, .scroller, .panel")].filter(
        (each) => each.scrollWidth > each.clientWidth
    );
    const name = (each) => each.placeholder || each.name || each.className || each.id;
    return [...hidden, ...chosen, ...wide].map(name);
"""
"""The placeholders and options that are wider than their fields, and the parts that scroll sideways."""


@pytest.mark.parametrize("width", [320, 375])
def test_nothing_is_cut_off_on_a_telephone(
    page: Page, client: blocking.Client, server: RunningServer, width: int
) -> None:
    publish(client, "other", "1")
    narrow = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    try:
        for path, seen in (("topics", ".rows .row"), ("connections", ".rows .row"), ("server", ".share")):
            page.open(origin(server), f"#/{path}")
            page.until(partial(page.all, seen), f"{path} has no {seen}")
            assert page.script(CUT_OFF) == [], path
        page.open(origin(server))
        page.click("button", "Declare a topic")
        page.sees("dialog small", "Every subscriber gets every message.")
        assert page.script(CUT_OFF) == []
        page.open(origin(server), "#/topics/other")
        for tab in ("Live", "Stored messages", "Publish", "Subscribers"):
            page.click("[role=tab]", tab)
            page.sees("[role=tab][aria-selected=true]", tab)
            assert page.script(CUT_OFF) == [], tab
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


COLUMNS_CUT_OFF = """
    const shown = (each) => getComputedStyle(each).display !== "none";
    const scroller = document.querySelector(".scroller");
    const right = scroller.getBoundingClientRect().left + scroller.clientWidth;
    const cells = [...document.querySelectorAll(".grid .cell")].filter(shown);
    const outside = cells.filter((each) => each.getBoundingClientRect().right > right + 1);
    for (const each of document.querySelectorAll(".rows .number")) each.textContent = arguments[0];
    const texts = ".col-name, .col-client, .col-slow";
    const narrow = [...document.querySelectorAll(".rows .cell")]
        .filter((each) => shown(each) && !each.matches(texts))
        .filter((each) => each.scrollWidth > each.clientWidth);
    return [...outside, ...narrow].map((each) => each.className);
"""
"""The cells of a table that lie outside of it, or have no room for this number or for their text."""


def test_no_column_is_cut_off_at_any_width(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    publish(client, "kept", "1")
    client.retain("kept", Limits(10 * 2**30, 30 * 86_400_000))
    try:
        for width in (320, 361, 721, 768, 1001, 1024, 1279, 1280):
            size = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": False}
            page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            for path in ("#/topics", "#/connections"):
                page.open(origin(server), path)
                page.until(lambda: page.all(".rows .row"), "there is no row")
                if path == "#/topics":
                    page.sees(".rows .col-retention", "30 d, 10 GiB")
                assert page.script(COLUMNS_CUT_OFF, "9,999") == [], (width, path)
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_names_that_begin_alike_differ_on_a_telephone(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    for name in ("warehouse-7.shelf-0001", "warehouse-7.shelf-0002"):
        publish(client, name, "1")
    size = {"width": 361, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open(origin(server))
        page.sees(".rows .col-name", "warehouse-7.shelf-0002")
        whole = page.script(
            """
            return [...document.querySelectorAll(".rows .col-name")]
                .filter((each) => each.textContent.startsWith("warehouse"))
                .map((each) => each.scrollWidth <= each.clientWidth && each.scrollHeight <= each.clientHeight)
            """
        )
        assert whole == [True, True]
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_numbers_and_times_of_tables_are_short(page: Page, server: RunningServer) -> None:
    page.open(origin(server))
    told = page.script(
        """
        return import("/app/format.js").then(({ brief, duration }) => [
            [0, 999_999, 1_000_000, 12_345_678, 987_654_321_000].map(brief),
            [1500, 60_000, 61_000, 3_600_000, 5_400_000, 86_400_000, 90_000_000, 2_592_000_000].map(duration),
        ])
        """
    )
    assert told == [
        ["0", "999,999", "1M", "12.3M", "987.7B"],
        ["1.5 s", "1 min", "1 min 1 s", "1 h", "1 h 30 min", "1 d", "1 d 1 h", "30 d"],
    ]


def test_a_placeholder_is_as_dark_as_other_text(page: Page, server: RunningServer) -> None:
    page.open(origin(server))
    page.until(lambda: page.all("input[type=search]"), "there is no filter")
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        colours = page.script(
            """
            const search = document.querySelector("input[type=search]");
            const muted = document.querySelector(".counts");
            return [getComputedStyle(search, "::placeholder"), getComputedStyle(muted)]
                .map(({ color, opacity }) => `${color} ${opacity}`);
            """
        )
        assert colours[0] == colours[1], scheme


@pytest.mark.parametrize("width", [320, 360])
def test_the_bar_has_room_for_a_long_name_on_a_telephone(
    page: Page, server: RunningServer, width: int
) -> None:
    narrow = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    try:
        page.open(origin(server))
        page.sees("#link", "Connected")
        page.script(
            """
            document.getElementById("client").textContent = "backoffice-operator";
            document.getElementById("sign-out").hidden = false;
            document.getElementById("link").textContent = "Silent since 23:59:59";
            """
        )
        assert page.script(
            "const bar = document.querySelector('.bar'); return bar.scrollWidth <= bar.clientWidth"
        )
        assert (
            page.script("return document.getElementById('link').getBoundingClientRect().right") <= width - 14
        )
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_control_has_a_name(page: Page, client: blocking.Client, server: RunningServer) -> None:
    publish(client, "other", "1")
    for path in ("#/topics", "#/topics/other", "#/connections", "#/server"):
        page.open(origin(server), path)
        page.sees("#link", "Connected")
        page.until(lambda: page.all("main h1"), "there is no page")
        nameless = page.script(
            """
            const used = "button, input, select, textarea, a, [role=grid], [tabindex='0']";
            return [...document.querySelectorAll(used)]
                .filter((each) => !each.getAttribute("aria-label") && !each.closest("label"))
                .filter((each) => !each.textContent.trim())
                .map((each) => each.outerHTML)
            """
        )
        assert nameless == []


def test_every_page_scrolls_by_keyboard(page: Page, client: blocking.Client, server: RunningServer) -> None:
    publish(client, "other", *map(str, range(100)))
    page.driver.set_window_size(1200, 500)
    try:
        for path, seen in (
            ("#/topics", ".rows .row"),
            ("#/topics/other", ".figures"),
            ("#/connections", ".rows .row"),
            ("#/server", ".share"),
        ):
            page.open(origin(server), path)
            page.until(partial(page.all, seen), f"{path} has no {seen}")
            beyond_reach = page.script(
                """
                const stops = "button, a[href], input, select, textarea, [tabindex='0']";
                const scrolls = (each) => each.scrollHeight > each.clientHeight + 1
                    && ["auto", "scroll"].includes(getComputedStyle(each).overflowY);
                return [...document.querySelectorAll("body *")]
                    .filter((each) => scrolls(each) && !each.closest("[tabindex='0']"))
                    .filter((each) => ![...each.querySelectorAll(stops)].some((stop) => stop.offsetParent))
                    .map((each) => each.outerHTML.slice(0, 100))
                """
            )
            assert beyond_reach == []
            # The empty role is not ignored where the focus can be: the grid would have a foreign child.
            assert page.all("[role=grid] [role=presentation][tabindex]") == []
    finally:
        page.driver.set_window_size(1400, 900)


RECORD = """
window.told = [];
window.silent = 0;
const live = "[role=status], [role=alert], [aria-live=polite]";
new MutationObserver((changes) => {
    for (const { target } of changes) {
        const element = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
        if (!element.closest(live)) continue;
        if (element.closest("[aria-hidden=true]")) window.silent++;
        else window.told.push(element.textContent);
    }
}).observe(document.body, { subtree: true, childList: true, characterData: true });
"""
"""A script that records what a screen reader would read aloud."""


def test_a_screen_reader_is_told_only_what_is_new(browser: Page, tmp_path: Path) -> None:
    page = browser
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as running:
        with blocking.connect(f"omq://{running.address}") as client:
            publish(client, "busy", "0")
            page.open(origin(running))
            page.sees(".title .counts", "1 ·")
            page.script(RECORD)
            rates = set()

            def has_changed() -> bool:
                publish(client, "busy", *"1" * (1 + len(rates)))
                rates.add(page.texts(".title .counts")[0])
                return len(rates) > 3

            page.until(has_changed, "the rate of the messages does not change")
            assert page.script("return told") == []
        running.stop()
        page.sees("#banner", "Trying again")
        page.until(lambda: page.script("return silent > 3"), "nothing is tried again")
        first, *others = page.script("return told")
        assert first == "Not connected"
        assert len(others) == len(set(others)), "a loss is told again"  # its reason may be another one
        assert all(each.startswith("The connection to the server was lost: ") for each in others)
        page.leave()
    page.errors()
