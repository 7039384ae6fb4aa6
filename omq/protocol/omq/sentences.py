"""Format and parse the sentences of Error frames, which begin with the constructor and argument of the
command that they answer.

Source: docs/PROTOCOL.md, "Errors". A sentence is one line of printable octets.
"""

import re
from enum import Enum

from msgspec import Struct

from omq import refusal_words
from omq.protocol.omq.atoms import atom

LONGEST_ARGUMENT = 255
"""The greatest length of a topic's name, so a sentence contains every valid name in full. A longer argument,
which cannot be a name, is shortened and ends in `...`.
"""


class RefusalKind(Enum):
    """The kinds of refusals that clients recognise. Each client decides what it does then."""

    UNKNOWN_CLIENT = "the server knows no client with this name and secret"
    NO_TOPIC = "the topic does not exist, or not any more"
    PASSING = "the server ends the connection for a reason that another connection may not have"


def sentence(constructor: str, argument: bytes | None, what: str) -> bytes:
    """Return `Subscribe prices: what`, with the argument as an atom; without an argument `Subscribe:
    what`.
    """
    if argument is None:
        return f"{constructor}: {what}".encode()
    return b"%s %s: %s" % (constructor.encode(), shortened(argument), what.encode())


def shortened(argument: bytes) -> bytes:
    """Print `argument` as an atom, shortened when long."""
    if len(argument) > LONGEST_ARGUMENT:
        argument = argument[: LONGEST_ARGUMENT - 3] + b"..."
    return atom(argument)


def gone(first: int, last: int, reason: str) -> str:
    """Return the text about messages that are no longer available, for `sentence`."""
    return f"messages {first} to {last} are gone: {reason}"


class Sentence(Struct, frozen=True):
    """A parsed sentence."""

    constructor: str
    argument: bytes | None
    """The argument in printed form: compare it with `shortened`."""
    what: str

    def answers(self, constructor: str, argument: bytes | None) -> bool:
        """Return whether the sentence answers this command."""
        printed = None if argument is None else shortened(argument)
        return self.constructor == constructor and self.argument == printed

    @property
    def refusal(self) -> RefusalKind | None:
        """The kind of refusal that the sentence is; None for one that clients do not recognise."""
        match self.constructor, self.what:
            case "Connect", refusal_words.NO_CLIENT:
                return RefusalKind.UNKNOWN_CLIENT
            case ("Ping", _) | ("Connect", refusal_words.NOT_IN_TIME):
                return RefusalKind.PASSING
            case "Connect", what if what.endswith(refusal_words.MOST_IT_MAY_HAVE):
                return RefusalKind.PASSING
            case _, what if what.endswith(refusal_words.OTHERS_WAIT):
                return RefusalKind.PASSING
            case _, refusal_words.NO_TOPIC | refusal_words.TOPIC_DELETED:
                return RefusalKind.NO_TOPIC
        return None

    def gone(self) -> tuple[int, int, str] | None:
        """Return the first and the last message reported as gone, and the reason; None if it reports none."""
        match = _GONE.fullmatch(self.what)
        return None if match is None else (int(match[1]), int(match[2]), match[3])


def read_sentence(text: bytes) -> Sentence | None:
    """Parse a sentence; None for a text that does not begin with a command."""
    match = _SENTENCE.match(text)
    if match is None:
        return None
    what = text[match.end() :].decode("utf-8", "backslashreplace")
    return Sentence(match[1].decode(), match[2], what)


def refusal_in(text: bytes) -> RefusalKind | None:
    """Return the kind of refusal that an Error is; None for one that clients do not recognise."""
    said = read_sentence(text)
    return None if said is None else said.refusal


_GONE = re.compile(r"messages ([0-9]+) to ([0-9]+) are gone: (.*)", re.DOTALL)

# An atom is bare, or quoted with escapes. A bare one has no blank, but may have colons.
_SENTENCE = re.compile(rb'([A-Z][a-z_]*)(?: ("(?:[^"\\]|\\.)*+"|[^" ]\S*?))?: ', re.DOTALL)
