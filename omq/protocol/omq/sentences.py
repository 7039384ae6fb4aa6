"""The sentences that Error frames carry: they begin with the constructor and argument of the command they
answer.

Source: omq text, `Server.Error of string`. A sentence is one line of printable octets.
"""

from omq.protocol.omq.sexp import atom

LONGEST_ARGUMENT = 255
"""As many octets as a topic's name may have: no name is cut off, and a sentence that names one is about no
other. An argument of more octets, which is the name of nothing, is cut off and ends in `...`.
"""


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
