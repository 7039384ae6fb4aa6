"""Random calls of the compiled codec: valid, mutated, and hostile ones that our code never makes.

A case may be refused with any exception that Python code can raise, but for those that say the extension is
broken. What is done is also what the plain twin does. Whether memory was left alone is for the sanitizers to
say.
"""

from collections.abc import Callable, Sequence
from random import Random
from struct import pack
from threading import Thread
from typing import Any

from fuzz_codec_inputs import (
    HEADS,
    LINE_PIECES,
    NUMBERS,
    SEXP_PIECES,
    STRANGERS,
    block,
    bodies_of,
    held,
    mutated,
    number,
    octets,
)

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp_0_9 import delivery, runs
from omq.protocol.amqp_0_9 import frames as amqp_frames
from omq.protocol.amqp_0_9.methods import BasicAck, BasicPublish
from omq.protocol.amqp_0_9.runs import RunLimits
from omq.protocol.amqp_1_0 import frames as transfer_frames
from omq.protocol.amqp_1_0 import performatives, stored
from omq.protocol.amqp_1_0 import runs as transfer_runs
from omq.protocol.amqp_1_0.performatives import Transfer
from omq.protocol.dmp import reader as dmp_reader
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.omq import compiled_lines, frames, plain_lines, sexp
from omq.protocol.omq.events import PublishRun
from omq.protocol.omq.frames import MessageRun
from omq.protocol.steps import finished
from omq_storage import plain
from omq_storage.batches import Bodies, joined

LARGE = 1 << 20
"""Octets: above this the codec works without Python's lock."""

BROKEN = (SystemError, AssertionError)
"""An exception of these is a finding; any other is an answer."""


def try_case(kind: Callable[[Random, Any], None], random: Random, native: Any) -> None:
    """Try a case. Raise what is a finding."""
    try:
        kind(random, native)
    except BROKEN:
        raise
    except Exception as error:  # noqa: BLE001 - hostile arguments may be answered with any of them
        str(error)  # which must be possible


def same(found: Any, expected: Callable[[], Any]) -> None:
    """Check that the result is the twin's; None leaves it to the twin."""
    if found is not None:
        made = expected()
        assert found == made, (found, made)


def frames_made(random: Random, native: Any) -> None:
    """Make frames of lists of bodies; parts of them, several joined, stamped more than once."""
    bodies: Any = bodies_of(random)
    if random.random() < 0.1:
        bodies = random.choice(STRANGERS)()
    elif random.random() < 0.1:
        bodies[random.randint(0, len(bodies)) :] = [random.choice(STRANGERS)()]
    topic, first = number(random), number(random)
    same(native.frames_of(topic, first, bodies), lambda: plain.frames_of(topic, first, bodies))
    made = native.prepare(bodies)
    if made is None:
        return
    parts = [made]
    for _ in range(random.randint(0, 3)):
        begin = random.randint(0, made.count)
        end = random.randint(begin, made.count)
        part = made.part(begin, end)
        assert part.bodies() == list(bodies[begin:end])
        parts.append(part)
    whole = native.joined(parts)
    assert whole.bodies() == [body for part in parts for body in part.bodies()]
    for _ in range(2):
        same(whole.stamped(topic, first), lambda: plain.frames_of(topic, first, whole.bodies()))
    made.part(number(random), number(random))
    native.joined([*parts, random.choice(STRANGERS)()])


def cut_blocks(random: Random, native: Any) -> None:
    """Gather, slice and write envelopes from frames whose offsets lie."""
    made, offsets = block(random)
    frames_held, offsets_held = held(random, made), held(random, offsets)
    strange = random.random() < 0.1
    if strange:
        frames_held, offsets_held = random.choice(
            ((frames_held, random.choice(STRANGERS)()), (random.choice(STRANGERS)(), offsets_held))
        )
    begin, end, step, smallest = number(random), number(random), number(random, 4), number(random)
    head = random.choice(HEADS) if random.random() < 0.95 else random.choice(STRANGERS)()
    calls: tuple[Callable[[], tuple[Any, Callable[[], Any] | None]], ...] = (
        lambda: (
            native.gathered(frames_held, offsets_held, begin, end, step),
            lambda: plain.gathered(made, offsets, begin, end, step),
        ),
        lambda: (native.slices(frames_held, offsets_held, begin), lambda: plain.slices(made, offsets, begin)),
        lambda: (native.envelopes_of(frames_held, offsets_held, begin, end, step, smallest, head), None),
    )
    for call in calls:
        try:
            found, expected = call()
            if expected is not None and not strange:
                same(found, expected)
        except BROKEN:
            raise
        except Exception:  # noqa: BLE001, S110 - an answer; the next call is still to be made
            pass


