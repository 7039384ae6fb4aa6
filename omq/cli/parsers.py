"""The parser of a command line, whose help is output like any other."""

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from omq.cli.printing import print_and_exit

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class CommandParser(argparse.ArgumentParser):
    """Prints its help so that a failure to print it is a failure of the command."""

    assigned: Mapping[str, str] = {}
    """The right words, up to the equals sign, for a name that users may take for an option, such as
    `max_length=` for `--max-length`.
    """

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Print the help, and exit unless a `file` is given. argparse itself ignores a full disk."""
        if file is not None:
            super().print_help(file)
        else:
            print_and_exit(self.prog.split()[0], self.format_help())


def add_assigned(parser: argparse.ArgumentParser, beginning: str, names: Iterable[str]) -> None:
    """Note that these names are given as `NAME=VALUE` after a beginning, and not as options."""
    assert isinstance(parser, CommandParser), "all parsers of omq are"
    options = {f"--{name.replace('_', '-')}": f"{beginning}{name}=" for name in names}
    parser.assigned = {**parser.assigned, **options}
