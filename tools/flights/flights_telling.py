"""The progress output of the demonstration."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm


def tell(text: str) -> None:
    print(text, flush=True)


def step(text: str, seconds: float, count: int | None = None) -> None:
    """Print one line of the story, with its time and, for messages, their rate."""
    rate = "" if count is None else f"  {count / seconds:>9,.0f} messages/s"
    tell(f"  {text:<60} {seconds:>6.2f} s{rate}")


@contextmanager
def progress(what: str, total: int, start: int = 0) -> Iterator["tqdm[None]"]:
    """Yield a bar on a terminal, nothing anywhere else."""
    bar = tqdm(total=total, initial=start, desc=f"  {what}", unit=" rows", leave=False, disable=None)
    with bar:
        yield bar


def show(bar: "tqdm[None]", count: int) -> None:
    bar.update(count - bar.n)


class Clock:
    """Seconds since it was made or last asked."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return seconds
