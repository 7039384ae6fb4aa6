"""Bounds the number of stored heads that one step translates into the form of another protocol, or writes
again.

To translate a short head takes about 50 microseconds, and to frame one as it is stored about 5. A take may
have thousands of messages, each with a head of its own, and all other connections wait while they are framed.
So they are framed portion by portion, and after each portion the task lets the other tasks run.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar, TypeVarTuple

Others = TypeVarTuple("Others")
T = TypeVar("T")

_PORTION = 6 << 10
_EACH = 256
"""The cost of any head beside that of its octets, as a number of octets."""

_FRAMED = 32
"""The cost of framing a head as it is stored, as a number of octets."""

_FRAMED_OCTETS = 64
"""The number of octets of such a head that cost as much as one octet of a head that is translated."""

_MOST_CACHED = 1024
"""The octets of the longest head whose translation is kept."""


class Portion:
    """The heads that one step translates. A new portion is not spent, so each step can translate at least one
    head.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _PORTION

    @property
    def is_spent(self) -> bool:
        """Whether no other head may be translated in this step."""
        return self._left <= 0

    def spend(self, head: bytes) -> None:
        """Count a head that was translated."""
        self._left -= _EACH + len(head)

    def spend_framed(self, head: bytes) -> None:
        """Count a head that is framed, besides its translation."""
        self._left -= _FRAMED + len(head) // _FRAMED_OCTETS


class Translation(Generic[*Others, T]):
    """Translates heads, and keeps the results for short ones: consecutive messages often have equal heads."""

    def __init__(self, translate: Callable[[bytes, *Others], T]) -> None:
        self._translate = translate
        self._cached = lru_cache(maxsize=256)(translate)

    def of(self, portion: Portion, head: bytes, *others: *Others) -> T:
        """Return the translation of a head, which counts in `portion` unless it was kept. `others` are what
        else it depends on.
        """
        if len(head) <= _MOST_CACHED:
            known = self._cached.cache_info().misses
            translated = self._cached(head, *others)
            if self._cached.cache_info().misses == known:
                return translated
        else:
            translated = self._translate(head, *others)
        portion.spend(head)
        return translated
