"""The command `omq store`: check, repair or back up a store on this machine."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from omq.cli.parsers import CommandParser
from omq.cli.printing import print_or_exit
from omq.config import DEFAULT_STORE
from omq.counted import counted
from omq.drivers.stored_types import StoredTypes
from omq_storage.backup import backup
from omq_storage.errors import StoreError, StoreInUse
from omq_storage.files import give_to_owner
from omq_storage.inspection import inspect
from omq_storage.levels import Level
from omq_storage.repair import repair
from omq_storage.store import current_boot, is_store, lock_store

StoreAction = Callable[[argparse.Namespace], int]

EXIT_IN_USE = 3
"""The exit status if another process has the store open: then nothing is known about its content."""


def main(arguments: list[str]) -> NoReturn:
    """Run `omq store` with these arguments and exit."""
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:  # argparse lets the parser of the whole line report them: show the usage of their command
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    action: StoreAction = options.action
    try:
        code = action(options)
    except StoreInUse as problem:
        _say(str(problem))
        code = EXIT_IN_USE
    except (StoreError, OSError) as problem:
        _say(_sentence(problem))
        code = 1
    sys.exit(code)


def _say(line: str) -> None:
    if sys.stderr is not None:
        print(f"omq: {line}", file=sys.stderr)


def _print(line: str) -> None:
    print_or_exit("omq", f"{line}\n")


def _step(text: str) -> None:
    _say(f"{text} ...")


def _sentence(problem: StoreError | OSError) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    return str(problem)


def _check(options: argparse.Namespace) -> int:
    return _check_store(options.store)


def _check_store(store: Path) -> int:
    """Verify a store, print what was found, and return the exit status."""
    _require_store(store)
    with _locked(store):
        found = inspect(store, current_boot(), _step)
    for level in Level:
        whole = found.levels[level].found
        blocks = [info for topic in whole.blocks for info, _ in whole.in_order(topic)]
        messages = sum(info.count for info in blocks)
        where = f"{counted(len(blocks), 'block')} of {counted(len(whole.blocks), 'topic')}"
        _print(f"{level.value}: {counted(messages, 'message')} in {where}")
    for problem in found.problems:
        _print(problem)
    if found.problems:
        _say(f'the store is damaged; "omq store repair --store {store}" saves what can be saved')
        return 1
    _print("No damage was found.")
    return 0


def _repair(options: argparse.Namespace) -> int:
    store: Path = options.store
    _require_store(store)
    with _locked(store):
        told = repair(store, StoredTypes(), current_boot(), _step)
    for sentence in told:
        _print(sentence)
    _print("The store can be used again." if told else "No damage was found.")
    return 0


def _backup(options: argparse.Namespace) -> int:
    octets = backup(options.store, options.to, current_boot(), _step)
    _print(f"{options.to}: {counted(octets, 'octet')}")
    return _check_store(options.to) if options.check else 0


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Lock a store.  At the end, give files that root has created in it to its owner, who runs the server.

    Root may not be allowed to, in a container for example.  That must not hide what the command found.
    """
    with lock_store(store):
        try:
            yield
        finally:
            try:
                give_to_owner(store)
            except OSError as problem:
                why = problem.strerror or problem
                _say(f"{store}: what root has created here still belongs to root: {why}")


def _require_store(store: Path) -> None:
    if not is_store(store):
        raise StoreError(f"There is no store in {store}.")


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="omq store")
    add_verbs(parser)
    return parser


def add_verbs(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `omq store` its description and its commands."""
    parser.description = "Check, repair or back up a store on this machine."
    parser.epilog = (
        "Exit codes: 0 success, 1 failure or the store is damaged, 2 invalid command line, 3 a server "
        "has the store open."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, action: StoreAction, summary: str, more: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=more
        )
        sub.add_argument(
            "--store",
            type=Path,
            default=Path(DEFAULT_STORE),
            metavar="DIR",
            help=f"the store's directory, as for omq-server (default ./{DEFAULT_STORE})",
        )
        sub.set_defaults(action=action, parser=sub)
        return sub

    command(
        "check",
        _check,
        "verify everything in a store, and report damage",
        "No server may have the store open; for a store in use, check a backup.",
    )
    command(
        "repair",
        _repair,
        "repair a damaged store with everything that is still readable",
        "It keeps the damaged files in the directory of the store, and reports what it could not save, by "
        "topic and message ids. No server may have the store open.",
    )
    to = command(
        "backup",
        _backup,
        "copy a store, also while a server has it open",
        "The copy is a store. A damaged message is copied as it is: --check reports it. To restore the copy, "
        "stop the server, move its store away, and copy the backup to its place.",
    )
    to.add_argument(
        "to",
        type=Path,
        metavar="DIR",
        help="a directory that does not exist, or is empty, outside of the store",
    )
    to.add_argument(
        "--check",
        action="store_true",
        help="then verify the whole copy, as omq store check does: the exit code is 1 for a damaged one",
    )
