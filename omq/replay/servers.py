"""The credentials for the two servers of a replay: convert arguments to options of the data source."""

import argparse
import os
from dataclasses import dataclass

from omq.bulk.errors import BadOptions
from omq.replay.arguments import DefaultServer
from omq.spark.options import CA, CERT, ID_FILE, ID_VARIABLE, KEY, PATH, SERVERS


@dataclass(frozen=True, slots=True)
class _Named:
    """The prefix of the arguments for one of the servers, and the environment variable with its id."""

    prefix: str
    variable: str


_NAMES = ("id-file", "ca", "cert", "key")

_FROM = _Named("", "OMQ_ID")
_TO = _Named("to-", "OMQ_TO_ID")


def source(options: argparse.Namespace) -> dict[str, str]:
    """Make the options for `--server` or `--path`. Raises BadOptions."""
    if options.path is None:
        return _options(options, options.server, _FROM)
    if not isinstance(options.server, DefaultServer):
        raise BadOptions("Give --server or --path, not both.")
    for name in _NAMES:
        if _given(options, _FROM, name) is not None:
            raise BadOptions(f"--{name} is for --server, not for --path.")
    return {PATH: options.path}


def destination(options: argparse.Namespace, url: str) -> dict[str, str]:
    """Make the options for the server in `--to`: those of `--server` if it is the same server and has no own
    ones.

    Raises BadOptions.
    """
    found = _options(options, url, _TO)
    if options.path is None and _bare(url) == _bare(options.server) and not _is_told(options, _TO):
        return source(options) | {SERVERS: url}
    return found


def refuse_destination(options: argparse.Namespace) -> None:
    """Raise BadOptions for credentials of a destination server in a replay to files."""
    for name in _NAMES:
        if _given(options, _TO, name) is not None:
            raise BadOptions(f"--to-{name} is for --to omq://...: files are on no server.")


def _bare(url: str) -> str:
    return url.removesuffix("/").lower()


def _is_told(options: argparse.Namespace, named: _Named) -> bool:
    given = [_given(options, named, name) for name in _NAMES]
    return any(value is not None for value in given) or bool(os.environ.get(named.variable))


def _given(options: argparse.Namespace, named: _Named, name: str) -> str | None:
    found: str | None = getattr(options, f"{named.prefix}{name}".replace("-", "_"))
    return found


def _options(options: argparse.Namespace, url: str, named: _Named) -> dict[str, str]:
    tls = url.startswith("omqs://")
    found: dict[str, str | None] = {SERVERS: url}
    for name, option in (("ca", CA), ("cert", CERT), ("key", KEY)):
        found[option] = _given(options, named, name)
        if found[option] is not None and not tls:
            raise BadOptions(f"--{named.prefix}{name} is for a server at omqs://HOST:PORT.")
    if found[KEY] is not None and found[CERT] is None:
        raise BadOptions(f"--{named.prefix}key is the key of --{named.prefix}cert.")
    if tls and found[CA] is None:
        found[CA] = os.environ.get("OMQ_CA") or None
    found[ID_FILE] = _given(options, named, "id-file")
    if found[ID_FILE] is None and os.environ.get(named.variable):
        found[ID_VARIABLE] = named.variable
    return {name: value for name, value in found.items() if value is not None}
