"""What we show a server, and whom we trust: where that stands, and not what it is."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omq.blocking.errors import BadOptions

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class IdFile:
    """A file with one line, `NAME:SECRET`."""

    path: str

    def read(self) -> bytes:
        """Raises BadOptions."""
        from omq.protocol.credentials import read_id

        try:
            return read_id(self.path)
        except ValueError as error:
            raise BadOptions(f"{error}.") from None

    def __str__(self) -> str:
        return f"the file {self.path}"


@dataclass(frozen=True, slots=True)
class IdVariable:
    """A variable of the environment with `NAME:SECRET` in it."""

    name: str

    def read(self) -> bytes:
        """Raises BadOptions."""
        found = os.environb.get(os.fsencode(self.name))
        if not found:
            raise BadOptions(f"The variable {self.name}, which should have NAME:SECRET, is not set here.")
        return found

    def __str__(self) -> str:
        return f"the variable {self.name}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Names of files and variables. They are read by the process that connects, each time it does: so nothing
    secret goes to the tasks, or stands in anything that Spark shows or writes.
    """

    ca: str | None = None
    """A file with the certificates of the authorities that may vouch for the server; None for those that the
    system trusts."""
    certificate: str | None = None
    key: str | None = None
    """Of the certificate; None where it is in the same file."""
    id: IdFile | IdVariable | None = None

    def read_id(self) -> bytes:
        """Who we say we are. Raises BadOptions."""
        return b"omq.spark" if self.id is None else self.id.read()

    def context(self) -> "ssl.SSLContext":
        """Raises BadOptions."""
        # As for `tls_wire`: OpenSSL takes its time to load.
        from omq.protocol.credentials import client_context

        try:
            return client_context(self.ca, self.certificate, self.key)
        except ValueError as error:
            raise BadOptions(f"{error}.") from None


NO_CREDENTIALS = Credentials()