def wire_of_envelopes(random: Random) -> bytes:
    parts = []
    for _ in range(random.randint(0, 8)):
        if random.random() < 0.15:
            parts.append(bytes(4))
            continue
        head, body = random.choice(HEADS), octets(random)
        options = random.choice((0, 0, 0, 1, 2, 3, 4, 255))
        length = len(body) if random.random() < 0.9 else random.choice(NUMBERS) & 0xFFFFFF
        size = len(head) + 4 + len(body) if random.random() < 0.9 else random.choice(NUMBERS) & 0xFFFFFFFF
        parts.append(pack(">I", size) + head + pack(">I", options << 24 | length) + body)
    return b"".join(parts)


def read_envelopes(random: Random, native: Any) -> None:
    """Read envelopes whose sizes lie, from any position, with any limits; and ask all that spans can be
    asked.
    """
    data = mutated(random, wire_of_envelopes(random))
    spans = native.Spans(data if random.random() < 0.98 else random.choice(STRANGERS)())
    for _ in range(random.randint(1, 4)):
        match random.randrange(5):
            case 0:
                spans.add_envelope(
                    number(random, 80), number(random, 80), number(random, 80), number(random, 3)
                )
            case 1:
                native.deal_lines(data, number(random, len(data)), number(random, len(data)))
            case _:
                spans.take_envelopes(
                    random.choice((0, 0, number(random, len(data)))),
                    number(random, 99),
                    number(random, 99),
                    number(random, 9),
                )
        bodies = spans.bodies()
        assert len(bodies) == spans.count
        assert len(spans.heads()) in (0, spans.count)
        assert len(spans.options()) in (0, spans.count)
        made = spans.frames()
        assert made.bodies() == bodies
        assert all(body in data for body in bodies)


def scan_envelopes(random: Random, native: Any) -> None:
    """Compare the whole way from octets to envelopes with the plain one."""
    del native  # it is the codec's by now
    data = mutated(random, wire_of_envelopes(random))
    limit = random.choice((0, 5, 100, 1 << 26, 1 << 34))
    found = []
    for scan in (dmp_reader.scan, dmp_reader.scan_plain):
        run: tuple[list[bytes], list[bytes], list[int]] = ([], [], [])
        try:
            end: Any = scan(data, limit, *run)
        except ValueError as error:
            end = str(error)
        found.append((end, run))
    assert found[0] == found[1], found


def write_envelopes(random: Random, native: Any) -> None:
    """Write envelopes from bodies and heads that may be anything."""
    bodies: Any = bodies_of(random) or [b""]
    heads: Any = [random.choice(HEADS) for _ in bodies] if random.random() < 0.6 else ()
    if random.random() < 0.15:
        bodies = random.choice(([*bodies, random.choice(STRANGERS)()], random.choice(STRANGERS)()))
    if random.random() < 0.15:
        heads = random.choice(([*heads, random.choice(STRANGERS)()], random.choice(STRANGERS)()))
    smallest = random.choice((0, dmp_writer.SMALLEST_ON_FEEDS, number(random, 99)))
    same(native.envelopes(bodies, heads, smallest), lambda: dmp_writer.run_plain(bodies, heads, (), smallest))


def all_events(read: Callable[[bytes, int], tuple[list[Any], int]], whole: bytes) -> list[Any]:
    """Return all events that a reader yields for these lines. Publishes that are read in turns are one run
    again.
    """
    found: list[Any] = []
    runs: dict[bytes, list[Any]] = {}
    position = 0
    while position < len(whole):
        events, position = read(whole, position)
        for event in events:
            if isinstance(event, PublishRun):
                runs.setdefault(event.topic, []).append(event.batch)
                continue
            found += [PublishRun(topic, joined(parts)) for topic, parts in runs.items()]
            runs.clear()
            found.append(event)
    return found + [PublishRun(topic, joined(parts)) for topic, parts in runs.items()]


def read_lines(random: Random, native: Any) -> None:
    """Publish lines in all forms and in none, held against the plain reader."""
    data = b"".join(random.choice(LINE_PIECES) for _ in range(random.randint(0, 14)))
    data = mutated(random, data)
    begin = random.choice((0, 0, number(random, len(data))))
    dealt, end = native.deal_lines(data, begin, number(random, 200))
    assert 0 <= end <= len(data)
    for _, spans in dealt:
        assert spans.count > 0
        spans.frames()
        spans.bodies()
    whole = data + b"\n"
    assert all_events(compiled_lines.events_compiled, whole) == all_events(plain_lines.events_plain, whole)


