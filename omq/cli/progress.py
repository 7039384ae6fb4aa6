"""The progress bars of commands, on standard error."""

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm


def progress(octets: int | None, name: str | None = None) -> "tqdm[NoReturn]":
    """Return a bar that shows how many of N `octets` are done, as a context manager. It shows nothing where
    standard error is no terminal, or the number of octets is not known (None).
    """
    from tqdm import tqdm  # a tenth of the time in which most commands start, and they show no bar

    is_shown = octets is not None and sys.stderr is not None and sys.stderr.isatty()
    return tqdm(total=octets, desc=name, unit="B", unit_scale=True, disable=not is_shown, file=sys.stderr)
