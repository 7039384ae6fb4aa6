"""The command `omq-server`."""

import argparse
import faulthandler
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
import trio

from omq.access.hashes import hash_of
from omq.addresses import format_address
from omq.cli.allocator import give_back_much, keep_freed_memory
from omq.cli.collector import look_seldom
from omq.cli.descriptors import raise_limit
from omq.cli.exposure import tell_exposure
from omq.cli.logs import STYLES, refuse, set_levels, set_up_logging, style_asked_for
from omq.cli.parsers import CommandParser
from omq.cli.printing import print_and_exit, try_printing
from omq.cli.scheduling import ask_for_short_turns, shorten_holds
from omq.cli.version import PrintVersion
from omq.config import Config, ConfigError, load
from omq.counted import counted
from omq.drivers.reasons import Refused
from omq.listening import ListenError
from omq.reloading import applied, need_restart
from omq.server import NotClosed, Server, check_files, open_server
from omq.systemd import Manager, PassedSockets, passed_sockets
from omq.threads import in_thread
from omq_storage import codec
from omq_storage.errors import StoreError

EXIT_FAILURE = 1
EXIT_USAGE = 2

log = logging.getLogger("omq.server")

ENDS = (signal.SIGTERM, signal.SIGINT)
"""The signals that end a server."""

DESCRIPTION = """\
Serve topics over the omq protocol: publish and subscribe, live and replayed, transient or kept on disk.

When it is ready it prints one line on standard output, "omq-server listening on HOST:PORT", and from then on
logs on standard error. SIGTERM or SIGINT (Ctrl-C) stops it: it stores and confirms all published messages,
flushes and closes the stores, and exits with 0. On SIGHUP it reads its configuration and its certificates
again, applies the clients, quotas, retention and log levels, and logs which other keys need a new start. On
SIGUSR1 it logs the number of its connections and tasks."""

EPILOG = """\
examples:
  omq-server                                    127.0.0.1:7730, the store in ./omq-store
  omq-server --listen 127.0.0.1:0 --store /tmp/demo      a free port, printed when it is ready
  omq-server --config omq.toml                  see docs/CONFIGURATION.md for every key
  omq-server --config omq.toml --check-config   whether the server would take it
  omq-server --hash-secret < secret.txt         the hash of a client's secret, for the configuration

exit status: 0 stopped by a signal, 1 failure while running, 2 failure to start (invalid option or
configuration, store in use, address in use). With --check-config: 0 or 2."""


