"""Real certificates for tests: of an authority, a server and a client."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True)
class CertificateFiles:
    """The files of one certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """An authority, which the tests trust or not."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA()
        self.file = directory / "authority.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def issue(
        self, name: str, file: str = "shown", ends: datetime | None = None, common_name: str | None = None
    ) -> CertificateFiles:
        """Return a certificate for a host or an address; written over the one that these files had before.

        `ends`: when it does, which else is far away.
        """
        begun = None if ends is None else ends - timedelta(days=365)
        issued = self._authority.issue_cert(name, not_before=begun, not_after=ends, common_name=common_name)
        shown = CertificateFiles(self._directory / f"{file}.pem", self._directory / f"{file}.key")
        shown.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(shown.key)
        return shown


def add_pass_phrase(file: Path) -> None:
    """Encrypt the private key in a file."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(file.read_bytes(), None)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"phrase"),
        )
    )
