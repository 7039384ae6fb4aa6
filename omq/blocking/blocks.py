"""Stored blocks, one after another."""

from omq.blocking.entered import EnteredItems
from omq.client import Block
from omq.client import Blocks as AsyncBlocks


class Blocks(EnteredItems[AsyncBlocks, Block]):
    """An iterator over the blocks of a Fetch: whole stored blocks, verified, in the order of their ids.
    `Client.fetch` creates it; one thread at a time may use it.

    It reports gaps between blocks to the `on_gap` of `connect`. Iterating raises ServerError when the server
    ends the Fetch, and ConnectionLost.
    """

    @property
    def next(self) -> int | None:
        """The id of the next message, after the whole range was received; None before."""
        return self._opened.next
