"""Network addresses as text: HOST:PORT."""

DEFAULT_PORT = 7730
"""The port of a server whose address names none."""


def format_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
