"""The parser of a command line: options may stand anywhere, and the help is output like any other."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from omq.cli.printing import print_and_exit

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class CommandParser(argparse.ArgumentParser):
    """Accepts options before, between and after the other arguments, and prints its help so that a failure
    to print it is a failure of the command.
    """

    assigned: Mapping[str, str] = {}
    """The right words, up to the equals sign, for a name that users may take for an option, such as
    `max_length=` for `--max-length`.
    """

    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the words of a command in an order that argparse understands; see `_in_order`."""
        words = sys.argv[1:] if args is None else args
        # The words behind the name of a command belong to the parser of that command, which orders them.
        return super().parse_known_args(words if self._subparsers else self._in_order(words), namespace)

    def _in_order(self, words: Iterable[str]) -> list[str]:
        """Return the words with the positional arguments together.

        argparse gives a run of positional arguments to as many parameters as it can. An optional parameter
        gets nothing then if an option stands before its argument: BODY in `TOPIC --confirm BODY`.

        Words with `--help` or an unknown option stay as they are: help comes before all errors, and the error
        about the option names it as the user did.
        """
        words = list(words)
        options: list[str] = []
        positionals: list[str] = []
        following = iter(words)
        for word in following:
            if word == "--":
                # The words behind it are not options, so the options can stand before all arguments only.
                return [*options, *positionals, word, *following]
            if self._parse_optional(word) is None:
                positionals.append(word)
            elif word in ("-h", "--help") or (word.startswith("--") and self._known(word) is None):
                return words
            else:
                options += [word, *islice(following, self._takes_next(word))]
        # Here they stand at the end: an option without its value must not take an argument for it.
        return [*positionals, *options]

    def _takes_next(self, option: str) -> bool:
        """Return whether the word behind this option, which may be abbreviated, is the option's value."""
        action = None if "=" in option else self._known(option)
        return action is not None and action.nargs is None

    def _known(self, option: str) -> argparse.Action | None:
        """Return the action of this option, which may be abbreviated, and have its value behind it; None if
        there is none.
        """
        known = self._option_string_actions
        name = option.partition("=")[0]
        full = name if name in known else next((each for each in known if each.startswith(name)), None)
        return None if full is None else known[full]

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Print the help, and exit unless a `file` is given. argparse itself ignores a full disk."""
        if file is not None:
            super().print_help(file)
        else:
            print_and_exit(self.prog.split()[0], self.format_help())


class OneFile(argparse.Action):
    """Stores the value of an option that names a file, and refuses a second one: the first would be lost."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Store the value, or raise ArgumentError."""
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "it is there twice, and takes one file")
        setattr(namespace, self.dest, values)


def add_assigned(parser: argparse.ArgumentParser, beginning: str, names: Iterable[str]) -> None:
    """Note that these names are given as `NAME=VALUE` after a beginning, and not as options."""
    assert isinstance(parser, CommandParser), "all parsers of omq are"
    options = {f"--{name.replace('_', '-')}": f"{beginning}{name}=" for name in names}
    parser.assigned = {**parser.assigned, **options}
