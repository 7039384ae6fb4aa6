"""Growing cost as tables for readers and a document for programs."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from growth import FIGURES, Figure, Growth, Point, Sweep
from report import RATE, amount, machine


def middle(point: Point) -> float:
    """Return the median of a point's runs."""
    return statistics.median(sample.value for sample in point.samples)


def of_figure(points: Sequence[Point], figure: Figure) -> list[Point]:
    return [point for point in points if point.figure is figure]


def cell(point: Point | None) -> str:
    if point is None:
        return ""
    if point.failure is not None or not point.samples:
        return "FAILED"
    text = amount(middle(point), point.figure.unit)
    if point.figure.sweep is Sweep.SIZE:
        text += f" ({middle(point) * point.at / 1e6:,.0f} MB/s)"
    return text


def figure_table(points: Sequence[Point], figure: Figure) -> str:
    """Return one figure: a line for each place on the axis, a column for each system."""
    found = of_figure(points, figure)
    systems = list(dict.fromkeys(point.system for point in found))
    by_place = {(point.at, point.system): point for point in found}
    lines = [(figure.axis, *systems)]
    lines += [
        (f"{at:,}", *(cell(by_place.get((at, system))) for system in systems))
        for at in sorted({point.at for point in found})
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
    unit = f", {figure.unit}" if figure.unit == RATE else ""
    failures = [
        f"FAILED: {point.at:,} {figure.axis}, {point.system}: {point.failure}"
        for point in found
        if point.failure is not None
    ]
    return "\n".join([f"{figure.title}{unit}", figure.setting, *texts, *failures])


def tables(points: Sequence[Point]) -> str:
    """Return all figures that were taken."""
    return "\n\n".join(figure_table(points, figure) for figure in FIGURES if of_figure(points, figure))


def document(growth: Growth, settings: dict[str, Any]) -> dict[str, Any]:
    """Return everything, for programs."""
    return {
        "machine": machine(),
        "versions": {system.name: system.version() for system in growth.systems},
        "settings": settings,
        "contents compared": growth.checks,
        "points": [
            {
                "figure": point.figure.name,
                "system": point.system,
                "at": point.at,
                "axis": point.figure.axis,
                "unit": point.figure.unit,
                "median": middle(point) if point.samples else None,
                "samples": [asdict(sample) for sample in point.samples],
                "failure": point.failure,
            }
            for point in growth.points
        ],
    }
