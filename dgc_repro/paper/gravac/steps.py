"""What GraVAC's figures read from the recorded decisions of a run: factors, branches, gains, throughputs.

Long runs record evenly spaced steps. Shares and means are of the recorded steps; tables say which these are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dgc_repro.paper import gravac
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.facts import distinct
from dgc_repro.paper.frame import Quantity, join, lines, longer, measure, twins
from dgc_repro.paper.gravac import DATA, DENSE, LABELS, norm_of
from dgc_repro.paper.gravac.runs import FLOATS
from dgc_repro.paper.page import Section, other_data
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import Verdict, judge

Series = NDArray[np.float64]
STEPS = 18_000
"""Steps of a run of the paper. Ours: its learning rate decays at 9,000 and 14,000, and figure 10 speaks of
16,000 and later. A printed step counts as its share of these, so that a shorter run has the same moments."""
BRANCHES = ("candidate", "theta_min", "dense")
ENERGY, NORM = "energy", "norm"
"""The two gains: as printed (squared norms), and as in the authors' code (sums of norms over the gradient
without its residual)."""
SHARE, BRANCH, THROUGHPUT = "share of steps", "share of branch", "compression throughput"
LEAD, RUNNER_UP, RANK = "lead over any other factor", "factor with the second most steps", "rank"
LARGEST, THETA_MIN, CANDIDATE = "largest factor", "largest theta_min", "largest candidate"
AT_GAIN = "gain of what was sent"
MOSTLY = 0.5
"""Mostly: more than this share of the steps."""
NORM_ROWS = {row: norm_of(row) for row in LABELS if norm_of(row) in LABELS}
"""By row of the energy gain, the same row with the norm gain."""
SHARES_READING = "Shares of the recorded steps by the factor of what was sent."


def at(run: Run, paper_step: float) -> float:
    """A step of the paper, as a step of this run."""
    return paper_step / STEPS * float(run.last("step"))


def column(run: Run, name: str) -> Series:
    """A column of the recorded decisions, empty where there is none."""
    if name not in run.decisions.columns:
        return np.empty(0)
    return np.asarray(run.decisions[name], dtype=np.float64)


def mean(values: Series) -> float:
    """The mean of the finite values, NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def largest(run: Run, name: str) -> float:
    """The largest value of a column of the decisions, NaN where there is none."""
    values = column(run, name)
    return float(values.max()) if values.size else math.nan


def gains(run: Run, gain: str) -> Series:
    """The gain of each recorded step, not smoothed; NaN where the record lacks it. The norm gain of a dense
    step is not recorded."""
    if gain == ENERGY:
        return column(run, "gain")
    raw = column(run, "raw_norms")
    found: Series = column(run, "sent_norms") / np.where(raw > 0, raw, np.nan)
    return found


def branch(run: Run, name: str) -> float:
    """The share of the recorded steps that took a branch, NaN where none is recorded."""
    if "branch" not in run.decisions.columns or run.decisions.empty:
        return math.nan
    return float((run.decisions["branch"] == name).mean())


def factor_table(run: Run, more: Sequence[float] = ()) -> pd.DataFrame:
    """A line for each factor of what was sent, ascending, and for ``more``; none where no step is recorded.
    Factor 1 is dense.

    Columns: `SHARE` of the recorded steps, `LEAD` of this share over any other factor's, mean `AT_GAIN`, mean
    `THROUGHPUT` (samples a second of all workers whose step is timed), and its `RANK` (1: the largest)."""
    recorded = run.decisions.reindex(columns=["factor", "gain", "throughput"])
    grouped = recorded.replace([np.inf, -np.inf], np.nan).groupby("factor")
    counts = grouped.size()
    factors = counts.index.union(sorted(set(more))) if len(counts) else counts.index
    table = grouped.mean().reindex(factors).rename_axis("factor")
    table = table.rename(columns={"gain": AT_GAIN, "throughput": THROUGHPUT})
    table[SHARE] = (counts / counts.sum()).reindex(factors, fill_value=0.0)
    table[LEAD] = [s - table[SHARE].drop(f).max() for f, s in table[SHARE].items()]
    table[LEAD] = table[LEAD].fillna(1.0)  # the only factor
    if modelled := modelled_workers(run):
        table[THROUGHPUT] *= modelled / int(run.setting("launch.workers"))
    table[RANK] = table[THROUGHPUT].rank(ascending=False, method="min")
    return table


def ranked(run: Run, place: int) -> float:
    """The factor with the most steps (0), the second most (1), ..."""
    order = factor_table(run)[SHARE].sort_values(ascending=False, kind="stable").index
    return float(order[place]) if len(order) > place else math.nan


def modelled_workers(run: Run) -> int | None:
    """The workers for which the seconds of a step are modelled, None where they are the run's own."""
    if run.setting("train.step_time") != "modelled":
        return None
    workers = run.setting("network.as_workers")
    return None if workers is None else int(workers)


def samples_unit(runs: Sequence[Run]) -> str:
    """The unit of throughputs: whose samples count."""
    modelled = distinct(modelled_workers(run) for run in runs)
    if modelled == "-":
        return f"samples/s of {distinct(run.setting('launch.workers') for run in runs)} workers"
    return f"samples/s of {modelled} modelled workers"


def by_setting(
    runs: Sequence[Run],
    quantity: str,
    unit: str,
    settings: Mapping[str, Callable[[Run], float]],
) -> pd.DataFrame:
    """One quantity of each run at several settings, as lines of a frame."""
    return join(
        *(
            measure(runs, {quantity: Quantity(unit, of)}).assign(setting=setting)
            for setting, of in settings.items()
        )
    )


