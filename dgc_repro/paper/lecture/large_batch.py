"""Final test accuracy against batch size for SGD, LARS, LAMB and SAM.

All optimizers train for the same number of epochs, so that a batch twice as large has half the steps. For
each optimizer and batch size the learning rate is the one of the grid with the highest final validation
accuracy, in the mean over the seeds that every rate of the grid has. The test split chooses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim
from dgc_repro.paper.frame import Column, pivot
from dgc_repro.paper.lecture.batch_size import batch_of
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike

ALIKE = ("scale.name", "dataset", "model", "schedule", "train.epochs")
SGD, LARS, LAMB, SAM = "sgd", "lars", "lamb", "sam"
OPTIMIZERS = {SGD: "SGD", LARS: "LARS", LAMB: "LAMB", SAM: "SAM"}
ACCURACY, GAP = "test accuracy", "training minus test accuracy"
RATE, TRIED = "learning rate with the highest validation accuracy", "learning rates tried"
TUNED_ON = "seeds of the tuning"
FIRST, LAST = "the smallest batch", "the largest batch"
"""The settings under which the frame has the numbers of both ends again, for the claims."""
TRAINED = "training accuracy"
FITTED = 30.0
"""Ours: percent; a guess is right in 10."""
EDGE = "best learning rate at an edge of its grid (1: yes)"
AS_GOOD = 2.0
"""Ours: the points of accuracy within which SGD counts as good as another optimizer."""
SOURCES = {
    LARS: "the lecture's topic; You et al., 2017",
    LAMB: "the lecture's topic; You et al., 2019",
    SAM: "the lecture's topic; Foret et al., 2020",
}
"""The lecture names the optimizers; what they are for is a statement of their papers."""


def _tuned(end: str, *optimizers: str) -> tuple[Check, ...]:
    """The premise that no best learning rate is at an edge of its grid: a better one may lie outside."""
    return tuple(Check(EDGE, o, above=-math.inf, below=0.5, setting=end) for o in optimizers)


def _trained(end: str, *optimizers: str) -> tuple[Check, ...]:
    """The premise that networks are trained: else accuracy tells how fast an optimizer is."""
    return tuple(Check(TRAINED, o, above=FITTED, setting=end) for o in optimizers)


CLAIMS = (
    Claim(
        "small.sgd", "At small batch SGD is as good as LARS and LAMB.", EXPECTED,
        tuple(Check(ACCURACY, SGD, o, above=-AS_GOOD, setting=FIRST) for o in (LARS, LAMB)),
        f"Final test accuracy at the smallest batch: SGD's is no more than {AS_GOOD:g} points below.",
        _tuned(FIRST, SGD, LARS, LAMB), OURS,
    ),
    *(
        Claim(
            f"large.{o}", f"At large batch {OPTIMIZERS[o]} is more accurate than SGD.", SOURCES[o],
            (Check(ACCURACY, o, SGD, setting=LAST),),
            "Final test accuracy at the largest batch, above SGD's.",
            _tuned(LAST, SGD, o) + _trained(LAST, o),
        )
        for o in (LARS, LAMB)
    ),
    *(
        Claim(
            f"sam.{name}", f"SAM generalizes better than SGD at {end}.", SOURCES[SAM],
            (Check(ACCURACY, SAM, SGD, setting=end),),
            "Final test accuracy above SGD's, where both fit the training data.",
            _tuned(end, SGD, SAM) + _trained(end, SGD, SAM),
        )
        for name, end in (("small", FIRST), ("large", LAST))
    ),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    require_alike(runs, ALIKE)
    found = numbers(runs)
    one = runs[0]
    said = {
        "epochs": one.setting("train.epochs"),
        "warmup": f"{one.setting('schedule.warmup_epochs'):g}",
        "most": max(int(run.setting("train.batch_size")) for run in runs),
        "rho": facts.distinct(
            f"{run.setting('optimizer.rho'):g}" for run in runs if run.model == SAM
        ),
    }
    return made(
        __file__,
        scale,
        runs,
        found,
        [Section("Accuracy", _table(found)), Section("Tuning", _grids(runs))],
        CLAIMS,
        labels=OPTIMIZERS,
        said=said,
        head=[("training", f"{said['epochs']} epochs for every batch size, cosine schedule")],
        figures={"large_batch": lambda: _figure(found, runs, scale)},
    )


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """All runs: optimizer, batch, rate, seed, and percent of right answers after the last epoch."""
    return pd.DataFrame(
        {
            "optimizer": run.model, "batch": batch_of(run), "rate": float(run.setting("optimizer.lr")),
            "seed": run.seed, "test": run.last("test/accuracy_percent"),
            "train": run.last("train/accuracy_percent"),
            "validation": run.last("validation/accuracy_percent"),
        }
        for run in runs
    )  # fmt: skip


def tuned_of(tried: pd.DataFrame) -> pd.DataFrame:
    """The runs with the best learning rate of each optimizer and batch: the columns of `table_of`, tried,
    tuned_on (how many seeds have all rates), at_edge (whether the best rate is the smallest or largest)."""
    kept = []
    for _, own in tried.groupby(["optimizer", "batch"], sort=False):
        by_rate = own.pivot_table(index="seed", columns="rate", values="validation").dropna()
        if by_rate.empty:
            raise UserError(
                "optimizer.lr: one seed that has every learning rate of a grid, got none for "
                f"{own['optimizer'].iloc[0]} with batch {own['batch'].iloc[0]}; run its other rates too"
            )
        means = by_rate.mean()
        rate = means.idxmax()
        at_edge = float(rate in (means.index.min(), means.index.max()))
        kept.append(
            own[own["rate"] == rate].assign(
                tried=len(means), tuned_on=len(by_rate), at_edge=at_edge
            )
        )
    return pd.concat(kept, ignore_index=True)


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows are optimizers with a batch size, such as sgd.b64, and for the claims the optimizers
    with the smallest and with the largest batch of all as the setting."""
    tuned = tuned_of(table_of(runs))
    tuned["gap"] = tuned["train"] - tuned["test"]
    names = {
        "test": (ACCURACY, "%"), "gap": (GAP, "%"), "rate": (RATE, ""), "tried": (TRIED, ""),
        "tuned_on": (TUNED_ON, ""), "at_edge": (EDGE, ""), "train": (TRAINED, "%"),
    }  # fmt: skip
    rows = tuned["optimizer"] + ".b" + tuned["batch"].astype(str)
    parts = [frames.longer(tuned.assign(row=rows), names)]
    ends = {FIRST: tuned["batch"].min(), LAST: tuned["batch"].max()}
    for setting, batch in ends.items():
        own = tuned[tuned["batch"] == batch]
        own = own.assign(row=own["optimizer"], setting=setting)
        parts.append(
            frames.longer(own, {name: names[name] for name in ("test", "at_edge", "train")})
        )
    return frames.join(*parts)


