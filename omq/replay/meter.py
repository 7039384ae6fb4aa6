"""The progress of a replay: a bar while it runs, and a summary at the end."""

import sys
import time
from collections import Counter
from contextlib import AbstractContextManager

from tqdm import tqdm

from omq.counted import counted
from omq.printable import printable
from omq.replay.plan import octets


class Meter(AbstractContextManager["Meter"]):
    """Counts messages and the octets of their bodies by topic, and shows a bar on a terminal."""

    def __init__(self, total: int) -> None:
        self.messages: Counter[str] = Counter()
        self.octets: Counter[str] = Counter()
        self.skipped = 0
        self._bar = tqdm(
            total=total, unit=" rows", unit_scale=True, leave=False, disable=None, file=sys.stderr
        )
        self._start = time.perf_counter()
        self._seconds: float | None = None

    def __exit__(self, *_: object) -> None:
        self._seconds = time.perf_counter() - self._start
        self._bar.close()

    def add(self, topic: str, messages: int, octets: int) -> None:
        """Count replayed messages."""
        self.messages[topic] += messages
        self.octets[topic] += octets
        self._bar.update(messages)

    def show(self, messages: int) -> None:
        """Show an estimate of the number of messages so far."""
        self._bar.update(messages - self._bar.n)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        tqdm.write(f"omq: {printable(line)}", file=sys.stderr)

    def summary(self) -> str:
        """Return the numbers of messages and octets by topic, and the duration."""
        seconds = self._seconds if self._seconds is not None else time.perf_counter() - self._start
        width = max([len("topic"), *map(len, self.messages)])
        lines = [f"{'topic':<{width}}  {'messages':>12}  {'bodies':>9}"]
        lines += [
            f"{topic:<{width}}  {self.messages[topic]:>12,}  {octets(self.octets[topic]):>9}"
            for topic in sorted(self.messages)
        ]
        messages, size = self.messages.total(), self.octets.total()
        rate = messages / seconds if seconds else 0.0
        total = f"{counted(messages, 'message', ',')}, {octets(size)}, in {seconds:.2f} s"
        lines.append(f"\n{total}: {rate:,.0f} messages/s")
        if self.skipped:
            lines.append(f"messages that could not be had any more and were left out: {self.skipped:,}")
        return "\n".join(lines)
