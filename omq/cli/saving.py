"""`omq sub --output-dir`: saves each message of a topic as a file, without holding its body."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import trio

from omq.cli.progress import progress
from omq.client import OpenMessage

_PART = ".part"


class Files:
    """The files of one topic in a directory: the name of the topic and a number, from the first free on."""

    def __init__(self, directory: Path, topic: bytes) -> None:
        self._directory = directory
        self._topic = quote(topic, safe="")
        self._numbers = count(1)

    async def save(self, message: OpenMessage, arrived: Callable[[], None]) -> Path:
        """Save a message; call `arrived` for each piece of it. Raises OSError.

        The file gets its name when it is complete. Until then its name ends in `.part`, and it is deleted if
        the message cannot be completed.
        """
        path, part, file = self._begin()
        try:
            with file, progress(message.size, path.name) as bar:
                async with message.open() as pieces:
                    async for piece in pieces:
                        arrived()
                        await trio.to_thread.run_sync(file.write, piece)
                        bar.update(len(piece))
            part.rename(path)
        except BaseException as error:  # Ctrl-C, too
            part.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)  # that of a write has no name, such as on a full disk
            raise
        return path

    def _begin(self) -> tuple[Path, Path, BinaryIO]:
        """Return the path of the next file, and the path and the file of its part."""
        while True:
            path = self._directory / f"{self._topic}-{next(self._numbers):06d}"
            if path.exists():
                continue
            part = path.with_name(path.name + _PART)
            try:
                return path, part, part.open("xb")
            except FileExistsError:
                continue  # another command is saving it
