"""Making files and directories that are still there after a power failure."""

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable; OSError when that fails."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, as far as they are missing, durably; OSError when that fails."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Makes or replaces a file: after a power failure it has the old content or the new, never another."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
