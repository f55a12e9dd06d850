"""``python -m dgc_repro compare runs``: your own runs side by side, as a table and a figure, without torch.

Runs that differ in their seed alone are one line (mean ± standard deviation). A line is named after the
settings in which the runs differ; ``--by compressor.density`` names it by one setting. Without it, two runs
of the same settings and seed, such as of two versions of this package, are two lines with their hashes.
The figure shows the final quality against ``--x`` (payload_bytes, wire_bytes, floats or seconds).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dgc_repro.errors import UserError
from dgc_repro.paper import plot
from dgc_repro.paper.facts import short
from dgc_repro.paper.frame import amount, count, number
from dgc_repro.results import Frames, load_runs

QUALITIES = {
    "test/perplexity": ("test perplexity", ""),
    "test/accuracy_percent": ("test accuracy", "%"),
}
AMOUNTS = {
    "floats": ("comm/floats", "floats sent", count),
    "payload_bytes": ("comm/payload_bytes", "payload", amount),
    "wire_bytes": ("comm/wire_bytes", "wire", amount),
    "seconds": ("time/train_seconds", "training s", number),
}
LEAST_SPAN = 2.0
"""Smallest ratio of the two ends of the figure's x axis."""
WITHOUT_MEANING = (
    *("run", "seed", "commit", "hardware", "row", "artifact", "paper", "scale.seeds"),
    *("paths.", "sink.", "experiment.", "launch.timeout", "launch.start_timeout", "scale.name"),
)
"""Columns that do not tell one setting from another."""


def main(arguments: Sequence[str]) -> None:
    """The command. Raises UserError where there is nothing to compare."""
    parser = argparse.ArgumentParser(
        prog="python -m dgc_repro compare",
        description="Compare your own runs.",
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", nargs="?", default="runs", help="run folders below it are compared"
    )
    parser.add_argument("--by", help="a config key or `compressor`: what lines are called")
    parser.add_argument("--x", choices=AMOUNTS, default="payload_bytes")
    parser.add_argument("--out", type=Path, help="folder of compare.csv and compare.png")
    given = parser.parse_args(arguments)
    frames = load_runs(given.folder)
    table = compared(frames, given.by)
    place = given.out or Path(given.folder)
    show(table, Console(highlight=False, width=max(100, Console().width)))
    place.mkdir(parents=True, exist_ok=True)
    table.to_csv(place / "compare.csv", index=False)
    draw(table, given.x, place)
    print(f"table: {place / 'compare.csv'}\nfigure: {place / 'compare.png'}")


def compared(frames: Frames, by: str | None = None) -> pd.DataFrame:
    """One row a run: ``settings`` (its name), ``seed``, ``quality`` with its name in ``metric``, floats,
    payload_bytes and wire_bytes of one worker, seconds of training, ``folder``."""
    runs = frames.runs
    if by is not None and by not in runs:
        near = [key for key in runs.columns if by.rpartition(".")[2] in key]
        raise UserError(
            f"--by: no setting {by!r} in these runs; {', '.join(near) or 'see config.yaml'}"
        )
    metric = next((name for name in QUALITIES if name in runs and runs[name].notna().any()), None)
    if metric is None:
        raise UserError(
            "compare: these runs have no test accuracy or perplexity; give trained runs"
        )
    if by is not None:
        names = [short(value) for value in runs[by]]
    else:
        names = settings_of(runs)
        own = list(runs["row"])
        # A run of one's own has a name, which stands for its settings unless two settings share it.
        if (runs["paper"] == "none").all() and len(set(zip(own, names, strict=True))) == len(
            set(own)
        ):
            names = own
        repeats = pd.DataFrame({"name": names, "seed": runs["seed"]}).duplicated(keep=False)
        names = [
            f"{name} {run.rpartition('-')[2]}" if again else name
            for name, run, again in zip(names, runs["run"], repeats, strict=True)
        ]
    return pd.DataFrame(
        {
            "settings": names,
            "seed": runs["seed"],
            "metric": metric,
            "quality": runs[metric].astype(float),
            **{key: runs[column].astype(float) for key, (column, _, _) in AMOUNTS.items()},
            "folder": runs["run"],
        }
    )


