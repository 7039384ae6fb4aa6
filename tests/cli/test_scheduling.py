"""The server's thread has short turns, and waits for no long one of another (`omq.cli.scheduling`)."""

import subprocess
import sys
from pathlib import Path

import pytest

from omq.cli import scheduling

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has turns of different lengths")

TURNS = """
import ctypes, os, platform, threading
from omq.cli.scheduling import _Attributes, ask_for_short_turns

def turn():
    attributes = _Attributes()
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), ctypes.sizeof(attributes), 0) == 0
    return attributes.runtime

def show():
    print(turn(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

show()
print(ask_for_short_turns())
show()
thread = threading.Thread(target=show)
thread.start()
thread.join()
"""


def turns(*prefix: str) -> list[str]:
    """Run the program: turn and niceness before, whether it was granted, then after it, and in a thread."""
    command = [*prefix, sys.executable, "-c", TURNS]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


@pytest.mark.parametrize("prefix", [(), ("nice", "-n", "3")])
def test_the_thread_that_asks_has_short_turns_and_its_niceness(prefix: tuple[str, ...]) -> None:
    before, granted, after, thread = turns(*prefix)
    if before.startswith("0 "):
        pytest.skip("this kernel has no turns of different lengths")
    nice = before.split()[1]
    assert granted == "True"
    assert after == f"{scheduling.TURN_NANOSECONDS} {nice}"
    assert thread == (before if int(nice) >= 0 else after)


def test_another_policy_is_left_as_it_is() -> None:
    program = (
        "import os; from omq.cli.scheduling import ask_for_short_turns\n"
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n"
        "print(ask_for_short_turns(), os.sched_getscheduler(0) == os.SCHED_BATCH)"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["False", "True"]


def test_the_server_lets_no_thread_hold_the_interpreter_for_long(tmp_path: Path) -> None:
    program = (
        "import sys, trio; from omq.cli.server import main\n"
        "trio.run = lambda *arguments: print(sys.getswitchinterval())\n"
        f"sys.argv[1:] = ['--store', {str(tmp_path / 'store')!r}]\n"
        "main()"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 0 < float(result.stdout) < 0.001  # Python's default is 0.005