def at_factor(factor: float) -> str:
    """The setting of a number at one factor."""
    return f"at {factor:g}x"


def factors_of(runs: Sequence[Run], always: Sequence[float] = ()) -> list[float]:
    """Every factor that was sent, ascending, and those of ``always``."""
    return sorted({*always, *(factor for run in runs for factor in factor_table(run).index)})


def by_factor(
    runs: Sequence[Run],
    *,
    lead: Sequence[float] = (),
    rank: Sequence[float] = (),
    always: Sequence[float] = (),
) -> pd.DataFrame:
    """The frame of `factor_table`: shares, throughputs and gains at every factor that was sent and at those
    of ``always``; leads and ranks at the given factors; and shares of the branches."""
    if not runs:
        return lines([])
    sent = factors_of(runs, always)
    asked = [*sent, *lead, *rank]
    tables = (factor_table(run, asked).assign(row=run.row, seed=run.seed) for run in runs)
    wide = pd.concat(tables).reset_index()
    columns = {
        SHARE: ("", "", sent),
        THROUGHPUT: ("samples/s", "modelled", sent),
        AT_GAIN: ("", "", sent),
        LEAD: ("", "", lead),
        RANK: ("", "modelled", rank),
    }
    wide = wide.assign(setting=wide["factor"].map(at_factor)).sort_values("factor", kind="stable")
    found = [
        longer(wide[wide["factor"].isin(factors)], {name: (name, unit, clock)})
        for name, (unit, clock, factors) in columns.items()
    ]
    branches = {name: partial(branch, name=name) for name in BRANCHES}
    return join(*found, by_setting(runs, BRANCH, "", branches))


def compared(runs: Sequence[Run]) -> list[Run]:
    """Without dense runs of seeds that no other row has: these count for the target alone."""
    seeds = {run.seed for run in runs if run.method != DENSE}
    return [run for run in runs if run.seed in seeds or not seeds]


def thinning(runs: Sequence[Run]) -> str:
    """Which steps are recorded, in words."""
    gaps = {
        int(np.median(np.diff(steps))) for run in runs if (steps := column(run, "step")).size > 1
    }
    said = ["every step" if gap == 1 else f"one step in {gap}" for gap in sorted(gaps)]
    return " or ".join(said) or "no step"


def recorded(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The line of a page's head that says which steps are recorded."""
    return [("decisions recorded", f"of {thinning(runs)}")]


def of_norm(
    claim: Claim,
    rows: Mapping[str, str] = NORM_ROWS,
    quantities: Mapping[str, str] | None = None,
    **changes: Any,
) -> Claim:
    """The same claim with the norm gain: of other ``rows``, or of other ``quantities`` of the same rows.
    ``changes``: other fields."""

    def swapped(checks: Sequence[Check]) -> tuple[Check, ...]:
        return tuple(
            replace(
                check,
                quantity=(quantities or {}).get(check.quantity, check.quantity),
                greater=rows.get(check.greater, check.greater),
                lesser=rows.get(check.lesser or "", check.lesser),
            )
            for check in checks
        )

    changes = {"cannot_follow": "", "text": f"{claim.text[:-1]} (norm gain).", **changes}
    checks, premises = swapped(claim.checks), swapped(claim.premises)
    return replace(claim, id=f"{claim.id}.norm", checks=checks, premises=premises, **changes)


def judged(
    claims: Sequence[Claim], found: pd.DataFrame, runs: Sequence[Run]
) -> tuple[Verdict, ...]:
    """Verdicts in order. A claim on what is sent is judged also where two rows are the same training: where
    GraVAC has compressed nothing, that is its answer."""
    on_volume = {c.id: all(check.quantity == FLOATS for check in c.checks) for c in claims}
    verdicts: dict[str, Verdict] = {}
    other, labels = other_data(runs, DATA), gravac.labels(runs)
    for is_volume, same in ((False, twins(runs)), (True, {})):
        own = [claim for claim in claims if on_volume[claim.id] == is_volume]
        judged = judge(own, found, labels=labels, same=same, other_data=other)
        verdicts |= {v.claim.id: v for v in judged}
    return tuple(verdicts[claim.id] for claim in claims)


def which_gain(verdicts: Sequence[Verdict]) -> Section:
    """The table that says which gain shows which printed finding: means over seeds, without a test. A
    finding is a claim that is judged with both gains (`of_norm`)."""
    found = {verdict.claim.id: verdict for verdict in verdicts}
    table = pd.DataFrame(
        [
            (verdict.claim.text, shown(verdict), shown(found[f"{name}.norm"]))
            for name, verdict in found.items()
            if f"{name}.norm" in found
        ],
        columns=["finding", "energy gain", "norm gain"],
    )
    counts = [
        f"{(own == 'yes').sum()} of {own.isin(('yes', 'no')).sum()}"
        for own in (table["energy gain"], table["norm gain"])
    ]
    text = (
        f"Of the printed findings that were tested, the energy gain (as printed) shows {counts[0]}, the norm "
        f"gain (the authors' code: sums of L2 norms over the gradient without its residual) {counts[1]}. "
        "Means over seeds, without a test; the verdicts are below."
    )
    return Section("Which gain explains the figure", table, text)


def shown(verdict: Verdict) -> str:
    """Whether the means over seeds lie where the claim says; '-' where it is not tested or not run."""
    if verdict.word == "cannot follow":
        return verdict.word
    complete = len(verdict.effects) == len(verdict.claim.checks)
    if not complete or verdict.word == "not tested":
        return "-"
    return "yes" if all(effect.points_inside for effect in verdict.effects) else "no"
