"""The sentences that Error frames carry: they begin with the constructor and argument of the command they
answer. Written here by the server, and read here by clients.

Source: omq text, `Server.Error of string`; docs/PROTOCOL.md, "Errors". A sentence is one line of printable
octets.
"""

import re
from dataclasses import dataclass

from omq.protocol.omq.sexp import atom

LONGEST_ARGUMENT = 255
"""As many octets as a topic's name may have: no name is cut off, and a sentence that names one is about no
other. An argument of more octets, which is the name of nothing, is cut off and ends in `...`.
"""

UNKNOWN_CLIENT = b"Connect: no client has this name and secret"


def sentence(constructor: str, argument: bytes | None, what: str) -> bytes:
    """`Subscribe prices: what`, the argument as a sexp's atom is printed; `Subscribe: what` without one."""
    if argument is None:
        return f"{constructor}: {what}".encode()
    return b"%s %s: %s" % (constructor.encode(), shortened(argument), what.encode())


def shortened(argument: bytes) -> bytes:
    """`argument` as an atom is printed, cut off when long."""
    if len(argument) > LONGEST_ARGUMENT:
        argument = argument[: LONGEST_ARGUMENT - 3] + b"..."
    return atom(argument)


def gone(first: int, last: int, reason: str) -> str:
    """What a sentence says of messages that can no longer be had, for `sentence`."""
    return f"messages {first} to {last} are gone: {reason}"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, taken apart."""

    constructor: str
    argument: bytes | None
    """As it is printed: compare it with `shortened`."""
    what: str

    def answers(self, constructor: str, argument: bytes | None) -> bool:
        """Whether it is about this command."""
        printed = None if argument is None else shortened(argument)
        return self.constructor == constructor and self.argument == printed

    def gone(self) -> tuple[int, int, str] | None:
        """The first and the last of the messages that it reports gone, and why; None when it reports none."""
        match = _GONE.fullmatch(self.what)
        return None if match is None else (int(match[1]), int(match[2]), match[3])


def read_sentence(text: bytes) -> Sentence | None:
    """The inverse of `sentence`; None for a text that begins with no command."""
    match = _SENTENCE.match(text)
    if match is None:
        return None
    what = text[match.end() :].decode("utf-8", "backslashreplace")
    return Sentence(match[1].decode(), match[2], what)


_GONE = re.compile(r"messages ([0-9]+) to ([0-9]+) are gone: (.*)", re.DOTALL)

# An atom is bare, or quoted with escapes. A bare one has no blank, but may have colons.
_SENTENCE = re.compile(rb'([A-Z][a-z_]*)(?: ("(?:[^"\\]|\\.)*+"|[^" ]\S*?))?: ', re.DOTALL)
