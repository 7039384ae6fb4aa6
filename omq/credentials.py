"""Read a client's credentials from files: its id, its certificate, and its trusted authorities."""

import os
import ssl
import stat
from pathlib import Path

File = str | os.PathLike[str]


def read_id(file: File) -> bytes:
    """Read a client's id, `NAME:SECRET`, from a file with this one line.

    Raises ValueError with one line that names the file and does not repeat its contents.
    """
    try:
        line = Path(file).read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise ValueError(f"{os.fspath(file)}: {error.strerror}") from error
    if not line or b"\n" in line:
        raise ValueError(f"{os.fspath(file)}: must have one line, NAME:SECRET")
    return line


def is_readable_by_others(file: File) -> bool:
    """Return whether the permissions of a regular file let other users than its owner read it.

    False for an inaccessible file: reading it will raise the error.
    """
    try:
        mode = Path(file).stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & (stat.S_IRGRP | stat.S_IROTH))


def client_context(ca: File | None, certificate: File | None, key: File | None) -> ssl.SSLContext:
    """Make a client's TLS context: with its trusted authorities, and the certificate that it presents.

    Raises ValueError with one line that names the file.
    """
    for file in (ca, certificate, key):
        if file is not None:
            _check_readable(file)
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ValueError(f"{ca}: no certificate in PEM") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if certificate is None:
        if key is not None:
            raise ValueError(f"{os.fspath(key)}: a key needs its certificate, too")
    else:

        def no_pass_phrase() -> str:
            # OpenSSL would ask for it on the terminal, and block the process until somebody answers.
            raise ValueError(f"{os.fspath(key or certificate)}: a key with a pass phrase cannot be used")

        try:
            context.load_cert_chain(certificate, key, no_pass_phrase)
        except ssl.SSLError as error:
            raise ValueError(f"{certificate}: no certificate in PEM with its key") from error
    return context


def _check_readable(file: File) -> None:
    """Check a file first, since OpenSSL's own error would not name it."""
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{os.fspath(file)}: {error.strerror}") from error
