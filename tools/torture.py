#!/usr/bin/env python3
"""Kill omq-server, simulate power failures, damage its files, fill its disk, and run hostile clients: does it
keep its promises?

`--help` lists the options; docs/RELIABILITY.md lists the promises.
"""

import sys
from pathlib import Path

# Its modules are not part of the package: they are in the directory beside this file.
sys.path.insert(0, str(Path(__file__).resolve().parent / "torture"))

from program import main

if __name__ == "__main__":
    raise SystemExit(main())
