"""Why the network failed, in the operating system's words."""

import os
import socket


def reason(error: BaseException) -> str:
    """One phrase for a person: Trio keeps the system's error in the cause of its own exceptions."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]  # a name with several addresses: none of them could be reached
    for candidate in (cause, error):
        if isinstance(candidate, socket.gaierror):
            return candidate.strerror or str(candidate)  # its number is not one of the system's
        if isinstance(candidate, OSError) and candidate.errno:
            return os.strerror(candidate.errno)
    return str(error) or type(error).__name__