def read_sexps(random: Random, native: Any) -> None:
    """Read sexps in steps of any size, compared with the plain reader; and strings whose places lie."""
    data = b"".join(random.choice(SEXP_PIECES) for _ in range(random.randint(0, 30)))
    data = mutated(random, data)
    depth, tokens = random.choice((2, 100, number(random, 9))), random.choice((3, 100, number(random, 99)))
    scan = native.SexpScan(data, depth, tokens)
    octets = number(random, 40)
    while scan.step(octets):
        pass
    scan.step(octets)
    if 0 <= depth <= 100 and 0 <= tokens <= 100:
        found = []
        for read in (sexp.scanned_compiled, sexp.scanned_plain):
            try:
                made: Any = finished(read(data, depth, tokens))
            except ValueError as error:
                made = str(error)
            found.append(made)
        assert found[0] == found[1], found
    begin, stop, end = (number(random, len(data)) for _ in range(3))
    native.unescaped(data, begin, stop, end)


def read_messages(random: Random, native: Any) -> None:
    """Read Message frames whose lengths lie, with receivers that misbehave."""
    made, _ = plain.frames_of(
        random.randint(0, 3), random.choice((5, (1 << 64) - 40)), bodies_of(random) or [b"a"]
    )
    other, _ = plain.frames_of(random.randint(0, 3), 5, bodies_of(random) or [b"a"])
    data = mutated(random, made + other)
    position = random.randint(0, len(data))
    largest = random.choice((0, 12, 13, 30, 1 << 32, 1 << 70))
    found: list[Any] = []
    expected: list[Any] = []
    assert native.take_messages(data, 0, largest, found, MessageRun) == frames.take_messages_plain(
        data, 0, largest, expected
    )
    assert found == expected

    def misbehave(topic: int, ids: list[int], bodies: list[bytes]) -> object:
        del topic
        ids.clear()
        bodies.clear()
        found.clear()
        if random.random() < 0.3:
            raise KeyError("no")
        return random.choice(STRANGERS)()

    native.take_messages(data, position, largest, found, misbehave)
    native.take_messages(data, number(random, len(data)), number(random), found, random.choice(STRANGERS)())


