"""Advice to a user of `omq` when there is no connection to the server."""

import ssl
from collections.abc import Iterator

from omq.client import ConnectionLost
from omq.protocol.omq.sentences import RefusalKind, refusal_in

START = "start omq-server there, or name another server with --server or $OMQ_SERVER"
TRUST = "name the certificate of the authority that signed it with --ca or $OMQ_CA"
NAME = "connect to a name or an address for which the certificate is valid"
IDENTIFY = "give a name and a secret that the server knows, with --id-file or $OMQ_ID"
COMPLETE = "the id of --id-file or $OMQ_ID has no colon: it must be NAME:SECRET"

# The numbers of OpenSSL for why a certificate is not accepted (X509_V_ERR in x509_vfy.h).
UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
OTHER_NAME = frozenset({62, 64})


def advice(error: BaseException, id: bytes | None) -> str | None:
    """Return advice to the user about an error or a group of errors, if there is any. `id` is the id that the
    user gave.
    """
    for cause in _causes(error):
        match cause:
            case ConnectionLost(server_error=str(said)) if (
                refusal_in(said.encode()) is RefusalKind.UNKNOWN_CLIENT
            ):
                return IDENTIFY if not id or b":" in id else COMPLETE
            case ConnectionRefusedError():
                return START
            case ssl.SSLCertVerificationError(verify_code=code) if code in UNKNOWN_AUTHORITY:
                return TRUST
            case ssl.SSLCertVerificationError(verify_code=code) if code in OTHER_NAME:
                return NAME
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that and so on, with the members of groups."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _causes(each)
        error = error.__cause__
