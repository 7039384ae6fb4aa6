"""Raise the limit on file descriptors.

Every connection uses one. The usual soft limit of 1,024 protects programs that use select(), which supports
no more; Trio uses epoll or kqueue, so the server raises its limit to the hard limit.
"""

import resource


def raise_limit() -> int:
    """Raise the soft limit to the hard limit, if the operating system allows it. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # some systems enforce a limit below the hard limit
    return hard
