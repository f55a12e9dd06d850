"""Numbers of GraVAC's figures 7 to 10: which factors were used when, dips, and reductions against dense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from dgc_repro.paper.gravac_factors import (
    AFTER_DECAY,
    LATE,
    LATE_FACTOR,
    LATE_WINDOWS,
    SIMILAR_FACTORS,
    THOUSAND,
    VARIANTS,
    lead_of,
    share_at,
)
from dgc_repro.paper.gravac_training import DENSE, GRAVAC, row_id
from dgc_repro.report.gravac_course import Course
from dgc_repro.report.gravac_course import numbers as course_numbers
from dgc_repro.report.gravac_decisions import (
    at,
    branch_share,
    column,
    mean_of,
    shares,
)
from dgc_repro.report.gravac_pool import (
    Metric,
    Numbers,
    Series,
    collect,
    merged,
    method_of,
    quality,
    reductions,
)
from dgc_repro.report.records import Run
from dgc_repro.report.study import distinct

BANDWIDTH = 0.1
"""Of the density of steps over log10 of the factor."""
BRANCHES = ("candidate", "theta_min", "dense")


def density(grid: Series, factors: Series, bandwidth: float = BANDWIDTH) -> Series:
    """A Gaussian of ``bandwidth`` at log10 of each step's factor, at the points ``grid`` of log10; its
    integral over log10 of the factor is one."""
    places, counts = np.unique(np.log10(factors), return_counts=True)
    bells = np.exp(-0.5 * ((grid[:, None] - places[None, :]) / bandwidth) ** 2)
    scaled: Series = bells @ counts / (counts.sum() * bandwidth * math.sqrt(2 * math.pi))
    return scaled


def decay_step(run: Run) -> float:
    """The last step of the last epoch before the learning rate first falls to a half or less; NaN where it
    does not."""
    rates, steps = run.epochs["lr"].to_numpy(float), run.epochs["step"].to_numpy(float)
    falls = np.flatnonzero(rates[1:] <= 0.5 * rates[:-1])
    return float(steps[falls[0]]) if falls.size else math.nan


def around_decay(run: Run, metric: Metric) -> tuple[float, float]:
    """The quality at the last evaluation before the learning rate falls, and the lowest soon after."""
    step, steps = decay_step(run), run.epochs["step"].to_numpy(float)
    if math.isnan(step):
        return math.nan, math.nan
    values = metric.sign * quality(run, metric)
    soon = (steps > step) & (steps <= step + at(run, AFTER_DECAY))
    soon[np.flatnonzero(steps > step)[0]] = True  # one at least
    return metric.sign * float(values[steps == step][0]), metric.sign * float(values[soon].min())


def gain_around_decay(run: Run) -> tuple[float, float]:
    """The mean gain of what was sent, as long before the learning rate falls and after."""
    step, steps, gains = decay_step(run), column(run, "step"), column(run, "gain")
    if math.isnan(step) or not steps.size:
        return math.nan, math.nan
    near = at(run, AFTER_DECAY)
    before, after = (steps > step - near) & (steps <= step), (steps > step) & (steps <= step + near)
    return mean_of(gains[before]), mean_of(gains[after])


def _dip(run: Run, metric: Metric) -> float:
    before, after = around_decay(run, metric)
    return metric.sign * (before - after)


def share_of(run: Run, factor: float) -> float:
    """The share of the steps at a factor, NaN where none is recorded."""
    own = shares(run)
    return own.get(factor, 0.0) if own else math.nan


def lead(run: Run, factor: float) -> float:
    """The share of the steps at a factor less the largest share of any other."""
    own = shares(run)
    others = [share for other, share in own.items() if other != factor]
    return own.get(factor, 0.0) - max(others, default=0.0) if own else math.nan


def _runner_up(run: Run) -> float:
    ranked = sorted(shares(run).items(), key=lambda item: item[1], reverse=True)
    return ranked[1][0] if len(ranked) > 1 else math.nan


def _evenness(run: Run) -> float:
    """The largest share of the figure's factors over the smallest, infinite where one is missing."""
    own = shares(run)
    found = [own.get(factor, 0.0) for factor in SIMILAR_FACTORS]
    if not own or not max(found):
        return math.nan if not own else math.inf
    return max(found) / min(found) if min(found) else math.inf


