"""A server that ordinary clients of AMQP 0-9-1 can use: one client guest, whose secret is guest."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from server_command import RunningServer, running_server

from omq.access.hashes import KEY_OCTETS, SALT_OCTETS, SecretHash

TABLE = """\
[[clients]]
name = "{name}"
secret = "{secret}"
"""

SALT = bytes(SALT_OCTETS)
HASH = SecretHash(1, 2, 1, SALT, hashlib.scrypt(b"guest", salt=SALT, n=2, r=2, p=1, dklen=KEY_OCTETS))
"""The hash of the secret "guest". It is checked quickly, and so is not safe."""


def client_table(name: str, rights: Mapping[str, list[str]]) -> str:
    """Return the configuration of a client whose secret is guest."""
    keys = "".join(f"{right} = {json.dumps(names)}\n" for right, names in rights.items())
    return TABLE.format(name=name, secret=HASH) + keys


def configuration() -> str:
    """Return a configuration with the client guest, who may do everything."""
    return client_table("guest", {right: ["*"] for right in ("declare", "publish", "subscribe", "delete")})


@contextmanager
def serving_guest(folder: Path, options: str = "") -> Iterator[RunningServer]:
    """Run a server, whose store is in this folder, with these lines before its clients."""
    (folder / "omq.toml").write_text(options + configuration())
    with running_server(
        "--config", folder / "omq.toml", "--listen", "127.0.0.1:0", "--store", folder / "store"
    ) as server:
        yield server
