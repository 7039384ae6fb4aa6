"""Stored blocks as the protocol sends them: re-exports of `omq_storage.blocks`."""

from omq_storage.blocks import Block, unpack_sent
from omq_storage.errors import DamagedBlock

__all__ = ["Block", "DamagedBlock", "unpack_sent"]
