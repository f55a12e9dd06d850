"""Figures 1-3 of the dynamic paper from our records, the second block's, and the policy trace.

A curve is the mean over seeds; the band is one sample standard deviation when n > 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dgc_repro.paper import dynamic
from dgc_repro.report import style
from dgc_repro.report.records import Run

FIRST_BLOCK = tuple(row.id for row in dynamic.TABLE_1.rows)
SECOND_BLOCK = tuple(row.id for row in dynamic.SECOND_BLOCK)
LABELS = {row.id: row.label for row in (*dynamic.TABLE_1.rows, *dynamic.SECOND_BLOCK)}


@dataclass(frozen=True)
class Look:
    """How one row is drawn wherever it appears."""

    colour: str
    marker: str
    dashes: str = "-"


LOOKS = {
    "none": Look(style.BLACK, "o"),
    "static8": Look(style.ORANGE, "s"),
    "dynamic": Look(style.BLUE, "^"),
    "static8_ef": Look(style.ORANGE, "s", "--"),
    "dynamic_ef": Look(style.BLUE, "^", "--"),
}


@dataclass(frozen=True)
class Panel:
    """One metric by epoch: the key in the record, the printed title and the axis label."""

    metric: str
    title: str
    label: str


TRAIN_ACCURACY = Panel("train/accuracy_percent", "Training accuracy by epoch", "accuracy (%)")
TEST_ACCURACY = Panel("test/accuracy_percent", "Test accuracy by epoch", "accuracy (%)")
TRAIN_LOSS = Panel("train/loss", "Training loss by epoch", "cross-entropy (nats)")
PAPER_FIGURES = {"figure1": TRAIN_ACCURACY, "figure2": TEST_ACCURACY, "figure3": TRAIN_LOSS}


def counts_label(counts: Iterable[int]) -> str:
    """Seeds a curve: one number, or the smallest and the largest."""
    ordered = sorted(set(counts))
    return f"n = {ordered[0]}" + (f" to {ordered[-1]}" if len(ordered) > 1 else "")


def caption(runs: Sequence[Run], scale: str, counts: Iterable[int] | None = None) -> str:
    """Scale, data, world and n in one line; n is runs a row unless ``counts`` says otherwise."""
    data = " / ".join(dict.fromkeys(str(run.environment.get("data")) for run in runs))
    worlds = " / ".join(
        dict.fromkeys(
            f"{run.setting('launch.workers')} {run.setting('launch.kind')} workers" for run in runs
        )
    )
    if counts is None:
        counts = [sum(other.row == run.row for other in runs) for run in runs]
    label = "paper scale" if scale == "paper" else f"reduced scale: {scale}"
    return f"{label}, {data}, {worlds}, {counts_label(counts)}"


def curve(runs: Sequence[Run], metric: str) -> pd.DataFrame:
    """Mean and sample standard deviation over runs, by epoch (columns ``mean``, ``sd``)."""
    series = [run.epochs.set_index("epoch")[metric].astype(float) for run in runs]
    values = pd.concat(series, axis=1)
    return pd.DataFrame({"mean": values.mean(axis=1), "sd": values.std(axis=1, ddof=1)})


def draw_curves(axes: Axes, runs: Sequence[Run], rows: Sequence[str], metric: str) -> None:
    """One curve a row that has runs, with the seed band when it has more than one."""
    for row in rows:
        own = [run for run in runs if run.row == row]
        if not own:
            continue
        look, points = LOOKS[row], curve(own, metric)
        epochs = points.index.to_numpy(dtype=float)
        mean, sd = points["mean"].to_numpy(), points["sd"].to_numpy()
        if len(own) > 1:
            axes.fill_between(
                epochs, mean - sd, mean + sd, color=look.colour, alpha=0.15, linewidth=0
            )
        axes.plot(
            epochs,
            mean,
            color=look.colour,
            linestyle=look.dashes,
            marker=look.marker,
            markersize=4,
            markevery=max(1, len(epochs) // 12),
            markerfacecolor="white" if look.dashes != "-" else look.colour,
            label=LABELS[row],
        )
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def paper_figure(panel: Panel, runs: Sequence[Run], scale: str) -> Figure:
    """One of figures 1-3: three curves."""
    first = [run for run in runs if run.row in FIRST_BLOCK]
    with style.house_style():
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        draw_curves(axes, runs, FIRST_BLOCK, panel.metric)
        axes.set_ylabel(panel.label)
        style.title(axes, panel.title, caption(first, scale))
        axes.legend(loc="best")
    return figure


def second_block_figure(runs: Sequence[Run], scale: str) -> Figure:
    """Test accuracy and training loss of all rows; the second block is dashed."""
    with style.house_style():
        figure = Figure(figsize=(9.2, 4.1), layout="constrained")
        panels = (TEST_ACCURACY, TRAIN_LOSS)
        for position, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(1, len(panels), position)
            draw_curves(axes, runs, (*FIRST_BLOCK, *SECOND_BLOCK), panel.metric)
            axes.set_ylabel(panel.label)
            style.title(axes, panel.title, caption(runs, scale))
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=3)
    return figure


def policy_figure(runs: Sequence[Run], row: str, scale: str) -> Figure:
    """Which rung was in force, epoch by epoch, over the validation accuracy that drives it."""
    own = [run for run in runs if run.row == row]
    with style.house_style():
        figure = Figure(figsize=(5.6, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.1, 1.0))
        labels: dict[int, str] = {}
        for run, colour in zip(own, _seed_colours(len(own)), strict=True):
            epochs = run.epochs["epoch"].to_numpy(dtype=float)
            rungs = run.epochs["policy/rung"].astype(int)
            labels.update(zip(rungs, run.epochs["policy/label"].astype(str), strict=True))
            # A small offset keeps seeds on the same rung apart.
            offset = 0.08 * (own.index(run) - (len(own) - 1) / 2)
            above.step(epochs, rungs + offset, where="mid", color=colour, label=f"seed {run.seed}")
            below.plot(
                epochs, run.epochs["validation/accuracy_percent"].astype(float), color=colour
            )
        ordered = sorted(labels)
        above.set_yticks(ordered, [labels[rung] for rung in ordered])
        above.set_ylim(min(ordered, default=0) - 0.5, max(ordered, default=0) + 0.5)
        above.set_ylabel("rung, stronger upwards")
        below.set_ylabel("validation accuracy (%)")
        below.set_xlabel("epoch")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.title(above, f"Policy trace: {LABELS[row]}", caption(own, scale))
        if len(own) > 1:
            figure.legend(loc="outside lower center", ncols=5)
    return figure


def _seed_colours(count: int) -> list[str]:
    cycle = (style.BLUE, style.YELLOW, style.GREEN, style.PURPLE, style.SKY)
    return [cycle[position % len(cycle)] for position in range(count)]


def table1_figures(runs: Sequence[Run], scale: str) -> Mapping[str, Figure]:
    """Every figure that these runs have data for, by file name."""
    figures: dict[str, Figure] = {}
    if any(run.row in FIRST_BLOCK for run in runs):
        for name, panel in PAPER_FIGURES.items():
            figures[name] = paper_figure(panel, runs, scale)
    if any(run.row in SECOND_BLOCK for run in runs):
        figures["figure4_second_block"] = second_block_figure(runs, scale)
    for row in ("dynamic", "dynamic_ef"):
        traced = [r for r in runs if r.row == row and "policy/rung" in r.epochs.columns]
        if traced and np.any([r.epochs["policy/rung"].notna().all() for r in traced]):
            figures[f"policy_{row}"] = policy_figure(traced, row, scale)
    return figures
