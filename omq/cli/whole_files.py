"""`omq pub --file`: publish a file, or all of standard input, as one message."""

import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import trio

from omq.cli import heads
from omq.cli.progress import progress
from omq.client import Client, OmqError
from omq.model import LONGEST_BODY

READ_OCTETS = 64 << 10

STANDARD_INPUT = Path("-")
"""The file that stands for standard input."""


class InputError(OmqError):
    """An input of the command is unusable."""


async def publish_whole(client: Client, topic: str, path: Path, head: heads.Given) -> None:
    """Publish a file as one message. Raises InputError unless its size stays.

    The size must be known before the first octet is sent: a pipe is read to its end first, into a temporary
    file without a name.
    """
    name = "standard input" if path == STANDARD_INPUT else str(path)
    with standard_input() if path == STANDARD_INPUT else path.open("rb") as given:
        status = os.fstat(given.fileno())
        if stat.S_ISREG(status.st_mode):
            # A shell may have read the beginning of its standard input, which is not published then.
            size = max(0, status.st_size - os.lseek(given.fileno(), 0, os.SEEK_CUR))
            await _send(client, topic, given, size, name, head)
        elif path == STANDARD_INPUT or stat.S_ISFIFO(status.st_mode):
            with _temporary_file(name) as file:
                await _send(client, topic, file, await _spool(given, file, name), name, head)
        else:
            raise InputError(f"{name}: its size must be known, so it must be a regular file or a pipe")


def standard_input() -> AbstractContextManager[BinaryIO]:
    """Return standard input as a context manager, which leaves it open. Raises InputError if it is closed."""
    if sys.stdin is None:
        raise InputError("standard input is closed")
    return nullcontext(sys.stdin.buffer)


def _temporary_file(name: str) -> BinaryIO:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise _no_room(name, error) from error


async def _spool(given: BinaryIO, file: BinaryIO, name: str) -> int:
    """Write all input into a file, return to its beginning, and return the number of octets."""
    size = 0
    while data := await read_some(given, name):
        size += len(data)
        if size > LONGEST_BODY:
            raise InputError(f"{name}: it has more than {LONGEST_BODY} octets, the most of any message")
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(file.fileno(), rest) :]
        except OSError as error:
            raise _no_room(name, error) from error
    file.seek(0)
    return size


async def read_some(file: BinaryIO, name: str) -> bytes:
    """Read the next octets of an input that may block; none at its end. Raises InputError."""
    try:
        return await trio.to_thread.run_sync(os.read, file.fileno(), READ_OCTETS, abandon_on_cancel=True)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from error


def _no_room(name: str, error: OSError) -> InputError:
    folder = tempfile.gettempdir()
    return InputError(
        f"{name}: it cannot be written to a temporary file in {folder}: {error.strerror}; TMPDIR can name "
        "another folder"
    )


async def _send(client: Client, topic: str, file: BinaryIO, size: int, name: str, head: heads.Given) -> None:
    with progress(size) as bar:

        async def pieces() -> AsyncIterator[bytes]:
            while data := file.read(READ_OCTETS):  # hardly blocks: a thread would cost more
                yield data
                bar.update(len(data))

        async with client.sink(topic) as sink:
            try:
                await sink.publish_from(
                    pieces(), size, routing_key=head.routing_key, properties=head.properties
                )
            except ValueError as error:
                raise InputError(f"{name}: {error}") from error
