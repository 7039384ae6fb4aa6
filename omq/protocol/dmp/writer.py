"""Encode DMP envelopes, many at a time, for feeds and for sinks."""

from collections.abc import Sequence
from itertools import repeat

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.dmp.envelopes import (
    AFTER_HEAD,
    IMMEDIATE,
    LONGEST_6_DMP_BODY,
    MANDATORY,
    NUMBER,
    Envelope,
    beginning,
)
from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.numbers import Octets

SMALLEST_ON_FEEDS = 12
"""The least size of an envelope that OpenAMQ's receivers accept; the specification allows 8."""

_LONGEST_SIZE = 2**32 - 1


def encode(envelope: Envelope) -> bytes:
    """Encode one envelope for a sink.

    Raises `FieldError` for a head that cannot be encoded, `ValueError` for a body that is too long.
    """
    options = (MANDATORY if envelope.mandatory else 0) | (IMMEDIATE if envelope.immediate else 0)
    return for_sink([envelope.body], [stored_head.encode(envelope.head)], [options])


def for_feed(bodies: Sequence[Octets], heads: Sequence[bytes] = ()) -> bytes:
    """Encode envelopes for a receiver, with options 0 and sizes of at least `SMALLEST_ON_FEEDS`.

    `heads[i]` is the encoded head of `bodies[i]`; without heads, each message gets `PLAIN_HEAD`. A message
    that is too small gets an empty headers table as padding, which does not change its meaning. Raises
    `ValueError` for lists of different lengths or a body that is too long.
    """
    return _run(bodies, heads, (), SMALLEST_ON_FEEDS)


def of_block(
    block: Block, messages: range, head: bytes = PLAIN_HEAD, smallest: int = SMALLEST_ON_FEEDS
) -> bytes:
    """Encode messages of a block for a receiver, all with the given head instead of the block's heads.

    `smallest` is the least size of an envelope: 0 for a sink.

    Raises as `Block.gather` and `for_feed` do.
    """
    begin, end = block.indexes(messages)
    if not messages:
        return b""
    if codec.COMPILED:
        made = codec.native.envelopes_of(
            block.frames, block.offsets, begin, end, messages.step, smallest, head
        )
        if made is not None:
            return made
    frames = codec.slices(block.frames, block.offsets, begin)[: end - begin : messages.step]
    return _run([frame[FRAME_HEADER:] for frame in frames], [head] * len(frames), (), smallest)


def for_sink(bodies: Sequence[Octets], heads: Sequence[bytes] = (), options: Sequence[int] = ()) -> bytes:
    """Encode envelopes for a sink, exactly as given by the lists of an `EnvelopeRun`.

    A body of 16 MiB or more uses the format of 4-DMP. Raises `ValueError` for lists of different lengths, for
    such a body with options other than 0, and for a body whose size exceeds a u32.
    """
    return _run(bodies, heads, options, 0)


def opening(length: int, head: bytes) -> bytes:
    """Return the octets that `for_feed` writes before a body of this length. Raise what `for_feed` raises."""
    if length < 0 or length + len(head) + AFTER_HEAD > _LONGEST_SIZE:
        raise ValueError(f"a body of {length} octets does not fit into an envelope")
    return _begin(length, head, 0, SMALLEST_ON_FEEDS)


def opening_for_sink(length: int, head: bytes, options: int = 0) -> bytes:
    """Return the octets that `for_sink` writes before a body of this length. Raise what `for_sink` raises."""
    if length < 0 or length + len(head) + AFTER_HEAD > _LONGEST_SIZE:
        raise ValueError(f"a body of {length} octets does not fit into an envelope")
    return _begin(length, head, options, 0)


def _run(bodies: Sequence[Octets], heads: Sequence[bytes], options: Sequence[int], smallest: int) -> bytes:
    count = len(bodies)
    if (heads and len(heads) != count) or (options and len(options) != count):
        raise ValueError(f"{count} bodies, {len(heads)} heads and {len(options)} options do not match")
    if not count:
        return b""
    if codec.COMPILED and not any(options):
        made = codec.native.envelopes(bodies, heads, smallest)
        if made is not None:
            return made
    return run_plain(bodies, heads, options, smallest)


def run_plain(
    bodies: Sequence[Octets], heads: Sequence[bytes], options: Sequence[int], smallest: int
) -> bytes:
    """Return one or more envelopes, in plain Python."""
    count = len(bodies)
    lengths = list(map(len, bodies))
    head = heads[0] if heads else PLAIN_HEAD
    alike = not heads or heads.count(head) == count
    besides = len(head) + AFTER_HEAD
    longest_head = len(head) if alike else max(map(len, heads))
    if max(lengths) + longest_head + AFTER_HEAD > _LONGEST_SIZE:
        raise ValueError(f"a body of {max(lengths)} octets does not fit into an envelope")
    pieces: list[Octets] = [b""] * (2 * count)
    if alike and not any(options) and min(lengths) + besides >= smallest:
        # All of this loop runs inside the interpreter's own C code.
        pieces[::2] = map(beginning(len(head)).pack, map(besides.__add__, lengths), repeat(head), lengths)
    else:
        each_head = heads or repeat(PLAIN_HEAD)
        each_options = options or repeat(0)
        pieces[::2] = map(_begin, lengths, each_head, each_options, repeat(smallest))
    pieces[1::2] = bodies
    return b"".join(pieces)


def _begin(length: int, head: bytes, options: int, smallest: int) -> bytes:
    """Return an envelope up to its body of `length` octets."""
    if len(head) + AFTER_HEAD + length < smallest:
        head = stored_head.with_headers(head)
    if options and length > LONGEST_6_DMP_BODY:
        raise ValueError(f"a body of {length} octets leaves no room for options")
    return b"".join((NUMBER.pack(len(head) + AFTER_HEAD + length), head, NUMBER.pack(options << 24 | length)))
