"""What can go wrong with TLS, for those who need not load it to name that."""


class TlsError(Exception):
    """The other side does not speak TLS as it must, shows no certificate that is accepted, or has ended the
    connection without saying so. The message is one phrase.
    """


class CertificateRefused(TlsError):
    """One side does not accept what the other shows as its certificate: trying again does not help."""
