"""TLS 1.3 without a socket: encrypted octets for the network on one side, plaintext on the other.

It uses the standard library's `ssl`, that is OpenSSL. It does not use Trio's TLS stream, because that cannot
close one direction and continue with the other, which is how a client ends its messages, and because it does
not report how much of its input was sent when a send is cancelled.

It supports only version 1.3 (RFC 8446). There `close_notify` closes only the direction in which it is sent
(section 6.1), so it corresponds to the half-close of a plain connection.
"""

import re
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from omq.protocol.tls_errors import CertificateRefused, TlsEnded, TlsError

__all__ = [
    "AROUND_OCTETS",
    "PIECE_OCTETS",
    "RECORD_OCTETS",
    "CertificateRefused",
    "TlsEngine",
    "TlsError",
    "shake_hands",
]

RECORD_OCTETS = 16 << 10
"""The most plaintext octets of one record (RFC 8446, section 5.1)."""

PIECE_OCTETS = 4 * RECORD_OCTETS
"""The number of octets that are encrypted and handed to the socket at once. A connection with TLS takes this
much more memory.
"""

AROUND_OCTETS = 1 << 10
"""The number of octets to read beyond the wanted plaintext, for the overhead of TLS records."""


_CERTIFICATE_ALERT = re.compile("ALERT_.*(?:CERTIFICATE|UNKNOWN_CA)")
"""OpenSSL's names of alerts about our certificate (RFC 8446, section 6.2)."""


class TlsEngine:
    """One side of a connection: OpenSSL between two memory buffers.

    After every other call, send the octets that `outgoing` returns, even if the call raised: they may contain
    an alert that gives the peer the reason.
    """

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """Make a server's side, or with `server_name` a client's, which requires a certificate for it."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._kept = b""
        self._ended = False
        self._failure: TlsError | None = None
        self._said_end = False

    def feed(self, octets: bytes) -> None:
        """Take octets from the network; empty at the end of the stream."""
        if octets:
            self._incoming.write(octets)
        else:
            self._incoming.write_eof()

    def outgoing(self) -> bytes:
        """Return the octets to send over the network."""
        return self._outgoing.read()

    def shake_hands(self) -> bool:
        """Continue the handshake. Return whether it is complete. Raises TlsError."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _problem(error) from error
        return True

    def peer_name(self) -> str | None:
        """Return the common name in the certificate of the peer, which was verified; None if there is no such
        certificate, or it has no common name or several.
        """
        certificate = self._object.getpeercert() or {}
        subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
        names = [value for attributes in subject for key, value in attributes if key == "commonName"]
        return names[0] if len(names) == 1 else None

    def read(self, octets: int) -> bytes | None:
        """Return at most `octets` received plaintext octets: None if there are none yet, and empty octets if
        the peer has sent `close_notify`.

        Raises TlsError, also when the stream ended without `close_notify`.
        """
        if self._kept:
            data, self._kept = self._kept[:octets], self._kept[octets:]
            return data
        return self._decrypt(octets)

    def _decrypt(self, octets: int) -> bytes | None:
        parts: list[bytes] = []
        try:
            while octets and not self._ended and self._failure is None:
                part = self._object.read(octets)
                self._ended = not part
                parts.append(part)
                octets -= len(part)
        except ssl.SSLWantReadError:
            return b"".join(parts) or None
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            self._failure = _problem(error)
        if self._failure is not None and not parts:
            # Only after the valid octets before it. What is raised points to this object, by its traceback:
            # kept here, the two would wait for the garbage collector.
            raise type(self._failure)(*self._failure.args)
        return b"".join(parts)

    @property
    def waiting(self) -> int:
        """The number of received octets that were not read. It counts most of them encrypted, which is more
        than their plaintext.
        """
        return len(self._kept) + self._object.pending() + self._incoming.pending

    def write(self, octets: bytes | memoryview) -> int:
        """Encrypt plaintext, at most RECORD_OCTETS, into a record. Return the number of octets in `outgoing`.

        Raises TlsError.
        """
        try:
            self._object.write(octets)
        except ssl.SSLError as error:
            raise _problem(error) from error
        return self._outgoing.pending

    def finish(self) -> None:
        """Close the sending direction with `close_notify`. Reading continues."""
        if self._said_end:
            return
        self._said_end = True
        try:
            # `unwrap` also waits for the peer's close_notify and treats data before it as an error: read the
            # data first.
            while data := self._decrypt(RECORD_OCTETS):
                self._kept += data
            self._object.unwrap()
        except (TlsError, ssl.SSLError):
            pass  # our close_notify is written; the next read raises the error


async def shake_hands(
    engine: TlsEngine, send: Callable[[bytes], Awaitable[object]], receive: Callable[[], Awaitable[bytes]]
) -> None:
    """Run a handshake, of either side. Also send the alert that tells the other side why it failed.

    Raises TlsError, and what `send` and `receive` raise.
    """
    try:
        while not engine.shake_hands():
            await send(engine.outgoing())
            engine.feed(await receive())
    finally:
        if octets := engine.outgoing():
            await send(octets)


def _problem(error: ssl.SSLError) -> TlsError:
    """Describe an error in one phrase, without OpenSSL's line numbers."""
    match error:
        case ssl.SSLCertVerificationError(verify_message=message) if message:
            return CertificateRefused(f"the certificate is not accepted: {message.removesuffix('.')}")
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():  # the latter for close_notify in a handshake
            return TlsEnded("the connection ended without a reason")
        case _:
            reason = error.reason or str(error)
            kind = CertificateRefused if _CERTIFICATE_ALERT.search(reason) else TlsError
            return kind(reason.replace("_", " ").lower())
