"""Growing cost as pictures: one PNG for each figure, drawn with matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # Drawn into files: no display is needed.

import matplotlib.pyplot as plt
from growth import FIGURES, Figure, Point, Sweep
from growth_report import middle, of_figure
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

STYLES = {
    "omq": ("omq", "#0b6e4f", "-", "o"),
    "omq-lines": ("omq, Publish lines", "#4cb944", "-", "s"),
    "omq-plain": ("omq, plain codec", "#8fbf9f", "--", "s"),
    "nats": ("NATS", "#2f6fb3", "-", "^"),
    "redis": ("Redis", "#c8402f", "-", "D"),
    "none": ("no server: the generators alone", "#8a8a8a", ":", "."),
}
"""Name in the key, colour, line and mark of each system, so that colour is not the only difference."""


def short(value: float) -> str:
    """Return a number in few characters: 1,500,000 as 1.5 M."""
    for unit, power in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= power:
            return f"{value / power:g} {unit}"
    return f"{value:g}"


def place_label(sweep: Sweep, at: float) -> str:
    """Return a label of the horizontal axis; sizes from 1 KiB on are powers of two, and are written so."""
    if sweep is Sweep.SIZE and at >= 1024 and at % 1024 == 0:
        return f"{at / 1024:g} KiB"
    return short(at)


def vertical(figure: Figure, volume: bool) -> tuple[str, float]:
    """Return the title of the vertical axis, and the divisor of figures for it."""
    if volume:
        return "MB/s of bodies", 1e6
    match figure.unit:
        case "messages/s":
            return ("deliveries" if figure.sweep is Sweep.SUBSCRIBERS else "messages") + " a second", 1
        case "octets":
            return "RssAnon in MiB", 2**20
        case "microseconds":
            return "microseconds a topic", 1
        case _:
            return "seconds", 1


def draw_lines(axes: Axes, points: Sequence[Point], scale: float, volume: bool) -> None:
    """Draw a line through the medians of each system, in a band from its lowest to its highest run."""
    for system, (label, colour, line, mark) in STYLES.items():
        own = sorted((point for point in points if point.system == system), key=lambda p: p.at)
        if not own:
            continue
        factors = [(point.at if volume else 1) / scale for point in own]
        places = [point.at for point in own]
        medians = [middle(point) * factor for point, factor in zip(own, factors, strict=True)]
        values = [[sample.value for sample in point.samples] for point in own]
        low = [min(each) * factor for each, factor in zip(values, factors, strict=True)]
        high = [max(each) * factor for each, factor in zip(values, factors, strict=True)]
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(places, medians, color=colour, linestyle=line, marker=mark, label=label, linewidth=1.8)


def write_above(axes: Axes, points: float, text: str, **style: Any) -> None:
    """Write text at this distance above the axes, flush with their left edge."""
    axes.annotate(
        text, (0, 1), (0, points), xycoords="axes fraction", textcoords="offset points", va="bottom", **style
    )


def draw(figure: Figure, points: Sequence[Point], remark: str, path: Path, volume: bool = False) -> None:
    """Draw one figure; `volume` shows octets a second instead of messages."""
    label, scale = vertical(figure, volume)
    canvas, axes = plt.subplots(figsize=(8, 5), dpi=120, layout="constrained")
    draw_lines(axes, points, scale, volume)
    axes.set_xscale("log")
    axes.set_yscale("log")
    places = sorted({point.at for point in points})
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: place_label(figure.sweep, at)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if volume else short(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"{figure.axis} (logarithmic)")
    axes.set_ylabel(f"{label} (logarithmic)")
    title = "Volume by size of message" if volume else figure.title
    write_above(axes, 30, title, fontsize=13, fontweight="bold")
    write_above(axes, 6, f"{figure.setting}\n{remark}", fontsize=8.5, color="#555555")
    axes.legend(frameon=False, fontsize=9)
    canvas.savefig(path)
    plt.close(canvas)


def draw_all(points: Sequence[Point], remark: str, directory: Path) -> list[Path]:
    """Return a PNG for each figure, without the points that failed; where they were written."""
    written = []
    for figure in FIGURES:
        found = [point for point in of_figure(points, figure) if point.samples and point.failure is None]
        if not found:
            continue
        written.append(directory / f"{figure.name}.png")
        draw(figure, found, remark, written[-1])
        if figure.sweep is Sweep.SIZE:
            written.append(directory / "size-volume.png")
            draw(figure, found, remark, written[-1], volume=True)
    return written
