"""Learning rates that were tried: all of them, and the cost of each setting with dense training's rate beside
that with its own best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, or_diverged, quality, workloads
from dgc_repro.paper.records import Run
from dgc_repro.paper.setting_names import name_of

BySeed = Mapping[int, Run]


def recorded(runs: Sequence[Run]) -> str:
    """Return the largest learning rate that runs of one setting recorded at the end of an epoch, in words. It
    is the rate of a step: `optimizer.lr` times the batch of a step over `optimizer.reference_batch`, times
    the schedule."""
    rates = [f"{run.epochs['lr'].max():.3g}" for run in runs]
    low, high = min(rates, key=float), max(rates, key=float)
    return low if low == high else f"{low} to {high}"


def every_rate(runs: Sequence[Run], name: str) -> pd.DataFrame:
    """Every rate that was tried of a workload's settings: means of the last validation and the last test. The
    best validation of a setting is marked, and the rate that is used."""
    lines = []
    for setting, rates in _tried(runs, name).items():
        best = _best_rate(rates)
        for rate in sorted(rates):
            own = list(rates[rate].values())
            validation, test = (
                or_diverged([quality(run, split) for run in own])
                for split in ("validation", "test")
            )
            lines.append(
                {
                    "workload": workloads()[name].title,
                    "setting": name_of(setting),
                    "learning rate": f"{rate:g}",
                    "used": "" if TUNES in own[0].method else "yes",
                    "n": str(len(own)),
                    "last validation": validation + " (best)" * (rate == best),
                    "last test": test,
                }
            )
    return pd.DataFrame(lines)


def best_rates(runs: Sequence[Run], name: str) -> list[dict[str, str]]:
    """Of each setting whose rates were tried: its cost with dense training's rate, and with its own best rate
    against dense training with its best one."""
    workload, tried = workloads()[name], _tried(runs, name)
    if DENSE not in tried:
        return []
    best = {setting: _best_rate(rates) for setting, rates in tried.items()}
    first = next(run for run in runs if run.row == f"{name}.{DENSE}")
    usual = float(first.setting("optimizer.lr"))

    def costs(setting: str, rate: float, base: float) -> list[float]:
        own, dense = tried[setting].get(rate, {}), tried[DENSE][base]
        both = sorted(own.keys() & dense.keys())
        return [workload.cost_of_test(own[seed], dense[seed]) for seed in both]

    lines = []
    for setting, rates in tried.items():
        both = costs(setting, best[setting], best[DENSE])
        is_edge = best[setting] in (min(rates), max(rates))
        lines.append(
            {
                "workload": workload.title,
                "setting": name_of(setting),
                "rates": str(len(rates)),
                "best rate": f"{best[setting]:g}"
                + (", the last of those tried" if is_edge else ""),
                "n": str(len(both)),
                "cost, dense's rate": _with_unit(costs(setting, usual, usual), workload.unit),
                "cost, both tuned": _with_unit(both, workload.unit),
            }
        )
    return lines


def _tried(runs: Sequence[Run], name: str) -> dict[str, dict[float, BySeed]]:
    """The runs of each setting of which several rates were tried, in the order of names, by rate and seed.
    The seeds are those that tried all these rates."""
    found: dict[str, dict[float, dict[int, Run]]] = {}
    for run in runs:
        if run.model == name:
            setting, rate = run.method.partition(TUNES)[0], float(run.setting("optimizer.lr"))
            found.setdefault(setting, {}).setdefault(rate, {})[run.seed] = run
    several: dict[str, dict[float, BySeed]] = {}
    for setting, rates in sorted(found.items()):
        seeds = set.intersection(*(set(own) for own in rates.values()))
        if len(rates) > 1 and seeds:
            several[setting] = {
                rate: {seed: own[seed] for seed in sorted(seeds)} for rate, own in rates.items()
            }
    return several


def _best_rate(rates: Mapping[float, BySeed]) -> float:
    """The rate with the best mean of the last validation."""
    name = next(iter(next(iter(rates.values())).values())).model
    sign = 1 if workloads()[name].is_difference else -1
    means = {
        rate: sign * float(np.mean([quality(run, "validation") for run in own.values()]))
        for rate, own in rates.items()
    }
    return max(means, key=lambda rate: means[rate])


def _with_unit(values: Sequence[float], unit: str) -> str:
    return f"{or_diverged(values, 1)} {unit}" if len(values) else "-"
