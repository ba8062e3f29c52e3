"""Plots, each as PNG and as SVG: size against bandwidth, and the matrix of the engine's copies as a heat map."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.report import Row, number_text

from .point import LAYOUTS, WAYS, Point, size_text
from .tables import matrix, names, points

_ENGINE: Final = ("peer", "host", "upload", "download", "staged")  # its routes; of two between a pair the first is it
_SIZES: Final = "copies-sizes"
_MATRIX: Final = "copies-matrix"


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the plots into a folder, which is made; nothing where nothing was measured.

    Returns:
        The files.
    """
    found = points(rows, "bandwidth")
    if not found:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [*_saved(_sizes(found), folder / _SIZES), *_saved(_heat(found), folder / _MATRIX)]


def _saved(figure: Any, stem: Path) -> list[Path]:
    files = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files


def _figure(width: float, height: float) -> Any:
    return importlib.import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def _sizes(found: Sequence[tuple[Point, float]]) -> Any:
    """A panel for each layout and direction, a line for each pair and route."""
    figure = _figure(13, 9)
    panels = figure.subplots(len(LAYOUTS), len(WAYS), sharex=True, sharey=True, squeeze=False)
    for row, layout in zip(panels, LAYOUTS, strict=True):
        for panel, way in zip(row, WAYS, strict=True):
            lines: dict[str, list[tuple[int, float]]] = {}
            for point, figures in found:
                if (point.layout, point.way) == (layout, way):
                    arrow = "→" if way == "one way" else "↔"
                    label = f"{point.source} {arrow} {point.destination}, {point.route}"
                    lines.setdefault(label, []).append((point.nbytes, figures))
            for label, line in lines.items():
                panel.plot(*zip(*sorted(line), strict=True), marker="o", markersize=3, linewidth=1, label=label)
            panel.set(title=f"{layout}, {way}", xscale="log", yscale="log")
            panel.grid(visible=True, alpha=0.3)
            if lines:
                panel.legend(fontsize=6)
    sizes = sorted({point.nbytes for point, _ in found})
    panels[0][0].set_xticks(sizes, [size_text(nbytes) for nbytes in sizes], rotation=60, fontsize=7)
    panels[0][0].minorticks_off()
    for panel in panels[-1]:
        panel.set_xlabel("size of a copy")
    for row in panels:
        row[0].set_ylabel("GB/s")
    figure.suptitle("Copies between devices: medians")
    return figure


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
    image = panel.imshow(figures, cmap="viridis", vmin=0, vmax=most)
    for at, row in enumerate(figures):
        for of, value in enumerate(row):
            text = "" if value != value else number_text(value)  # a pair that was not measured has no number
            color = "black" if value > most / 2 else "white"
            panel.text(of, at, text, ha="center", va="center", color=color, fontweight="bold")
    panel.set_xticks(range(len(devices)), devices)
    panel.set_yticks(range(len(devices)), devices)
    panel.set(xlabel="to", ylabel="from", title=f"The engine's copies of {size_text(nbytes)}")
    figure.colorbar(image, label="GB/s")
    return figure
