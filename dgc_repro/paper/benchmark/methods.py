"""Quality against bytes of every method, on every workload, with the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.paper import facts, frame, plot
from dgc_repro.paper.frame import Column, Quantity, amount, number, seeds
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike

ALIKE = ("scale.name", "launch.workers", "train.on_nonfinite")
OF_WORKLOAD = ("dataset", "model", "schedule", "train.epochs", "train.batch_size")
WORKLOADS = {
    "resnet": "slim ResNet18, images",
    "lstm": "slim LSTM, text",
    "transformer": "slim transformer, text",
}
DENSE = "dense"
WORKERS = (2, 8, 32, 128)
QUALITY, LOSS, PAYLOAD = "test accuracy, or perplexity", "loss against dense", "payload a step"
LESS, SKIPPED = "payload: times less than dense", "skipped steps"
WIRE = {workers: f"wire a step, N = {workers}" for workers in WORKERS}
TUNES = "_lr"
"""In the row of a rate that only tuning tries."""
NAMED = (DENSE, "topk_0.01", "powersgd_2", "uniform_4", "ef_signsgd", "qsgd_7")
"""Settings whose name is written into the figure, beside those on the front."""


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    if not any(run.method == DENSE for run in runs):
        raise UserError(
            "experiment.row: dense training of a workload to compare with, got no finished run of it; run "
            "`python -m dgc_repro reproduce benchmark/methods`"
        )
    require_alike(runs, ALIKE)
    present = [name for name in WORKLOADS if any(run.model == name for run in runs)]
    for name in present:
        require_alike([run for run in runs if run.model == name], OF_WORKLOAD)
    found = numbers([run for run in runs if TUNES not in run.method])
    tuning = pd.concat([_tuning(runs, name) for name in present], ignore_index=True)
    tried = "" if len(tuning) else "There are no such runs here."
    sections = [
        Section("Settings"),
        *(Section(WORKLOADS[name], _table(found, name)) for name in present),
        Section("Tuning", tuning if len(tuning) else None),
    ]
    return made(
        __file__,
        scale,
        runs,
        found,
        sections,
        said={"tuning": tried},
        figures={"methods": lambda: _figure(found, runs, present, scale)},
    )


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: quality, loss against dense and bytes a step of each row ``<workload>.<setting>``."""
    quantities = {
        QUALITY: Quantity("", quality),
        PAYLOAD: Quantity("bytes", lambda run: run.last("comm/payload_bytes") / _steps(run)),
        SKIPPED: Quantity("steps", lambda run: float(run.epochs["train/skipped_steps"].sum())),
        **{
            name: Quantity("bytes", partial(wire_a_step, workers=workers))
            for workers, name in WIRE.items()
        },
    }
    found = frame.measure(runs, quantities)
    dense = {(run.model, run.seed): quality(run) for run in runs if run.method == DENSE}
    losses = frame.lines(
        {"row": run.row, "seed": run.seed, "quantity": LOSS, "unit": _unit(run), "value": value}
        for run in runs
        if (base := dense.get((run.model, run.seed))) is not None
        for value in [_loss(run, base)]
    )
    less = [
        frame.relative(own, PAYLOAD, f"{name}.{DENSE}", inverse=True, name=LESS)
        for name in WORKLOADS
        if not (own := found[found["row"].str.startswith(f"{name}.")]).empty
    ]
    return frame.join(found, losses, *less)


def quality(run: Run) -> float:
    """Test accuracy in percent, or perplexity, after the last epoch."""
    return run.last("test/perplexity" if _has_words(run) else "test/accuracy_percent")


def wire_a_step(run: Run, workers: int) -> float:
    """Bytes that a worker would send among so many: the run's collectives with the ring's factors."""
    calls: Mapping[str, Mapping[str, int]] = run.summary["collectives"]
    total = sum(moved_by(name, workers) * of["payload_bytes"] for name, of in calls.items())
    return total / _steps(run)


def _steps(run: Run) -> int:
    return int(run.summary["steps"])


def _has_words(run: Run) -> bool:
    return "test/perplexity" in run.epochs


def _unit(run: Run) -> str:
    return "%" if _has_words(run) else "points"


