"""The command line of a replay, for `omq replay` and for `tools/replay.py`.

Every `omq` command loads it, so it imports as little as possible.
"""

import argparse

from omq.bulk import times
from omq.counted import natural

EXAMPLES = """examples:
  omq replay prices --to omq://other.example:7730
  omq replay --pattern 'flights\\..*' --to parquet:flights --since 2024-05-01T12:00
  omq replay prices --to omq://127.0.0.1:7730/prices-again --speed 10
  omq replay flights.UA --to jsonl:late --decode 'csv:year INT, month INT, day INT, dep_time INT' \\
      --where 'dep_time > 2200'
  omq replay prices --to parquet:prices --dry-run

Without --where, a replay to a server copies stored blocks, without Spark. Any other replay uses Spark, and
needs the extra spark of omq-server and Java 17 or later. A replay excludes messages published after its
start. It declares a topic that the other server does not have with the types of its source; a topic that
exists there keeps its types."""


class DefaultServer(str):
    """The value of `--server` on a command line without this option: errors must not blame it."""

    __slots__ = ()


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the source server, as `omq` has them before its commands."""
    parser.add_argument(
        "--server",
        metavar="omq://HOST:PORT",
        default=DefaultServer("omq://127.0.0.1:7730"),
        help="the server to read from; with TLS: omqs://HOST:PORT",
    )
    _add_credentials(parser, "", "--server", "OMQ_ID")


def _add_credentials(parser: argparse.ArgumentParser, prefix: str, where: str, variable: str) -> None:
    parser.add_argument(
        f"--{prefix}id-file",
        metavar="FILE",
        help=f"a file with one line NAME:SECRET for {where} (default: the value of ${variable})",
    )
    parser.add_argument(
        f"--{prefix}ca",
        metavar="FILE",
        help=f"for omqs:// in {where}: the certificates of trusted authorities "
        "(default: $OMQ_CA, or those that the system trusts)",
    )
    parser.add_argument(
        f"--{prefix}cert",
        metavar="FILE",
        help=f"for omqs:// in {where}: the client's certificate, if the server requires one",
    )
    parser.add_argument(
        f"--{prefix}key",
        metavar="FILE",
        help="its private key, without a pass phrase (default: in the same file)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all other arguments."""
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="the topics to replay")
    parser.add_argument("--pattern", metavar="REGEX", help="replay all topics whose whole name matches this")
    parser.add_argument(
        "--path",
        metavar="DIRECTORY",
        help="read the store in this directory instead of a server; a server may have the store open",
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="DESTINATION",
        help="omq://HOST:PORT (topics of the same names), omq://HOST:PORT/TOPIC, with TLS omqs://..., "
        "parquet:DIRECTORY, or jsonl:DIRECTORY",
    )
    _add_credentials(parser, "to-", "--to", "OMQ_TO_ID")
    parser.add_argument("--first", type=_id, metavar="ID", help="the first message of each topic")
    parser.add_argument("--last", type=_id, metavar="ID", help="the last message of each topic")
    parser.add_argument(
        "--since",
        type=parse_time,
        metavar="TIME",
        help="only messages since 2024-05-01T12:00 (add Z for UTC)",
    )
    parser.add_argument("--until", type=parse_time, metavar="TIME", help="only messages before this time")
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        help="only messages for which this is true: Spark SQL on topic, offset, timestamp, key, value, "
        "headers, text, and what --decode gives",
    )
    parser.add_argument(
        "--decode",
        metavar="csv:COLUMNS|json:COLUMNS",
        help="parse bodies into columns such as 'carrier STRING, distance INT'; files get these columns too",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        metavar="N",
        help="publish at N times the original speed of the messages (default: as fast as possible)",
    )
    parser.add_argument(
        "--producer",
        type=_producer,
        metavar="NAME",
        help="publish as this producer: a repeated replay stores nothing twice; slower",
    )
    parser.add_argument(
        "--skip-lost",
        action="store_true",
        help="skip and count lost and damaged messages, instead of failing",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show the plan")


def _id(text: str) -> int:
    number = natural(text)
    if number is None or not 0 < number < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is no message id")
    return number


def parse_time(text: str) -> int:
    """Parse a time to microseconds since the epoch."""
    try:
        return times.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 2024-05-01T12:00") from error


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return speed


def _producer(text: str) -> str:
    if not 0 < len(text.encode("utf-8", "surrogateescape")) <= 200:
        raise argparse.ArgumentTypeError("a producer's name has 1 to 200 octets")
    return text
