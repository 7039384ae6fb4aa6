"""Whom and what a log line is about, as fields by which a program can search the log."""


def subject(
    *, peer: str | None = None, client: bytes | str | None = None, topic: bytes | None = None
) -> dict[str, str]:
    """The fields that are known, for the `extra` of a log call. Octets that are no UTF-8 are escaped."""
    given = {"peer": peer, "client": client, "topic": topic}
    return {name: _text(value) for name, value in given.items() if value is not None}


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