def several_threads(random: Random, native: Any) -> None:
    """Make and stamp large frames in two threads at once, without Python's lock."""
    body = octets(random, 999)
    size = LARGE // (len(body) + 17) + 1
    data = (pack(">I", 8 + len(body)) + bytes(4) + pack(">I", len(body)) + body) * size
    spans = native.Spans(data)
    spans.take_envelopes(0, 1 << 20, 1 << 16, 1 << 20)
    made: list[Any] = []

    def make() -> None:
        try:
            mine = spans.frames()
            spans.take_envelopes(0, 1 << 20, 1 << 16, 1 << 20)
        except RuntimeError:
            mine = native.prepare([body] * size)
        made.append((mine.stamped(7, 1), mine.stamped(8, 2), mine.part(0, 1).bodies()))

    threads = [Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert all(first == [body] for _, _, first in made)


def batches(random: Random, native: Any) -> None:
    """Check the sizes and numbers of frames as batches."""
    bodies = bodies_of(random)
    made = native.prepare(tuple(bodies))
    listed = Bodies(bodies)
    assert (made.count, made.octets) == (listed.count, listed.octets)
    made.stamped(number(random), number(random))
    again: Sequence[bytes] = made.bodies()
    assert again == bodies


def wire_of_amqp(random: Random) -> bytes:
    """Return contents and acknowledgements of AMQP 0-9-1 on channels 1 and 2, with sizes that may lie."""
    parts = []
    for _ in range(random.randint(0, 8)):
        channel = random.choice((1, 1, 1, 2))
        if random.random() < 0.3:
            ack = BasicAck(random.randint(0, 4), random.random() < 0.3)
            parts.append(amqp_frames.method_frame(channel, ack))
            continue
        head, body = random.choice(HEADS), octets(random)
        size = len(body) if random.random() < 0.9 else random.choice(NUMBERS) & 0xFFFFFFFFFFFFFFFF
        names = stored_head.names(head)
        parts += (
            amqp_frames.method_frame(channel, BasicPublish(*names, random.random() < 0.2)),
            amqp_frames.header_frame(channel, delivery.properties(head), size),
            *map(bytes, amqp_frames.body_frames(channel, body, random.choice((20, 4096, 4096)))),
        )
    return b"".join(parts) * random.choice((1, 1, 3))


def read_amqp(random: Random, native: Any) -> None:
    """Read contents and acknowledgements from any position, with any limits, compared with the plain
    twins.
    """
    data = mutated(random, wire_of_amqp(random))
    position, channel, most = number(random, len(data)), number(random, 3), number(random, 9)
    native.take_acks(data, position, channel, most)
    arguments = (number(random, 99), number(random, 99), number(random, 99), most)
    taken = native.take_publishes(data, position, channel, *arguments)
    if taken is not None:
        end, spans, heads, *_ = taken
        assert position < end <= len(data)
        assert len(heads) == spans.count
        assert all(body in data for body in spans.bodies())
    limits = RunLimits(random.choice((5, 100)), random.choice((30, 300)))
    found = runs.take_publishes(data, 0, 1, limits)
    assert found == runs.take_publishes_plain(data, 0, 1, limits), found
    assert runs.take_acks(data, 0, 1) == runs.take_acks_plain(data, 0, 1)


def write_deliveries(random: Random, native: Any) -> None:
    """Write blocks whose offsets lead anywhere as deliveries, and templates that are none."""
    made, offsets = block(random)
    heads, head_offsets = block(random)
    opening = octets(random)

    def template(head: bytes) -> Any:
        if random.random() < 0.02:
            return random.choice(STRANGERS)()
        return (opening if random.random() < 0.95 else random.choice(STRANGERS)()), *(
            number(random, len(opening)) for _ in range(3)
        )

    has_heads = random.random() < 0.5
    written = native.deliveries(
        held(random, made), held(random, offsets),
        held(random, head_offsets) if has_heads else None, held(random, heads) if has_heads else None,
        number(random), number(random), number(random, 3), number(random), number(random),
        random.choice((9, 12, 4096, number(random))), number(random),
        template if random.random() < 0.98 else random.choice(STRANGERS)(),
    )  # fmt: skip
    assert written is None or (type(written[0]), type(written[1])) == (bytes, int)


SECTIONS = (
    b"", b"\x00\x53\x70\x45", b"\x00\x53\x73\xc0\x04\x01\xa1\x01i", b"\x00\x53\x72\xc1\x01\x00",
    b"\x00\x53\x70\xc0\x05\x03\x40\x40\x52\x09", b"\x00\x53\x73\xc0\x0b\x0a" + b"\x40" * 10,
)  # fmt: skip


def wire_of_transfers(random: Random) -> bytes:
    parts = []
    delivery = random.choice((0, 200, 2**32 - 2))
    for _ in range(random.randint(1, 8)):
        transfer = Transfer(
            random.choice((0, 0, 0, 300)), delivery, octets(random, 32), 0, random.random() < 0.2
        )
        kept = stored.BodyFraming(random.choice((0, 0, 1, 2, 16, 17)), random.choice(SECTIONS), b"")
        payload = stored.message(kept, octets(random))
        parts.append(
            transfer_frames.write(random.choice((0, 0, 0, 1)), performatives.write(transfer), payload)
        )
        delivery = (delivery + random.choice((1, 1, 1, 2))) % 2**32
    return b"".join(parts) * random.choice((1, 1, 3))


def read_transfers(random: Random, native: Any) -> None:
    """Read transfers from any position, with any limits, compared with the plain twin."""
    data = mutated(random, wire_of_transfers(random))
    position = number(random, len(data))
    taken = native.take_transfers(data, position, number(random, 999), number(random, 9))
    if taken is not None:
        end, *_, spans, heads = taken
        assert position < end <= len(data)
        assert heads is None or len(heads) == spans.count
        assert all(body in data for body in spans.bodies())
    most = random.choice((30, 512, 65536))
    assert transfer_runs.take_transfers(data, 0, most) == transfer_runs.take_transfers_plain(data, 0, most)


def write_transfers(random: Random, native: Any) -> None:
    """Write blocks whose offsets lead anywhere as transfers, and surroundings that are none."""
    made, offsets = block(random)
    heads, head_offsets = block(random)

    def around(head: bytes) -> Any:
        if random.random() < 0.02:
            return random.choice(STRANGERS)()
        return random.choice((0, 1, 2, 3, 4, 16, number(random))), octets(random), octets(random)

    has_heads = random.random() < 0.5
    written = native.transfers(
        held(random, made), held(random, offsets),
        held(random, head_offsets) if has_heads else None, held(random, heads) if has_heads else None,
        number(random), number(random), number(random, 3), number(random), octets(random, 6), number(random),
        number(random), random.random() < 0.5, random.choice((9, 512, number(random))),
        around if random.random() < 0.98 else random.choice(STRANGERS)(),
    )  # fmt: skip
    assert written is None or (type(written[0]), type(written[1])) == (bytes, int)


KINDS = (
    frames_made,
    cut_blocks,
    read_envelopes,
    scan_envelopes,
    write_envelopes,
    read_lines,
    read_sexps,
    read_messages,
    batches,
    read_amqp,
    write_deliveries,
    read_transfers,
    write_transfers,
)
