"""Performance profiles of methods over workloads, and one score a method.

A setting's cost on a workload is what it takes to the workload's target. Its ratio is this cost over the
smallest one there, of the settings that have all workloads. Its profile is the share of workloads on which
its ratio is at most t, as a function of t. Its score is the area below the profile for t from 1 to `LARGEST`,
over that of a setting that is best everywhere.

Papers   Dolan and Moré, "Benchmarking optimization software with performance profiles", Mathematical
         Programming 91 (2002); Dahl et al., "Benchmarking neural network training algorithms" (2023),
         arXiv 2306.07179, section 4.4 (the score)
Differs  the area is taken over the logarithm of t, because bytes differ by factors of hundreds; AlgoPerf
         takes it over t from 1 to 4, of times
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from dgc_repro.paper.benchmark.paired import SENT
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.paper.frame import amount
from dgc_repro.paper.setting_names import name_of
from dgc_repro.paper.verdict import MIN_SEEDS

LARGEST = 100.0
"""A setting that costs so many times the best one on a workload scores nothing there."""

Costs = Mapping[str, Mapping[str, float]]
"""By setting and workload; infinite: a seed does not reach the target."""


def ratios(costs: Costs) -> dict[str, list[float]]:
    """Each setting's cost over the smallest, by workload. A setting that lacks a workload is left out, and a
    workload whose target no setting reaches."""
    known = {name for own in costs.values() for name in own}
    whole = {setting: own for setting, own in costs.items() if own.keys() == known}
    least = {name: min((own[name] for own in whole.values()), default=math.inf) for name in known}
    counted = sorted(name for name, cost in least.items() if math.isfinite(cost))
    return {
        setting: [own[name] / least[name] for name in counted] for setting, own in whole.items()
    }


def score(own: list[float]) -> float:
    """The area of the profile of these ratios, 0 to 1; NaN without any."""
    if not own:
        return math.nan
    return float(np.mean([max(0.0, 1 - math.log(r) / math.log(LARGEST)) for r in own]))


def table(found: pd.DataFrame, present: Sequence[str]) -> pd.DataFrame | None:
    """Each setting's bytes to the targets, and its score, the best first: rows with enough seeds to conclude.
    None for fewer than two workloads with a target."""
    costs: dict[str, dict[str, float]] = {}
    for row, own in found[found["quantity"] == SENT].groupby("row", sort=False)["value"]:
        name, _, setting = str(row).partition(".")
        if len(own) >= MIN_SEEDS:
            costs.setdefault(setting, {})[name] = float(own.mean())
    names = [name for name in present if any(name in one for one in costs.values())]
    if len(names) < 2:
        return None
    scores = {setting: score(own) for setting, own in ratios(costs).items()}
    ordered = sorted(scores, key=lambda setting: -scores[setting])
    columns: dict[str, list[str]] = {"setting": [*map(name_of, ordered)]}
    for name in names:
        cells = [costs[setting][name] for setting in ordered]
        columns[workloads()[name].title] = [
            amount([cell]) if np.isfinite(cell) else "missed" for cell in cells
        ]
    return pd.DataFrame(columns | {"score": [f"{scores[setting]:.2f}" for setting in ordered]})
