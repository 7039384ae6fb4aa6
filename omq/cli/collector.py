"""Configure how often Python's cyclic garbage collector runs.

Connections leave no cyclic garbage (tests/server/test_garbage.py), and the server stands still during a
collection: with 2,000 connections a full collection took 150 ms, and one ran every few seconds when many
clients came and went. So the collector scans new objects less often than by default, old ones very rarely,
and never those that exist at the start.
"""

import gc

NEW_OBJECTS = 10_000
"""Scan the youngest generation after so many more allocations than deallocations: Python's default is 700."""

YOUNG_LOOKS, OLD_LOOKS = 50, 100
"""Scan the next older generation after so many scans of the younger one: Python's default is 10."""


def look_seldom() -> None:
    """Set the thresholds. Call this when everything is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG_LOOKS, OLD_LOOKS)
