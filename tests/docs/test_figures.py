"""The figures of the README and of docs/COMPARISON.md are those of docs/PERFORMANCE.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

HEAD = "| | omq | NATS 2.9 | Redis 7.0 |"


def rows(document: str) -> dict[str, list[str]]:
    """Return the figures of each row of the table with this head, by what was measured."""
    lines = (ROOT / document).read_text().partition(HEAD)[2].splitlines()[2:]
    table = lines[: lines.index("")]
    assert len(table) > 5
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table]
    return {what: figures for what, *figures in cells}


def test_the_figures_of_the_readme_were_measured() -> None:
    text = (ROOT / "docs/PERFORMANCE.md").read_text()
    measured = [
        [re.sub(r" \(.*\)", "", cell.strip()) for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    for what, figures in rows("README.md").items():
        size = len(figures)
        assert any(
            figures == line[at : at + size] for line in measured for at in range(1, len(line) - size + 1)
        ), what


def test_the_comparison_has_the_figures_of_the_readme() -> None:
    compared = rows("docs/COMPARISON.md")
    assert compared.pop("memory of an idle server in MiB") == ["39", "12", "12"]
    text = (ROOT / "docs/PERFORMANCE.md").read_text()
    assert "An idle server uses 39 MiB of memory" in text
    assert re.search(r"NATS\s12\sand\sRedis\s12\b", text)
    known = rows("README.md")
    assert {what: known.get(what) for what in compared} == compared
    low = compared["one way at a low rate, median in µs"]
    lowest = "Redis, NATS: {2} and {1} µs in the median, omq {0} µs".format(*low)
    assert lowest in (ROOT / "docs/COMPARISON.md").read_text()


def test_the_figures_at_the_beginning_are_those_of_the_sections() -> None:
    text = (ROOT / "docs/PERFORMANCE.md").read_text()
    before, _, rest = text.partition("\n## How to repeat it\n")
    table = "".join(line for line in before.splitlines() if line.startswith("| ")).replace("0-9-1", "")
    number = r"\d(?:[\d,.]*\d)?"
    said = set(re.findall(number, re.sub(r"\]\(.*?\)", "", table)))
    assert len(said) > 20
    assert said <= set(re.findall(number, rest))
