"""Secrets as the configuration stores them: salted and hashed with scrypt (RFC 7914).

scrypt takes time and memory on purpose. An attacker who reads the configuration cannot connect with the hash,
and pays this cost for every guess at the secret.
"""

import base64
import hashlib
import hmac
import secrets

from msgspec import Struct

from omq.config import SECRET_HASH

LOG_N, R, P = 14, 8, 1
"""The cost parameters of a new hash: 16 MiB of memory and some hundredths of a second."""

SALT_OCTETS, KEY_OCTETS = 16, 32


class SecretHash(Struct, frozen=True):
    """The hash of a secret, with the parameters to compute it again."""

    log_n: int
    r: int
    p: int
    salt: bytes
    key: bytes

    def __str__(self) -> str:
        """Return it in the form of the configuration: `$scrypt$ln=14,r=8,p=1$SALT$KEY`, with SALT and KEY in
        base64.
        """
        costs = f"ln={self.log_n},r={self.r},p={self.p}"
        return f"$scrypt${costs}${_base64(self.salt)}${_base64(self.key)}"

    def fits(self, secret: bytes) -> bool:
        """Return whether this is the hash of that secret. Slow: do not call it in Trio's thread."""
        return hmac.compare_digest(_derive(secret, self.log_n, self.r, self.p, self.salt), self.key)


def hash_of(secret: bytes) -> SecretHash:
    """Return a new hash of a secret. Slow."""
    salt = secrets.token_bytes(SALT_OCTETS)
    return SecretHash(LOG_N, R, P, salt, _derive(secret, LOG_N, R, P, salt))


def read_hash(text: str) -> SecretHash:
    """Parse the text that `str` wrote. Raises ValueError, whose message does not contain the text."""
    match = SECRET_HASH.fullmatch(text)
    if match is None:
        raise ValueError("not the hash of a secret")
    log_n, r, p = map(int, match.group(1, 2, 3))
    return SecretHash(log_n, r, p, _from_base64(match[4]), _from_base64(match[5]))


def _derive(secret: bytes, log_n: int, r: int, p: int, salt: bytes) -> bytes:
    # OpenSSL requires a memory limit. This is twice what scrypt needs for its table, blocks and buffers.
    most = 256 * r * ((1 << log_n) + p + 2)
    return hashlib.scrypt(secret, salt=salt, n=1 << log_n, r=r, p=p, maxmem=most, dklen=KEY_OCTETS)


def _base64(octets: bytes) -> str:
    return base64.b64encode(octets).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))
