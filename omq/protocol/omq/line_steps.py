"""The steps in which lines are read, and the blank lines among them: the common part of
omq.protocol.omq.compiled_lines and its plain twin.
"""

import re

from omq.protocol.omq.events import Event
from omq.protocol.steps import Steps

SLOW_LINES = 16
"""The most lines of one step that are not in the quick forms."""

BLANK_OCTETS = 16 << 10
"""The most octets of blank lines that one step skips."""

LineSteps = Steps[tuple[list[Event], int]]
"""Returns the events of some complete lines from a position on, and the position of the next line."""

# Also those that hold comments and nothing else.
_BLANK_LINES = re.compile(rb"(?:[ \t\f]*+(?:#\|[^#|\"\n]*+\|#[ \t\f]*+)*+(?:;[^\r\n]*+)?+\r?+\n)++")


def after_blank_lines(lines: bytes, position: int) -> int:
    """Return the end of blank lines, or of some of them."""
    blank = _BLANK_LINES.match(lines, position, min(len(lines), position + BLANK_OCTETS))
    return position if blank is None else blank.end()
