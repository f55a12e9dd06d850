"""The figures of the benchmark's pages: cost against bytes, by the number of workers, time to the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from dgc_repro.paper import frame, panels, plot
from dgc_repro.paper.artifact import described
from dgc_repro.paper.benchmark import tradeoff
from dgc_repro.paper.benchmark.classes import Judged
from dgc_repro.paper.benchmark.paired import LESS, OWN_WIRE, PAYLOAD, TARGET, WIRE
from dgc_repro.paper.benchmark.speed import NETWORKS, workers_of
from dgc_repro.paper.page import Drawing
from dgc_repro.paper.records import Run
from dgc_repro.paper.setting_names import name_of
from dgc_repro.paper.verdict import MIN_SEEDS

MOST_SHOWN = 32
"""Workers of the wire bytes in the figures *bytes*."""
BESIDE = 1.03
"""Ratio of the places of two settings with the same number of workers in the figure *workers*."""
SORTED_BY = "1 Gbit/s"
"""The network by whose speedups the figure *speed* is sorted."""


def headline(
    found: pd.DataFrame, judged: Mapping[str, Judged], runs: Sequence[Run], scale: str
) -> dict[str, Drawing]:
    """Describe the figure of a few named settings, where these runs have their workload."""
    own = tradeoff.stated(judged)
    if own is None:
        return {}
    points = {
        setting: tradeoff.Point(
            float(np.mean(frame.of(found, LESS, f"{own.workload}.{setting}"))), shown
        )
        for setting in own.names
        if (shown := judged[own.workload].settings.get(setting)) is not None
    }
    used = [run for run in runs if run.model == own.workload and run.method in points]
    return {"headline": tradeoff.picture(own, points, used, scale)}


def of_bytes(found: pd.DataFrame, judged: Judged, runs: Sequence[Run], scale: str) -> Drawing:
    """Describe the figure of all settings of a workload: cost against payload, and against wire bytes."""
    ways = {"payload": PAYLOAD, f"wire, {MOST_SHOWN} workers": WIRE[MOST_SHOWN]}
    several = {}
    for title, way in ways.items():
        sent = {row: float(np.mean(frame.of(found, way, row))) for row in judged.shown}
        dense = sent[judged.reference]
        several[title] = {
            setting: tradeoff.Point(dense / size if size else np.inf, shown)
            for (setting, shown), size in zip(judged.settings.items(), sent.values(), strict=True)
        }
    return tradeoff.figure(judged.workload, several, runs, scale)


def of_workers(
    found: pd.DataFrame, judged: Mapping[str, Judged], runs: Sequence[Run], scale: str
) -> Drawing:
    """Describe the figure of cost and wire bytes of the settings of several workloads, by workers."""
    by_name = {run.model: workers_of(run) for run in runs}
    numbers = dict(sorted(((name, by_name[name]) for name in judged), key=lambda item: item[1]))
    judged = {name: judged[name] for name in numbers}
    counted = Counter(setting for one in judged.values() for setting in one.settings)
    settings = [setting for setting, count in counted.items() if count > 1]
    used = [run for run in runs if run.method in settings]
    first, ticks = next(iter(judged.values())).workload, list(numbers.values())
    unit = first.unit_in_words

    def costs(axes: Axes) -> None:
        axes.axhspan(-first.margin, first.margin, color="#EDEDED", zorder=0)
        for place, setting in enumerate(settings):
            aside, look = BESIDE ** (place - len(settings) / 2), _look(setting, place)
            for name, one in judged.items():
                if (shown := one.settings.get(setting)) is None:
                    continue
                axes.errorbar(
                    aside * numbers[name], shown.mean, yerr=np.array([shown.bars]).T, **look,
                    markerfacecolor=look["color"] if shown.n >= MIN_SEEDS else "white", linestyle="",
                )  # fmt: skip
                look = {**look, "label": None}

    def sent(axes: Axes) -> None:
        for place, setting in enumerate(settings):
            own = [name for name, one in judged.items() if setting in one.settings]
            means = [np.mean(frame.of(found, OWN_WIRE, f"{name}.{setting}")) for name in own]
            axes.plot(
                [numbers[name] for name in own], np.divide(means, 1e6), **_look(setting, place)
            )

    def parts() -> plot.Panels:
        return [
            panels.panel("cost", costs, x="workers", y=f"cost, {unit}", log="x", xticks=ticks),
            panels.panel("wire", sent, x="workers", y="MB a step and worker", log="xy", xticks=ticks),
        ]  # fmt: skip

    note = (
        "The figure has the settings of more than one number of workers. All train with one global batch, "
        f"the same number of steps and the same rate. Hollow points have fewer than {MIN_SEEDS} seeds. Bars "
        f"are 95 % intervals, where there is one. The grey band has costs of at most "
        f"±{first.margin:g} {unit}."
    )
    title = "Cost and bytes by the number of workers, at one global batch"
    return described(title, note, used, scale, parts, size=(5.2, 3.8), legend=len(settings))


def _look(setting: str, place: int) -> dict[str, Any]:
    return {
        "color": tradeoff.colour_of(setting), "marker": plot.MARKERS[place % len(plot.MARKERS)],
        "label": name_of(setting), "markersize": 5,
    }  # fmt: skip


def fast_rows(found: pd.DataFrame, judged: Judged) -> list[str]:
    """Return dense training and the settings of a workload that reach its target in each seed and that no
    other one of these beats, on one of the networks, in both speed and mean cost. The fastest first."""
    own = found[(found["quantity"] == TARGET) & found["row"].isin(judged.shown)]
    speeds = own.groupby(["setting", "row"])["value"].mean()
    if SORTED_BY not in speeds:
        return []
    kept = {judged.reference}
    for network in speeds.index.unique("setting"):
        points = {
            str(row): tradeoff.Point(float(x), judged.shown[str(row)])
            for row, x in speeds[network].items()
        }
        kept.update(tradeoff.front(points))
    ordered = speeds[SORTED_BY].sort_values(ascending=False, kind="stable").index
    return [str(row) for row in ordered if row in kept]


def of_speed(
    found: pd.DataFrame, rows: Mapping[str, Sequence[str]], runs: Sequence[Run], scale: str, among: str
) -> Drawing:  # fmt: skip
    """Describe the figure of the speedup over dense training to the target: a panel a workload (``rows``: by
    its title), settings by networks."""

    def parts() -> plot.Panels:
        drawn = []
        for title, own in rows.items():
            cells = [
                [np.mean(frame.of(found, TARGET, row, net)) for net in NETWORKS] for row in own
            ]
            heat = panels.heat_map(
                np.array(cells), [name_of(row.partition(".")[2]) for row in own], list(NETWORKS),
                lambda value: f"{value:.{3 if value >= 100 else 2}g}",
                lambda value: max(value, 1 / value) > 8, cmap="RdBu", norm=LogNorm(1 / 32, 32),
            )  # fmt: skip
            drawn.append(panels.panel(title, heat))
        return drawn

    note = (
        f"Cells have the mean over the seeds, sorted by {SORTED_BY}. The steps to the target, compute and "
        f"compression are those of these runs; the network is modelled, with {among}. The figure has "
        "training without compression, and of the settings that reach the target in each seed those that no "
        "other one beats in both speed and mean cost on one of the networks; numbers.csv has them all."
    )
    most = max(map(len, rows.values()))
    return described(
        "Modelled time to the target: times as fast as training without compression", note, runs, scale,
        parts, size=(4.4, 1.5 + 0.24 * most), legend=0,
    )  # fmt: skip
