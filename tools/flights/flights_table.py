"""Compares the published, delivered and replayed messages with the file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flights_file import Flights
from flights_receiving import Reception


@dataclass(frozen=True)
class Line:
    """The figures of one topic: rows in the file, and messages published, delivered and replayed."""

    topic: str
    carrier: str
    in_file: int
    published: int
    live: int
    replayed: int
    problems: tuple[str, ...] = ()
    """Other faults of its messages: another body, another order."""

    @property
    def agrees(self) -> bool:
        return self.in_file == self.published == self.live == self.replayed and not self.problems


def compare(lines: Sequence[Line]) -> list[str]:
    """Return a sentence for each difference from the file."""
    sentences = []
    for line in lines:
        for what, count in (
            ("published", line.published),
            ("delivered live", line.live),
            ("replayed", line.replayed),
        ):
            if count != line.in_file:
                sentences.append(f"{line.topic}: {line.in_file:,} rows in the file, {count:,} {what}")
        sentences += [f"{line.topic}: {problem}" for problem in line.problems]
    return sentences


def lines_of(flights: Flights, published: Counter[bytes], live: Reception, replay: Reception) -> list[Line]:
    """Return the table. A topic that stands on one side only gets its line too."""
    return [
        Line(
            topic=topic.decode(),
            carrier=flights.names.get(topic, ""),
            in_file=flights.counted.get(topic, 0),
            published=published[topic],
            live=live.count_of(topic),
            replayed=replay.count_of(topic),
            problems=(*live.problems_of(topic, "live"), *replay.problems_of(topic, "replayed")),
        )
        for topic in sorted({*flights.counted, *flights.by_topic})
    ]


def table(lines: Sequence[Line]) -> str:
    """Return the lines for people, with totals."""
    width = max(len(line.carrier) for line in lines)
    topics = max(len(line.topic) for line in lines)

    def row(mark: str, topic: str, carrier: str, *columns: str) -> str:
        numbers = "".join(f"{column:>13}" for column in columns)
        return f"{mark} {topic:<{topics}}  {carrier:<{width}}{numbers}"

    def counts(lines: Sequence[Line]) -> list[str]:
        columns = zip(
            *((line.in_file, line.published, line.live, line.replayed) for line in lines), strict=True
        )
        return [f"{sum(column):,}" for column in columns]

    heading = row(" ", "topic", "carrier", "in the file", "published", "live", "replayed")
    rule = "  " + "─" * (len(heading) - 2)
    rows = [row(" " if line.agrees else "!", line.topic, line.carrier, *counts([line])) for line in lines]
    return "\n".join([heading, rule, *rows, rule, row(" ", "all", "", *counts(lines))])
