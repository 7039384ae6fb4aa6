"""docs/TROUBLESHOOTING.md: every sentence in a heading is one that a program of ours says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text()
PROTOCOL = (ROOT / "docs" / "PROTOCOL.md").read_text()

SENTENCES: list[str] = re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)


def specified() -> set[str]:
    blocks: list[str] = re.findall(r"^```errors\n(.*?)^```$", PROTOCOL, re.MULTILINE | re.DOTALL)
    return {line for block in blocks for line in block.splitlines()}


def literals() -> Iterator[str]:
    """Yield every string of the code, with … for what is filled in."""
    for file in [*(ROOT / "omq").rglob("*.py"), *(ROOT / "storage" / "omq_storage").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sdgr]|%\.\d[fg]", "…", node.value)


@pytest.fixture(scope="module")
def said() -> set[str]:
    return specified() | set(literals())


def test_the_page_names_enough_sentences() -> None:
    assert len(SENTENCES) > 40
    assert len(set(SENTENCES)) == len(SENTENCES)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_sentence_exists(sentence: str, said: set[str]) -> None:
    if re.match(r"(Subscribe|Publish|Confirm|Declare|Connect|Request|Received|Ping|COMMAND)\b", sentence):
        assert sentence in specified()
    else:
        assert any(sentence in each for each in said)
