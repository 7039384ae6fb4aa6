"""The part of the demo that has Spark: flights read back from the store, summed up, compared, and drawn."""

import csv
import datetime
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import DateFormatter, MonthLocator
from matplotlib.figure import Figure
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

YEAR = 2013
CANCELLED = "NA"
"""The value in the file for a flight without a departure time."""

COLUMNS = "year INT, month INT, day INT, dep_time STRING, sched_dep_time INT, dep_delay STRING"
"""The first columns of a row; the carrier is in the topic's name. The others are not used."""


@dataclass(frozen=True)
class Delays:
    """The figures of a carrier."""

    flights: int
    cancelled: int
    minutes: int
    """Delays at departure, those of all flights that left together; below 0 for flights that left early."""

    @property
    def mean(self) -> float | None:
        """Minutes; None where no flight left."""
        left = self.flights - self.cancelled
        return self.minutes / left if left else None


Daily = dict[str, dict[datetime.date, int]]
"""Flights of each carrier on each day."""


def delays_from_csv(text: str, most: int) -> dict[str, Delays]:
    """Return the first `most` flights of the file by carrier, read without omq and without Spark."""
    flights: Counter[str] = Counter()
    cancelled: Counter[str] = Counter()
    minutes: Counter[str] = Counter()
    for number, row in enumerate(csv.DictReader(io.StringIO(text))):
        if number == most:
            break
        carrier = row["carrier"]
        flights[carrier] += 1
        if row["dep_time"] == CANCELLED:
            cancelled[carrier] += 1
        else:
            minutes[carrier] += int(row["dep_delay"])
    return {carrier: Delays(flights[carrier], cancelled[carrier], minutes[carrier]) for carrier in flights}


def delays_from_store(spark: SparkSession, store: Path) -> tuple[dict[str, Delays], Daily]:
    """Return the flights of a store by carrier, and the number of flights on each day."""
    messages = (
        spark.read.format("omq")
        .option("path", str(store))
        .option("subscribePattern", r"flights\..*")
        .schema("topic STRING, value BINARY")
        .load()
    )
    # A row has more columns than these: Spark leaves them out.
    row = F.from_csv(F.col("value").cast("string"), COLUMNS, {"mode": "PERMISSIVE"})
    flights = messages.select(F.substring_index("topic", ".", -1).alias("carrier"), row.alias("row")).select(
        "carrier", "row.*"
    )
    is_cancelled = F.col("dep_time") == CANCELLED
    daily = (
        flights.groupBy("carrier", "year", "month", "day")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count_if(is_cancelled).alias("cancelled"),
            F.sum(F.when(~is_cancelled, F.col("dep_delay").cast("int"))).alias("minutes"),
        )
        .cache()
    )
    totals = daily.groupBy("carrier").agg(
        *(F.sum(name).alias(name) for name in ("flights", "cancelled", "minutes"))
    )
    delays = {
        each.carrier: Delays(each.flights, each.cancelled, each.minutes or 0) for each in totals.collect()
    }
    days: Daily = {}
    for each in daily.collect():
        days.setdefault(each.carrier, {})[datetime.date(each.year, each.month, each.day)] = each.flights
    return delays, days


def differences(from_store: Mapping[str, Delays], from_csv: Mapping[str, Delays]) -> list[str]:
    """Return a sentence for each carrier whose figures differ."""
    return [
        f"{carrier}: Spark says {from_store.get(carrier)}, the file {from_csv.get(carrier)}"
        for carrier in sorted({*from_store, *from_csv})
        if from_store.get(carrier) != from_csv.get(carrier)
    ]


def table(from_store: Mapping[str, Delays], from_csv: Mapping[str, Delays], names: Mapping[str, str]) -> str:
    """Return both side by side."""
    carriers = sorted({*from_store, *from_csv})
    width = max(len(names.get(carrier, "")) for carrier in carriers)
    sides = f"{'from the store, with Spark':^36}   {'from the file':^36}"
    heads = "".join(f"{head:>12}" for head in ("flights", "cancelled", "mean delay"))
    lines = [f"       {'':<{width}}{sides}".rstrip(), f"       {'carrier':<{width}}{heads}   {heads}"]
    lines.append("  " + "─" * (len(lines[1]) - 2))
    for carrier in carriers:
        cells = "   ".join(_cells(side.get(carrier)) for side in (from_store, from_csv))
        mark = " " if from_store.get(carrier) == from_csv.get(carrier) else "!"
        lines.append(f"{mark} {carrier:<5}{names.get(carrier, ''):<{width}}{cells}")
    return "\n".join(lines)


def _cells(delays: Delays | None) -> str:
    if delays is None:
        return f"{'-':>12}" * 3
    mean = "-" if delays.mean is None else f"{delays.mean:.2f} min"
    return f"{delays.flights:>12,}{delays.cancelled:>12,}{mean:>12}"


def draw(daily: Daily, names: Mapping[str, str], picture: Path) -> None:
    """Draw the flights of each carrier on each day, a small chart each, as a PNG picture."""
    carriers = sorted(daily, key=lambda carrier: -sum(daily[carrier].values()))
    columns = 4
    rows = -(-len(carriers) // columns)
    figure = Figure(figsize=(16, 2.6 * rows + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    charts = figure.subplots(rows, columns, squeeze=False)
    dates = _days(daily)
    for place, chart in enumerate(charts.flat):
        if place >= len(carriers):
            chart.set_visible(False)
            continue
        carrier = carriers[place]
        counts = [daily[carrier].get(day, 0) for day in dates]
        chart.fill_between(dates, counts, color="#9ecae1", step="mid", linewidth=0)
        chart.plot(dates, _smoothed(counts), color="#08519c", linewidth=1.6)
        chart.set_title(f"{names.get(carrier, carrier)} ({carrier})", fontsize=11, loc="left")
        chart.set_ylim(0, max(4, max(counts) * 1.1))
        chart.margins(x=0)
        chart.grid(axis="y", color="#dddddd", linewidth=0.6)
        chart.set_axisbelow(True)
        chart.spines[["top", "right"]].set_visible(False)
        chart.yaxis.get_major_locator().set_params(integer=True, nbins=4)
        if len(dates) > 60:
            chart.xaxis.set_major_locator(MonthLocator((1, 4, 7, 10)))
            chart.xaxis.set_major_formatter(DateFormatter("%b"))
        else:
            chart.xaxis.set_major_formatter(DateFormatter("%d %b"))
            chart.tick_params(axis="x", labelrotation=30)
    figure.suptitle(
        f"Flights that were to leave New York, by carrier and day, {YEAR}\n"
        "(area: each day; line: mean of seven days; every chart has its own scale)",
        fontsize=14,
    )
    figure.supylabel("flights a day", fontsize=12)
    figure.supxlabel(f"day of {YEAR}", fontsize=12)
    figure.savefig(picture, dpi=100)


def _days(daily: Daily) -> list[datetime.date]:
    """Return every day from the first to the last."""
    found = [day for days in daily.values() for day in days]
    first, last = min(found), max(found)
    return [first + datetime.timedelta(days=number) for number in range((last - first).days + 1)]


def _smoothed(counts: Sequence[int]) -> list[float]:
    """Return the means of the seven days around each day, of fewer at the two ends."""
    around = [counts[max(0, at - 3) : at + 4] for at in range(len(counts))]
    return [sum(each) / len(each) for each in around]
