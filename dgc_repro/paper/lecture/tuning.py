"""Runs at several batch sizes and learning rates, and the best rate of each batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.paper.facts import batch_of
from dgc_repro.paper.frame import Column
from dgc_repro.paper.lecture import first
from dgc_repro.paper.records import Run

STEPS, RATE = "steps to the target", "best learning rate"
TRIED, EDGE = "learning rates tried", "best learning rate at an edge (1: yes)"
NAMES = {"steps": (STEPS, "steps"), "rate": (RATE, ""), "tried": (TRIED, ""), "at_edge": (EDGE, "")}
"""Quantities and units by column of `tuned_of`."""
RATES = tuple(Column(name, name, first) for name in (TRIED, RATE, EDGE))


def steps_of(run: Run) -> float:
    """Steps to the target, infinite where it was not reached."""
    stopping = run.summary.get("stopping") or {}
    return float(stopping["step"]) if stopping.get("reached") else math.inf


def tried_of(runs: Iterable[Run], **more: Callable[[Run], float]) -> pd.DataFrame:
    """What each run tried and found: columns row (the workload: the row up to the dot), batch, setting (the
    batch size as text), rate, seed, steps, and those of ``more``."""
    return pd.DataFrame(
        {
            "row": run.model, "batch": batch_of(run), "setting": str(batch_of(run)),
            "rate": float(run.setting("optimizer.lr")), "seed": run.seed, "steps": steps_of(run),
            **{name: of(run) for name, of in more.items()},
        }
        for run in runs
    )  # fmt: skip


def tuned_of(tried: pd.DataFrame, cost: str = "steps", apart: float = 2.1) -> pd.DataFrame:
    """The runs with the best learning rate of each row and batch size, with the columns tried (the number of
    rates) and at_edge.

    The best rate has the lowest mean ``cost`` over seeds, of the rates that the most seeds have tried.
    at_edge: no neighbour up to ``apart`` times as large, or as small, was tried, or a rate that fewer seeds
    tried costs less in these seeds: a better rate may have been missed. Raises UserError for no run.
    """
    if tried.empty:
        raise UserError("optimizer.lr: at least one finished run that tries a rate, got none")
    kept: list[pd.DataFrame] = []
    for _, own in tried.groupby(["row", "batch"]):
        table = own.pivot(index="rate", columns="seed", values=cost)
        count = table.notna().sum(axis=1)
        rate = table[count == count.max()].mean(axis=1).idxmin()
        others = [of.dropna() for _, of in table[count < count.max()].iterrows()]
        is_missed = any(of.mean() < table.loc[rate, of.index].mean() for of in others)
        is_between = all(
            any(1 < (float(other) / float(rate)) ** sign <= apart for other in table.index)
            for sign in (1, -1)
        )
        found = {"tried": len(table), "at_edge": float(is_missed or not is_between)}
        kept.append(own[own["rate"] == rate].assign(**found))
    return pd.concat(kept, ignore_index=True)
