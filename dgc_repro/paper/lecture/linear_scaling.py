"""The linear learning-rate scaling rule, with and without warm-up, against the tuned learning rate.

Paper: Goyal et al., "Accurate, large minibatch SGD", 2017, arXiv:1706.02677, sections 2.1 and 2.2: when the
batch is k times as large, multiply the learning rate by k; begin with a gradual warm-up.

The tuned rates, and the base rate, are those of batch_size.py. The rule holds at a batch size where it needs
at most `HOLDS` times the steps of the tuned rate.

Differs: the warm-up begins at 0 and not at the base rate. We count steps to a target; the paper compares the
accuracy after 90 epochs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, pivot
from dgc_repro.paper.lecture import batch_size
from dgc_repro.paper.lecture.batch_size import EDGES, RATE, STEPS, drawn, first, tried_of, tuned_of
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.statistics import interval

WORDS = Template.read(__file__)
POOL = "batch_size"
WORKLOADS = {name: batch_size.WORKLOADS[name] for name in ("cnn_digits", "cnn_cifar10")}
BASE = 8
"""The batch size that the rule starts from."""
TUNED, RULE, WARM = "tuned", "rule", "rule_warmup"
LOOKS = {
    TUNED: Look("tuned for each batch size", plot.BLACK, "o"),
    RULE: Look("linear rule", plot.ORANGE, "s"),
    WARM: Look("linear rule with warm-up", plot.BLUE, "^"),
}
LABELS = {
    f"{w}.{m}": f"{WORKLOADS[w]}: {look.label}" for w in WORKLOADS for m, look in LOOKS.items()
}
OVER = "steps over those of the tuned rate"
LARGEST = "largest batch size at which the rule holds"
REACHES = "largest batch size at which the rule reaches the target"
HOLDS = 1.25
"""Ours: the rule holds where it needs at most so many times the steps of the tuned rate."""


def _claims(workload: str) -> Iterator[Claim]:
    tuned, rule, warm = (f"{workload}.{method}" for method in LOOKS)
    checks = {
        "twice": Check(OVER, rule, above=0, below=HOLDS, setting=str(2 * BASE), printed=1.0),
        "breaks": Check(LARGEST, tuned, rule, above=1, ratio=True),
        "warmup": Check(LARGEST, warm, rule, above=1, ratio=True),
        "reaches": Check(REACHES, warm, rule, above=1, ratio=True),
    }
    said = {"what": WORKLOADS[workload], "twice": 2 * BASE, "holds": HOLDS}
    for name, check in checks.items():
        premises = batch_size.inside(tuned)
        yield WORDS.claim(name, check, of=workload, premises=premises, ours=True, **said)


CLAIMS = tuple(claim for workload in WORKLOADS for claim in _claims(workload))


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    runs = [run for run in runs if batch_size.is_timed(run) and run.model in WORKLOADS]
    if not runs:
        raise UserError("experiment.artifact: at least one finished run of batch_size, got none")
    for workload in WORKLOADS:
        alike = [key for key in batch_size.ALIKE if key != "schedule"]
        require_alike([run for run in runs if run.model == workload], alike)
    found = numbers(runs)
    warmups = facts.distinct(
        f"{warmup_of(run):g} of at most {run.setting('train.epochs')} epochs ({WORKLOADS[run.model]})"
        for run in runs
        if warmup_of(run) > 0
    )
    said = f"{facts.caption(runs, scale)}; mean over seeds, bars: standard deviation"
    shown = [
        _panel(found, workload, quantity, name)
        for workload in WORKLOADS
        if _batches(found, workload)
        for quantity, name in ((STEPS, STEPS), (RATE, "learning rate"))
    ]
    return made(
        __file__, scale, runs, found, _sections(found), CLAIMS, labels=LABELS,
        said={"base": BASE, "holds": f"{HOLDS:g}", "warmup": warmups},
        figures={
            "linear_scaling": lambda: plot.figure(
                "Linear learning-rate scaling", said, shown, columns=2, legend=3
            )
        },
    )  # fmt: skip


def warmup_of(run: Run) -> float:
    """Epochs of warm-up."""
    return float(run.setting("schedule.warmup_epochs"))


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows ``<workload>.<tuned, rule, rule_warmup>``, settings are batch sizes."""
    parts = [frames.lines([])]
    for workload in dict.fromkeys(run.model for run in runs):
        own = [run for run in runs if run.model == workload]
        plain = tried_of(run for run in own if warmup_of(run) == 0)
        warm = tried_of(run for run in own if warmup_of(run) > 0)
        tuned = tuned_of(plain)
        base = tuned.loc[tuned["batch"] == BASE, "rate"]
        if base.empty:
            continue
        tables = {
            TUNED: tuned,
            RULE: _with_rates(plain, float(base.iloc[0]) / BASE),
            WARM: _with_rates(warm, float(base.iloc[0]) / BASE),
        }
        parts += [_lines(f"{workload}.{name}", table, tuned) for name, table in tables.items()]
    return frames.join(*parts)


