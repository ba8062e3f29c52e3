"""Plots, each as PNG and as SVG: size against bandwidth, and the matrix of the engine's copies as a heat map."""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.report import Row, number_text
from bench.timing import Spread

from .point import LAYOUTS, WAYS, Point, size_text
from .tables import matrix, names, points

_ENGINE: Final = ("peer", "host", "upload", "download", "staged")  # its routes; of two between a pair the first is it
_SIZES: Final = "copies-sizes"
_MATRIX: Final = "copies-matrix"
_DASHES: Final = ("o-", "s--", "^:", "D-.", "v-", "x--", "P:", "*-.")  # markers and dashes of routes
_SUM: Final = {"one way": "", "both ways": ": the sum of both"}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the plots into a folder, which is made; nothing where nothing was measured.

    Returns:
        The files.
    """
    found = points(rows, "bandwidth")
    if not found:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [*_saved(_sizes(rows), folder / _SIZES), *_saved(_heat(found), folder / _MATRIX)]


def _saved(figure: Any, stem: Path) -> list[Path]:
    files = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files


def _figure(width: float, height: float) -> Any:
    return importlib.import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def _sizes(rows: Sequence[Row]) -> Any:
    """A panel for each layout and direction, a line for each pair and route: a color for a pair, a dash for a route.

    Around each line is what lies between the quartiles. Pairs both ways have the color of their first direction.
    """
    lines: dict[Point, list[tuple[int, Spread]]] = {}
    for row in rows:
        point = Point.of(row, "bandwidth")
        if point is not None and row.value is not None:
            lines.setdefault(replace(point, nbytes=0), []).append((point.nbytes, row.value))
    pairs = {pair: f"C{at % 10}" for at, pair in enumerate(dict.fromkeys((p.source, p.destination) for p in lines))}
    routes = {route: _DASHES[at % len(_DASHES)] for at, route in enumerate(dict.fromkeys(p.route for p in lines))}
    figure = _figure(15, 9)
    panels = figure.subplots(len(LAYOUTS), len(WAYS), sharex=True, sharey=True, squeeze=False)
    for layout, row in zip(LAYOUTS, panels, strict=True):
        for way, panel in zip(WAYS, row, strict=True):
            panel.set(title=f"{layout}, {way}{_SUM[way]}", xscale="log", yscale="log")
            panel.grid(visible=True, alpha=0.3)
            for kind, line in lines.items():
                if (kind.layout, kind.way) == (layout, way):
                    sizes, spreads = zip(*sorted(line), strict=True)
                    style, color = routes[kind.route], pairs[kind.source, kind.destination]
                    low, median, high = zip(*spreads, strict=True)
                    panel.plot(sizes, median, style, color=color, markersize=4, linewidth=1.2)
                    panel.fill_between(sizes, low, high, color=color, alpha=0.12, linewidth=0)
    sizes = sorted({nbytes for line in lines.values() for nbytes, _ in line})
    for panel in panels[-1]:
        panel.set_xticks(sizes, [size_text(nbytes) for nbytes in sizes], rotation=45, ha="right", fontsize=8)
        panel.minorticks_off()
        panel.set_xlabel("size of a copy")
    for row in panels:
        row[0].set_ylabel("GB/s")
        row[0].yaxis.set_major_formatter(lambda value, at: f"{value:g}")
    line_of = importlib.import_module("matplotlib.lines").Line2D
    keys = [line_of([], [], color=color, linewidth=3, label=f"{a} → {b}") for (a, b), color in pairs.items()]
    keys += [_key(line_of, route, style) for route, style in routes.items()]
    figure.legend(handles=keys, loc="outside right center", frameon=False)
    figure.suptitle("Copies between devices: medians, and what lies between the quartiles")
    return figure


def _key(line_of: Any, route: str, style: str) -> Any:
    """The entry of a route in the legend."""
    return line_of([], [], color="black", marker=style[0], linestyle=style[1:], markersize=4, label=route)


def _heat(found: Sequence[tuple[Point, float]]) -> Any:
    """The engine's copies of the largest size, contiguous and one way, from rows to columns."""
    nbytes = max(point.nbytes for point, _ in found)
    kind = ("contiguous", "one way", nbytes)
    chosen = [pair for pair in found if (pair[0].layout, pair[0].way, pair[0].nbytes) == kind]
    cells = {}
    for route in reversed(_ENGINE):
        cells |= matrix([pair for pair in chosen if pair[0].route == route])
    devices = names(found)
    figures = [[cells.get((source, to), float("nan")) for to in devices] for source in devices]
    figure = _figure(2.5 + len(devices), 2 + 0.8 * len(devices))
    panel = figure.subplots()
    most = max(cells.values(), default=1.0)
    panel.set_facecolor("lightgrey")  # of what was not measured
    image = panel.imshow(figures, cmap="viridis", vmin=0, vmax=most)
    for at, row in enumerate(figures):
        for of, value in enumerate(row):
            text = "" if value != value else number_text(value)  # a pair that was not measured has no number
            color = "black" if value > most / 2 else "white"
            panel.text(of, at, text, ha="center", va="center", color=color, fontweight="bold")
    panel.set_xticks(range(len(devices)), devices)
    panel.set_yticks(range(len(devices)), devices)
    panel.set(xlabel="to", ylabel="from", title=f"The engine's copies of {size_text(nbytes)},\none way, contiguous")
    figure.colorbar(image, label="GB/s")
    return figure
