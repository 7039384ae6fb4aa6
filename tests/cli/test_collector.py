"""The objects that Python's garbage collector looks at in one step (`omq.cli.collector`)."""

import subprocess
import sys

SCANS = """
import gc
from omq.cli.collector import look_seldom

scanned = {0: [], 1: [], 2: []}

def count(phase, details):
    if phase == "start":
        looked_at = range(details["generation"] + 1)
        scanned[details["generation"]].append(sum(len(gc.get_objects(generation=each)) for each in looked_at))

look_seldom()
gc.callbacks.append(count)
kept = [[] for _ in range(200_000)]
gc.callbacks.clear()
print(max(scanned[0]), max(scanned[1]), len(scanned[2]))
"""


def test_a_scan_of_new_objects_is_short_however_many_are_kept() -> None:
    """A scan takes some 60 ns an object, and up to 1 µs where the processor caches nothing. Objects that were
    scanned twice are not scanned a third time.
    """
    run = subprocess.run(
        [sys.executable, "-c", SCANS], capture_output=True, text=True, timeout=120, check=True
    )
    youngest, younger, full = map(int, run.stdout.split())
    assert 0 < youngest <= 450
    assert 0 < younger <= 900
    assert full == 0
