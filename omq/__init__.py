"""omq: a typed publish/subscribe server and its client library."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omq.client import connect as connect

__all__ = ["connect"]


def __getattr__(name: str) -> object:
    # The client brings Trio along, which those who only want the protocol's types need not load.
    if name == "connect":
        from omq.client import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
