"""Target: stored blocks, whose checksum a malicious writer has made good."""

from struct import Struct, unpack_from

from crc32c import crc32c
from fuzz_checks import TWINS, Target, check_sentence, twin

from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.omq.frames import take_messages
from omq_storage.blocks import Block, encode, merge, pack, unpack
from omq_storage.errors import DamagedBlock, NewerFormat

_CHECKSUM = Struct(">I")
_CHECKSUM_AT = 8
_COVERED_FROM = 12
_KEY_AT = 12
_HEADER = 48


def checksummed(value: bytes) -> bytes:
    """Return the value with the checksum that belongs to it."""
    if len(value) < _COVERED_FROM:
        return value
    checksum = crc32c(value[_COVERED_FROM:], crc32c(value[:_CHECKSUM_AT]))
    return value[:_CHECKSUM_AT] + _CHECKSUM.pack(checksum) + value[_COVERED_FROM:]


def check_block(data: bytes) -> None:
    """Check that a value is refused, or every part of its block can be read."""
    topic, first = unpack_from(">IQ", data, _KEY_AT) if len(data) >= _HEADER else (1, 1)
    for value in (data, checksummed(data)):
        try:
            block = unpack(topic, first, value)
        except (DamagedBlock, NewerFormat) as error:
            check_sentence(str(error))
            continue
        assert pack(block) == value
        _look_at(block)


def _look_at(block: Block) -> None:
    frames = [bytes(block.frame(message)) for message in range(block.first, block.next)]
    assert b"".join(frames) == block.frames
    assert min(map(len, frames)) >= 17
    assert len(block.heads_from(block.first)) == block.count
    assert block.message_time(block.last) == block.time + block.span
    hands = range(block.first, block.next, 2)
    seen = []
    for compiled in TWINS:
        with twin(compiled):
            assert block.slices(block.first) == frames
            assert block.gather(hands) == b"".join(frames[::2])
            assert block.after(block.last) == frames[-1]
            found: list[object] = []
            end = take_messages(bytes(block.frames), 0, 1 << 20, found)  # type: ignore[arg-type]  # a list of objects takes all frames
            seen.append((dmp_writer.of_block(block, hands), found, end))
    for other in seen[1:]:
        assert other == seen[0]
    if block.next < 1 << 63:
        other_block = encode(block.topic, block.next, [b"next"], block.time + 5)
        try:
            whole = merge([block, other_block])
        except ValueError as error:
            check_sentence(str(error))
        else:
            assert whole.count == block.count + 1


def _values() -> tuple[bytes, ...]:
    plain = encode(3, 5, [b"one", b"", b"three"], 1_700_000_000_000_000)
    headed = encode(3, 8, [b"four", b"five"], 1_700_000_000_000_009, [b"", b"\0\0\0\0"])
    return tuple(
        map(pack, (plain, headed, merge([plain, headed]), encode((1 << 32) - 1, (1 << 64) - 2, [b""], 0)))
    )


TARGETS = (
    Target(
        "block",
        "stored blocks, with a checksum that is right",
        check_block,
        _values(),
        (
            b"omqB\x01\x00\0\0",
            b"omqB\x01\x03\0\0",
            b"\x11\0\0\0",
            b"\0\0\0\x11",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x40",
        ),
        longest=400,
    ),
)
