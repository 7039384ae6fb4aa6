"""The common parts of all log lines of the server: fields for programs, names as text, and a throttle.

Clients, and a disk that fails, can cause any number of log lines. A `LogThrottle` writes the first of them
and counts the others. `report_suppressed` logs these counts: the server calls it about every second, and when
it stops, so that the last counts are not lost.
"""

import logging

import trio

from omq.printable import printable

LINES = 5
SECONDS = 10.0
"""The limit of a throttle that is made without other limits: LINES lines in SECONDS."""

CONNECTION_LINES = 100
"""The number of connects, and of ends of connections, that are written one by one in SECONDS."""

PROBLEM_SECONDS = 5.0
"""The number of seconds in which a throttle for one kind of problem writes one line."""


def subject(
    *, peer: str | None = None, client: bytes | str | None = None, topic: bytes | None = None
) -> dict[str, str]:
    """Return the fields that are given, for the `extra` of a log call; octets that are not UTF-8, escaped."""
    given = {"peer": peer, "client": client, "topic": topic}
    return {
        name: value if isinstance(value, str) else _text(value)
        for name, value in given.items()
        if value is not None
    }


def quoted(name: bytes) -> str:
    """Return the name of a topic or client as readable text in quotes, without control characters."""
    return "'" + printable(_text(name)).replace("'", "\\'") + "'"


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "backslashreplace")


class LogThrottle:
    """Writes a limited number of log lines in each period, and counts the others.

    While lines are suppressed in one period after another, only one line is written in each of them.
    """

    __slots__ = (
        "_flooded",
        "_level",
        "_lines",
        "_log",
        "_prefix",
        "_seconds",
        "_suppressed",
        "_topic",
        "_until",
        "_what",
        "_written",
    )

    def __init__(
        self,
        log: logging.Logger,
        level: int,
        what: str,
        *,
        prefix: str = "",
        topic: bytes | None = None,
        lines: int = LINES,
        seconds: float = SECONDS,
    ) -> None:
        """Create a throttle. When N lines were suppressed, the log says "WHAT: N more". All other lines begin
        with `prefix`, and all have `topic` as a field.
        """
        self._log = log
        self._level = level
        self._what = what
        self._prefix = prefix
        self._topic = topic
        self._lines = lines
        self._seconds = seconds
        self._until = -1.0
        self._written = 0
        self._suppressed = 0
        self._flooded = False

    @classmethod
    def of_problem(cls, log: logging.Logger, what: str, *, topic: bytes | None = None) -> "LogThrottle":
        """Return a throttle for one kind of problem. All lines begin with `what`, the thing that failed."""
        return cls(
            log,
            logging.ERROR,
            what,
            prefix=f"{what}: ",
            topic=topic,
            lines=1,
            seconds=PROBLEM_SECONDS,
        )

    @classmethod
    def of_connections(cls, what: str) -> "LogThrottle":
        """Return a throttle for lines that each connection causes, such as `what`: "connections ended"."""
        return cls(
            logging.getLogger("omq.connections"),
            logging.INFO,
            what,
            lines=CONNECTION_LINES,
            seconds=SECONDS,
        )

    def add(
        self,
        line: object,
        *,
        peer: str | None = None,
        client: bytes | str | None = None,
        topic: bytes | None = None,
    ) -> None:
        """Write a line, or count it. `peer`, `client` and `topic` are fields of the line for programs."""
        self.report()
        now = trio.current_time()
        if now >= self._until:
            goes_on = self._flooded and now < self._until + self._seconds
            self._written = self._lines - 1 if goes_on else 0
            self._until = now + self._seconds
            self._flooded = False
        if self._written < self._lines:
            self._written += 1
            extra = subject(peer=peer, client=client, topic=self._topic if topic is None else topic)
            self._log.log(self._level, "%s%s", self._prefix, line, extra=extra)
        else:
            self._suppressed += 1
            self._flooded = True
            _suppressing()[self] = None

    def report(self, *, early: bool = False) -> None:
        """Log the number of suppressed lines, if the period is over, or `early`."""
        if self._suppressed and (early or trio.current_time() >= self._until):
            line = "%s: %d more", self._what, self._suppressed
            self._log.log(self._level, *line, extra=subject(topic=self._topic))
            self._suppressed = 0
            del _suppressing()[self]


_throttles: trio.lowlevel.RunVar[dict[LogThrottle, None]] = trio.lowlevel.RunVar("omq.logs")
"""The throttles that have suppressed lines and not reported them yet. Each topic has throttles of its own:
all of them together would be too many to look through every second.
"""


def _suppressing() -> dict[LogThrottle, None]:
    try:
        return _throttles.get()
    except LookupError:
        throttles: dict[LogThrottle, None] = {}
        _throttles.set(throttles)
        return throttles


def report_suppressed(*, early: bool = False) -> None:
    """Log for every throttle the number of lines that it suppressed in its last period; `early`, also in this
    one.
    """
    for throttle in list(_suppressing()):
        throttle.report(early=early)
