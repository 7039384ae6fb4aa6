"""The reasons why connections end, in words."""

import os
import socket

CLOSED = "the server closed the connection"


def broke(error: BaseException) -> str:
    """Return the reason for the loss of a connection, with the error of the system."""
    return f"the connection broke: {reason(error)}"


def no_frame(error: BaseException) -> str:
    """Return the reason for an end after malformed input from the server."""
    return f"the server sent what is no frame: {error}"


def shown(octets: bytes) -> str:
    """Return the words of a server as text."""
    return octets.decode("utf-8", "backslashreplace")


def named(topic: bytes) -> str:
    """Return the name of a topic in quotes, on one line."""
    return repr(shown(topic))


def reason(error: BaseException) -> str:
    """Describe an error in one phrase. The system's error is the cause of those of the stream."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]  # a name with several addresses: all attempts failed
    for candidate in (cause, error):
        if isinstance(candidate, socket.gaierror):
            return candidate.strerror or str(candidate)  # its number is not an errno
        if isinstance(candidate, OSError) and candidate.errno:
            return os.strerror(candidate.errno)
    return str(error) or type(error).__name__
