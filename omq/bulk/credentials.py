"""The locations of a client's credentials and of trusted certificates, but not their contents."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omq.bulk.errors import BadOptions

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class IdFile:
    """A file with one line, `NAME:SECRET`."""

    path: str

    def read(self) -> bytes:
        """Read the id from the file. Raises BadOptions."""
        from omq.credentials import read_id

        try:
            return read_id(self.path)
        except ValueError as error:
            raise BadOptions(f"{error}.") from None

    def __str__(self) -> str:
        return f"the file {self.path}"


@dataclass(frozen=True, slots=True)
class IdVariable:
    """An environment variable that contains `NAME:SECRET`."""

    name: str

    def read(self) -> bytes:
        """Read the id from the environment. Raises BadOptions."""
        found = os.environb.get(os.fsencode(self.name))
        if not found:
            raise BadOptions(f"The variable {self.name}, which should have NAME:SECRET, is not set here.")
        return found

    def __str__(self) -> str:
        return f"the variable {self.name}"


@dataclass(frozen=True, slots=True)
class HeldId:
    """The id itself, for programs of one process. Not for Spark, which would send it to its tasks."""

    id: bytes = field(repr=False)

    def read(self) -> bytes:
        return self.id

    def __str__(self) -> str:
        return "the given id"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Names of files and variables. Each process that connects reads them when it connects, so no secret is
    sent to the tasks of Spark or appears in anything that Spark shows or writes.
    """

    ca: str | None = None
    """A file with the certificates of trusted authorities; None for those that the system trusts."""
    certificate: str | None = None
    key: str | None = None
    """The certificate's private key; None if it is in the same file."""
    id: IdFile | IdVariable | HeldId | None = None
    name: bytes = b"omq.spark"
    """The id of a client without a secret; the server logs it."""

    def read_id(self) -> bytes:
        """Read the client's id. Raises BadOptions."""
        return self.name if self.id is None else self.id.read()

    def context(self) -> "ssl.SSLContext":
        """Make the TLS context. Raises BadOptions."""
        # Import late, as for `tls_wire`: OpenSSL loads slowly.
        from omq.credentials import client_context

        try:
            return client_context(self.ca, self.certificate, self.key)
        except ValueError as error:
            raise BadOptions(f"{error}.") from None


NO_CREDENTIALS = Credentials()
