"""The log as JSON."""

import logging
from datetime import datetime

from pythonjsonlogger.json import JsonFormatter


class JsonLines(JsonFormatter):
    """One object a line. Fields of a log call, such as peer, client and topic, are members of it."""

    def __init__(self) -> None:
        super().__init__("{asctime}{levelname}{name}{message}", style="{", json_ensure_ascii=False)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time in ISO 8601 with the offset of the local zone: no reader has to know where the
        server runs.
        """
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
