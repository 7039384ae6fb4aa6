"""A server that ordinary clients of AMQP 0-9-1 can use: one client guest, whose secret is guest."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server_command import RunningServer, running_server

from omq.access.hashes import KEY_OCTETS, SALT_OCTETS, SecretHash

CONFIG = """\
[[clients]]
name = "guest"
secret = "{secret}"
declare = ["*"]
publish = ["*"]
subscribe = ["*"]
delete = ["*"]
"""


def configuration() -> str:
    """Return a configuration with the client guest. His secret is checked quickly, and so is not safe."""
    salt = bytes(SALT_OCTETS)
    key = hashlib.scrypt(b"guest", salt=salt, n=2, r=2, p=1, dklen=KEY_OCTETS)
    return CONFIG.format(secret=SecretHash(1, 2, 1, salt, key))


@contextmanager
def serving_guest(folder: Path) -> Iterator[RunningServer]:
    """Run a server, whose store is in this folder."""
    (folder / "omq.toml").write_text(configuration())
    with running_server(
        "--config", folder / "omq.toml", "--listen", "127.0.0.1:0", "--store", folder / "store"
    ) as server:
        yield server
