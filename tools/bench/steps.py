"""Time of the server's work on the input of one connection: for an octet of each kind, and in one step.

What is read are lines and envelopes that take the most work for what they cost to send. The reader runs in
this process, without a server, with the compiled codec and with the plain one.
"""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import Array, Boolean, Table, Void
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.omq.lines import LineReader
from omq_storage import codec

MIB = 1 << 20
READ_OCTETS = 512 << 10
"""The greatest size of one read of a connection."""

LINES = {
    "line of parentheses": b"(" * MIB,
    "line of nested #; lists": b"#;(" * (MIB // 3),
    "line of () behind #;": b"#;()" * (MIB // 4),
    "line of #;": b"#;" * (MIB // 2),
    "line of #; atoms": b"#;a" * (MIB // 3),
    "line of blanks": b" " * MIB,
    "line of one comment": b"; " + b"c" * (MIB - 2),
    "line of #| |#": b"#||#" * (MIB // 4),
    "line of strings in #| |#": b"#|" + b'""' * (MIB // 2 - 2) + b"|#",
    "line of nested #|": b"#|" * (MIB // 2),
    "line of strings": b'"" ' * (MIB // 3),
    "line of one atom": b"a" * MIB,
    "line of # in an atom": b"#" * MIB,
    "Publish of octets": b'(Publish t "' + b"x" * (MIB - 20) + b'")',
    "Publish of a bare atom": b"(Publish t " + b"x" * (MIB - 20) + b")",
    'Publish of \\"': b'(Publish t "' + b'\\"' * ((MIB - 20) // 2) + b'")',
    "Publish of \\n": b'(Publish t "' + b"\\n" * ((MIB - 20) // 2) + b'")',
    "Publish of \\x41": b'(Publish t "' + b"\\x41" * ((MIB - 20) // 4) + b'")',
    "Publish of \\065": b'(Publish t "' + b"\\065" * ((MIB - 20) // 4) + b'")',
    "Publish of \\z": b'(Publish t "' + b"\\z" * ((MIB - 20) // 2) + b'")',
    "Publish with a bad escape at its end": b'(Publish t "' + b"\\n" * ((MIB - 20) // 2) + b'\\9")',
    "Confirm of digits": b"(Confirm " + b"0" * (MIB - 20) + b"1)",
    "Confirm of 0 and _": b"(Confirm " + b"0_" * ((MIB - 20) // 2) + b"1)",
    "Confirm of _": b"(Confirm 1" + b"_" * (MIB - 20) + b")",
    "Ack of digits": b"(Ack 2013-08-07T10:01:02." + b"0" * (MIB - 40) + b"Z)",
    "Ack of 0 and _": b"(Ack 2013-08-07T10:01:02." + b"0_" * ((MIB - 40) // 2) + b"Z)",
    "unknown command": b"(" + b"x" * (MIB - 20) + b")",
}
MANY_LINES = {
    "blank lines": b"\n",
    "lines of a return": b"\r\n",
    "lines of a comment": b";\n",
    "lines of #||#": b"#||#\n",
    "lines of Publish": b'(Publish t "12345678")\n',
    "lines of Publish with escapes": b'(Publish t "\\n\\n\\n\\n")\n',
    "lines of Publish in an odd form": b"( Publish t 12345678)\n",
    "lines of nonsense": b"(((((((\n",
}


def _envelope(headers: Table | None, names: int = 0) -> bytes:
    properties = Properties(headers=headers, app_id=b"a" * names or None, message_id=b"1" if names else None)
    return dmp_writer.for_sink([b""], [stored_head.encode(Head(properties=properties))])


ENVELOPES = {
    "envelopes without a body": _envelope(None),
    "null messages": bytes(4),
    "envelopes of a producer": _envelope(None, 1),
    "envelopes with an empty table": _envelope(Table()),
    "envelopes with a table of one": _envelope(Table(((b"", Boolean(True)),))),
    "envelopes with 60 KiB of booleans": _envelope(Table(((b"", Boolean(True)),) * (20 << 10))),
    "envelopes with 60 KiB of voids": _envelope(Table(((b"", Array((Void(),) * (60 << 10))),))),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """The cost of one kind of input."""

    kind: str
    octets: int
    nanoseconds: float
    """The mean time for one octet."""
    longest: float
    """The longest step in milliseconds."""


def figures(runs: int) -> Iterator[Figure]:
    """Yield each kind of input, with the codec that is in use."""
    for kind, line in LINES.items():
        yield _measured(kind, len(line) + 1, runs, lambda line=line: _read_lines(line + b"\n"))  # type: ignore[misc]  # a lambda with a default has no type
    for kind, line in MANY_LINES.items():
        octets = line * (READ_OCTETS // len(line))
        yield _measured(kind, len(octets), runs, lambda octets=octets: _read_lines(octets))  # type: ignore[misc]  # a lambda with a default has no type
    for kind, envelope in ENVELOPES.items():
        octets = envelope * (READ_OCTETS // len(envelope))
        yield _measured(kind, len(octets), runs, lambda octets=octets: _read_envelopes(octets))  # type: ignore[misc]  # a lambda with a default has no type


def _read_lines(octets: bytes) -> Iterator[Any]:
    """Read in pieces as a connection has them: the last one completes the line."""
    reader = LineReader(2 * MIB)
    for start in range(0, len(octets), READ_OCTETS):
        yield from reader.reads(octets[start : start + READ_OCTETS])


def _read_envelopes(octets: bytes) -> Iterator[Any]:
    return EnvelopeReader().reading(octets)


def _measured(kind: str, octets: int, count: int, begin: Callable[[], Iterator[Any]]) -> Figure:
    """Measure processor time, so that other programs count little: of `count` runs, the least time of each
    step. All runs have the same steps.
    """
    runs: list[list[float]] = []
    for _ in range(count):
        gc.collect()
        gc.disable()  # the server looks for garbage seldom
        steps = begin()
        times: list[float] = []
        more = True
        while more:
            before = time.thread_time()
            more = next(steps, steps) is not steps
            times.append(time.thread_time() - before)
        gc.enable()
        runs.append(times)
    least = [min(times) for times in zip(*runs, strict=True)]
    return Figure(kind, octets, sum(least) * 1e9 / octets, max(least) * 1e3)


def print_steps(runs: int) -> int:
    """Measure both codecs, as far as they are here, and print a table in Markdown."""
    codecs: dict[str, dict[str, Figure]] = {}
    before = codec.COMPILED
    try:
        for name, compiled in (("compiled", True), ("plain", False)):
            if compiled and not before:
                continue
            codec.COMPILED = compiled
            codecs[name] = {figure.kind: figure for figure in figures(runs)}
    finally:
        codec.COMPILED = before
    print("| input | " + " | ".join(f"{name}, ns an octet | longest step in ms" for name in codecs) + " |")
    print("|---|" + "---|---|" * len(codecs))
    for kind in next(iter(codecs.values())):
        cells = [f"{found[kind].nanoseconds:.1f} | {found[kind].longest:.2f}" for found in codecs.values()]
        print(f"| {kind} | " + " | ".join(cells) + " |")
    return 0
