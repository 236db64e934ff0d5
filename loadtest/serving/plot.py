"""Plots of results. Imports matplotlib, which only the extra `bench` installs, when a plot is drawn."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.serving.comparison import MARK, Summary
from loadtest.serving.report import Numbers
from services.errors import Fatal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = 3.2  # width and height of a panel


def can_draw() -> None:
    """Raises Fatal if matplotlib is missing. For use before a run, so that no result is lost."""
    if find_spec("matplotlib") is None:
        raise Fatal("plots need matplotlib: pip install 'tandem-llm[bench]'")


def draw_comparison(path: Path, summaries: Sequence[Summary]) -> None:
    """Draws a panel for each workload, with a bar of each server's median speed and its spread, into the file `path`.

    A server without a speed has no bar. The name of a server that was disturbed by other load has the table's mark.
    Raises Fatal if the file cannot be written.
    """
    workloads = list(dict.fromkeys(one.workload for one in summaries))
    figure, panels = _figure(len(workloads))
    for panel, workload in zip(panels, workloads, strict=True):
        shown = [
            (one.server + MARK * one.disturbed, one.speed)
            for one in summaries
            if one.workload == workload and one.speed is not None
        ]
        names, speeds = [name for name, _ in shown], [speed for _, speed in shown]
        middles = [speed.median for speed in speeds]
        below, above = [speed.median - speed.low for speed in speeds], [speed.high - speed.median for speed in speeds]
        panel.bar(names, middles, yerr=[below, above], capsize=4, color=[f"C{place}" for place in range(len(names))])
        panel.set_title(workload)
        panel.set_ylabel("tok/s")
    _save(figure, path)


def draw_sweep(path: Path, axis: str, points: Sequence[tuple[float, Numbers]]) -> None:
    """Draws output throughput, mean TTFT and mean TPOT over the swept values into the file `path`. `axis` names these
    values. Points without a number are left out. Raises Fatal if the file cannot be written."""
    figure, panels = _figure(3)
    names = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")
    for panel, name, title in zip(panels, names, ("output tok/s", "mean TTFT, ms", "mean TPOT, ms"), strict=True):
        there = [(point, numbers[name]) for point, numbers in points if numbers[name] is not None]
        panel.plot([point for point, _ in there], [value for _, value in there], marker="o")
        panel.set_title(title)
        panel.set_xlabel(axis)
        panel.set_ylim(bottom=0)
    _save(figure, path)


def _figure(panels: int) -> tuple["Figure", Sequence[Any]]:
    from matplotlib.figure import Figure

    columns = min(panels, 4)
    rows = -(-panels // columns)
    figure = Figure(figsize=(_INCHES * columns, _INCHES * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for unused in grid[panels:]:
        unused.axis("off")
    return figure, list(grid[:panels])


def _save(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise Fatal(f"{path}: {error.strerror}") from error
    sys.stderr.write(f"saved in {path}\n")
