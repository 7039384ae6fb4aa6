#!/usr/bin/env python3
"""Make many small changes to the code, and report those that no test detects.

`tools/mutate.py --help` lists the options; docs/RELIABILITY.md says what was found.
"""

import sys
from pathlib import Path

# The modules of this tool are no part of the package: they stand beside this file and import one another.
sys.path.insert(0, str(Path(__file__).resolve().parent / "mutate"))

from mutate_command import main

if __name__ == "__main__":
    raise SystemExit(main())