def settings_of(runs: pd.DataFrame) -> list[str]:
    """What tells the runs apart: the compressor, and every config key that has several values (a component
    by its class, as the compressor)."""
    keys = [
        key
        for key in runs.columns
        if "/" not in key
        and not key.startswith(WITHOUT_MEANING)
        and key not in ("status", "steps", "results_version", "state_bytes", "parameters")
        and runs[key].map(short).nunique() > 1
    ]
    has_column = ("compressor", "compressor._target_")
    components = {key for key in keys if key.endswith("._target_")}
    # A record may be older than a group: without the group it is no other setting.
    own = [
        k for k in keys if k not in has_column and (k not in components or runs[k].nunique() > 1)
    ]
    names = []
    for _, run in runs.iterrows():
        parts = [
            f"{key.split('.')[-2]}={run[key].rpartition('.')[2]}"
            if key in components
            else f"{key.rpartition('.')[2]}={short(run[key])}"
            for key in own
            if not (isinstance(run[key], float) and np.isnan(run[key])) and run[key] is not None
        ]
        names.append(" ".join([str(run["compressor"]), *parts]))
    return names


def show(table: pd.DataFrame, console: Console) -> None:
    """Print it, best quality first."""
    metric = str(table["metric"].iloc[0])
    label, unit = QUALITIES[metric]
    grid = Table(box=None, pad_edge=False)
    grid.add_column("settings", overflow="fold")
    for heading in ("n", f"{label} {unit}".rstrip(), *(name for _, name, _ in AMOUNTS.values())):
        grid.add_column(heading, justify="right", no_wrap=True)
    groups = list(table.groupby("settings", sort=False))
    groups.sort(key=lambda group: group[1]["quality"].mean(), reverse=metric != "test/perplexity")
    for name, rows in groups:
        cells: list[str] = [str(len(rows)), number(list(rows["quality"]), 2)]
        for key, (_, _, form) in AMOUNTS.items():
            write: Callable[[Sequence[float]], str] = form
            cells.append(write(list(rows[key])))
        grid.add_row(escape(str(name)), *cells)  # wrap=[...] is no markup
    console.print(grid)


def draw(table: pd.DataFrame, x: str, folder: Path) -> None:
    """compare.png and compare.svg: final quality against what was sent or the time."""
    label, unit = QUALITIES[str(table["metric"].iloc[0])]
    size = 1e6 if "bytes" in x else 1.0
    names = list(dict.fromkeys(table["settings"]))
    looks = {
        name: plot.Look(name, plot.CYCLE[i % len(plot.CYCLE)], plot.MARKERS[i % len(plot.MARKERS)])
        for i, name in enumerate(names)
    }

    def panel(axes: Axes) -> None:
        where = {
            name: (list(rows[x] / size), list(rows["quality"]))
            for name, rows in table.groupby("settings")
        }
        plot.points(axes, {str(name): points for name, points in where.items()}, looks)
        low, high = (table[x] / size).min(), (table[x] / size).max()
        if high >= 10 * low:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        elif high < LEAST_SPAN * low:  # nearly equal amounts are drawn as such
            middle, half = math.sqrt(low * high), math.sqrt(LEAST_SPAN)
            axes.set_xlim(middle / half, middle * half)
        axes.set_xlabel(f"{AMOUNTS[x][1]} of one worker" + (" (MB)" if "bytes" in x else ""))
        axes.set_ylabel(f"{label} ({unit})" if unit else label)

    figure = plot.figure(
        "Own runs", f"{len(table)} runs, mean ± standard deviation", [("", panel)], legend=2,
        size=(6.4, 4.0),
    )  # fmt: skip
    plot.save(figure, folder, "compare")
