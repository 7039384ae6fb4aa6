"""Load the certificate and the key of the server, and the authorities of client certificates, from files."""

import ssl
from pathlib import Path

import trio

from omq.config import Config, ConfigError
from omq.protocol.tls import TlsEngine
from omq.terminals.connection.expiry import Expiry, expiry, warn

LOOK_SECONDS = 86_400.0
"""The number of seconds between two warnings of certificates that expire."""


class Certificates:
    """The TLS settings for new connections. A reload does not affect connections that are open."""

    def __init__(self, config: Config) -> None:
        """Load the certificates. Raise ConfigError, in one line that names the configuration key and the
        file.
        """
        self._config = config
        self._context = _context(config)
        self.expiries = _expiries(config)
        """When the certificates for new connections expire."""

    def reload(self) -> None:
        """Read the files again. Raises ConfigError, and then keeps the previous contents."""
        context, expiries = _context(self._config), _expiries(self._config)
        self._context, self.expiries = context, expiries

    def warn_of_expiry(self) -> None:
        """Log a warning for each file with a certificate that has expired or soon will."""
        warn(self.expiries)

    async def keep_warning(self) -> None:
        """Do so now and once a day, for the certificates that are loaded then, until cancelled."""
        while True:
            self.warn_of_expiry()
            await trio.sleep(LOOK_SECONDS)

    def engine(self) -> TlsEngine:
        """Return the server side of TLS for one connection."""
        return TlsEngine(self._context)


def certificates(config: Config) -> Certificates | None:
    """Load the certificates if they are configured. Raises ConfigError."""
    return None if config.tls_cert is None else Certificates(config)


def _context(config: Config) -> ssl.SSLContext:
    assert config.tls_cert is not None
    assert config.tls_key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A session ticket would shorten the next handshake of a client, but our clients connect seldom.
    context.num_tickets = 0
    _check_readable("tls_cert", config.tls_cert)
    _check_readable("tls_key", config.tls_key)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_pass_phrase)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls_key: {config.tls_key}: not the key of {config.tls_cert}") from problem
        what = f"{config.tls_cert} and {config.tls_key} are no certificate and key in PEM"
        raise ConfigError(f"tls_cert, tls_key: {what}") from problem
    if config.tls_client_ca is not None:
        _check_readable("tls_client_ca", config.tls_client_ca)
        try:
            context.load_verify_locations(config.tls_client_ca)
        except ssl.SSLError as problem:
            raise ConfigError(f"tls_client_ca: {config.tls_client_ca} has no certificate in PEM") from problem
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _expiries(config: Config) -> tuple[Expiry, ...]:
    """Return the time at which the certificates of the configuration expire. Raise ConfigError."""
    files = {"tls_cert": config.tls_cert, "tls_client_ca": config.tls_client_ca}
    try:
        found = [expiry(key, file) for key, file in files.items() if file is not None]
    except OSError as problem:  # removed after OpenSSL read it
        raise ConfigError(f"{problem.filename}: {problem.strerror}") from problem
    return tuple(one for one in found if one is not None)


def _check_readable(key: str, file: str) -> None:
    """Raise ConfigError that names a file which cannot be read: the error of OpenSSL would not."""
    try:
        with Path(file).open("rb"):
            pass
    except OSError as problem:
        raise ConfigError(f"{key}: {file}: {problem.strerror}") from problem


def _no_pass_phrase() -> str:
    """Refuse the key, because OpenSSL would ask for its pass phrase on the terminal and block the server."""
    raise ConfigError(
        "tls_key: a key with a pass phrase cannot be used, because the server cannot ask for it"
    )
