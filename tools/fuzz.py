#!/usr/bin/env python3
"""Try to break the parsers that a socket or a file reaches, and the compiled codec.

`tools/fuzz.py --list` names what can be tried. docs/FUZZING.md says what is looked for.
"""

import sys
from pathlib import Path

# The modules of the fuzzer are no part of the package: they stand beside this file and import one another.
sys.path.insert(0, str(Path(__file__).resolve().parent / "fuzz"))

from fuzz_command import main

if __name__ == "__main__":
    raise SystemExit(main())
