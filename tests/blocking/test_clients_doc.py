"""The examples of docs/CLIENTS.md, run as they stand, in their order, with the output that it shows."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from server_command import running_server

DOCUMENT = (Path(__file__).parents[2] / "docs" / "CLIENTS.md").read_text()

EXAMPLES: list[tuple[str, str]] = re.findall(
    r"^```python\n(.*?)^```$.*?^```text\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = tmp_path_factory.mktemp("document") / "store"
    with running_server("--listen", "127.0.0.1:0", "--store", store) as server:
        yield server.address


def test_every_example_has_its_output() -> None:
    assert len(EXAMPLES) == DOCUMENT.count("```python")


def test_the_examples(address: str) -> None:
    for code, output in EXAMPLES:
        assert "127.0.0.1:7730" in code
        if "omq.arrow" in code and find_spec("pyarrow") is None:
            continue
        done = subprocess.run(
            [sys.executable, "-c", code.replace("127.0.0.1:7730", address)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
