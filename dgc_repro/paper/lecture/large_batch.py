"""Final test accuracy against batch size for SGD, LARS, LAMB and SAM.

All optimizers train for the same number of epochs, so that a batch twice as large has half the steps. For
each optimizer and batch size the learning rate is the one of the grid with the highest final validation
accuracy, in the mean over the seeds that every rate of the grid has. The test split chooses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, pivot
from dgc_repro.paper.lecture.batch_size import batch_of, batches_of, drawn, first
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.records import Run, require_alike

WORDS = Template.read(__file__)
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
NAMES = {
    "test": (ACCURACY, "%"), "gap": (GAP, "%"), "rate": (RATE, ""), "tried": (TRIED, ""),
    "tuned_on": (TUNED_ON, ""), "at_edge": (EDGE, ""), "train": (TRAINED, "%"),
}  # fmt: skip
"""Quantities and units by column of `tuned_of`."""


def _tuned(end: str, *optimizers: str) -> tuple[Check, ...]:
    """The premise that no best learning rate is at an edge of its grid: a better one may lie outside."""
    return tuple(Check(EDGE, o, above=-math.inf, below=0.5, setting=end) for o in optimizers)


def _trained(end: str, *optimizers: str) -> tuple[Check, ...]:
    """The premise that networks are trained: else accuracy tells how fast an optimizer is."""
    return tuple(Check(TRAINED, o, above=FITTED, setting=end) for o in optimizers)


_as_good = [Check(ACCURACY, SGD, o, above=-AS_GOOD, setting=FIRST) for o in (LARS, LAMB)]
CLAIMS = (
    WORDS.claim("small.sgd", *_as_good, premises=_tuned(FIRST, SGD, LARS, LAMB), ours=True),
    *(
        WORDS.claim(
            f"large.{o}", Check(ACCURACY, o, SGD, setting=LAST),
            premises=_tuned(LAST, SGD, o) + _trained(LAST, o),
        )
        for o in (LARS, LAMB)
    ),
    *(
        WORDS.claim(
            "sam", Check(ACCURACY, SAM, SGD, setting=end), id=f"sam.{name}", end=end,
            premises=_tuned(end, SGD, SAM) + _trained(end, SGD, SAM),
        )
        for name, end in (("small", FIRST), ("large", LAST))
    ),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    require_alike(runs, ALIKE)
    found, one = numbers(runs), runs[0]
    rhos = [f"{run.setting('optimizer.rho'):g}" for run in runs if run.model == SAM]
    said = {
        "epochs": one.setting("train.epochs"),
        "warmup": f"{one.setting('schedule.warmup_epochs'):g}",
        "most": max(int(run.setting("train.batch_size")) for run in runs),
        "rho": facts.distinct(rhos),
    }
    columns = (
        frames.seeds(ACCURACY),
        Column("test accuracy, %", ACCURACY, 1),
        Column("training minus test, points", GAP, 1),
        Column("best learning rate", RATE, first),
        Column("at an edge", EDGE, lambda values: "yes" if values[0] else "no"),
        Column("rates tried", TRIED, first),
        Column("seeds of the tuning", TUNED_ON, first),
    )
    places = [(b, o) for o in OPTIMIZERS for b in batches_of(found, o, RATE)]
    rows = {f"{o}.b{b}": f"{b}, {OPTIMIZERS[o]}" for b, o in sorted(places, key=lambda at: at[0])}
    title = "Test accuracy against batch size (learning rate tuned for each point)"
    caption = f"{facts.caption(runs, scale)}; mean over seeds, bars: standard deviation"
    shown = [
        _panel(found, "final test accuracy", ACCURACY, "test accuracy, %", log="x"),
        _panel(found, "best learning rate", RATE, "learning rate", log="xy"),
    ]
    return made(
        __file__, scale, runs, found,
        [
            Section("Accuracy", pivot(found, rows, columns, "batch size, optimizer")),
            Section("Tuning", _grids(runs)),
        ],
        CLAIMS, labels=OPTIMIZERS, said=said,
        head=[("training", f"{said['epochs']} epochs for every batch size, cosine schedule")],
        figures={"large_batch": lambda: plot.figure(title, caption, shown, columns=2, legend=4)},
    )  # fmt: skip


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """All runs: optimizer, batch, rate, seed, and percent of right answers after the last epoch."""
    return pd.DataFrame(
        {
            "optimizer": run.model, "batch": batch_of(run), "rate": float(run.setting("optimizer.lr")),
            "seed": run.seed,
            **{part: run.last(f"{part}/accuracy_percent") for part in ("test", "train", "validation")},
        }
        for run in runs
    )  # fmt: skip


def tuned_of(tried: pd.DataFrame) -> pd.DataFrame:
    """The runs with the best learning rate of each optimizer and batch: the columns of `table_of`, tried,
    tuned_on (how many seeds have all rates), at_edge (whether the best rate is the smallest or largest)."""
    kept = []
    for (optimizer, batch), own in tried.groupby(["optimizer", "batch"], sort=False):
        by_rate = own.pivot_table(index="seed", columns="rate", values="validation").dropna()
        if by_rate.empty:
            raise UserError(
                "optimizer.lr: one seed that has every learning rate of a grid, got none for "
                f"{optimizer} with batch {batch}; run its other rates too"
            )
        means = by_rate.mean()
        rate = means.idxmax()
        at_edge = float(rate in (means.index.min(), means.index.max()))
        facts_of = {"tried": len(means), "tuned_on": len(by_rate), "at_edge": at_edge}
        kept.append(own[own["rate"] == rate].assign(**facts_of))
    return pd.concat(kept, ignore_index=True)


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows are optimizers with a batch size, such as sgd.b64, and for the claims the optimizers
    with the smallest and with the largest batch of all as the setting."""
    tuned = tuned_of(table_of(runs))
    tuned["gap"] = tuned["train"] - tuned["test"]
    rows = tuned["optimizer"] + ".b" + tuned["batch"].astype(str)
    parts = [frames.longer(tuned.assign(row=rows), NAMES)]
    judged = {name: NAMES[name] for name in ("test", "at_edge", "train")}
    for setting, batch in ((FIRST, tuned["batch"].min()), (LAST, tuned["batch"].max())):
        own = tuned[tuned["batch"] == batch]
        parts.append(frames.longer(own.assign(row=own["optimizer"], setting=setting), judged))
    return frames.join(*parts)


