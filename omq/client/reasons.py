"""The operating system's description of a network error."""

import os
import socket


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
