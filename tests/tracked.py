"""The files of the project: those that git tracks or, in an unpacked sdist, those that it consists of."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent

_LIST = ROOT / "omq_server.egg-info" / "SOURCES.txt"


def tracked(*endings: str) -> list[Path]:
    """Return the files whose names have one of these endings; all files without any."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        names = listed.stdout.split("\0")
    else:
        names = [name for name in _LIST.read_text().splitlines() if ".egg-info/" not in name]
    return [ROOT / name for name in names if name and name.endswith(endings or "")]
