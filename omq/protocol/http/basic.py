"""HTTP Basic authentication (RFC 7617): a name and a secret, as an id of omq's clients."""

import base64
import binascii

CHALLENGE = 'Basic realm="omq", charset="UTF-8"'


def read_basic(field: str | None) -> bytes | None:
    """Return the id `NAME:SECRET` from the field Authorization; None if it has none."""
    scheme, _, encoded = (field or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
