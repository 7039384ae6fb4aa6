"""Reads lines in plain Python: those in the quick forms all at once, with one regular expression whose last
alternative is any other line. Its twin is omq.protocol.omq.compiled_lines.
"""

import re

from omq.protocol.omq.atoms import BARE, atom_written, unescape
from omq.protocol.omq.event_collector import EventCollector
from omq.protocol.omq.events import Event, PublishRun
from omq.protocol.omq.line_steps import SLOW_LINES, LineSteps, after_blank_lines
from omq.protocol.steps import Steps, finished
from omq_storage.batches import Bodies

# Escapes as sexplib prints them, and \'. Others are rare, and left to the parser.
_ESCAPE = rb"\\(?:[\"\\ntrb']|[01][0-9]{2}|2[0-4][0-9]|25[0-5])"
_CONTENT = rb'[^"\\\n]*+(?:' + _ESCAPE + rb'[^"\\\n]*+)*+'

# Groups: the topic as written, a bare body, the content of a quoted body; or a whole line of another form.
# Between two bare atoms stands a space; before and after a quoted one there may be none.
_LINES = re.compile(
    rb"\([Pp]ublish(?: |(?=\"))(" + BARE + rb'|"' + _CONTENT + rb'")'
    rb'(?: ?"(' + _CONTENT + rb')"|(?: |(?<="))(' + BARE + rb"))\)\r?+\n"
    rb"|([^\n]*+\n)"
)  # fmt: skip

# All of such a line before its body's octets; the second group is the quote that begins a quoted body.
_HEAD = re.compile(rb"\([Pp]ublish(?: |(?=\"))(" + BARE + rb'|"' + _CONTENT + rb'")(?: ?(")| |(?<="))')

SLOW_OCTETS = 4 << 10
"""The most octets of mixed lines of one step, in plain Python."""

ALIKE_OCTETS = 64 << 10
"""The most octets of uniform lines of one step, in plain Python."""


def reading_plain(lines: bytes, position: int) -> LineSteps:
    """Read lines in plain Python."""
    events = EventCollector()
    if not position:
        # Lines that are all alike make one run, as far as they go.
        while (end := lines.rfind(b"\n", position, position + ALIKE_OCTETS) + 1) > position:
            run = _uniform(lines[position:end])
            if run is None:
                break
            events.publish(run.topic, run.batch)
            position = end
            yield
        if position:
            return events.all(), position
    after = after_blank_lines(lines, position)
    if after > position:
        return [], after
    end = lines.rfind(b"\n", position, position + SLOW_OCTETS) + 1
    if end <= position:
        end = lines.index(b"\n", position) + 1
        yield from events.adding(lines[position : end - 1])
        return events.all(), end
    part = lines[position:end]
    rows: list[tuple[bytes, bytes, bytes, bytes]] = _LINES.findall(part)
    topics, quoted, bare, _ = zip(*rows, strict=True)
    if topics[0] and topics.count(topics[0]) == len(rows):
        return [_run(atom_written(topics[0]), _bodies(quoted, bare, b"\\" in part))], end
    return (yield from _mixed(rows)), end


def _uniform(lines: bytes) -> PublishRun | None:
    """Return the run of lines that differ only in bodies without escapes; None for other lines.

    A fast publisher sends only such lines. This splits them at the octets between two bodies, and then
    searches all bodies at once for each octet with a special meaning.
    """
    match = _HEAD.match(lines)
    if match is None:
        return None
    head = match[0]
    tail = b'")\n' if match[2] else b")\n"
    if len(lines) < len(head) + len(tail) or not lines.endswith(tail):
        return None  # head and tail must not share a quote
    split = lines[len(head) : -len(tail)].split(tail + head)
    bodies = _plain_quoted(split) if match[2] else _plain_bare(split)
    return None if bodies is None else _run(atom_written(match[1]), bodies)


def _plain_bare(bodies: list[bytes]) -> list[bytes] | None:
    """Return the bodies if each is a bare atom for certain."""
    together = b"".join(bodies)
    if any(octet in together for octet in b'\n() ";\t\f\r') or not all(bodies):
        return None
    if ord("|") in together and ord("#") in together:
        return None  # there may be a #| or |#
    return bodies


def _plain_quoted(contents: list[bytes]) -> list[bytes] | None:
    r"""Return the bodies if each is the content of a quoted atom for certain, with no escapes, or none but
    `\"`.
    """
    together = b"".join(contents)
    if ord("\n") in together:
        return None
    if ord("\\") not in together:
        return None if ord('"') in together else contents
    divided = b"\n".join(contents)
    others = divided.replace(b'\\"', b"")
    if ord('"') in others or ord("\\") in others:
        return None
    return divided.replace(b'\\"', b'"').split(b"\n")


def _bodies(quoted: tuple[bytes, ...], bare: tuple[bytes, ...], escaped: bool) -> list[bytes]:
    """Return the bodies of rows of which each has either a quoted or a bare one. A bare one is never
    empty.
    """
    if not any(bare):
        return [unescape(body) if b"\\" in body else body for body in quoted] if escaped else list(quoted)
    if all(bare):
        return list(bare)
    return [body or unescape(content) for content, body in zip(quoted, bare, strict=True)]


def _run(topic: bytes, bodies: list[bytes]) -> PublishRun:
    return PublishRun(topic, Bodies(bodies))


def _mixed(rows: list[tuple[bytes, bytes, bytes, bytes]]) -> Steps[list[Event]]:
    """Return the events of rows of several topics, or of other commands too."""
    events = EventCollector()
    topics: dict[bytes, bytes] = {}  # the name for each written form
    waiting: dict[bytes, list[bytes]] = {}
    slow = 0
    for as_written, quoted, bare, other in rows:
        if other == b"\n":
            continue
        if as_written:
            topic = topics.get(as_written) or topics.setdefault(as_written, atom_written(as_written))
            waiting.setdefault(topic, []).append(bare or unescape(quoted))
            continue
        for topic, bodies in waiting.items():
            events.publish(topic, Bodies(bodies))
        waiting = {}
        yield from events.adding(other[:-1])
        slow += 1
        if not slow % SLOW_LINES:
            yield
    for topic, bodies in waiting.items():
        events.publish(topic, Bodies(bodies))
    return events.all()


def events_plain(lines: bytes, position: int = 0) -> tuple[list[Event], int]:
    """Read lines as `reading_plain` does, without a pause."""
    return finished(reading_plain(lines, position))
