"""Check that a commit tells users of its change: pre-commit runs this on each commit message.

A commit that changes `omq/` or `storage/` adds or changes a fragment in `changes/`. If users do not
notice it, its message has the line "Changelog: none" instead.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PROGRAM = ("omq/", "storage/")
NONE = "Changelog: none"

ADVICE = f"""\
The commit changes omq/ or storage/, and has no fragment of the changelog. Add one (changes/README.md).
If users notice nothing of the change, add this line to the commit message instead: {NONE}"""


def lacks_fragment(changed: Iterable[str], message: str) -> bool:
    """Return whether a commit that changes these files should have a fragment, and has none."""
    files = list(changed)
    if not any(name.startswith(PROGRAM) for name in files) or NONE in message.splitlines():
        return False
    return not any(name.startswith("changes/+") for name in files)


def main(message: Path) -> int:
    """Check the commit that git is about to make with the message in this file."""
    command = ["git", "diff", "--cached", "--name-only", "--no-renames"]
    changed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    if not lacks_fragment(changed, message.read_text()):
        return 0
    print(ADVICE, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
