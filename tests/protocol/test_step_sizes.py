"""The octets, lines and messages of one step: between two steps the other connections have their turn."""

from collections.abc import Callable

import pytest
from twins import using

from omq.protocol.amqp import fields
from omq.protocol.amqp_1_0 import frames, performatives, runs
from omq.protocol.amqp_1_0.performatives import Transfer
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.dmp.writer import for_sink
from omq.protocol.omq import atoms, sexp
from omq.protocol.omq.lines import LineReader
from omq.protocol.steps import Steps
from omq_storage import codec

needs_compiled = pytest.mark.skipif(not codec.COMPILED, reason="no compiled codec here")


def pauses(steps: Steps[object]) -> int:
    """Return the number of pauses before the result."""
    return sum(1 for _ in steps)


def list_of(piece: bytes) -> Callable[[int], bytes]:
    return lambda octets: b"(" + piece * (octets // len(piece)) + b")"


def string(octets: bytes) -> bytes:
    return b'"' + octets + b'"'


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (list_of(b"a "), {254: 0, 256: 0, 512: 1}),
        (list_of(b'"a"'), {256: 0, 513: 1, 1024: 2, 4096: 8, 8192: 16}),
        (list_of(b"()"), {256: 0, 513: 1, 1024: 2, 4096: 8, 8192: 16}),
        (list_of(b";x\n"), {256: 0, 513: 1, 1024: 2, 4096: 8, 8192: 16}),
        (list_of(b"#|x|#"), {256: 0, 513: 1, 1024: 2, 4096: 8, 8192: 16}),
        (lambda octets: b"a" * octets, {256: 0, 257: 1, 4096: 1, 4097: 2, 8192: 2, 8193: 3}),
        (lambda octets: string(b"a" * (octets - 2)), {256: 0, 257: 1, 4098: 1, 8192: 2, 12288: 3}),
        (lambda octets: b"#|%s|#" % (b"a" * (octets - 4)), {256: 0, 257: 1, 4096: 17, 8192: 33}),
        (lambda octets: b";%s\n" % (b"a" * (octets - 1)), {255: 0, 256: 1, 257: 1, 4095: 1, 4096: 2}),
        (lambda octets: b" " * octets, {256: 0, 257: 1, 512: 1, 513: 2, 4096: 15}),
    ],
    ids=["atoms", "strings", "lists", "lines", "comments", "atom", "string", "comment", "line", "blanks"],
)
def test_the_plain_code_reads_256_octets_of_tokens_at_a_time(
    text: Callable[[int], bytes], counted: dict[int, int]
) -> None:
    assert {octets: pauses(sexp.scanned_plain(text(octets), 100, None)) for octets in counted} == counted


@needs_compiled
@pytest.mark.parametrize(("octets", "count"), [(16383, 0), (16384, 1), (16385, 1), (32768, 2)])
def test_the_compiled_codec_reads_16_kib_of_a_sexp_at_a_time(octets: int, count: int) -> None:
    assert pauses(sexp.scanned_compiled(b" " * octets + b"a", 100, None)) == count


@pytest.mark.parametrize(("octets", "count"), [(4096, 0), (4097, 2), (8192, 2), (8193, 3)])
def test_the_plain_code_resolves_escapes_of_4_kib_at_a_time(octets: int, count: int) -> None:
    atom = string(rb"\\" + b"a" * (octets - 2))
    assert pauses(atoms.unquoting_plain(atom)) == count


@needs_compiled
@pytest.mark.parametrize(("octets", "count"), [(16384, 0), (16385, 1), (32768, 1), (32769, 2)])
def test_the_compiled_codec_resolves_escapes_of_16_kib_at_a_time(octets: int, count: int) -> None:
    assert pauses(atoms.unquoting_compiled(string(rb"\\" + b"a" * (octets - 2)))) == count


def read(octets: bytes, *, compiled: bool) -> list[int]:
    """Return the number of events of each step that reads these lines."""
    with using(compiled=compiled):
        return [len(events) for events in LineReader(1 << 20).reads(octets)]


@needs_compiled
@pytest.mark.parametrize(("lines", "steps"), [(16, [16]), (17, [16, 1]), (32, [16, 16]), (33, [16, 16, 1])])
def test_a_step_has_16_lines_in_other_forms(lines: int, steps: list[int]) -> None:
    assert read(b"Topics\n" * lines, compiled=True) == steps


@pytest.mark.parametrize(("lines", "steps"), [(15, 0), (16, 1), (31, 1), (32, 2)])
def test_the_plain_code_pauses_after_16_lines_in_other_forms(lines: int, steps: int) -> None:
    assert read(b"Topics\n" * lines, compiled=False) == [0] * steps + [lines]


