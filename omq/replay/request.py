"""What somebody wants replayed, and where to."""

from dataclasses import dataclass

from omq.blocking.places import Choice, Place, ServerPlace


@dataclass(frozen=True, slots=True)
class ToServer:
    """Publish the messages again."""

    place: ServerPlace
    shown: str
    topic: str | None
    """Where all of them go; None for topics of the same names."""
    producer: str | None
    """Who publishes them, for a replay that may be repeated; None for nobody in particular."""


@dataclass(frozen=True, slots=True)
class ToParquet:
    """A directory of Parquet files."""

    path: str


@dataclass(frozen=True, slots=True)
class ToJson:
    """A directory of files with an object a line."""

    path: str


Destination = ToServer | ToParquet | ToJson


@dataclass(frozen=True, slots=True)
class Text:
    """Bodies are UTF-8 text: the column `text`, null where they are not."""


@dataclass(frozen=True, slots=True)
class Csv:
    """Bodies are lines of CSV with these columns, as Spark's DDL has them: `carrier STRING, distance INT`."""

    columns: str


@dataclass(frozen=True, slots=True)
class Json:
    """Bodies are JSON objects with these members, as Spark's DDL has them."""

    columns: str


Decoding = Text | Csv | Json


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which messages of each topic; None leaves an end open."""

    first: int | None = None
    last: int | None = None
    """Inclusive."""
    since: int | None = None
    """Microseconds since the epoch: messages of this time and later ones."""
    until: int | None = None
    """Messages before this time."""


@dataclass(frozen=True, slots=True)
class Request:
    source: Place
    shown: str
    """The source, for people."""
    choice: Choice
    bounds: Bounds
    destination: Destination
    decoding: Decoding = Text()
    where: str | None = None
    """A condition of Spark SQL; None for all messages."""
    speed: float | None = None
    """How many times as fast as they were published; None for as fast as can be."""
    skip_lost: bool = False
    """Whether messages that cannot be had any more are left out; else they end the replay."""

    @property
    def needs_spark(self) -> bool:
        """Whether blocks must be taken apart: else they are copied."""
        return self.where is not None or not isinstance(self.destination, ToServer)
