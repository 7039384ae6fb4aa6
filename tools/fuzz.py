#!/usr/bin/env python3
"""Try to break the parsers that a socket or a file reaches, and the compiled codec.

`tools/fuzz.py --list` lists the targets. docs/FUZZING.md describes what they check.
"""

import sys
from pathlib import Path

# The modules of the fuzzer are not part of the package: they are in the directory beside this file.
sys.path.insert(0, str(Path(__file__).resolve().parent / "fuzz"))

from fuzz_command import main

if __name__ == "__main__":
    raise SystemExit(main())
