"""The request of a replay: source, destination, bounds and filter."""

from dataclasses import dataclass

from omq.bulk.places import Choice, Place, ServerPlace


@dataclass(frozen=True, slots=True)
class ToServer:
    """Publish the messages again."""

    place: ServerPlace
    shown: str
    topic: str | None
    """The topic of all messages; None for topics with the same names."""
    producer: str | None
    """The producer's name, for a replay that may be repeated; None for a random name."""


@dataclass(frozen=True, slots=True)
class ToParquet:
    """A directory of Parquet files."""

    path: str


@dataclass(frozen=True, slots=True)
class ToJson:
    """A directory of files with one JSON object per line."""

    path: str


ReplayDestination = ToServer | ToParquet | ToJson


@dataclass(frozen=True, slots=True)
class Text:
    """Bodies are UTF-8 text: the column `text`, null for other bodies."""


@dataclass(frozen=True, slots=True)
class Csv:
    """Bodies are lines of CSV with these columns, in Spark's DDL: `carrier STRING, distance INT`."""

    columns: str


@dataclass(frozen=True, slots=True)
class Json:
    """Bodies are JSON objects with these members, in Spark's DDL."""

    columns: str


Decoding = Text | Csv | Json


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of each topic; None leaves an end open."""

    first: int | None = None
    last: int | None = None
    """Inclusive."""
    since: int | None = None
    """Microseconds since the epoch, inclusive."""
    until: int | None = None
    """Microseconds since the epoch, exclusive."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    source: Place
    shown: str
    """The source, as shown to the user."""
    choice: Choice
    bounds: Bounds
    destination: ReplayDestination
    decoding: Decoding = Text()
    where: str | None = None
    """A condition of Spark SQL; None for all messages."""
    speed: float | None = None
    """A multiple of the original speed; None for full speed."""
    skip_lost: bool = False
    """Whether to skip lost messages; otherwise they end the replay."""

    @property
    def needs_spark(self) -> bool:
        """Whether the replay needs single rows; otherwise it copies blocks."""
        return self.where is not None or not isinstance(self.destination, ToServer)
