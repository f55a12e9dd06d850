"""The settings of the published benchmark for a model on a network: what a step takes, and what it costs.

The rules of `recommend` are here: which settings are looked at, in which order, and which one is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.launch.overrides import nearest
from dgc_repro.launch.paths import options
from dgc_repro.network.cost import Calls, Costs
from dgc_repro.network.profile import Network
from dgc_repro.paper import pool
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.classes import Shown
from dgc_repro.paper.benchmark.equivalent import Share, calibrations, is_shortened
from dgc_repro.paper.benchmark.paired import judged_of
from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, workloads
from dgc_repro.paper.records import Run
from dgc_repro.predict.known import MODELS, Model
from dgc_repro.predict.modelled import GPUS, exchange_seconds
from dgc_repro.results import RESULTS

POOL = "benchmark/small"
CPU = "cpu"
COST_STEP = 0.1
"""Shown costs are multiples of it, in the unit of the workload."""
FASTER = 1.05
"""A setting that is not so many times as fast as dense training is no faster: the model is not that exact."""


@dataclass(frozen=True)
class Question:
    """A model on a device and a network, seconds of its forward and backward, and the cost that is allowed
    (None: whatever is the smallest). ``method``: a part of the names of the only settings to look at."""

    model: Model
    network: Network
    device: str
    compute: float
    max_cost: float | None
    method: str | None


@dataclass(frozen=True)
class Row:
    """A setting among so many workers; seconds. ``run``: the first of its runs; ``cost``: what its seeds
    show, None for dense training, of no seeds for a method that the benchmark does not have; ``exchange``:
    compress and decompress; ``hidden``: communication behind backward; ``share``: its cost as a share of the
    steps, None where nobody has measured it."""

    run: Run
    cost: Shown | None
    calls: Calls
    compute: float
    exchange: float
    communicate: float
    hidden: float
    share: Share | None = None

    @property
    def step(self) -> float:
        return self.compute + self.exchange + self.communicate - self.hidden

    @property
    def sent(self) -> float:
        """Payload bytes of a worker and step."""
        return sum(size for _, size in self.calls.values())

    @property
    def high(self) -> float:
        """The upper end of the interval of its cost; infinite without an interval."""
        if self.cost is None:
            return 0.0
        return self.cost.high if self.cost.has_interval else math.inf

    @property
    def at_most(self) -> float:
        """The upper end as a multiple of `COST_STEP`."""
        if math.isinf(self.high):
            return math.inf
        return math.ceil(round(self.high / COST_STEP, 6)) * COST_STEP


class Benchmark:
    """The published runs of the workload that is like the model, and what they show. Raises UserError where
    there are none."""

    def __init__(self, name: str, results: Path = RESULTS) -> None:
        place = results / POOL
        pages = pool.records(place)
        if "methods" not in pages:
            raise UserError(
                f"results/{POOL} is not here (no {pool.VERDICTS_FILE}); recommend "
                "needs the published results, which a clone and the wheel have"
            )
        every = pages["methods"]["runs"]
        own = [run for run in every if f"-{name}." in run and TUNES not in run]
        every_run = pool.read(place, own)
        self.runs: Sequence[Run] = [run for run in every_run if not is_shortened(run)]
        self.workload = workloads()[name]
        calibration = calibrations(every_run, {name: self.workload}).get(name)
        self.shares = {} if calibration is None else calibration.shares(self.runs)
        self.judged = judged_of(self.runs, name)
        self._counted: dict[Any, dict[Any, Any]] = {}
        if (counts := speed.counts(results)) is not None:
            is_own = (counts["model"] == self.workload.full_size) & counts["launches"].notna()
            self._counted = counts[is_own].set_index("method").to_dict("index")
        self._work = speed.Workload(self.runs)
        self._first = {run.method: run for run in sorted(self.runs, key=lambda run: -run.seed)}

    @property
    def dense(self) -> Run:
        """Dense training."""
        return self._first[DENSE]

    def rows(self, asked: Question, workers: int) -> tuple[list[Row], list[str]]:
        """A row a setting, dense training first; and the names of those left out: they use another
        optimizer, change with the steps, or nobody has counted them."""
        try:
            costs = Costs(asked.network, workers)
        except ValueError as error:
            raise UserError(f"network.{error}") from error
        rows, left_out = [], []
        for name, run in sorted(self._first.items(), key=lambda item: item[0] != DENSE):
            exchange = self._exchange(asked, run, workers) if speed.is_predicted(run) else None
            if exchange is None:
                left_out.append(name)
                continue
            calls = speed.calls_at(run, workers)
            calls = speed.enlarged(
                run, calls, self._work.parameters, self._work.vectors, asked.model.sizes
            )
            communicate, hidden = speed.talked(run, calls, costs, asked.compute)
            cost = None if name == DENSE else self.judged.shown[run.row]
            share = self.shares.get(name)
            rows.append(Row(run, cost, calls, asked.compute, exchange, communicate, hidden, share))
        return rows, sorted(left_out)

    def _exchange(self, asked: Question, run: Run, workers: int) -> float | None:
        """Seconds of compress and decompress; None where they were not counted."""
        own = asked.model.sizes.parameters
        if asked.device == CPU:
            step = self._work.step(run, workers)
            return float(own / self._work.parameters * (step.compress + step.decompress))
        counted = self._counted.get(run.method)
        if counted is None:
            return None
        full = next(iter(MODELS[self.workload.full_size].values())).sizes.parameters
        return exchange_seconds(counted, own / full, GPUS[asked.device])


def chosen(rows: Sequence[Row], asked: Question) -> list[Row]:
    """Dense training and the settings that are asked for, by cost: the upper end of the interval, then the
    mean. Raises UserError for a method that has no setting."""
    dense, *others = rows
    if asked.method is not None:
        own = [row for row in others if asked.method in row.run.method]
        if not own and asked.method in options("compressor"):
            raise UserError(
                f"method: with {asked.model.samples} the published benchmark has no runs of "
                f"{asked.method}, so its cost is not known; "
                f"measure=true compressor={asked.method} times its step beside the others"
            )
        if not own:
            names = [row.run.method for row in others]
            raise UserError(
                f"method: no setting of {asked.method!r}; {nearest(asked.method, names)}"
            )
        others = own
    elif asked.max_cost is not None:
        others = [row for row in others if _mean(row) <= asked.max_cost]
    return [dense, *sorted(others, key=lambda row: (row.high, _mean(row)))]


def front(rows: Sequence[Row], lead: Row | None) -> list[Row]:
    """Dense training, the answer, and each setting that is faster than all settings that cost less."""
    dense, *others = rows
    found, fastest = [dense], dense.step
    for row in others:
        is_faster = math.isfinite(row.high) and row.step * FASTER < fastest
        if is_faster:
            fastest = row.step
        if is_faster or row is lead:
            found.append(row)
    return found


def best(rows: Sequence[Row], asked: Question, margin: float) -> Row | None:
    """The answer: the fastest setting that is shown to cost at most what is allowed (the margin of the
    workload, unless it is asked), or else at most the smallest cost that any setting is shown to meet. None:
    no setting with a known cost is faster than dense training."""
    dense, *others = rows
    faster = [r for r in others if r.step * FASTER < dense.step and math.isfinite(r.at_most)]
    if not faster:
        return None
    smallest = min(row.at_most for row in faster)
    allowed = max(smallest, margin if asked.max_cost is None else asked.max_cost)
    return min((row for row in faster if row.at_most <= allowed), key=lambda row: row.step)


def _mean(row: Row) -> float:
    return 0.0 if row.cost is None else row.cost.mean
