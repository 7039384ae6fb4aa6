"""Checkpoint files, read and written by the layout that `omq_storage.checkpoint` documents."""

import json
from pathlib import Path
from struct import Struct

from crc32c import crc32c

SLOT = 80 << 10
"""Octets of each of the two slots."""

_START = Struct(">8sI")
_REST = Struct(">IIQ")
_BEGIN = _START.size + _REST.size


def newest_slot(octets: bytes) -> int:
    """Return the index of the slot with the higher sequence number."""
    return max((0, SLOT), key=lambda begin: _sequence(octets[begin : begin + SLOT]))


def _sequence(slot: bytes) -> int:
    return int(_REST.unpack_from(slot, _START.size)[2])


def without_slot(octets: bytes, begin: int) -> bytes:
    """Return the file with an empty slot at this index."""
    return octets[:begin] + bytes(SLOT) + octets[begin + SLOT :]


def set_boot_id(environment: Path, boot_id: str) -> None:
    """Give the checkpoints of an environment another boot id, so that recovery is needed."""
    file = environment / "checkpoint"
    octets = file.read_bytes()
    file.write_bytes(b"".join(_with_boot_id(octets[begin : begin + SLOT], boot_id) for begin in (0, SLOT)))


def _with_boot_id(slot: bytes, boot_id: str) -> bytes:
    described, paged, sequence = _REST.unpack_from(slot, _START.size)
    if not described:
        return slot.ljust(SLOT, b"\0")
    description = json.loads(slot[_BEGIN : _BEGIN + described]) | {"boot_id": boot_id, "clean": False}
    text = json.dumps(description).encode()
    pages = slot[_BEGIN + described : _BEGIN + described + paged]
    rest = _REST.pack(len(text), paged, sequence) + text + pages
    return (slot[:8] + crc32c(rest).to_bytes(4, "big") + rest).ljust(SLOT, b"\0")
