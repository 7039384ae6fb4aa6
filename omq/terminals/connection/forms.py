"""The form in which a connection sends messages: an opening and a body each. Every protocol has its own."""

from collections.abc import Sequence
from typing import Protocol

from omq.drivers.seam import Cut, Octets


class Form(Protocol):
    """How messages are written."""

    def parts(self, cuts: Sequence[Cut]) -> list[Octets]:
        """All of these messages, one after another; at most 1,024 parts for 512 cuts."""

    def opening(self, topic: int, message: int, head: bytes, size: int) -> bytes:
        """What stands before a body of `size` octets."""

    def sent(self, cuts: Sequence[Cut], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        """How many messages lie whole within the first so many octets of the parts, and how many octets of
        the next one do.
        """
