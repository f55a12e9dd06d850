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
TEST_IMAGES = {"cifar10": 10_000, "cifar100": 10_000, "fashion_mnist": 10_000}
"""Images of the whole test split, by the module of a data set."""


class Family(NamedTuple):
    """Settings that are judged together, fixed on a date, and the seeds that were planned for each."""

    date: str
    seeds: str
    rows: Sequence[str]


class Workload(NamedTuple):
    """What is judged of a workload.

    metric     of the last test, such as ``perplexity``
    margin     of equivalence: points of accuracy, or percent of another metric
    target     of the metric in a test during training; None: that of the runs (``stopping.target``)
    full_size  the model of results/bench that the workload's model is a slim version of; empty: none
    families   the settings that are judged together, the first family first
    """

    title: str
    metric: str
    margin: float
    target: float | None = None
    full_size: str = ""
    families: Sequence[Family] = ()

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
        return "accuracy, %" if self.is_difference else self.metric

    def quality(self, run: Run, split: str = "test") -> float:
        """The metric in the last test of a run. Infinite: training diverged."""
        value = run.epochs[f"{split}/{self.metric}"].iloc[-1]
        worst = -np.inf if self.is_difference else np.inf
        return worst if pd.isna(value) else float(value)

    def cost_of_test(self, run: Run, reference: Run) -> float:
        """What a run loses against another one on the test split, in the workload's unit."""
        own, base = self.quality(run), self.quality(reference)
        return base - own if self.is_difference else 100 * (own / base - 1)

    def judged(self, run: Run) -> float:
        """The quality by which a run is judged: the metric, of accuracy on the test and the validation images
        together, where it is known how many these are."""
        test = self.quality(run)
        return together(run, self.metric) if self.is_difference and np.isfinite(test) else test

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
    return {
        name: Workload(
            **{**own, "families": tuple(Family(**family) for family in own.get("families", ()))}
        )
        for name, own in stated
    }


def together(run: Run, metric: str) -> float:
    """A metric of the last test; of images that of test and validation images together."""
    test, sizes, column = run.last(f"test/{metric}"), images_of(run), f"validation/{metric}"
    if sizes is None or column not in run.epochs:
        return test
    tested, held_out = sizes
    return (tested * test + held_out * run.last(column)) / (tested + held_out)


def images_of(run: Run) -> tuple[int, int] | None:
    """How many test and validation images a run is scored on; None where its config does not say it."""
    dataset = run.setting("dataset", {})
    if not isinstance(dataset, Mapping):
        return None
    name = str(dataset.get("_target_", "")).split(".")[-2:-1]
    test = dataset.get("test_size") or TEST_IMAGES.get(name[0] if name else "")
    held_out = dataset.get("validation")
    if not isinstance(test, int) or not isinstance(held_out, int) or min(test, held_out) < 1:
        return None
    return test, held_out


def usual_margin(metric: str) -> float:
    """The margin of the first workload whose costs have the unit of this metric's."""
    is_difference = Workload("", metric, 0.0).is_difference
    return next(one.margin for one in workloads().values() if one.is_difference == is_difference)


def quality(run: Run, split: str = "test") -> float:
    """The metric of a run's workload in the last test. Infinite: training diverged."""
    return workloads()[run.model].quality(run, split)


def or_diverged(
    values: Sequence[float], decimals: int | None = None, word: str = "diverged"
) -> str:
    """The mean with its spread, or in how many seeds training diverged (``word``: or something else, such as
    "missed", made a value infinite)."""
    lost = sum(not np.isfinite(value) for value in values)
    return f"{word} in {lost} of {len(values)}" if lost else number(values, decimals)
