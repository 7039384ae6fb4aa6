"""Targets: the configuration file, and the addresses that people write."""

import tempfile
from functools import cache
from pathlib import Path

from fuzz_checks import Target, check_sentence

from omq.config import Config, ConfigError, load, parse_address
from omq.server_address import parse_url


@cache
def _file() -> Path:
    """Return a file of this process: in memory where there is such a directory."""
    memory = Path("/dev/shm")
    directory = tempfile.TemporaryDirectory(prefix="omq-fuzz-", dir=memory if memory.is_dir() else None)
    _kept.append(directory)
    return Path(directory.name) / "omq.toml"


_kept: list[tempfile.TemporaryDirectory[str]] = []


def check_config(data: bytes) -> None:
    """Check that a file is refused in one line that names it, or gives a configuration that can be used."""
    file = _file()
    file.write_bytes(data)
    try:
        config = load(file)
    except ConfigError as error:
        words = str(error)
        assert words.startswith((f"{file}: ", "listen: ")), words
        _check_line(words)
        assert words.isprintable(), f"not printable: {words!r}"
        assert len(words) <= 1000 + 10 * len(data), f"{len(words)} characters"
        return
    assert isinstance(config, Config)
    config.default_types()
    for address in config.listen:
        host, port = parse_address(address)
        assert host
        assert 0 <= port <= 65535
    for topic in config.topics:
        topic.types()
    config.retention()
    assert len(config.retentions()) == len(config.topics)
    assert "\0" not in config.store, "no directory has such a name"


def _check_line(words: str) -> None:
    assert len(words.splitlines()) == 1, f"several lines: {words!r}"


def check_address(data: bytes) -> None:
    """Check the words of a command line after --server, and after --listen."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        address = parse_url(text)
    except ValueError as error:
        _check_line(str(error))
    else:
        assert address.host
        assert 0 < address.port <= 65535
    try:
        parse_address(text)
    except ConfigError as error:
        check_sentence(str(error).encode("ascii", "backslashreplace"))


_FILES = (
    b'listen = ["127.0.0.1:0", "[::1]:0"]\nstore = "s"\nping_seconds = 1.5\nmax_topics = 0x10\n',
    b'default_delivery = "round-robin"\nallow_undeclared = false\nretention_seconds = 6_0.5e1\n',
    b'[[topics]]\nname = "a"\npersistence = "strong"\nretention_bytes = 5\n[[topics]]\nname = "b"\n',
    b'topics = [{name = "a", delivery = "broadcast"}]\nmax_credit = 1\n',
    b'"max topics" = 1\n"a\\tb" = 2\n',
    b"max_topics = " + b"9" * 4000,
    b"store = " + b"[" * 300 + b"]" * 300,
    b"missed_pings = 2020-01-01\n[a.b]\nc = '''\n'''\n",
)

_KEYS = tuple(f"{key} = ".encode() for key in Config.__struct_fields__)

TARGETS = (
    Target(
        "config",
        "the configuration file",
        check_config,
        _FILES,
        (
            *_KEYS,
            b"[[topics]]\n",
            b'name = "',
            b"inf",
            b"nan",
            b'"""',
            b"'''",
            b"\\u0000",
            b"\\n",
            b"[[",
            b"{",
            b"1979-05-27T07:32:00Z",
        ),
        longest=8192,
    ),
    Target(
        "address",
        "addresses on a command line",
        check_address,
        (b"omq://127.0.0.1:7730", b"omq://[::1]/", b"[::1]:0", b"localhost:65535"),
        (b"omq://", b"[::1]", b"]:", b":65536", b"@", b"%"),
        longest=80,
    ),
)
