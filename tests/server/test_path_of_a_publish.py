"""A message passes few files on its way from socket to socket: docs/ARCHITECTURE.md lists them.

The test traces one message through a real server, and compares what it finds with the list.
"""

import re
import sys
from pathlib import Path
from types import FrameType

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq_storage import codec

from .conversation import InProcess, publish, serving

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
MOST_FILES = 20
"""The greatest number of files that a message passes in all threads, after the reception of its
connection.
"""


class Trace:
    """Notes every file in which a function is called or goes on."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            self.files.add(str(path.relative_to(ROOT)))

    async def begin(self) -> None:
        """Note the files of this thread, and of the one in which the next commit runs: Trio uses the thread
        again that has ended its work last.
        """
        await trio.to_thread.run_sync(sys.setprofile, self.note)
        self.files = set()
        sys.setprofile(self.note)

    async def end(self) -> set[str]:
        """Return the files since `begin`."""
        sys.setprofile(None)
        files = self.files
        await trio.to_thread.run_sync(sys.setprofile, None)
        return files


async def files_of(host: InProcess, types: bytes) -> set[str]:
    """Return the files that one published message passes.

    Of many messages it takes the one with the fewest: the first ones find more to do, housekeeping may run
    beside others, and a commit after a long one waits for more messages.
    """
    client, subscriber = await host.connect(), await host.connect()
    await client.ask(b"(Declare t %s)" % types)
    await subscriber.ask(b"(Subscribe t From_current)")
    traces: list[set[str]] = []
    for number in range(100):
        trace = Trace()
        await trace.begin()
        # Not with the reader of frames that the tests use: it is one of ours.
        await client.stream.send_all(publish(b"t", [b"%d" % number]))
        await subscriber.stream.receive_some(4096)
        await wait_all_tasks_blocked()  # until the sender has noted what it sent
        files = await trace.end()
        # When a task goes on, so do all coroutines around it: this one is around everything of a connection.
        ours = {file for file in files if file.startswith(("omq/", "storage/"))}
        traces.append(ours - {"omq/reception.py"})
    return min(traces, key=len)


def listed(heading: str) -> set[str]:
    """Return the files of a list in the document."""
    found = re.search(rf"^{heading}:\n\n((?:    .*\n)+)", DOCUMENT, re.MULTILINE)
    assert found is not None
    return set(found[1].split())


@pytest.mark.skipif(not codec.COMPILED, reason="the plain codec has a longer path")
@pytest.mark.parametrize(
    ("types", "heading"),
    [
        (b"Broadcast Transient", "A message of a transient broadcast topic passes these files"),
        (
            b"Broadcast (Persistent Weak)",
            "A message of a broadcast topic with the level Weak or Async passes these files",
        ),
        (
            b"Broadcast (Persistent Async)",
            "A message of a broadcast topic with the level Weak or Async passes these files",
        ),
        (
            b"Broadcast (Persistent Strong)",
            "A message of a broadcast topic with the level Strong passes these files",
        ),
        (b"Round_robin Transient", "A message of a transient round-robin topic passes these files"),
        (
            b"Round_robin (Persistent Weak)",
            "A message of a round-robin topic with the level Weak or Async passes these files",
        ),
        (
            b"Round_robin (Persistent Async)",
            "A message of a round-robin topic with the level Weak or Async passes these files",
        ),
        (
            b"Round_robin (Persistent Strong)",
            "A message of a round-robin topic with the level Strong passes these files",
        ),
    ],
)
async def test_a_message_passes_the_files_that_are_listed(
    mock_clock: MockClock, store: Path, types: bytes, heading: str
) -> None:
    """The clock stands still, so that no housekeeping is traced."""
    async with serving(store) as host:
        files = await files_of(host, types)
    assert files == listed(heading)
    assert len(files) <= MOST_FILES
