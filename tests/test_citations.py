"""Citations in comments and documents: the cited sections of our documents and the cited modules exist, and
the other texts are those of docs/ARCHITECTURE.md, "References".
"""

import re
from pathlib import Path

import pytest
from tracked import ROOT, tracked

DOCUMENTS = {path.name: path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}

TEXTS = tracked(".py", ".pyx", ".pxi", ".pyi", ".md", ".lua", ".sh", ".js", ".mjs", ".toml", ".ini")
"""The source texts and the documents."""

# `docs/PROTOCOL.md, "Round-robin"`, and `[PROTOCOL.md](PROTOCOL.md), "Round-robin"`
SECTION = re.compile(r'\b(?:docs/)?([A-Z][A-Z0-9_.-]*\.md)\)?, ("[^"]+"(?: and "[^"]+")*)')

ARCHITECTURE = DOCUMENTS["ARCHITECTURE.md"].read_text()
LISTED = [
    name
    for row in re.findall(r"^\| (.+?) \|", ARCHITECTURE.partition("\n## References\n")[2], re.MULTILINE)
    for name in row.split(", ")
    if name != "cited as"
]
"""The names under which the references may be cited."""

NAMED = "|".join(sorted(map(re.escape, LISTED), key=len, reverse=True))

# `AMQP 1.0, part 2, section 2.7, "Performatives"; part 5, section 5.3.3, "SASL Frame"`
PLACE = r'(?:part|section|chapter) [0-9][0-9.]*(?:, "[^"]+")?'
PLACES = rf"{PLACE}(?:(?:,|;|,? and) {PLACE})*"
CITATION = re.compile(rf"\b(?:{NAMED})(?: specification)?, {PLACES}")

# `(section 2.7.5, "Transfer")`, where the file says of which text.
IMPLIED = re.compile(rf"\({PLACES}")

OURS = rf"(?:docs/)?(?:{'|'.join(map(re.escape, DOCUMENTS))})\b"
KNOWN = re.compile(rf"{OURS}|(?:{NAMED})(?![\w-])")

SOURCE = re.compile(r"\bSource: ([^\n]*)")

# `(6-DMP, "Heartbeating")`
TITLE = re.compile(r'(?<=[a-z] )\((?!(?:part|section) )([\w .-]{1,60}), "[A-Z]')


def words(text: str) -> str:
    """Return the text on one line, without the marks of comments, which would be between the words of a
    citation.
    """
    return " ".join(re.sub(r"\n[ \t]*(?:#[: ]?|//)?[ \t]*", "\n", text).split())


def unlisted(text: str) -> list[str]:
    """Return the citations of a text that are neither in the list of references nor a document that
    exists.
    """
    found = [source for source in SOURCE.findall(text) if not KNOWN.match(source)]
    text = words(text)
    found += [rfc for rfc in re.findall(r"\bRFC [0-9]+\b", text) if rfc not in LISTED]
    found += [path for path in re.findall(r"\bdocs/[\w./-]+\.md\b", text) if not (ROOT / path).exists()]
    found += [name for name in TITLE.findall(text) if not KNOWN.search(name)]
    rest = CITATION.sub("", text)
    if re.search(NAMED, text):
        rest = IMPLIED.sub("", rest)
    return found + [rest[max(0, place.start() - 40) : place.end()] for place in re.finditer(PLACE, rest)]


def headings(document: Path) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE))


def cited(path: Path) -> list[tuple[str, str]]:
    """Return the documents and sections that a file names."""
    return [
        (document, section)
        for document, sections in SECTION.findall(words(path.read_text()))
        for section in re.findall(r'"([^"]+)"', sections)
    ]


# `omq.drivers.seam.Subscriber`
NAME = re.compile(r"\bomq(?:_storage)?(?:\.[A-Za-z_]\w*){2,}")


def exists(name: str) -> bool:
    """Return whether a module of ours has this name, or defines it. A name in another space, such as that of
    a logger or of an option of Spark, is not looked up.
    """
    package, *parts = name.split(".")
    folder = ROOT / "storage" / package if package == "omq_storage" else ROOT / package
    if not (folder / parts[0]).is_dir() and not (folder / f"{parts[0]}.py").exists():
        return True
    while parts and (folder / parts[0]).is_dir():
        folder = folder / parts.pop(0)
    if parts and (folder / f"{parts[0]}.py").exists():
        text = (folder / f"{parts.pop(0)}.py").read_text()
    else:
        text, parts = (folder / "__init__.py").read_text(), parts[:1]  # it imports classes, not their members
    return all(re.search(rf"\b{each}\b", text) for each in parts)


def test_every_module_and_name_that_is_cited_exists() -> None:
    texts = [path for path in tracked(".py", ".pyx", ".pxi") if path.relative_to(ROOT).parts[0] != "tests"]
    cited = {(path.name, name) for path in texts for name in NAME.findall(path.read_text())}
    assert len(cited) > 500
    assert {(path, name) for path, name in cited if not exists(name)} == set()
    assert exists("omq.drivers.seam.Channel")
    assert not exists("omq.drivers.seam.Missing")
    assert not exists("omq.drivers.missing")


def test_every_section_that_is_cited_exists() -> None:
    sections = {name: headings(path) for name, path in DOCUMENTS.items()}
    missing = [
        f'{path.relative_to(ROOT)} cites {document}, "{section}"'
        for path in TEXTS
        for document, section in cited(path)
        if section not in sections.get(document, ())
    ]
    assert missing == []


def test_citations_are_found() -> None:
    found = [each for path in tracked(".py") for each in cited(path)]
    assert ("PROTOCOL.md", "Idempotent producers") in found
    assert ("PROTOCOL.md", "Watch and control") in cited(DOCUMENTS["CONSOLE.md"])  # as a link
    assert len(found) > 20


def test_no_private_document_is_cited() -> None:
    unseen = re.compile(r"\bdesign,\s+(?:section\s)?[0-9]|\bDESIGN\.md")
    this = Path(__file__)
    texts = [path for path in TEXTS if path != this]
    assert [path.name for path in texts if unseen.search(path.read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "omq secret text, section 7",
        'the secret text, "Errors"',
        "Source: omq text, Message format",
        "RFC 99999",
        "docs/PROTOCOL.md, section 99",
        "docs/MISSING.md",
    ],
)
def test_a_text_that_is_not_listed_is_found(text: str) -> None:
    assert unlisted(f"Parse it as somebody says ({text}).\n")


def test_only_listed_texts_are_cited() -> None:
    this = Path(__file__)
    texts = [path for path in TEXTS if path != this]
    cited = {str(path.relative_to(ROOT)): unlisted(path.read_text()) for path in texts}
    assert {path: found for path, found in cited.items() if found} == {}


def test_every_listed_text_is_cited() -> None:
    texts = [path for path in tracked(".py", ".pyx", ".pxi", ".md") if path.name != "ARCHITECTURE.md"]
    everything = "\n".join(path.read_text() for path in texts)
    assert [name for name in LISTED if name not in everything] == []