def _grids(runs: Sequence[Run]) -> pd.DataFrame:
    """Validation and test accuracy of every rate, means over the seeds that have it."""
    tried = table_of(runs)
    tried["place"] = tried["optimizer"].map(list(OPTIMIZERS).index)
    points = tried.groupby(["batch", "place", "optimizer", "rate"])[["validation", "test"]].agg(
        list
    )
    lines = [
        {
            "batch size, optimizer": f"{at['batch']}, {OPTIMIZERS[at['optimizer']]}",
            "learning rate": f"{at['rate']:g}",
            "n": str(len(at["test"])),
            "validation accuracy, %": frames.number(at["validation"], 1),
            "test accuracy, %": frames.number(at["test"], 1),
        }
        for at in points.reset_index().to_dict("records")
    ]
    return pd.DataFrame(lines)


def _panel(found: pd.DataFrame, title: str, quantity: str, label: str, log: str) -> panels.Panel:
    """One curve an optimizer."""
    curves = [
        drawn(
            found, quantity, batches_of(found, o, RATE), spread=quantity == ACCURACY,
            fmt=f"-{plot.MARKERS[place]}", color=plot.CYCLE[place], markersize=4, capsize=2,
            label=OPTIMIZERS[o],
        )
        for place, o in enumerate(OPTIMIZERS)
    ]  # fmt: skip
    return panels.panel(title, *curves, x="batch size", y=label, log=log)
