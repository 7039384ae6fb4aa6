"""How often Python's garbage collector looks for objects that point at one another and are used by nobody.

Connections leave none behind (tests/server/test_garbage.py), and nobody is served while the collector looks:
with 2,000 connections a look at all objects took 150 ms, and it came every few seconds when many of them came
and went. So it looks at new objects less often than usual, at old ones very seldom, and never at those that
are there from the start.
"""

import gc

NEW_OBJECTS = 10_000
"""It looks at the newest objects when so many more were made than freed: usually 700."""

YOUNG_LOOKS, OLD_LOOKS = 50, 100
"""Every how many looks it looks at the next older objects as well: usually 10."""


def look_seldom() -> None:
    """Call it when everything is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG_LOOKS, OLD_LOOKS)