class Parser(CommandParser):
    """Prints errors about options in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_refuse(f"{message} (see {self.prog} --help)"))


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="omq-server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--listen",
        metavar="HOST:PORT",
        action="append",
        help="an address to listen on; port 0 selects a free port; may be repeated (default 127.0.0.1:7730)",
    )
    made.add_argument(
        "--listen-tls",
        metavar="HOST:PORT",
        action="append",
        help="an address to listen on for TLS only; with this option, --listen has no default",
    )
    made.add_argument(
        "--insecure",
        action="store_true",
        help="listen on addresses that other machines can reach although no client is configured, so that "
        "anybody may do everything",
    )
    made.add_argument(
        "--tls-cert",
        metavar="FILE.pem",
        help="enable TLS at all addresses, with this certificate and its chain up to the authority",
    )
    made.add_argument("--tls-key", metavar="FILE.pem", help="the private key of that certificate")
    made.add_argument(
        "--tls-client-ca",
        metavar="FILE.pem",
        help="require TLS clients to present a certificate of one of these authorities",
    )
    made.add_argument(
        "--store",
        metavar="DIR",
        help="the directory of the store; created if it does not exist (default ./omq-store)",
    )
    made.add_argument(
        "--config", metavar="FILE.toml", type=Path, help="a configuration file; options take precedence"
    )
    made.add_argument("--log-format", choices=STYLES, default="human", help="how to log (default human)")
    made.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="the lowest level to log (default info, or log_level of the configuration)",
    )
    made.add_argument(
        "--check-config",
        action="store_true",
        help="check the configuration, the other options and the certificates, and exit: with 0 if a server "
        "could use them, else with 2 and one line that says what to change; opens no store and no address",
    )
    made.add_argument(
        "--hash-secret",
        action="store_true",
        help="read a client's secret from standard input, print its hash for the configuration, and exit",
    )
    made.add_argument("--version", action=PrintVersion)
    return made


def main() -> None:
    """Run the server until a signal, and exit with the status that `--help` describes."""
    # Ignore these signals, which would end the process, until `run` receives them.
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    arguments = parser().parse_args()
    if arguments.hash_secret or arguments.check_config:
        _unblock_ends()  # SIGTERM ends the process: no server runs that must be shut down
    if arguments.hash_secret:
        _hash_secret()
    try:
        passed = passed_sockets()
        config = configuration(arguments, passed)
    except ConfigError as problem:
        sys.exit(_refuse(str(problem)))
    set_up_logging(arguments.log_format, config.log_level, config.log_levels)
    if arguments.check_config:
        _check(config)
    # If a file is truncated under LMDB's memory map, the process dies by SIGBUS: then print the stack.
    faulthandler.enable()
    look_seldom()
    ask_for_short_turns()
    shorten_holds()
    _tell_codec()
    log.info("up to %d descriptors, and every connection uses one", raise_limit())
    read = None if arguments.config is None else partial(configuration, arguments, passed)
    try:
        trio.run(run, config, passed, read)
    except (StoreError, ListenError, ConfigError) as problem:
        sys.exit(_refuse(str(problem)))
    except Refused as problem:
        sys.exit(_refuse(f"topics: {problem}"))
    except NotClosed:
        sys.exit(EXIT_FAILURE)  # the log has the reason


def _unblock_ends() -> None:
    """Let the signals that end a server have their effect, even if one came while it was blocked.
    `omq.cli.start.serve` has blocked SIGTERM.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handle a signal by nothing. Unlike SIG_IGN, this keeps a signal that is blocked."""


def _check(config: Config) -> NoReturn:
    """Check the files that the configuration names, and exit."""
    try:
        check_files(config)
    except ConfigError as problem:
        sys.exit(_refuse(str(problem)))
    print_and_exit("omq-server", "omq-server: the configuration can be used\n")


def _hash_secret() -> NoReturn:
    """Print the hash of a secret, and exit."""
    if sys.stdin is None:
        secret = b""
    elif sys.stdin.isatty():
        from getpass import getpass  # the server does not need it

        secret = getpass("secret: ").encode()
    else:
        secret = sys.stdin.buffer.readline().removesuffix(b"\n").removesuffix(b"\r")
    if not secret:
        sys.exit(_refuse("--hash-secret: there is no secret on standard input"))
    print_and_exit("omq-server", f"{hash_of(secret)}\n")


def configuration(arguments: argparse.Namespace, passed: PassedSockets | None) -> Config:
    """Load the configuration file, and apply the options and the sockets that were passed. Raises
    ConfigError.
    """

    def changed(config: Config) -> Config:
        if arguments.listen_tls:
            config = msgspec.structs.replace(config, listen_tls=arguments.listen_tls, listen=[])
        if arguments.insecure:
            config = msgspec.structs.replace(config, insecure=True)
        for key in ("listen", "store", "tls_cert", "tls_key", "tls_client_ca", "log_level"):
            value = getattr(arguments, key)
            if value is not None:
                config = msgspec.structs.replace(config, **{key: value})
        return config if passed is None else msgspec.structs.replace(config, **passed.addresses())

    return load(arguments.config, changed)


async def run(config: Config, passed: PassedSockets | None, read: Callable[[], Config] | None) -> None:
    """Serve until SIGTERM or SIGINT. DESCRIPTION explains the other signals. `read` reads the configuration
    file again, if there is one; it raises ConfigError.
    """
    manager = Manager()
    problem: ConfigError | ListenError | StoreError | Refused | NotClosed | None = None
    # The first of these signals ends the server, and no later one ends the process before it has stopped.
    # Trio puts these handlers back at the end of the block, and calls them for signals that came meanwhile.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    for number in ENDS:
        signal.signal(number, _ignore)
    with (
        trio.open_signal_receiver(*ENDS) as ends,
        trio.open_signal_receiver(signal.SIGHUP, signal.SIGUSR1) as requests,
    ):
        _unblock_ends()
        async with trio.open_nursery() as start:
            # A signal ends the start, or the work while the server serves. A server that was started stops in
            # order only if nothing cancels it from outside.
            ended = [start.cancel_scope]
            start.start_soon(_stop, ends, manager, ended)
            try:
                async with open_server(config, passed) as server, trio.open_nursery() as nursery:
                    ended.append(nursery.cancel_scope)
                    # Not before the stores are open: LMDB allocates 2 MiB of zeros for each environment,
                    # which cost nothing unless glibc makes them of freed memory.
                    keep_freed_memory()
                    nursery.start_soon(give_back_much)
                    nursery.start_soon(manager.keep_alive)
                    tell_exposure(config)
                    await _serve(server, config, read, requests, manager)
            except (ConfigError, ListenError, StoreError, Refused, NotClosed) as refusal:
                problem = refusal  # raised outside of the nursery, which would wrap it
            start.cancel_scope.cancel()
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)  # Python replaces a handler of its own before the process ends
    if problem is not None:
        raise problem
    log.info("stopped")


async def _stop(signals: AsyncIterator[int], manager: Manager, ended: list[trio.CancelScope]) -> None:
    """Cancel the newest of these scopes at the first signal."""
    number = await anext(signals)
    log.info("%s: stopping", signal.Signals(number).name)
    manager.stopping()
    ended[-1].cancel()


async def _serve(
    server: Server,
    config: Config,
    read: Callable[[], Config] | None,
    requests: AsyncIterator[int],
    manager: Manager,
) -> None:
    """Tell the addresses at which the server listens, and answer SIGHUP and SIGUSR1 until cancelled."""
    for address in server.addresses:
        _tell(f"omq-server listening on {format_address(*address)}")
    for address in server.tls_addresses:
        _tell(f"omq-server listening on {format_address(*address)} (TLS only)")
    for address in server.http_addresses:
        _tell(f"omq-server listening on {format_address(*address)} (HTTP only)")
    addresses = (*server.addresses, *server.tls_addresses, *server.http_addresses)
    manager.ready(status := f"serving on {', '.join(format_address(*each) for each in addresses)}")
    async for number in requests:
        if number == signal.SIGHUP:
            manager.reloading()
            await _reload(server, config, read)
            manager.ready(status)
        else:
            tasks = trio.lowlevel.current_statistics().tasks_living
            log.info("SIGUSR1: %s, %s", counted(server.connections, "connection"), counted(tasks, "task"))


def _tell(line: str) -> None:
    """Print a line, or log it where nothing can be printed: the server can serve all the same."""
    problem = try_printing(f"{line}\n")
    if problem is not None:
        log.warning("standard output: %s: %s", problem.strerror, line)


async def _reload(server: Server, started: Config, read: Callable[[], Config] | None) -> None:
    """Apply the changes of the configuration since the start, and those of the certificates. If one of the
    two cannot be used, the server keeps the one that it has. A file system may not respond: then the server
    does not wait for its thread when it stops.
    """
    if read is None:
        log.info("SIGHUP: there is no configuration to reload: the server was started without --config")
    else:
        await _reload_configuration(server, started, read)
    if server.certificates is None:
        return
    try:
        await in_thread(server.certificates.reload, abandon_on_cancel=True)
    except ConfigError as problem:
        log.error("SIGHUP: kept the old certificates: %s", problem)
    else:
        log.info("SIGHUP: reloaded the certificates")
        server.certificates.warn_of_expiry()


async def _reload_configuration(server: Server, started: Config, read: Callable[[], Config]) -> None:
    try:
        config = await in_thread(read, abandon_on_cancel=True)
    except ConfigError as problem:
        log.error("SIGHUP: kept the old configuration: %s", problem)
    else:
        for key in need_restart(started, config):
            log.warning("SIGHUP: %s has changed: that is applied when the server is started again", key)
        change = applied(started, config)
        set_levels(change.log_level, change.log_levels)
        try:
            await server.reload(change)
        except Exception:  # a defect of a reload must not end the connections
            log.exception("SIGHUP: a defect of the server: the configuration may be reloaded only in part")
        else:
            log.info("SIGHUP: reloaded the configuration")


def _tell_codec() -> None:
    if newer := codec.newer_sources():
        log.warning(
            "the compiled codec is older than its source (%s): compile it again with pip install -e .",
            ", ".join(newer),
        )
        return
    if codec.missing is None:
        log.info("%s", codec.describe())
        return
    log.warning(
        "plain Python codec, which takes many times as long for each message: the compiled one is missing "
        "(%s); to get it, install a C compiler and the headers of Python (on Debian: gcc and python3-dev), "
        "and install omq-server again, with pip's options --force-reinstall --no-cache-dir",
        codec.missing,
    )


def _refuse(sentence: str) -> int:
    """Log the reason why the server does not start, in the wanted style; return the exit status."""
    refuse(sentence, style_asked_for(sys.argv[1:]))
    return EXIT_USAGE


if __name__ == "__main__":
    main()
