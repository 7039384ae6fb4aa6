"""The parser of a command line, whose help is output like any other."""

import argparse
from typing import TYPE_CHECKING

from omq.cli.printing import print_and_exit

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class CommandParser(argparse.ArgumentParser):
    """Prints its help so that a failure to print it is a failure of the command."""

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Print the help, and exit unless a `file` is given. argparse itself ignores a full disk."""
        if file is not None:
            super().print_help(file)
        else:
            print_and_exit(self.prog.split()[0], self.format_help())
