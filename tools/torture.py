#!/usr/bin/env python3
"""Kill omq-server, cut its power, damage its files, take away its room: does it keep its promises?

`--help` lists what it does; docs/RELIABILITY.md says what is promised.
"""

import sys
from pathlib import Path

# Its modules are no part of the package: they stand beside this file and import one another.
sys.path.insert(0, str(Path(__file__).resolve().parent / "torture"))

from program import main

if __name__ == "__main__":
    raise SystemExit(main())
