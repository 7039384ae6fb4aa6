"""A small file system of its own, for tests that fill it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

DISK_OCTETS = 16 << 20
"""The size of the file system `disk`."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={DISK_OCTETS}", "omq", str(place)]
    if subprocess.run(options, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
