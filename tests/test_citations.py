"""Citations in comments and documents: the cited sections of our documents exist, and no private document is
cited."""

import re
from pathlib import Path

import pytest
from tracked import ROOT, tracked

DOCUMENTS = {path.name: path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}

# `docs/PROTOCOL.md, "Round-robin"`, also where a line ends within.
SECTION = re.compile(r'\b(?:docs/)?([A-Z_-]+\.md),\s+("[^"]+"(?:\s+and\s+"[^"]+")*)')


def headings(document: Path) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE))


def cited(path: Path) -> list[tuple[str, str]]:
    """The documents and sections that a file names."""
    # A comment's marks would stand between the words of a citation that two lines share.
    text = re.sub(r"\n[ \t]*(?:#[: ]?[ \t]*)?", "\n", path.read_text())
    return [
        (document, " ".join(section.split()))
        for document, sections in SECTION.findall(text)
        for section in re.findall(r'"([^"]+)"', sections)
    ]


@pytest.mark.parametrize("path", tracked(".py", ".pyx", ".pxi", ".md"), ids=lambda path: path.name)
def test_a_section_that_is_cited_exists(path: Path) -> None:
    for document, section in cited(path):
        assert document in DOCUMENTS, f"{path.name} cites {document}"
        assert section in headings(DOCUMENTS[document]), f'{path.name} cites {document}, "{section}"'


def test_citations_are_found() -> None:
    found = [each for path in tracked(".py") for each in cited(path)]
    assert ("PROTOCOL.md", "Idempotent producers") in found
    assert len(found) > 20


def test_every_cited_document_exists() -> None:
    unseen = re.compile(r"\bdesign,\s+(?:section\s)?[0-9]|\bDESIGN\.md")
    this = Path(__file__)
    texts = [path for path in tracked(".py", ".pyx", ".pxi", ".md", ".lua", ".sh") if path != this]
    assert [path.name for path in texts if unseen.search(path.read_text())] == []
