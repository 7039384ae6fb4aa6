#!/usr/bin/env python3
"""Replay stored topics to Parquet, JSON lines, or another server: `omq replay` as a job for Spark.

    spark-submit --py-files omq.whl tools/replay.py --server omq://HOST:PORT TOPIC --to parquet:DIRECTORY

`--help` shows the rest. On a machine of its own `omq replay` does the same.
"""

import argparse
import sys

from omq.replay.arguments import EXAMPLES, add_arguments, add_server_arguments
from omq.replay.command import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="replay.py",
        description="Replay stored topics to Parquet, to JSON lines, or to a server.",
        epilog=EXAMPLES.replace("omq replay", "replay.py"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_arguments(parser)
    add_arguments(parser)
    return run(parser.parse_args(), parser.error)


if __name__ == "__main__":
    sys.exit(main())