@pytest.mark.parametrize(("octets", "steps"), [(16384, 1), (16385, 2), (32768, 2), (32769, 3)])
def test_a_step_skips_16_kib_of_blank_lines(octets: int, steps: int) -> None:
    assert read(b"\n" * octets, compiled=False) == [0] * steps
    if codec.COMPILED:
        assert read(b"\n" * octets, compiled=True) == [0] * (steps + 1)


ALIKE = b"(Publish aaa b)\n"
MIXED = ALIKE + b"(Publish ccc d)\n"


@pytest.mark.parametrize(("lines", "steps"), [(4096, 1), (4097, 2), (8192, 2), (8193, 3)])
def test_the_plain_code_reads_64_kib_of_uniform_lines_at_a_time(lines: int, steps: int) -> None:
    assert len(ALIKE) == 16
    assert len(read(ALIKE * lines, compiled=False)) == steps + 1


@pytest.mark.parametrize(("pairs", "steps"), [(128, 1), (129, 2), (256, 2), (257, 3)])
def test_the_plain_code_reads_4_kib_of_mixed_lines_at_a_time(pairs: int, steps: int) -> None:
    assert len(MIXED) == 32
    assert len(read(MIXED * pairs, compiled=False)) == steps


@needs_compiled
@pytest.mark.parametrize(("lines", "steps"), [(512, 1), (513, 2), (1024, 2), (1025, 3)])
def test_a_step_reads_8_kib_of_received_lines(lines: int, steps: int) -> None:
    line = b"(Received a 12)\n"
    assert len(line) == 16
    assert len(read(line * lines, compiled=True)) == steps


def publishes(topics: int) -> bytes:
    return b"".join(b"(Publish t%d x)\n" % number for number in range(topics))


@needs_compiled
@pytest.mark.parametrize(
    ("topics", "steps"), [(128, 1), (129, 2), (256, 2), (257, 3), (512, 3), (1023, 5), (1024, 6)]
)
def test_a_step_finds_or_adds_the_messages_of_256_topics(topics: int, steps: int) -> None:
    """Those of 1024 topics end it, so that their events have a step of their own."""
    assert read(publishes(topics), compiled=True) == [0] * (steps - 1) + [topics]


@needs_compiled
def test_steps_count_the_topics_before_and_after_other_lines() -> None:
    few = publishes(100)
    events = read((few + b"(Confirm 1)\n") * 16, compiled=True)
    assert max(events) < 1300
    assert events.count(0) >= 10


def transfers(count: int) -> bytes:
    return b"".join(
        frames.write(0, performatives.write(Transfer(1, id, b"t", 0, True)), b"\0Su\xa0\1x")
        for id in range(count)
    )


@pytest.mark.parametrize(("sent", "taken"), [(511, 511), (512, 512), (513, 512)])
def test_the_plain_code_takes_512_transfers_at_a_time(sent: int, taken: int) -> None:
    octets = transfers(sent)
    run, end = runs.take_transfers_plain(octets, 0, 65536)
    assert run is not None
    assert (run.batch.count, run.last, end) == (taken, taken - 1, len(transfers(taken)))


@needs_compiled
def test_the_compiled_codec_takes_8192_transfers_at_a_time() -> None:
    octets = transfers(8193)
    run, end = runs.take_transfers(octets, 0, 65536)
    assert run is not None
    assert (run.batch.count, end) == (8192, len(transfers(8192)))


def envelopes(count: int, different: bool) -> bytes:
    heads = [b"\0\1%c\0\0" % (number % 200) for number in range(count)] if different else []
    return for_sink([b"x"] * count, heads)


@needs_compiled
@pytest.mark.parametrize(("count", "steps"), [(8192, 0), (8193, 1), (16384, 1), (16385, 2)])
def test_the_compiled_codec_takes_8192_envelopes_at_a_time(count: int, steps: int) -> None:
    with using(compiled=True):
        assert pauses(EnvelopeReader().reading(envelopes(count, different=False))) == steps


@pytest.mark.parametrize(("count", "steps"), [(52, 0), (53, 1), (104, 1), (105, 2), (520, 9), (521, 10)])
def test_an_envelope_with_another_head_counts_as_ten_in_the_plain_code(count: int, steps: int) -> None:
    octets = envelopes(count, different=True)
    with using(compiled=False):
        assert pauses(EnvelopeReader().reading(octets)) == steps


@pytest.mark.parametrize(("values", "steps"), [(511, 0), (512, 1), (1023, 1), (1024, 2)])
def test_a_table_is_checked_in_steps_of_512_values(values: int, steps: int) -> None:
    table = (2 * values).to_bytes(4, "big") + b"\0V" * values
    assert pauses(fields.checking(table, 0, len(table))) == steps
    assert fields.is_small_table(table, 0, len(table)) is (steps == 0)
