"""docs/ as a site: it builds without a warning, is complete, and loads nothing from other hosts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import omq.client
from omq.cli.client import ACTIONS

pytest.importorskip("sphinx")

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "object": "data", "source": "src", "form": "action"}


class Page(HTMLParser):
    """The files that a page loads, its links, and the places to which links can lead."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.add(found.get("id", ""))
        if tag in LOADED and LOADED[tag] in found:
            self.loads.add(found[LOADED[tag]])
        elif tag == "link" and found.get("rel") != "canonical":
            self.loads.add(found["href"])
        elif tag == "a" and "href" in found:
            self.links.add(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `tools/site` does, where a warning is an error."""
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-b", "html", "--fail-on-warning", "--quiet"),
            *("-d", built / "trees", ROOT / "docs", built / "html"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return built / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in site.rglob("*.html")}


def test_pages_load_no_file_of_another_host(site: Path, pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        for loaded in page.loads:
            assert not urlsplit(loaded).netloc, (file, loaded)
            if not loaded.startswith("data:"):
                assert (file.parent / urlsplit(loaded).path).exists(), (file, loaded)
    for file in site.rglob("*.css"):
        assert "@import" not in file.read_text(), file
        assert "url(http" not in file.read_text(), file


def targets(file: Path, page: Page) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each link within the site."""
    for link in page.links:
        parts = urlsplit(link)
        if not parts.scheme:
            yield (
                (file.parent / unquote(parts.path)).resolve() if parts.path else file,
                unquote(parts.fragment),
            )


def test_every_link_within_the_site_leads_somewhere(pages: dict[Path, Page]) -> None:
    seen = 0
    for file, page in pages.items():
        for target, anchor in targets(file, page):
            seen += 1
            assert target.exists(), (file, target)
            assert not anchor or target.suffix != ".html" or anchor in pages[target].anchors, (target, anchor)
    assert seen > 1000


def test_every_page_is_reached_from_the_first_one(site: Path, pages: dict[Path, Page]) -> None:
    made = {site / f"{name}.html" for name in ("search", "genindex", "py-modindex")}  # by Sphinx
    reached: set[Path] = set()
    new = {site / "index.html"}
    while new:
        reached |= new
        led = {target for file in new for target, _ in targets(file, pages[file])}
        new = (led & pages.keys()) - reached
    assert reached | made == set(pages)


def test_the_reference_has_every_command_and_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    commands = pages[site / "COMMANDS.html"].anchors
    assert {f"omq-{name}" for name in ACTIONS} | {"omq", "omq-server", "omq-store-check"} <= commands
    api = pages[site / "PYTHON.html"].anchors
    assert {f"omq.client.{name}" for name in omq.client.__all__} - api == set()
    assert {"omq.blocking.connect", "omq.blocking.Client.subscribe", "omq.arrow.read_table"} <= api
    assert "omq.spark.local_session" in api


def test_the_search_knows_the_reference(site: Path) -> None:
    index = (site / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")")
    assert {"PROTOCOL", "PYTHON", "TUTORIAL"} <= set(json.loads(index)["docnames"])
