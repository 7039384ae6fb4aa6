"""Set up the log on standard error, as text or as JSON, and print errors at the start in the same style."""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence

from omq.config import LOG_AREAS

STYLES = ("human", "json")


def set_up_logging(style: str, level: str, levels: Mapping[str, str]) -> None:
    """Log records to standard error, as `set_levels` describes."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(style))
    logging.getLogger().addHandler(handler)
    set_levels(level, levels)


def set_levels(level: str, levels: Mapping[str, str]) -> None:
    """Log records of at least this level; those of some areas from another level on."""
    logging.getLogger().setLevel(level.upper())
    for area in LOG_AREAS:
        logging.getLogger(f"omq.{area}").setLevel(levels[area].upper() if area in levels else logging.NOTSET)


def refuse(sentence: str, style: str) -> None:
    """Print to standard error why the server does not start; works before the log is set up."""
    if style == "json":
        record = logging.LogRecord("omq.server", logging.ERROR, "", 0, sentence, None, None)
        print(_formatter(style).format(record), file=sys.stderr)
    else:
        print(f"omq-server: {sentence}", file=sys.stderr)


def style_asked_for(arguments: Sequence[str]) -> str:
    """Return the log style that a command line requests, even if the command line has other errors."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--log-format", choices=STYLES, default="human")
    parser.add_argument("--log-level")  # so that argparse detects ambiguous abbreviations
    try:
        return str(parser.parse_known_args(arguments)[0].log_format)
    except argparse.ArgumentError:
        return "human"


def _formatter(style: str) -> logging.Formatter:
    if style == "json":
        from omq.cli.json_log import JsonLines  # the server starts sooner without it

        return JsonLines()
    return logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
