"""A message passes few files on its way from socket to socket: docs/ARCHITECTURE.md lists them.

The test traces one message through a real server, and compares what it finds with the list.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from omq_storage import codec

from .conversation import InProcess, publish, serving

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
MOST_FILES = 20
"""The greatest number of files that a message passes in the Trio thread, after the reception of its
connection.
"""


@pytest.fixture(autouse=True)
def stopped() -> MockClock:
    """Return a clock that stands still, so that no housekeeping is traced."""
    return MockClock()


@contextmanager
def traced(files: set[str]) -> Iterator[None]:
    """Note every file in which a function is called or goes on."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            files.add(str(path.relative_to(ROOT)))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


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
        files: set[str] = set()
        with traced(files):
            # Not with the reader of frames that the tests use: it is one of ours.
            await client.stream.send_all(publish(b"t", [b"%d" % number]))
            await subscriber.stream.receive_some(4096)
            await wait_all_tasks_blocked()  # until the sender has noted what it sent
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
        (b"Broadcast Transient", "A message of a transient topic passes these files"),
        (
            b"Broadcast (Persistent Weak)",
            "A message of a persistent topic passes these files in the Trio thread",
        ),
    ],
)
async def test_a_message_passes_the_files_that_are_listed(store: Path, types: bytes, heading: str) -> None:
    async with serving(store) as host:
        files = await files_of(host, types)
    assert files == listed(heading)
    assert len(files) <= MOST_FILES
