"""The commands `omq completion` and `omq man`: both are made from the parsers of the command lines.

So a completion and a manual page say what `--help` says, and belong to the version that prints them.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from omq.cli import command_line, server, store
from omq.cli.manual import manual_page
from omq.cli.printing import print_and_exit

SECTIONS = {"omq": 1, "omq-server": 8}
"""The programs, and the sections of their manual pages."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run `omq completion` or `omq man` with these arguments and exit."""
    options = command_line.parser({}).parse_args(arguments)
    # Parsers wrap and color their output for the terminal that they find.
    os.environ.update(COLUMNS="80", NO_COLOR="1")
    parser = program(options.program)
    if options.command == "man":
        text = manual_page(
            parser, SECTIONS[options.program], [name for name in SECTIONS if name != parser.prog]
        )
    else:
        text = _completion(parser, options.shell)
    print_and_exit("omq", text)


def program(name: str) -> argparse.ArgumentParser:
    """Return the parser of a program, with all its commands."""
    return (
        server.parser() if name == "omq-server" else command_line.parser({}, add_store_verbs=store.add_verbs)
    )


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    import shtab

    for each in command_line.every_parser(parser):
        for action in each._actions:
            words = action.metavar if isinstance(action.metavar, str) else ""
            if words.startswith("FILE"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
            elif words == "DIR" or action.type is Path:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # the same
    return f"{shtab.complete(parser, shell)}\n"
