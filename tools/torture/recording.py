"""The recorder (recorder.c): building it, running a server with it, reading its log."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct

_ENTRY = Struct("=IIQQqQQ")


class Kind(IntEnum):
    """As in recorder.c."""

    OPENED = 1
    WRITTEN = 2
    RESIZED = 3
    SYNCING = 4
    SYNCED = 5
    RENAMED = 6
    REMOVED = 7
    DIRECTORY_MADE = 8
    DIRECTORY_REMOVED = 9
    SENDING = 10


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded operation. `when`: `time.monotonic_ns`. `file`: an inode, or the number of a socket."""

    kind: Kind
    when: int
    file: int
    offset: int
    size: int
    path: str
    data: bytes


class NoCompiler(Exception):
    """The recorder cannot be built on this machine."""


def build(directory: Path) -> Path:
    """Compile the recorder. Raises NoCompiler."""
    library = directory / "recorder.so"
    source = Path(__file__).with_name("recorder.c")
    command: list[str | Path] = ["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoCompiler("there is no C compiler (cc): on Debian, apt-get install gcc libc6-dev") from error
    except subprocess.CalledProcessError as error:
        raise NoCompiler(f"the recorder cannot be compiled: {error.stderr.strip()}") from error
    return library


def recorded(library: Path, root: Path, log: Path) -> dict[str, str]:
    """Return the environment of a process that is recorded."""
    root.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "LD_PRELOAD": str(library), "RECORD_ROOT": str(root), "RECORD_LOG": str(log)}


def entries(log: Path) -> Iterator[Entry]:
    """Yield the entries of a log in the order of the operations."""
    with log.open("rb") as file:
        while len(head := file.read(_ENTRY.size)) == _ENTRY.size:
            kind, path_length, inode, when, offset, size, data_length = _ENTRY.unpack(head)
            path = file.read(path_length).decode()
            yield Entry(Kind(kind), when, inode, offset, size, path, file.read(data_length))