def _late(run: Run) -> float:
    window = run.setting("policy.window")
    if window is None:
        return math.nan
    late = column(run, "factor")[column(run, "step") > LATE_WINDOWS * int(window)]
    return float((late == LATE_FACTOR).mean()) if late.size else math.nan


def throughput(run: Run, factor: float) -> float:
    """Mean compression throughput of the steps at a factor, NaN where nothing was timed. Samples are those
    of all workers whose step is timed."""
    own = mean_of(column(run, "throughput")[column(run, "factor") == factor])
    modelled = modelled_workers(run)
    return own if modelled is None else own * modelled / int(run.setting("launch.workers"))


def modelled_workers(run: Run) -> int | None:
    """The workers that the seconds of a step are modelled for, None where they are the run's own."""
    if run.setting("train.step_time") != "modelled":
        return None
    workers = run.setting("network.as_workers")
    return None if workers is None else int(workers)


def samples_label(runs: Sequence[Run]) -> str:
    """Whose samples the throughputs count."""
    modelled = distinct([modelled_workers(run) for run in runs])
    if modelled == "-":
        return f"samples/s of {distinct([run.setting('launch.workers') for run in runs])} workers"
    return f"samples/s of {modelled} modelled workers"


def largest(run: Run, name: str) -> float:
    """The largest value of a column of the decisions, NaN where there is none."""
    values = column(run, name)
    return float(values.max()) if values.size else math.nan


def numbers(one: Course) -> Numbers:
    """Everything that tables and claims say of these runs, GraVAC's and the dense one's."""
    metric = one.metric
    chosen = [run for run in one.runs if method_of(run) != DENSE]
    factors = sorted({factor for run in chosen for factor in shares(run)} | {10.0, THOUSAND})
    found = collect(
        chosen,
        {
            **{share_at(f): partial(share_of, factor=f) for f in factors},
            **{f"throughput@{f:g}x": partial(throughput, factor=f) for f in factors},
            **{f"branch@{b}": partial(branch_share, branch=b) for b in BRANCHES},
            lead_of(40.0): lambda run: lead(run, 40.0),
            "runner_up": _runner_up,
            "evenness": _evenness,
            LATE: _late,
            "theta_min": lambda run: largest(run, "theta_min"),
            "candidate": lambda run: largest(run, "candidate"),
            "dip": lambda run: _dip(run, metric),
            "before": lambda run: around_decay(run, metric)[0],
            "lowest_after": lambda run: around_decay(run, metric)[1],
            "gain_before": lambda run: gain_around_decay(run)[0],
            "gain_after": lambda run: gain_around_decay(run)[1],
        },
    )
    return merged(found, agreement(one.runs), outcomes(one))


def agreement(runs: Sequence[Run]) -> Numbers:
    """Of each variant: the share of the recorded steps at which it took the branch, and sent at the
    factor, of the run that it is a variant of, paired by seed."""
    found: Numbers = {}
    now = {(run.row.partition(".")[0], run.seed): run for run in runs if method_of(run) == GRAVAC}
    for run in (run for run in runs if method_of(run) in VARIANTS):
        other = now.get((run.row.partition(".")[0], run.seed))
        if other is None or run.decisions.empty or other.decisions.empty:
            continue
        both = run.decisions.merge(other.decisions, on="step", suffixes=("", "_now"))
        for name in ("branch", "factor"):
            same = float((both[name] == both[f"{name}_now"]).mean())
            if not math.isnan(same):
                found.setdefault(f"same_{name}", {}).setdefault(run.row, {})[run.seed] = same
    return found


def outcomes(one: Course) -> Numbers:
    """Final quality and its mean over the run, what was sent, and how many times less than dense."""
    means = collect(one.runs, {"curve_mean": lambda run: float(quality(run, one.metric).mean())})
    found = merged(course_numbers(one), means)
    return merged(found, reductions(found, row_id(one.model, DENSE)))
