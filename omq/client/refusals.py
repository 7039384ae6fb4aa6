"""Count the server's sentences about refused messages that say the same."""

import re
from collections.abc import Iterable

from omq.client.reasons import shown
from omq.protocol.omq.sentences import read_sentence

_COUNT = re.compile(r"([0-9]+) messages: ", re.ASCII)


def together(refusals: Iterable[str]) -> list[str]:
    """Return one sentence for all that refuse messages of a topic for the same reason, with the number of
    messages, in the order in which each came first.
    """
    counts: dict[str | tuple[bytes, str], int] = {}
    for refusal in refusals:
        said = read_sentence(refusal.encode())
        if said is None or said.argument is None or said.constructor != "Publish":
            counts.setdefault(refusal, 1)
            continue
        many = _COUNT.match(said.what)
        reason = said.what if many is None else said.what[many.end() :]
        key = said.argument, reason
        counts[key] = counts.get(key, 0) + (1 if many is None else int(many[1]))
    return [key if isinstance(key, str) else _sentence(*key, count) for key, count in counts.items()]


def _sentence(topic: bytes, reason: str, count: int) -> str:
    what = reason if count == 1 else f"{count} messages: {reason}"
    return f"Publish {shown(topic)}: {what}"
