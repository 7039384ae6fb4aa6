"""The beginning of a line of which no more is known: it is too long, or no command."""

import re

from omq.protocol.omq.atoms import BARE, QUOTED, atom_written

# The beginning of a Publish line, and its topic if that can be recognised.
_PUBLISH = re.compile(rb'[ \t\f]*+\([ \t\f]*+(?:"[Pp]ublish"|"?[Pp]ublish(?=[ \t\f\r\n"();]|\Z))[ \t\f]*+')
_TOPIC = re.compile(rb"(" + QUOTED + rb"|" + BARE + rb'(?=[ \t\f"]))')


def is_publish(line: bytes) -> bool:
    """Return whether a line begins like a Publish."""
    return _PUBLISH.match(line) is not None


def topic_of_publish(line: bytes) -> bytes | None:
    """Return the topic of a line that begins like a Publish, if that can be recognised."""
    publish = _PUBLISH.match(line)
    match = None if publish is None else _TOPIC.match(line, publish.end())
    return None if match is None else atom_written(match[1])
