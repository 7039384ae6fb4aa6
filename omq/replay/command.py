"""Check the command line of a replay, and run it."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from omq.bulk.errors import BadOptions, OmqError
from omq.bulk.places import Place, ServerPlace
from omq.printable import printable, printable_lines
from omq.replay import servers
from omq.replay.plan import Plan, describe, make_plan
from omq.replay.request import (
    Bounds,
    Csv,
    Decoding,
    Json,
    ReplayRequest,
    Text,
    ToJson,
    ToParquet,
    ToServer,
)
from omq.spark.options import ReadOptions, read_options, write_options
from omq_storage.errors import StoreError

if TYPE_CHECKING:
    from omq.replay.meter import Meter


def request_of(options: argparse.Namespace) -> ReplayRequest:
    """Convert the arguments to a request. Raises BadOptions."""
    taken = _place_and_choice(options)
    shown = f"the store {options.path}" if options.path is not None else options.server
    request = ReplayRequest(
        _named(taken.place),
        shown,
        taken.choice,
        Bounds(options.first, options.last, options.since, options.until),
        _destination(options),
        _decoding(options.decode),
        options.where,
        options.speed,
        options.skip_lost,
    )
    _check(request, options)
    for place in (request.source, getattr(request.destination, "place", None)):
        if isinstance(place, ServerPlace):
            place.check_files()
    return request


def _place_and_choice(options: argparse.Namespace) -> ReadOptions:
    given = servers.source(options)
    if options.pattern is not None and options.topics:
        raise BadOptions("Give topics or --pattern, not both.")
    if options.pattern is not None:
        given["subscribePattern"] = options.pattern
    elif options.topics:
        given["assign"] = json.dumps({topic: [0] for topic in options.topics})
    else:
        raise BadOptions("Say what to replay: topics, or --pattern.")
    return read_options(given, stream=False)


def _destination(options: argparse.Namespace) -> ToServer | ToParquet | ToJson:
    kind, _, rest = options.to.partition(":")
    if kind in ("omq", "omqs") and rest.startswith("//"):
        address, _, topic = rest[2:].partition("/")
        url = f"{kind}://{address}"
        taken = write_options(servers.destination(options, url) | ({"topic": topic} if topic else {}))
        return ToServer(_named(taken.servers), url, taken.topic, options.producer)
    if kind in ("parquet", "jsonl") and rest:
        return ToParquet(rest) if kind == "parquet" else ToJson(rest)
    raise BadOptions(
        "--to is omq://HOST:PORT, omq://HOST:PORT/TOPIC, the same with omqs://, parquet:DIRECTORY or "
        f"jsonl:DIRECTORY, not {options.to!r}."
    )


P = TypeVar("P", bound=Place)


def _named(place: P) -> P:
    """Return a place whose server sees this program as `omq.replay`; tasks of Spark are `omq.spark`."""
    if not isinstance(place, ServerPlace):
        return place
    return replace(place, credentials=replace(place.credentials, name=b"omq.replay"))


def _decoding(given: str | None) -> Decoding:
    if given is None:
        return Text()
    kind, _, columns = given.partition(":")
    if kind not in ("csv", "json") or not columns.strip():
        raise BadOptions(f"--decode is csv:COLUMNS or json:COLUMNS, not {given!r}.")
    return Csv(columns) if kind == "csv" else Json(columns)


def _check(request: ReplayRequest, options: argparse.Namespace) -> None:
    """Raise BadOptions for contradictory arguments."""
    bounds = request.bounds
    if bounds.first is not None and bounds.last is not None and bounds.first > bounds.last:
        raise BadOptions(f"--first {bounds.first} is after --last {bounds.last}.")
    if bounds.since is not None and bounds.until is not None and bounds.since > bounds.until:
        raise BadOptions("--since is after --until.")
    if isinstance(request.destination, ToServer):
        _check_not_itself(request.source, request.destination, options.topics)
        if request.where is None and not isinstance(request.decoding, Text):
            raise BadOptions("--decode is for --where here: a server gets bodies as they are.")
        if request.where is not None and options.producer is not None and request.speed is None:
            raise BadOptions(
                "--producer goes with --where only at a --speed: tasks have no order in which a server could "
                "tell what it has."
            )
        return
    for option, value in (("--speed", request.speed), ("--producer", options.producer)):
        if value is not None:
            raise BadOptions(f"{option} is for --to omq://...: files have no pace and no producer.")
    servers.refuse_destination(options)
    path = request.destination.path
    if "://" not in path and Path(path).exists():
        raise BadOptions(f"{path} is there already.")


def _check_not_itself(source: Place, destination: ToServer, topics: list[str]) -> None:
    """Refuse to copy a topic to itself: appended messages cannot be removed."""
    same_server = isinstance(source, ServerPlace) and _hosts(source) == _hosts(destination.place)
    if same_server and (destination.topic is None or destination.topic in topics):
        raise BadOptions(
            "--to is where the messages come from: name another topic, --to omq://HOST:PORT/TOPIC."
        )


def _hosts(place: ServerPlace) -> list[tuple[str, int]]:
    """Return the addresses of a server, without regard to TLS."""
    return [(address.host, address.port) for address in place.addresses]


def run(options: argparse.Namespace, refuse: Callable[[str], object]) -> int:
    """Run a replay and return the exit status. `refuse` gets errors in the command line, and exits."""
    try:
        request = request_of(options)
    except BadOptions as error:
        refuse(str(error))
        return 2
    try:
        return _run(request, options.dry_run)
    except (OmqError, StoreError) as error:
        _say(str(error))
    except KeyboardInterrupt:
        _say(f"interrupted; {_left(request)}")
    return 1


def _left(request: ReplayRequest) -> str:
    if isinstance(request.destination, ToServer):
        return "some of the messages may be published"
    return "no files are left" if "://" not in request.destination.path else "the files are not whole"


def _run(request: ReplayRequest, dry: bool) -> int:
    with request.source.open() as access:
        plan = make_plan(access, request)
        if dry:
            print(printable_lines(describe(plan)))
            return 0
    if not request.needs_spark:
        _say("the messages go over as they are: stored blocks are copied, without Spark")
        return _copy(plan)
    print(printable_lines(_spark(plan).summary()))
    return 0


def _copy(plan: Plan) -> int:
    from omq.replay.copying import copy
    from omq.replay.meter import Meter
    from omq.replay.pacing import pace
    from omq.replay.stopping import stop_on_interrupt

    destination = plan.request.destination
    assert isinstance(destination, ToServer)
    with Meter(plan.messages) as meter, stop_on_interrupt() as stop:
        do = copy if plan.request.speed is None else pace
        do(plan, destination, meter, stop)
    print(printable_lines(meter.summary()))
    return 1 if stop.is_set() else 0


def _spark(plan: Plan) -> "Meter":
    from omq.replay.meter import Meter

    try:
        from omq.replay import job
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow", "py4j"):
            raise
        raise OmqError(
            f"This needs Spark, and {error.name} is not installed: pip install '.[spark]' in the checkout."
        ) from error
    with tempfile.TemporaryDirectory(prefix="omq-replay-") as directory:
        log = Path(directory, "spark.log")
        log.touch()
        # Start the meter after Spark's start, which takes seconds.
        with job.session(log) as spark, Meter(plan.messages) as meter:
            job.run(spark, plan, meter)
        job.read_log(log, meter)
    return meter


def _say(line: str) -> None:
    if sys.stderr is not None:
        print(f"omq: {printable(line)}", file=sys.stderr)
