"""The suites of oslo.messaging against omq: its functional suite, and that of its AMQP 1.0 driver."""

import subprocess
from pathlib import Path

import pytest
from server_command import COMMAND

from .test_oslo_messaging import PYTHON

SUITES = Path(__file__).with_name("oslo_suites.py")

NEEDED = "import oslo_messaging, proton, oslotest, testscenarios"


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python that has the suites."""
    if (
        not PYTHON.exists()
        or subprocess.run([PYTHON, "-c", NEEDED], capture_output=True, check=False).returncode
    ):
        pytest.skip("tools/test installs oslo.messaging and what its tests need where it can be built")
    return PYTHON


@pytest.mark.long
@pytest.mark.timeout(1900)
@pytest.mark.parametrize(
    ("suite", "said"), [("functional", "27 passed, 3 skipped"), ("driver", "26 passed, 0 skipped")]
)
def test_a_suite_of_oslo_messaging(python: Path, suite: str, said: str) -> None:
    done = subprocess.run(
        [python, "-W", "ignore", SUITES, COMMAND, suite],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == [said], done.stdout[-3000:] + done.stderr[-10_000:]
