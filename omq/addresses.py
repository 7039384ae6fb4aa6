"""Network addresses as text: HOST:PORT."""


def format_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