def _loss(run: Run, dense: float) -> float:
    own = quality(run)
    return 100 * (own / dense - 1) if _has_words(run) else dense - own


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names whose point (loss, bytes) no other one undercuts in both, by bytes. Points that are not
    finite are on no front."""
    finite = {name: point for name, point in points.items() if np.isfinite(point).all()}
    kept = []
    least = np.inf
    for name, (loss, _) in sorted(finite.items(), key=lambda item: (item[1][1], item[1][0])):
        if loss < least:
            kept.append(name)
            least = loss
    return kept


def _points(found: pd.DataFrame, name: str, against: str) -> dict[str, tuple[float, float]]:
    """Mean loss and mean bytes of each setting of a workload."""
    rows = [row for row in found["row"].unique() if row.startswith(f"{name}.")]
    return {
        row: (
            float(np.mean(frame.of(found, LOSS, row) or [np.nan])),
            float(np.mean(frame.of(found, against, row))),
        )
        for row in rows
    }


def _table(found: pd.DataFrame, name: str) -> pd.DataFrame:
    points = _points(found, name, PAYLOAD)
    best = set(front(points))
    rows = {row: row.partition(".")[2] for row in sorted(points, key=lambda row: -points[row][1])}
    unit = found.loc[(found["quantity"] == LOSS) & found["row"].isin(rows), "unit"].iloc[0]
    columns = (
        seeds(QUALITY),
        Column("perplexity" if unit == "%" else "accuracy, %", QUALITY),
        Column(f"loss, {unit}", LOSS, 1),
        Column("payload", PAYLOAD, amount),
        Column("times less", LESS, lambda values: number(values[:1], None, "x")),
        *(Column(f"wire, N={workers}", WIRE[workers], amount) for workers in WORKERS),
        Column("skipped", SKIPPED, lambda values: f"{np.mean(values):g}"),
    )
    table = frame.pivot(found, rows, columns, "setting")
    table.insert(1, "front", ["yes" if row in best else "" for row in rows])
    return table


def _tuning(runs: Sequence[Run], name: str) -> pd.DataFrame:
    """Every rate that was tried on seed 0, beside the one that is used: last validation and test."""
    own = [run for run in runs if run.model == name and run.seed == 0]
    families = dict.fromkeys(run.method.partition(TUNES)[0] for run in own if TUNES in run.method)
    lines = []
    for family in families:
        tried = [run for run in own if run.method.partition(TUNES)[0] == family]
        for run in sorted(tried, key=lambda run: float(run.setting("optimizer.lr"))):
            word = "validation/perplexity" if _has_words(run) else "validation/accuracy_percent"
            lines.append(
                {
                    "workload": WORKLOADS[name],
                    "setting": family,
                    "learning rate": f"{run.setting('optimizer.lr'):g}",
                    "used": "" if TUNES in run.method else "yes",
                    "last validation": number([run.last(word)]),
                    "last test": number([quality(run)]),
                }
            )
    return pd.DataFrame(lines)


def _figure(found: pd.DataFrame, runs: Sequence[Run], present: Sequence[str], scale: str) -> Figure:
    """Loss against payload and against wire bytes at 32 workers: a column of panels a workload."""
    wanted = {"payload of a step": PAYLOAD, "on the wire, 32 workers": WIRE[32]}
    panels: plot.Panels = [
        (f"{WORKLOADS[name]}: {title}", partial(_scatter, found, name, against))
        for title, against in wanted.items()
        for name in present
    ]
    said = (
        f"{facts.caption(runs, scale)}; means over seeds, bars: standard deviation; line: Pareto front; wire "
        "bytes computed from the recorded collectives"
    )
    return plot.figure(
        "Loss of quality against bytes", said, panels, columns=len(present), legend=0
    )


def _scatter(found: pd.DataFrame, name: str, against: str, axes: Axes) -> None:
    points = _points(found, name, against)
    best = front(points)
    unit = found.loc[(found["quantity"] == LOSS) & found["row"].isin(points), "unit"].iloc[0]
    axes.set_yscale("symlog", linthresh=5)
    axes.margins(0.1)
    points = {row: (loss, size / 1e3) for row, (loss, size) in points.items()}
    for row, (loss, size) in points.items():
        own = frame.of(found, LOSS, row)
        colour = plot.ORANGE if row in best else plot.BLUE
        spread = np.std(own, ddof=1) if len(own) > 1 else 0.0
        axes.errorbar(size, loss, yerr=spread, fmt="o", markersize=4, color=colour, elinewidth=0.7)
        setting = row.partition(".")[2]
        if row in best or setting in NAMED:
            axes.annotate(
                setting, (size, loss), xytext=(3, 3), textcoords="offset points", fontsize=6
            )
    axes.plot([points[row][1] for row in best], [points[row][0] for row in best], color=plot.ORANGE)
    plot.name_axes(axes, "kB a worker and step", f"loss against dense, {unit}", "x")
