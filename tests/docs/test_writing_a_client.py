"""docs/WRITING-A-CLIENT.md: its client is compiled and run, and prints what the page shows."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from server_command import running_server

PAGE = (Path(__file__).parents[2] / "docs" / "WRITING-A-CLIENT.md").read_text()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_client_behaves_as_the_page_shows(tmp_path: Path) -> None:
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    (tmp_path / "notes.c").write_text(blocks["c"])
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:

        def run(script: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["bash", "-euc", script.replace("7730", str(server.port))],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                timeout=60,
                check=False,
            )

        done = run(blocks["sh"])
        assert (done.returncode, done.stdout, done.stderr) == (0, blocks["text"], "")
        # It says what the server refuses.
        done = run(f"./notes 127.0.0.1 7730 '{'n' * 256}' refused")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith("the topic's name has 256 octets, more than 255\n")


def test_the_client_has_as_few_lines_as_the_page_says() -> None:
    (code,) = re.findall(r"^```c\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 60
