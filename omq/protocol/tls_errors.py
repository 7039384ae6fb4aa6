"""The errors of TLS, in a module that does not load OpenSSL."""


class TlsError(Exception):
    """The peer violated TLS, presented no acceptable certificate, or ended the connection without
    `close_notify`. The message is one phrase.
    """


class TlsEnded(TlsError):
    """The peer ended the connection without `close_notify`."""


NO_TLS = "perhaps the port speaks no TLS: omq://"
"""The hint for the user of a client when a server ends the connection in the TLS handshake."""

TLS_ONLY = "perhaps the port speaks only TLS (omqs://), or only HTTP"
"""The hint for the user of a client without TLS when a server ends the connection in the handshake."""


class CertificateRefused(TlsError):
    """One side rejects the other's certificate: a retry cannot succeed."""
