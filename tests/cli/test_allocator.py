"""What is freed stays with the process, where the C library is glibc."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from omq.cli.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def fill():
    # Pieces of the size of LMDB's pages, as a commit allocates them, and one of a block.
    held = [bytearray(4096) for _ in range(1000)] + [bytearray(1 << 19) for _ in range(8)]
    del held

fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_memory_that_was_freed_is_not_mapped_anew() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", PROGRAM, how]
        return int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)

    assert faults("kept") * 20 < faults("as it comes")
