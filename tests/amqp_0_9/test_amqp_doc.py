"""The examples of docs/AMQP.md, run against a server: each prints what the document says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_command import running_server

DOCUMENT = (Path(__file__).parents[2] / "docs" / "AMQP.md").read_text()

EXAMPLES = re.findall(r"^```python\n(.*?)^```\n+```\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    store = tmp_path_factory.mktemp("document") / "store"
    with running_server("--listen", "127.0.0.1:0", "--store", store) as server:
        yield server.port


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == DOCUMENT.count("```python") >= 3


@pytest.mark.parametrize(("program", "output"), EXAMPLES)
def test_an_example_prints_the_output_of_the_document(port: int, program: str, output: str) -> None:
    settings = f'host, port = "127.0.0.1", {port}\n'
    done = subprocess.run(
        [sys.executable, "-c", settings + program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == (output, "")
