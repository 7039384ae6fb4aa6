"""Every comment that silences ruff or mypy says why."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

SILENCED = re.compile(r"# (?:noqa|type: ignore)\b.*")
EXPLAINED = re.compile(r"# (?:noqa: [A-Z0-9, ]+ - |type: ignore\[[a-z, -]+\]  # )\S.*")


def test_every_ignore_has_its_rule_and_its_reason() -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("omq", "storage", "tests", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := SILENCED.search(line)) is not None and EXPLAINED.fullmatch(found[0]) is None
    ]
    assert silent == []
