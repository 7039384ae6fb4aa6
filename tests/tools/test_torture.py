"""The torture program with small counts: does the server keep its promises?"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM = ROOT / "tools" / "torture.py"
DOCUMENT = ROOT / "docs" / "RELIABILITY.md"
COUNTS = {
    "kills": 10,
    "starts": 8,  # each kind of failure once
    "images": 40,
    "order": 300,
    "rooms": 1,
    "long": 8,
    "mixture": 60,
    "flips": 24,
}
RECORDED = ("images", "order")

MEMORY = Path("/dev/shm")

COMPILED = pytest.mark.skipif(shutil.which("cc") is None, reason="the recorder needs a C compiler")
LONG = ("starts", "rooms", "flips")
MARKS = {**dict.fromkeys(RECORDED, COMPILED), **dict.fromkeys(LONG, pytest.mark.long)}


@pytest.mark.parametrize("torture", [pytest.param(name, marks=MARKS.get(name, ())) for name in COUNTS])
def test_the_promises_are_kept(torture: str) -> None:
    count = COUNTS[torture]
    counts = [f"--{name}={count if name == torture else 0}" for name in COUNTS]
    # Hundreds of stores are copied and opened for flips, and nothing depends on the disk. The others use it.
    is_quick = torture == "flips" and os.access(MEMORY, os.W_OK)
    directory = Path(tempfile.mkdtemp(dir=MEMORY if is_quick else None))
    done = subprocess.run(
        [sys.executable, PROGRAM, *counts, "--directory", directory],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    kept = rf"^{torture}: {count} .*, [1-9]\d* messages checked, 0 promises broken$"
    assert re.search(kept, done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.startswith("seed 1\n")
    assert done.returncode == 0
    directory.rmdir()  # it was left empty


def test_a_scenario_that_the_system_does_not_permit_is_left_out(tmp_path: Path) -> None:
    """Only root may mount, and not without the capability for it."""
    only_the_disk = (
        "import sys, room, program; room.SCENARIOS = (room.full_disk,); sys.exit(program.main(sys.argv[1:]))"
    )
    none = [f"--{name}={int(name == 'rooms')}" for name in COUNTS]
    done = subprocess.run(
        [
            *(("setpriv", "--bounding-set", "-sys_admin") if os.geteuid() == 0 else ()),
            *(sys.executable, "-c", only_the_disk, *none, "--directory", tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": str(PROGRAM.with_suffix(""))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines()[1:] == [
        "rooms: 1 (no room on the disk, in the map, for descriptors, in memory), 0 messages checked, "
        "0 promises broken",
        "  left out: full_disk: no file system can be mounted (Operation not permitted)",
    ], done.stderr
    assert done.returncode == 0


def test_the_document_has_the_counts_of_these_tests() -> None:
    (told,) = re.findall(r"with small counts \((.*?)\)", " ".join(DOCUMENT.read_text().split()))
    counts = (
        "{kills} kills, {starts} starts, {images} images, {order} messages in order, {long} MiB, "
        "{mixture} clients, {flips} bits"
    )
    assert told == counts.format(**COUNTS)


def test_a_short_soak(tmp_path: Path) -> None:
    """A few hostile clients for some seconds. Latency is measured, but not checked."""
    done = subprocess.run(
        [sys.executable, PROGRAM, "--soak", "10", "--connections", "150", "--directory", tmp_path],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    kept = r"^soak: 10 .*, [1-9]\d* messages checked, 0 promises broken$"
    assert re.search(kept, done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert done.returncode == 0
    assert not any(f"\n{name}: " in done.stdout for name in COUNTS)  # nothing else was done
    # Every kind of client was there, and when they were gone the server had what it had before.
    made = re.findall(r"^ +(\d+) connections of those that .+$", done.stdout, re.MULTILINE)
    assert len(made) >= 12
    assert "0" not in made
    rows = {
        words[0]: words[1:]
        for line in done.stdout.splitlines()
        if (words := line.split()) and words[0] in ("before", "after")
    }
    connections, tasks, _, descriptors, *_ = rows["before"]
    assert rows["after"][:2] == [connections, tasks]
    assert rows["after"][3] == descriptors
    tmp_path.rmdir()  # it was left empty


def test_the_document_tells_the_defaults() -> None:
    said = subprocess.run(
        [sys.executable, PROGRAM, "--help"], capture_output=True, text=True, check=True
    ).stdout
    defaults = dict(re.findall(r"--(\w+) N\s[^(]*\(default (\d+);", said))
    assert set(defaults) == set(COUNTS)
    assert dict(re.findall(r"^\| `--(\w+)` \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)) == defaults
