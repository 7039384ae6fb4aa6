"""Stored blocks as the protocol sends them: those of `storage.blocks`, for whoever speaks it."""

from storage.blocks import Block, unpack_sent
from storage.errors import DamagedBlock

__all__ = ["Block", "DamagedBlock", "unpack_sent"]
