"""What a run in the lab took and sent while its links had each rate: numbers for report/gravac_lab.py."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from dgc_repro.paper.gravac_lab import DENSE
from dgc_repro.report.records import Run

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
LAST_SHARE = 4
"""The target is of the last quarter of epochs."""


@dataclass(frozen=True)
class Stretch:
    """Steps ``first`` to ``last`` (from 1), in which the links have one rate, as the config writes it."""

    rate: str
    first: int
    last: int

    @property
    def bits(self) -> float:
        """Bits a second; NaN where the rate cannot be read."""
        found = re.fullmatch(r"([\d.]+)\s*([a-z]+)", self.rate.lower())
        if found is None or found[2] not in UNITS:
            return math.nan
        return float(found[1]) * UNITS[found[2]]


@dataclass(frozen=True)
class Target:
    """A training loss to meet, and how it came about."""

    loss: float
    text: str


@dataclass(frozen=True)
class Sent:
    """Of some steps: the mean gain of what was sent (NaN where nobody looked), and the share of steps by
    branch (empty where nothing was chosen)."""

    gain: float
    branches: Mapping[str, float] = field(default_factory=dict)


def stretches(run: Run) -> list[Stretch]:
    """In order; those that the run never came to are left out."""
    changes = run.setting("network.schedule") or []
    edges = [0, *(int(change["step"]) for change in changes), int(run.epochs["step"].iloc[-1])]
    rates = [str(run.setting("network.rate")), *(str(change["rate"]) for change in changes)]
    return [
        Stretch(rate, begin + 1, min(end, edges[-1]))
        for rate, begin, end in zip(rates, edges[:-1], edges[1:], strict=True)
        if begin < min(end, edges[-1])
    ]


def is_low(part: Stretch, parts: Sequence[Stretch]) -> bool:
    """Whether the links are slower here than at other times."""
    return part.bits < max(other.bits for other in parts)


def seconds_at(run: Run, step: int) -> float:
    """Seconds in training steps until a step has ended; between ends of epochs, in proportion."""
    steps = [0.0, *run.epochs["step"].astype(float)]
    return float(np.interp(step, steps, [0.0, *run.epochs["time/train_seconds"].astype(float)]))


def _seconds(run: Run, part: Stretch) -> float:
    return seconds_at(run, part.last) - seconds_at(run, part.first - 1)


def step_ms(run: Run, part: Stretch) -> float:
    """Mean milliseconds of a step."""
    return 1e3 * _seconds(run, part) / (part.last - part.first + 1)


def slowdown(run: Run) -> float:
    """A step while the rate is low over one at other times; NaN without both."""
    parts = stretches(run)
    means = []
    for low in (True, False):
        own = [part for part in parts if is_low(part, parts) == low]
        if not own:
            return math.nan
        steps = sum(part.last - part.first + 1 for part in own)
        means.append(sum(_seconds(run, part) for part in own) / steps)
    return means[0] / means[1]


def target_of(runs: Sequence[Run]) -> Target | None:
    """Dense's training loss in its last quarter of epochs plus one standard deviation; None without it."""
    dense = [run for run in runs if run.row == DENSE]
    if not dense:
        return None
    last = [
        run.epochs["train/loss"].astype(float).tail(max(1, len(run.epochs) // LAST_SHARE))
        for run in dense
    ]
    means = pd.Series([own.mean() for own in last])
    spread = means.std(ddof=1) if len(means) > 1 else last[0].std(ddof=1)
    spread = 0.0 if math.isnan(spread) else float(spread)
    over = f"over {len(means)} seeds" if len(means) > 1 else "over those epochs"
    loss = float(means.mean()) + spread
    return Target(
        loss,
        f"training loss {loss:.4g}: dense's {means.mean():.4g} in its last {len(last[0])} epochs plus one "
        f"standard deviation ({spread:.2g}, {over})",
    )


def seconds_to(run: Run, loss: float) -> float:
    """Seconds in training steps until an epoch's training loss is at most this; NaN where none is."""
    met = run.epochs[run.epochs["train/loss"].astype(float) <= loss]
    return float(met["time/train_seconds"].iloc[0]) if len(met) else math.nan


def steps_of(run: Run) -> pd.DataFrame:
    """Factor, gain and throughput by step. Where the policy tells nothing, the factor is that of the
    epoch: all values over those that were sent."""
    told = run.decisions
    if not told.empty and told["branch"].notna().any():
        return told[["step", "factor", "gain", "throughput"]]
    if run.row == DENSE and not told.empty:
        rate = told["samples"] / told["seconds"]
        return pd.DataFrame({"step": told["step"], "factor": 1.0, "gain": 1.0, "throughput": rate})
    ends = run.epochs["step"].astype(int)
    steps = ends.diff().fillna(ends.iloc[0]).astype(int)
    sent = run.epochs["comm/floats"].astype(float)
    sent = sent.diff().fillna(sent.iloc[0])
    factors = float(run.summary["parameters"]) * steps / sent
    return pd.DataFrame(
        {
            "step": range(1, int(ends.iloc[-1]) + 1),
            "factor": np.repeat(factors.to_numpy(), steps.to_numpy()),
            "gain": math.nan,
            "throughput": math.nan,
        }
    )


def factor(run: Run, part: Stretch) -> float:
    """Geometric mean over the steps of a stretch."""
    return float(np.exp(np.log(_within(steps_of(run), part)["factor"]).mean()))


def shares(run: Run, part: Stretch) -> Sent:
    """Mean gain, and what share of the steps took which branch."""
    gain = float(_within(steps_of(run), part)["gain"].mean())
    told = run.decisions
    if "theta_min" not in told or not told["branch"].notna().any():
        return Sent(gain)
    branches = _within(told, part)["branch"]
    names = ("candidate", "theta_min", "dense")
    return Sent(gain, {name: float((branches == name).mean()) for name in names})


def _within(steps: pd.DataFrame, part: Stretch) -> pd.DataFrame:
    return steps[(steps["step"] >= part.first) & (steps["step"] <= part.last)]
