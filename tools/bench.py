#!/usr/bin/env python3
"""Measure omq-server: throughput, replay, latency and memory.

With --peers it measures nats-server and redis-server at the same work. `--help` lists the cases.
"""

import sys
from pathlib import Path

# The modules of the bench are no part of the package: they stand beside this file and import one another.
sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))

from command import main

if __name__ == "__main__":
    raise SystemExit(main())
