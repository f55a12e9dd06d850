"""GraVAC's pool of runs, as its pages read it: rows by model, the metric, numbers by quantity, row and seed.

All that a page says of its runs is first a number by quantity, row and seed (`Numbers`): claims, tables and
table.csv are made of the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dgc_repro.paper.claim import Claim
from dgc_repro.paper.gravac_training import DENSE
from dgc_repro.report.quantities import QUANTITIES
from dgc_repro.report.records import Run, require_alike
from dgc_repro.report.study import distinct, header, judged
from dgc_repro.report.verdict import Values, Verdict

ALIKE = (
    *("scale.name", "launch.kind", "launch.workers", "dataset", "model", "optimizer", "schedule"),
    *("train.epochs", "train.batch_size", "train.step_time", "goal.metric"),
)
"""What all runs of one model must share."""
UNITS = {"floats": "floats", "payload_bytes": "payload", "wire_bytes": "wire"}
"""What is counted of what is sent, and the word for it."""
Numbers = dict[str, dict[str, dict[int, float]]]
"""By quantity, row, seed."""
Series = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """The quality of a run: ``column`` of its epochs; ``sign``: -1 where less is better."""

    column: str
    label: str
    unit: str
    sign: int = 1


METRICS = {
    "accuracy": Metric("test/accuracy_percent", "test accuracy", "%"),
    "top5": Metric("test/top5_percent", "top-5 test accuracy", "%"),
    "perplexity": Metric("test/perplexity", "test perplexity", "", sign=-1),
}
"""By ``goal.metric``."""


def metric_of(runs: Sequence[Run]) -> Metric:
    """The metric that runs are judged by; of runs without a goal what they have."""
    named = next((m for run in runs if (m := run.setting("goal.metric"))), None)
    if named is None:
        has_words = any("test/perplexity" in run.epochs.columns for run in runs)
        named = "perplexity" if has_words else "accuracy"
    return METRICS[str(named)]


def of_model(runs: Sequence[Run], model: str) -> list[Run]:
    """The runs of one model; UserError if they are not alike."""
    own = [run for run in runs if run.row.startswith(f"{model}.")]
    require_alike(own, ALIKE)
    return own


def method_of(run: Run) -> str:
    """The part of the row after its model."""
    return run.row.partition(".")[2]


def rows_of(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs of one row, by seed."""
    return sorted((run for run in runs if run.row == name), key=lambda run: run.seed)


def compared(runs: Sequence[Run]) -> list[Run]:
    """Without dense runs of seeds that no other row has: these set the target and stand beside nothing."""
    seeds = {run.seed for run in runs if method_of(run) != DENSE}
    return [run for run in runs if run.seed in seeds or not seeds]


def seeds_text(runs: Sequence[Run]) -> str:
    """The seeds, and those that only dense has."""
    own = {run.seed for run in compared(runs)}
    more = {run.seed for run in runs} - own
    text = ", ".join(map(str, sorted(own)))
    return (
        f"{text}; of dense, for the target, {', '.join(map(str, sorted(more)))} too"
        if more
        else text
    )


def num_steps(run: Run) -> int:
    """Steps of the whole run."""
    return int(run.epochs["step"].iloc[-1])


def quality(run: Run, metric: Metric) -> Series:
    """The metric after each epoch."""
    return np.asarray(run.epochs[metric.column], dtype=np.float64)


def curve(runs: Sequence[Run], metric: Metric) -> pd.DataFrame:
    """Mean and standard deviation of the quality by step, over the runs of one row."""
    series = [run.epochs.set_index("step")[metric.column].astype(float) for run in runs]
    values = pd.concat(series, axis=1)
    return pd.DataFrame({"mean": values.mean(axis=1), "sd": values.std(axis=1, ddof=1)})


def collect(runs: Sequence[Run], quantities: Mapping[str, Callable[[Run], float]]) -> Numbers:
    """Each quantity of each run. NaN means that a run does not have it, and is left out."""
    found: Numbers = {}
    for name, of in quantities.items():
        for run in runs:
            value = of(run)
            if not math.isnan(value):
                found.setdefault(name, {}).setdefault(run.row, {})[run.seed] = value
    return found


