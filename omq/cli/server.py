"""The command `omq-server`."""

import argparse
import faulthandler
import importlib.metadata
import logging
import signal
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
import trio
from pythonjsonlogger.json import JsonFormatter

from omq.cli.allocator import keep_freed_memory
from omq.config import Config, ConfigError, check, load
from omq.drivers.channel import Refused
from omq.server import ListenError, open_server
from storage.codec import describe
from storage.errors import StoreError

EXIT_USAGE = 2

DESCRIPTION = """\
Serve topics over the omq protocol: publish and subscribe, live and replayed, transient or kept on disk.

When it is ready it prints one line on standard output, "omq-server listening on HOST:PORT", and from then on
logs on standard error. SIGTERM or SIGINT (Ctrl-C) stops it: what was published is stored and confirmed, the
stores are flushed and closed, and it exits with 0."""

EPILOG = """\
examples:
  omq-server                                    127.0.0.1:7730, the store in ./omq-store
  omq-server --listen 127.0.0.1:0 --store /tmp/demo      a free port, printed when it is ready
  omq-server --config omq.toml                  see docs/CONFIGURATION.md for every key

exit status: 0 stopped by a signal, 1 a failure while running, 2 it could not start (bad option or
configuration, store in use, address in use)."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the options."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


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
        help="where to listen; port 0 takes a free one; may be given several times (default 127.0.0.1:7730)",
    )
    made.add_argument(
        "--store",
        metavar="DIR",
        help="the directory with everything that is kept; made when it is not there (default ./omq-store)",
    )
    made.add_argument("--config", metavar="FILE.toml", type=Path, help="a configuration; options win over it")
    made.add_argument(
        "--log-format", choices=("human", "json"), default="human", help="how to log (default human)"
    )
    made.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="the least that is logged (default info)",
    )
    made.add_argument("--version", action="version", version=f"omq {importlib.metadata.version('omq')}")
    return made


def main() -> None:
    """Run the server until a signal; exits with the status that `--help` describes."""
    arguments = parser().parse_args()
    try:
        config = configuration(arguments)
    except ConfigError as problem:
        sys.exit(_refuse(str(problem)))
    _set_up_logging(arguments.log_format, arguments.log_level)
    # Should a file be cut short under LMDB's map, the process ends at once: then this says where it was.
    faulthandler.enable()
    keep_freed_memory()
    logging.getLogger("omq.server").info("%s", describe())
    try:
        trio.run(run, config)
    except (StoreError, ListenError) as problem:
        sys.exit(_refuse(str(problem)))
    except Refused as problem:
        sys.exit(_refuse(f"topics: {problem}"))


def configuration(arguments: argparse.Namespace) -> Config:
    """The configuration file with the options over it. Raises ConfigError."""
    config = load(arguments.config)
    if arguments.listen:
        config = msgspec.structs.replace(config, listen=arguments.listen)
    if arguments.store is not None:
        config = msgspec.structs.replace(config, store=arguments.store)
    check(config)
    return config


async def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_server(config) as server:
            for host, port in server.addresses:
                shown = f"[{host}]" if ":" in host else host
                print(f"omq-server listening on {shown}:{port}", flush=True)
            async for number in signals:
                logging.getLogger("omq.server").info("%s: stopping", signal.Signals(number).name)
                break
        with trio.move_on_after(0):
            async for _ in signals:
                pass  # asked again while it was stopping already
    logging.getLogger("omq.server").info("stopped")


def _set_up_logging(style: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(JsonFormatter("{asctime}{levelname}{name}{message}", style="{"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())


def _refuse(sentence: str) -> int:
    print(f"omq-server: {sentence}", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    main()
