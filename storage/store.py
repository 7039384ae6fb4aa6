"""A store: one directory with a catalogue and an environment for each sync level (design, section 6)."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from storage.catalogue import Catalogue
from storage.environment import Environment
from storage.levels import Level


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening one environment found and did."""

    level: Level
    what: str
    """One sentence for an operator."""
    rolled_back: bool
    """True when messages that someone may have seen could be gone."""


class Store:
    """An open store.  A context manager; leaving it closes the store cleanly."""

    catalogue: Catalogue
    recoveries: tuple[Recovery, ...]

    @classmethod
    def open(cls, path: str | Path, *, map_size: int = 1 << 40, boot_id: str | None = None) -> Self:
        """Opens the store in this directory, or makes it.

        ``map_size``: how large each environment may become, in octets; no memory or disk is taken by it.
        ``boot_id``: names this start of the machine, to tell a power failure from a killed process; by
        default the environment variable OMQ_BOOT_ID, or else the kernel's own.

        Raises StoreInUse, NewerFormat, StoreFull, and StoreError when the directory cannot be used.
        """
        raise NotImplementedError

    def level(self, level: Level) -> Environment:
        """The environment of one sync level."""
        raise NotImplementedError

    def close(self, clean: bool = True) -> None:
        """Closes everything and gives the directory back; calling it again does nothing.

        Without ``clean`` no last checkpoint is made.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
