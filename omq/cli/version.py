"""The option --version."""

import argparse
from collections.abc import Sequence

from omq.cli.printing import print_and_exit
from omq.version import VERSION


class PrintVersion(argparse.Action):
    """Prints the version, and exits."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, help: str = "show program's version number and exit"
    ) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print_and_exit(parser.prog.split()[0], f"omq {VERSION}\n")
