"""Read the ends of certificates from their files, and warn in the log before they expire."""

import binascii
import logging
import re
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

SOON_DAYS = 30

_PEM = re.compile(rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----.*?-----END[^\n]*", re.DOTALL)
_CONTEXT_0, _UTC_TIME = 0xA0, 0x17

log = logging.getLogger("omq.server")


class Expiry(Struct, frozen=True):
    """The expiry of the first certificate in a file that expires."""

    key: str
    """The configuration key that names the file."""
    file: str
    ends: datetime


def expiry(key: str, file: str) -> Expiry | None:
    """Read a file. Return None if it has no certificate whose expiry can be read. Raises OSError."""
    blocks = _PEM.findall(Path(file).read_bytes())
    ends = [found for block in blocks if (found := _end_of(block)) is not None]
    return Expiry(key, file, min(ends)) if ends else None


def warn(expiries: tuple[Expiry, ...]) -> None:
    """Log a warning for each that has expired, or expires within SOON_DAYS."""
    now = datetime.fromtimestamp(time.time(), UTC)
    for one in expiries:
        left = one.ends - now
        when = f"{one.ends:%Y-%m-%d %H:%M} UTC"
        if left.total_seconds() <= 0:
            log.warning("%s: a certificate in %s has expired: it was valid until %s", one.key, one.file, when)
        elif left.days < SOON_DAYS:
            log.warning(
                "%s: a certificate in %s expires in %d days: it is valid until %s",
                one.key,
                one.file,
                left.days,
                when,
            )


def _end_of(block: bytes) -> datetime | None:
    """Return the `notAfter` of a certificate in PEM (RFC 5280, section 4.1), None if it cannot be read.

    OpenSSL has accepted the file before, so a certificate that this function cannot read is not an error: it
    only gets no warning.
    """
    try:
        octets = ssl.PEM_cert_to_DER_cert(_plain(block))
        certificate = next(_elements(octets))[1]
        fields = list(_elements(next(_elements(certificate))[1]))
        if fields[0][0] == _CONTEXT_0:  # the version, which version 1 omits
            del fields[0]
        tag, text = list(_elements(fields[3][1]))[1]  # after serial number, signature and issuer
        return _time(tag, text.decode("ascii"))
    except (binascii.Error, ValueError, IndexError, StopIteration):
        return None


def _plain(block: bytes) -> str:
    """Return the PEM text with the label that `ssl.PEM_cert_to_DER_cert` requires."""
    body = block.decode("ascii").partition("-----\n")[2].partition("-----END")[0]
    return f"{ssl.PEM_HEADER}\n{body.strip()}\n{ssl.PEM_FOOTER}\n"


def _elements(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each DER element. Raises ValueError and IndexError."""
    at = 0
    while at < len(octets):
        tag, length = octets[at], octets[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(octets[at : at + size], "big")
            at += size
        if at + length > len(octets):
            raise ValueError("an element is longer than what holds it")
        yield tag, octets[at : at + length]
        at += length


def _time(tag: int, text: str) -> datetime:
    """Read a UTCTime or a GeneralizedTime. Raise ValueError."""
    if tag == _UTC_TIME:  # a year of two digits means 1950 to 2049 (RFC 5280, section 4.1.2.5.1)
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
