"""The recorder of the torture program must not disturb the process that it records."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = Path(__file__).parent.parent.parent / "tools" / "torture"

HANDLER_ON_A_SMALL_STACK = """
import ctypes, mmap, os, signal, socket

SIZE, PAGE = 16384, mmap.PAGESIZE  # as much as faulthandler takes, and below it a page to fault on


class Stack(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


library = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, PAGE + SIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
library.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
assert library.mprotect(address, PAGE, 0) == 0
stack = Stack(address + PAGE, 0, SIZE)
assert library.sigaltstack(ctypes.byref(stack), None) == 0
reading, writing = socket.socketpair()
writing.setblocking(False)
signal.set_wakeup_fd(writing.fileno())
signal.signal(signal.SIGTERM, lambda number, frame: None)
os.kill(os.getpid(), signal.SIGTERM)
assert reading.recv(1) == bytes([signal.SIGTERM])
os._exit(0)  # without giving back what the stack lies in
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="the recorder needs a C compiler")
def test_a_handler_of_a_signal_has_room_on_its_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's handlers of signals write to a socket, on the 16 KiB that faulthandler takes from the heap."""
    monkeypatch.syspath_prepend(str(MODULES))
    recording = importlib.import_module("recording")
    log = tmp_path / "log"
    environment = recording.recorded(recording.build(tmp_path), tmp_path / "root", log)
    command = [sys.executable, "-c", HANDLER_ON_A_SMALL_STACK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [entry.kind for entry in recording.entries(log)] == [recording.Kind.SENDING]
