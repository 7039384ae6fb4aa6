"""Copies of small parts of blocks in memory: for slow subscribers, so that the blocks can be freed."""

from omq.drivers.pieces import Pieces
from omq.drivers.seam import LITTLE_OCTETS, Piece
from omq_storage.blocks import FRAME_HEADER, Block, excerpt


def piece_of(block: Block, begun: Pieces) -> Piece:
    """Return a copy of a small part of a message."""
    body = block.frame(begun.message)[FRAME_HEADER:]
    octets = bytes(body[begun.begin : begun.begin + LITTLE_OCTETS])
    message = begun.message
    time, head = block.message_time(message), block.head(message)
    return Piece(block.topic, message, time, head, len(body), begin=begun.begin, octets=octets)


def beginning_of(block: Block, position: int) -> Block:
    """Return a copy of about LITTLE_OCTETS of the messages of a block from `position` on."""
    left = block.after(position)
    count = max(1, block.messages_within(position, min(len(left), LITTLE_OCTETS)))
    return excerpt(block, position, position + count)
