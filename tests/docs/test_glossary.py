"""The glossary of docs/ARCHITECTURE.md: the server's source text has each of its terms."""

import re

import pytest
from tracked import ROOT, tracked

DOCUMENT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
GLOSSARY = DOCUMENT.partition("\n## Glossary\n")[2].partition("\n## ")[0]
TERMS = re.findall(r"^\| (.+?) \|", GLOSSARY, re.MULTILINE)[1:]
FOLDERS = (ROOT / "omq", ROOT / "storage" / "omq_storage")
SOURCE = "\n".join(path.read_text() for path in tracked(".py") if any(map(path.is_relative_to, FOLDERS)))


def test_terms_are_in_alphabetical_order() -> None:
    assert sorted(set(TERMS)) == TERMS
    assert len(TERMS) > 40


@pytest.mark.parametrize("term", TERMS)
def test_each_term_occurs_in_the_source_text(term: str) -> None:
    words = r"[\s-]+".join(map(re.escape, term.split()))
    assert re.search(rf"\b{words}(?:e?s|e?d)?\b", SOURCE, re.IGNORECASE)
