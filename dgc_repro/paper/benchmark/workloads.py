"""The benchmark's workloads, as conf/paper/benchmark.yaml states them: metric, margin, target, full model."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dgc_repro.names import conf_dir, papers_in
from dgc_repro.paper.frame import number
from dgc_repro.paper.records import Run

ACCURACY = "accuracy_percent"
DENSE = "dense"
TUNES = "_lr"
"""Part of the name of a row that only tunes the learning rate."""


class Workload(NamedTuple):
    """What is judged of a workload.

    metric     of the last test, such as ``perplexity``
    margin     of equivalence: points of accuracy, or percent of another metric
    target     of the metric in a test during training; None: that of the runs (``stopping.target``)
    full_size  the model of results/bench that the workload's model is a slim version of; empty: none
    """

    title: str
    metric: str
    margin: float
    target: float | None = None
    full_size: str = ""

    @property
    def is_difference(self) -> bool:
        """Whether a cost is a difference in points; else it is a ratio in percent."""
        return self.metric == ACCURACY

    @property
    def unit(self) -> str:
        """Of a cost against dense training."""
        return "points" if self.is_difference else "%"

    @property
    def unit_in_words(self) -> str:
        """The unit with what it is a part of."""
        return "points of accuracy" if self.is_difference else f"% of {self.metric}"

    @property
    def heading(self) -> str:
        """The metric's heading in a table."""
        return "accuracy, %" if self.is_difference else self.metric

    def quality(self, run: Run, split: str = "test") -> float:
        """The metric in the last test of a run. Infinite: training diverged."""
        value = run.epochs[f"{split}/{self.metric}"].iloc[-1]
        worst = -np.inf if self.is_difference else np.inf
        return worst if pd.isna(value) else float(value)

    def cost(self, run: Run, reference: Run) -> float:
        """What a run loses against another one, in the workload's unit."""
        own, base = self.quality(run), self.quality(reference)
        return base - own if self.is_difference else 100 * (own / base - 1)

    def steps_to_target(self, run: Run) -> float:
        """Steps until the first test with the target or better; inf: there is none, NaN: there is no target.
        Tests are at the end of an epoch, and where ``stopping.every_steps`` puts them."""
        found = run.summary.get("stopping")
        if found:
            return float(found["step"]) if found["reached"] else math.inf
        if self.target is None:
            return math.nan
        values: pd.Series = run.epochs[f"test/{self.metric}"].astype(float)
        is_met = values >= self.target if self.is_difference else values <= self.target
        return float(run.epochs["step"][is_met].min()) if is_met.any() else math.inf


@functools.cache
def artifacts() -> tuple[Mapping[str, Any], ...]:
    """The benchmark's artifacts, in the order of their names."""
    stated = papers_in(conf_dir())["benchmark"]["artifact"]
    return tuple(stated[name] for name in sorted(stated))


@functools.cache
def workloads() -> dict[str, Workload]:
    """The workloads of all artifacts by name, in the order in which pages show them."""
    stated = (item for node in artifacts() for item in node.get("workloads", {}).items())
    return {name: Workload(**settings) for name, settings in stated}


def usual_margin(metric: str) -> float:
    """The margin of the first workload whose costs have the unit of this metric's."""
    is_difference = Workload("", metric, 0.0).is_difference
    return next(one.margin for one in workloads().values() if one.is_difference == is_difference)


def quality(run: Run, split: str = "test") -> float:
    """The metric of a run's workload in the last test. Infinite: training diverged."""
    return workloads()[run.model].quality(run, split)


def cost(run: Run, dense: Run) -> float:
    """What a run loses against dense training, in the unit of its workload."""
    return workloads()[run.model].cost(run, dense)


def or_diverged(values: Sequence[float], decimals: int | None = None) -> str:
    """The mean with its spread, or in how many seeds training diverged."""
    diverged = sum(not np.isfinite(value) for value in values)
    return f"diverged in {diverged} of {len(values)}" if diverged else number(values, decimals)
