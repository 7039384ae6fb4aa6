"""Configure the intervals of Python's cyclic garbage collector.

Connections leave no cyclic garbage (tests/server/test_garbage.py), and the server stands still during a
collection: with 2,000 connections a full collection took 150 ms, and one ran every few seconds when many
clients came and went. So the collector scans old objects very rarely. It never scans those that exist at the
start, unless memory was returned since (omq/cli/allocator.py). It scans each object once or twice while that
is new, however often it does so. Therefore it scans few objects at a time. Where 4,000 clients come and go,
the processor caches few of them: scans of up to 4,000 objects took 2.5 to 3.9 ms then, and those of up to
some 600 take 0.5 to 0.8 ms, all together no longer.
"""

import gc
import sys

NEW_OBJECTS = 300
"""Scan the youngest generation when N more objects were allocated than freed: Python's default is 700."""

YOUNG_LOOKS, OLD_LOOKS = 0, 80_000
"""Scan the next older generation after more than N scans of the younger one: Python's default is 10. The next
older one of the youngest is scanned with it every second time.
"""


def look_seldom() -> None:
    """Set the thresholds. Call this when everything is imported."""
    # Without a full collection before: it takes 14 ms, and finds some forty objects.
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG_LOOKS, OLD_LOOKS)


def drop_spare_objects() -> None:
    """Free the objects that Python keeps for reuse: thousands of small ones, spread over the memory.

    These are freed tuples and others, which only a full collection drops; it has nothing to look through, as
    all objects are frozen meanwhile. And Python's cache of the attributes of classes holds the names that it
    looked up: a pattern with positional arguments (`case Message(id)`) makes a string whenever it matches.
    """
    gc.freeze()
    gc.collect()
    gc.unfreeze()
    sys._clear_type_cache()
