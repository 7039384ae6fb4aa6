"""The store and the drivers that the tests of a file share."""

from shared_store import shared_drivers, shared_store

__all__ = ["shared_drivers", "shared_store"]