def sent(runs: Sequence[Run]) -> Numbers:
    """Floats, payload bytes and wire bytes of each run."""
    return collect(runs, {name: QUANTITIES[name].of for name in UNITS})


def quotients(numbers: Values, quantity: str, above: str, below: str) -> list[float]:
    """The first row's number over the second's, for each seed that both have."""
    upper, lower = (numbers.get(quantity, {}).get(name, {}) for name in (above, below))
    return [upper[seed] / lower[seed] for seed in sorted(upper) if lower.get(seed)]


def reductions(numbers: Values, dense: str) -> Numbers:
    """By ``<unit>_reduction`` and row: how many times what is sent a dense run sends, paired by seed."""
    found: Numbers = {}
    for unit in UNITS:
        rows = numbers.get(unit, {})
        whole = rows.get(dense, {})
        for name, own in rows.items():
            pairs = {seed: whole[seed] / own[seed] for seed in own if seed in whole and own[seed]}
            if pairs and name != dense:
                found.setdefault(f"{unit}_reduction", {})[name] = pairs
    return found


def merged(*parts: Numbers) -> Numbers:
    """Numbers of different rows or quantities in one."""
    found: Numbers = {}
    for part in parts:
        for quantity, rows in part.items():
            found.setdefault(quantity, {}).update(rows)
    return found


def judge(
    claims: Sequence[Claim], numbers: Values, scale: str
) -> tuple[tuple[Claim, Verdict], ...]:
    """Each claim with its verdict. A row whose name is a number is that number, for every seed."""
    full = {name: dict(rows) for name, rows in numbers.items()}
    for check in (check for claim in claims for check in claim.checks):
        rows = full.get(check.quantity, {})
        seeds = {seed for found in rows.values() for seed in found}
        for name in (check.greater, check.lesser):
            if name.replace(".", "", 1).isdigit():
                rows[name] = dict.fromkeys(seeds, float(name))
    return judged(claims, full, scale)


def written(values: Sequence[float], unit: str = "", decimals: int | None = None) -> str:
    """Mean and standard deviation over seeds, three digits or ``decimals``; '-' for no values."""
    if not values:
        return "-"
    mean = float(np.mean(values))
    if decimals is None:
        decimals = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 10 else 2
    text = f"{mean:.{decimals}f}{unit}"
    if len(values) < 2:
        return text
    return f"{text} +- {float(np.std(values, ddof=1)):.{decimals}f}"


def csv_line(
    model: str,
    method: str,
    column: str,
    unit: str,
    values: Sequence[float],
    paper: float | None = None,
) -> dict[str, Any]:
    """One number for table.csv: the paper's, and mean, standard deviation and n over seeds."""
    return {
        "model": model,
        "method": method,
        "column": column,
        "unit": unit,
        "paper": paper,
        "mean": float(np.mean(values)) if values else math.nan,
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
        "n": len(values),
    }


def pool_header(runs: Sequence[Run], scale: str) -> tuple[tuple[str, str], ...]:
    """What the runs are: world, data, what modelled seconds are made of, seeds, hardware, code."""
    worlds = [f"{r.setting('launch.workers')} {r.setting('launch.kind')} workers" for r in runs]
    computes = [
        f"{run.row.partition('.')[0]} {ms:g} ms"
        for run in runs
        if (ms := run.setting("train.compute_ms")) is not None
    ]
    scales = [
        f"{run.row.partition('.')[0]} {times:g}"
        for run in runs
        if (times := run.setting("network.message_scale")) is not None
    ]
    as_workers = distinct([run.setting("network.as_workers") for run in runs])
    modelled = (
        f"{distinct([run.setting('network.source') for run in runs])}; collectives of {as_workers} "
        f"workers, one a step for all tensors; compute assumed: {distinct(computes)} a step; compression and "
        f"decompression for nothing; bytes of a slim model times: {distinct(scales)}"
    )
    lines = header(
        runs,
        scale,
        [
            ("world", distinct(worlds)),
            ("data", distinct([run.environment.get("data") for run in runs])),
            ("modelled seconds", modelled if computes else "none: no network is named"),
            ("measured seconds", "training steps on this machine; simulated workers take turns"),
        ],
    )
    return tuple({**dict(lines), "seeds": seeds_text(runs)}.items())
