"""How many descriptors the server may have: as many as whoever started it may give it.

Every connection takes one. The usual soft limit of 1,024 is for programs that use select(), which can have no
more; Trio uses epoll or kqueue, so the server takes all that the hard limit allows.
"""

import resource


def raise_limit() -> int:
    """Raise the soft limit to the hard one, where the operating system lets it; how many there may be now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # some systems have a lower bound of their own than the hard limit says
    return hard