def _rows(found: pd.DataFrame) -> dict[str, tuple[str, int]]:
    """Rows of the table with their optimizer and batch size, by batch size."""
    rows = found.loc[found["quantity"] == RATE, "row"].unique()
    own = {row: (row.partition(".")[0], int(row.rpartition(".b")[2])) for row in rows}
    order = list(OPTIMIZERS)
    return dict(sorted(own.items(), key=lambda item: (item[1][1], order.index(item[1][0]))))


def _table(found: pd.DataFrame) -> pd.DataFrame:
    columns = (
        frames.seeds(ACCURACY),
        Column("test accuracy, %", ACCURACY, 1),
        Column("training minus test, points", GAP, 1),
        Column("best learning rate", RATE, lambda values: f"{values[0]:g}"),
        Column("at an edge", EDGE, lambda values: "yes" if values[0] else "no"),
        Column("rates tried", TRIED, lambda values: f"{values[0]:g}"),
        Column("seeds of the tuning", TUNED_ON, lambda values: f"{values[0]:g}"),
    )
    rows = {row: f"{batch}, {OPTIMIZERS[name]}" for row, (name, batch) in _rows(found).items()}
    return pivot(found, rows, columns, "batch size, optimizer")


def _grids(runs: Sequence[Run]) -> pd.DataFrame:
    """Validation and test accuracy of every rate, means over the seeds that have it."""
    tried = table_of(runs)
    points = tried.groupby(["batch", "optimizer", "rate"])[["validation", "test"]].agg(list)
    ordered = points.sort_index(
        key=lambda level: level.map(list(OPTIMIZERS).index) if level.name == "optimizer" else level
    )
    lines = [
        {
            "batch size, optimizer": f"{at['batch']}, {OPTIMIZERS[at['optimizer']]}",
            "learning rate": f"{at['rate']:g}",
            "n": str(len(at["test"])),
            "validation accuracy, %": frames.number(at["validation"], 1),
            "test accuracy, %": frames.number(at["test"], 1),
        }
        for at in ordered.reset_index().to_dict("records")
    ]
    return pd.DataFrame(lines)


def _figure(found: pd.DataFrame, runs: Sequence[Run], scale: str) -> Figure:
    """Test accuracy by batch size, and the best learning rates: one curve an optimizer."""
    panels: plot.Panels = [
        ("final test accuracy", partial(_curves, found, ACCURACY)),
        ("best learning rate", partial(_curves, found, RATE)),
    ]
    title = "Test accuracy against batch size (learning rate tuned for each point)"
    said = f"{facts.caption(runs, scale)}; mean over seeds, bars: standard deviation"
    return plot.figure(title, said, panels, columns=2, legend=4)


def _curves(found: pd.DataFrame, quantity: str, axes: Axes) -> None:
    rows = _rows(found)
    for place, (name, label) in enumerate(OPTIMIZERS.items()):
        own = {
            batch: frames.of(found, quantity, row) for row, (o, batch) in rows.items() if o == name
        }
        if not own:
            continue
        means = [float(np.mean(values)) for values in own.values()]
        spread = [
            float(np.std(values, ddof=1)) if len(values) > 1 and quantity == ACCURACY else 0.0
            for values in own.values()
        ]
        axes.errorbar(
            list(own), means, yerr=spread, fmt=f"-{plot.MARKERS[place]}", color=plot.CYCLE[place],
            markersize=4, capsize=2, label=label,
        )  # fmt: skip
    is_rate = quantity == RATE
    plot.name_axes(
        axes,
        "batch size",
        "learning rate" if is_rate else "test accuracy, %",
        "xy" if is_rate else "x",
    )
