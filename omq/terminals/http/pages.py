"""The static files that the server offers: those of the package's folder `console`, and no others."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
"""Files with other endings are not offered."""

INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class Page:
    """One file."""

    octets: bytes
    content_type: str
    tag: str
    """Its ETag: two files with the same tag have the same octets."""


def load_pages() -> dict[str, Page]:
    """Read all files, and return them by their paths. This blocks."""
    pages = dict(_read(resources.files("omq") / "console", "/"))
    if f"/{INDEX}" in pages:
        pages["/"] = pages[f"/{INDEX}"]
    return pages


def _read(folder: Traversable, path: str) -> Iterator[tuple[str, Page]]:
    for file in folder.iterdir():
        ending = "." + file.name.rpartition(".")[2]
        if file.is_dir():
            yield from _read(file, f"{path}{file.name}/")
        elif ending in CONTENT_TYPES:
            octets = file.read_bytes()
            tag = f'"{hashlib.sha256(octets).hexdigest()[:32]}"'
            yield path + file.name, Page(octets, CONTENT_TYPES[ending], tag)
