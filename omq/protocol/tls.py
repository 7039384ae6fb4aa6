"""TLS 1.3 without a socket: octets from and for the network on one side, plain octets on the other.

It stands on the standard library's `ssl`, that is on OpenSSL. Trio's own TLS stream is not used, because it
cannot end one direction and go on with the other, which is how a client says here that it has finished, and
because it does not tell how much of what was given to it has left when a send breaks off.

Only version 1.3 is spoken (RFC 8446). In it `close_notify` ends the direction in which it is sent and nothing
else (section 6.1), so it is the half-close of a plain connection.
"""

import re
import ssl

from omq.protocol.tls_errors import CertificateRefused, TlsError

__all__ = ["RECORD_OCTETS", "CertificateRefused", "TlsEngine", "TlsError"]

RECORD_OCTETS = 16 << 10
"""The most plain octets of one record (RFC 8446, section 5.1)."""


_CERTIFICATE_ALERT = re.compile("ALERT_.*(?:CERTIFICATE|UNKNOWN_CA)")
"""What the other side says of ours, in OpenSSL's names (RFC 8446, section 6.2)."""


class TlsEngine:
    """One side of one connection: OpenSSL between two buffers in memory.

    What `outgoing` gives is to be sent after every other call, also after one that raised: there may be an
    alert that tells the other side why.
    """

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """A server's side, or with `server_name` a client's, who expects a certificate of that name."""
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
        """These have come from the network; none of them when it has ended."""
        if octets:
            self._incoming.write(octets)
        else:
            self._incoming.write_eof()

    def outgoing(self) -> bytes:
        """What is to be sent over the network now."""
        return self._outgoing.read()

    def shake_hands(self) -> bool:
        """Go on with the handshake; whether it is done. Raises TlsError."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _problem(error) from error
        return True

    def read(self, octets: int) -> bytes | None:
        """At most so many plain octets of those that have come; None when there are none yet, and no octets
        when the other side has said that it has finished sending.

        Raises TlsError, also when the network has ended before the other side said so.
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
            raise self._failure  # what came before it was good
        return b"".join(parts)

    @property
    def waiting(self) -> int:
        """How many octets have come and were not read. Most of them are counted as they came, which is more
        than the plain ones in them.
        """
        return len(self._kept) + self._object.pending() + self._incoming.pending

    def write(self, octets: bytes | memoryview) -> int:
        """Put plain octets, at most RECORD_OCTETS of them, into a record; how much `outgoing` has then.

        Raises TlsError.
        """
        try:
            self._object.write(octets)
        except ssl.SSLError as error:
            raise _problem(error) from error
        return self._outgoing.pending

    def finish(self) -> None:
        """Say with `close_notify` that nothing more will be sent. Reading goes on."""
        if self._said_end:
            return
        self._said_end = True
        try:
            # OpenSSL looks for the other side's close_notify at once, and takes data for a mistake.
            while data := self._decrypt(RECORD_OCTETS):
                self._kept += data
            self._object.unwrap()
        except (TlsError, ssl.SSLError):
            pass  # our own is written; whoever reads finds what is wrong


def _problem(error: ssl.SSLError) -> TlsError:
    """What went wrong, in a few words without numbers of lines."""
    match error:
        case ssl.SSLCertVerificationError(verify_message=message) if message:
            return CertificateRefused(f"the certificate is not accepted: {message}")
        case ssl.SSLEOFError():
            return TlsError("the connection ended without a word")
        case _:
            reason = error.reason or str(error)
            kind = CertificateRefused if _CERTIFICATE_ALERT.search(reason) else TlsError
            return kind(reason.replace("_", " ").lower())