def _with_rates(tried: pd.DataFrame, a_sample: float) -> pd.DataFrame:
    """The runs above the base batch size whose learning rate is proportional to it."""
    above = tried[tried["batch"] > BASE] if len(tried) else tried
    return above[np.isclose(above["rate"], a_sample * above["batch"])] if len(above) else above


def _lines(row: str, table: pd.DataFrame, tuned: pd.DataFrame) -> pd.DataFrame:
    """Steps and rates of a row; its steps over the tuned ones; the largest batch size where it holds."""
    found: list[dict[str, object]] = []
    keys = zip(tuned["batch"], tuned["seed"], strict=True)
    best = dict(zip(keys, tuned["steps"], strict=True))
    by_seed: dict[int, dict[int, float]] = {}
    columns = ("batch", "seed", "rate", "steps")
    for batch, seed, rate, steps in table.reindex(columns=columns).itertuples(index=False):
        if batch < BASE:
            continue
        at = {"row": row, "seed": seed, "setting": str(batch)}
        found += [
            {**at, "quantity": STEPS, "unit": "steps", "value": steps},
            {**at, "quantity": RATE, "value": rate},
        ]
        if math.isfinite(best.get((batch, seed), math.nan)):
            over = by_seed.setdefault(seed, {})
            over[batch] = steps / best[batch, seed]
            found.append({**at, "quantity": OVER, "unit": "x", "value": over[batch]})
    for seed, points in tuned[tuned["batch"] >= BASE].groupby("seed"):
        value = float(points["at_edge"].sum())
        if row.endswith(f".{TUNED}"):
            found.append({"row": row, "seed": seed, "quantity": EDGES, "value": value})
    above = tuned[(tuned["batch"] > BASE) & np.isfinite(tuned["steps"])]
    for seed, over in by_seed.items():
        if not set(above.loc[above["seed"] == seed, "batch"]) <= over.keys():
            continue  # a rule that was not run everywhere has no largest batch size
        for name, most in ((LARGEST, HOLDS), (REACHES, sys.float_info.max)):
            at = {"row": row, "seed": seed, "quantity": name, "unit": "samples"}
            found.append({**at, "value": float(largest(over, most))})
    return frames.lines(found)


def largest(over: Mapping[int, float], most: float) -> int:
    """The largest batch size up to which all of them need at most ``most`` times the steps; the base one for
    none."""
    found = BASE
    for batch in sorted(batch for batch in over if batch > BASE):
        if over[batch] > most:
            break
        found = batch
    return found


def _batches(found: pd.DataFrame, workload: str) -> list[int]:
    steps = found[found["quantity"] == STEPS]
    own = zip(steps["row"], steps["setting"], strict=True)
    return sorted({int(batch) for row, batch in own if row.startswith(f"{workload}.")})


def _sections(found: pd.DataFrame) -> list[Section]:
    measured = [w for w in WORKLOADS if _batches(found, w)]
    lines = []
    for workload in measured:
        for batch in _batches(found, workload):
            cells = {"workload, batch size": f"{WORKLOADS[workload]}, {batch}"}
            for method, look in LOOKS.items():
                at = (f"{workload}.{method}", str(batch))
                cells[f"{look.label}: rate"] = first(frames.of(found, RATE, *at))
                cells[f"{look.label}: steps"] = frames.number(frames.of(found, STEPS, *at), 0)
            lines.append(cells)

    def middle(values: frames.Values) -> str:
        return f"{interval(values, ratio=True)[0]:.0f}" if values else "-"

    columns = (
        frames.seeds(LARGEST),
        Column("largest batch size that holds", LARGEST, middle),
        Column("largest batch size that reaches the target", REACHES, middle),
    )
    rules = {row: LABELS[row] for w in measured for row in (f"{w}.{RULE}", f"{w}.{WARM}")}
    return [
        Section("Steps to the target", pd.DataFrame(lines)),
        Section("Where the rule holds", pivot(found, rules, columns, "workload, rule")),
    ]


def _panel(found: pd.DataFrame, workload: str, quantity: str, name: str) -> panels.Panel:
    """Steps or rates by batch size."""
    settings = {batch: str(batch) for batch in _batches(found, workload)}
    lines = [
        drawn(
            found, quantity, dict.fromkeys(settings, f"{workload}.{method}"), settings=settings,
            elinewidth=0.8, **look.line,
        )
        for method, look in LOOKS.items()
    ]  # fmt: skip
    title = f"{WORKLOADS[workload]}: {name}"
    return panels.panel(title, *lines, x="batch size", y=name, log="xy")
