"""Stored blocks as the protocol sends them: those of `omq_storage.blocks`, for whoever speaks it."""

from omq_storage.blocks import Block, unpack_sent
from omq_storage.errors import DamagedBlock

__all__ = ["Block", "DamagedBlock", "unpack_sent"]
