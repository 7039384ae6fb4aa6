"""Prints the output of a command that uses no connection."""

import os
import sys
from typing import NoReturn


def print_and_exit(program: str, text: str) -> NoReturn:
    """Print the only output of a command, and exit: with 1 and a sentence if that is not possible."""
    if sys.stdout is None:  # the process was started with it closed
        sys.exit(f"{program}: standard output is closed")
    print_or_exit(program, text)
    sys.exit(0)


def print_or_exit(program: str, text: str) -> None:
    """Print a part of the output of a command at once, or exit with 1 and a sentence. Print nothing where the
    reader of the output has closed it: the result of the command is its exit status.
    """
    problem = try_printing(text)
    if problem is not None and not isinstance(problem, BrokenPipeError):
        sys.exit(f"{program}: standard output: {problem.strerror}")


def try_printing(text: str) -> OSError | None:
    """Print a part of the output of a command at once, and return the reason if that is not possible; then
    nothing more is printed. Print nothing if the process was started with a closed output.
    """
    if sys.stdout is None:
        return None
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as problem:
        # Python flushes once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return problem
    return None
