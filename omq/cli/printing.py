"""Prints the whole output of a command that uses no connection, and exits."""

import os
import sys
from typing import NoReturn


def print_and_exit(program: str, text: str) -> NoReturn:
    """Print the only output of a command, and exit: with 1 and a sentence if that is not possible."""
    if sys.stdout is None:  # the process was started with it closed
        sys.exit(f"{program}: standard output is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as problem:
        # Python flushes once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(problem, BrokenPipeError):  # otherwise the reader of our output has closed it
            sys.exit(f"{program}: standard output: {problem.strerror}")
    sys.exit(0)
