"""Where a server is: `omq://host:port`."""

from urllib.parse import urlsplit

DEFAULT_PORT = 7730


def parse_url(url: str) -> tuple[str, int]:
    """Host and port of `omq://host[:port]`; an IPv6 address stands in brackets. Raises ValueError."""
    problem = f"{url!r} is no address of the form omq://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(problem) from error
    stray = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None
    if parts.scheme != "omq" or not parts.hostname or stray:
        raise ValueError(problem)
    return parts.hostname, DEFAULT_PORT if port is None else port
