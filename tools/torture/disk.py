"""A disk after a power failure: replays a recording, and makes images of possible disk contents.

A write is durable when a sync of its file that began after it has returned, or when its descriptor asked for
that. Of every other write each page of 4 KiB may be on the disk or not; `Shape` says in which patterns. The
name of a file is durable when its directory was synced after the file was made, renamed or removed; of the
changes to names that were not synced, the first few may be on the disk too.
"""

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import assert_never

from recording import Entry, Kind

PAGE = 4096


class Shape(Enum):
    """The choice of the unsynced pages of a file that reached the disk."""

    NONE = "nothing that was not synced"
    PREFIX = "the first writes, as they were made"
    RANDOM = "any page in any of its versions"
    ASCENDING = "the newest pages, up to some place in the file"
    HEAD = "the first one or two pages, and a few others"
    ALMOST = "all but one to three pages"


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    size: int


Change = Write | Resize


@dataclass(slots=True)
class File:
    """The durable content of a file, and the changes since then."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    syncing: int = 0
    """The number of pending changes that the running sync will make durable."""


@dataclass(frozen=True, slots=True)
class Naming:
    """A change of a directory entry. `file` is None when the entry is removed."""

    directory: str
    name: str
    file: File | None
    is_directory: bool = False


class Disk:
    """Feed it the entries of a recording; `image` may be called between any two."""

    def __init__(self, start: Path | None = None) -> None:
        """Create a disk. `start`: the content of the directory before the recording; all of it is durable."""
        self._files: dict[int, File] = {}
        self._names: dict[str, File] = {}
        self._durable_names: dict[str, File] = {}
        self._durable_directories: set[str] = set()
        self._namings: list[Naming] = []
        if start is not None:
            for path in sorted(start.rglob("*")):
                name = str(path.relative_to(start))
                if path.is_dir():
                    self._durable_directories.add(name)
                else:
                    file = File(bytearray(path.read_bytes()))
                    self._files[path.stat().st_ino] = self._names[name] = self._durable_names[name] = file

    def feed(self, entry: Entry) -> None:
        """Apply the next entry of the recording."""
        match entry.kind:
            case Kind.OPENED:
                if entry.offset or entry.path not in self._names:
                    file = self._files[entry.file] = self._names[entry.path] = File()
                    self._name(entry.path, file)
            case Kind.WRITTEN:
                file = self._files[entry.file]
                if entry.size:
                    _apply(file.durable, Write(entry.offset, entry.data))
                else:
                    file.pending.append(Write(entry.offset, entry.data))
            case Kind.RESIZED:
                self._files[entry.file].pending.append(Resize(entry.size))
            case Kind.SYNCING:
                if not entry.path:
                    self._files[entry.file].syncing = len(self._files[entry.file].pending)
            case Kind.SYNCED:
                if entry.path:
                    self._sync_names("" if entry.path == "." else entry.path)
                else:
                    file = self._files[entry.file]
                    for change in file.pending[: file.syncing]:
                        _apply(file.durable, change)
                    del file.pending[: file.syncing]
                    file.syncing = 0
            case Kind.RENAMED:
                old, new = entry.path.split("\0")
                file = self._names.pop(old)
                self._names[new] = file
                self._name(new, file)
                self._name(old, None)
            case Kind.REMOVED:
                self._names.pop(entry.path, None)
                self._name(entry.path, None)
            case Kind.DIRECTORY_MADE:
                self._name(entry.path, File(), is_directory=True)
            case Kind.DIRECTORY_REMOVED:
                self._name(entry.path, None, is_directory=True)
            case Kind.SENDING:
                pass
            case never:
                assert_never(never)

    def write_image(self, to: Path, shape: Shape, chance: random.Random) -> None:
        """Create the directory as a start after a power failure at this moment may find it."""
        names, directories = dict(self._durable_names), set(self._durable_directories)
        surviving = 0 if shape is Shape.NONE else chance.randint(0, len(self._namings))
        for naming in self._namings[:surviving]:
            _rename(names, directories, naming)
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        for directory in sorted(directories):
            (to / directory).mkdir(parents=True, exist_ok=True)
        for name, file in names.items():
            if "/" in name and name.rpartition("/")[0] not in directories:
                continue
            (to / name).write_bytes(_after_failure(file, shape, chance))

    def _name(self, path: str, file: File | None, is_directory: bool = False) -> None:
        self._namings.append(Naming(path.rpartition("/")[0], path, file, is_directory))

    def _sync_names(self, directory: str) -> None:
        left = []
        for naming in self._namings:
            if naming.directory == directory:
                _rename(self._durable_names, self._durable_directories, naming)
            else:
                left.append(naming)
        self._namings = left


def _rename(names: dict[str, File], directories: set[str], naming: Naming) -> None:
    if naming.is_directory:
        if naming.file is None:
            directories.discard(naming.name)
        else:
            directories.add(naming.name)
    elif naming.file is None:
        names.pop(naming.name, None)
    else:
        names[naming.name] = naming.file


def _apply(content: bytearray, change: Change) -> None:
    match change:
        case Write(offset, data):
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
        case Resize(size):
            del content[size:]
            content.extend(bytes(size - len(content)))
        case _:
            assert_never(change)


def _pages(changes: list[Change]) -> Iterator[Change]:
    """Yield the same changes, each within a page."""
    for change in changes:
        if isinstance(change, Resize):
            yield change
            continue
        at = 0
        while at < len(change.data):
            length = min(PAGE - (change.offset + at) % PAGE, len(change.data) - at)
            yield Write(change.offset + at, change.data[at : at + length])
            at += length


def _after_failure(file: File, shape: Shape, chance: random.Random) -> bytes:
    content = bytearray(file.durable)
    steps = list(_pages(file.pending))
    if not steps or shape is Shape.NONE:
        return bytes(content)
    if shape is Shape.PREFIX:
        for step in steps[: chance.randint(0, len(steps))]:
            _apply(content, step)
        return bytes(content)
    # A change of size is on the disk together with all that came before it, or not at all.
    sizes = [index for index, step in enumerate(steps) if isinstance(step, Resize)]
    if sizes and chance.random() < 0.5:
        steps = steps[: sizes[0]]
    elif sizes:
        for step in steps[: sizes[-1] + 1]:
            _apply(content, step)
        steps = steps[sizes[-1] + 1 :]
    versions: dict[int, list[Write]] = {}
    for step in steps:
        if isinstance(step, Write):
            versions.setdefault(step.offset // PAGE, []).append(step)
    for page, count in _chosen(versions, shape, chance).items():
        for step in versions[page][:count]:
            _apply(content, step)
    full = max([len(content), *(step.offset + len(step.data) for step in steps if isinstance(step, Write))])
    if chance.random() < 0.5:
        content.extend(bytes(full - len(content)))
    return bytes(content)


def _chosen(versions: dict[int, list[Write]], shape: Shape, chance: random.Random) -> dict[int, int]:
    """Return for each page the number of its writes that are on the disk."""
    pages = sorted(versions)
    newest = {page: len(versions[page]) for page in pages}
    if not pages:
        return {}
    match shape:
        case Shape.NONE | Shape.PREFIX:
            raise ValueError(f"{shape} is not chosen page by page")
        case Shape.RANDOM:
            share = chance.choice((0.05, 0.3, 0.5, 0.7, 0.95))
            return {page: chance.randint(1, newest[page]) for page in pages if chance.random() < share}
        case Shape.ASCENDING:
            return {page: newest[page] for page in pages[: chance.randint(0, len(pages))]}
        case Shape.HEAD:
            first = pages[: chance.randint(1, 2)]
            return {page: newest[page] for page in pages if page in first or chance.random() < 0.02}
        case Shape.ALMOST:
            gone = chance.sample(pages, min(len(pages), chance.randint(1, 3)))
            return {page: newest[page] for page in pages if page not in gone}
        case _:
            assert_never(shape)
