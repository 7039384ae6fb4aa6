"""The store and the drivers of the tests of drivers."""

from shared_store import shared_drivers, shared_store

__all__ = ["shared_drivers", "shared_store"]
