"""The linear learning-rate scaling rule, with and without warm-up, against the tuned learning rate.

Paper: Goyal et al., "Accurate, large minibatch SGD", 2017, arXiv:1706.02677, sections 2.1 and 2.2: when the
batch is k times as large, multiply the learning rate by k; begin with a gradual warm-up.

The tuned rates, and the base rate, are those of batch_size.py. The rule holds at a batch size where it needs
at most `HOLDS` times the steps of the tuned rate.

Differs: the warm-up begins at 0 and not at the base rate. We count steps to a target; the paper compares the
accuracy after 90 epochs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from dgc_repro.paper.artifact import BARS, Artifact, drawing
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, join, longer, seeds, times
from dgc_repro.paper.lecture import batch_size, by_number, first, line_for_each
from dgc_repro.paper.lecture.tuning import RATE, STEPS, tried_of, tuned_of
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run, require_alike

WORDS = Template.read(__file__)
POOL = "batch_size"
WORKLOADS = {name: batch_size.WORKLOADS[name] for name in ("cnn_digits", "cnn_cifar10")}
BASE = 8
"""The batch size that the rule starts from."""
METHODS = {"tuned": "tuned", "rule": "linear rule", "rule_warmup": "linear rule with warm-up"}
LABELS = {f"{w}.{m}": f"{WORKLOADS[w]}: {METHODS[m]}" for w in WORKLOADS for m in METHODS}
OVER = "steps over those of the tuned rate"
LARGEST = "largest batch size at which the rule holds"
REACHES = "largest batch size at which the rule reaches the target"
HOLDS = 1.25
"""Ours: the rule holds where it needs at most so many times the steps of the tuned rate."""


def _claims() -> Iterator[Claim]:
    for workload, what in WORKLOADS.items():
        tuned, rule, warm = (f"{workload}.{method}" for method in METHODS)
        checks = {
            "twice": Check(OVER, rule, above=0, below=HOLDS, setting=str(2 * BASE)),
            "breaks": Check(LARGEST, tuned, rule, above=1, ratio=True),
            "warmup": Check(LARGEST, warm, rule, above=1, ratio=True),
            "reaches": Check(REACHES, warm, rule, above=1, ratio=True),
        }
        how = {"of": workload, "premises": batch_size.inside(tuned)}
        said = {"what": what, "twice": 2 * BASE, "holds": HOLDS}
        for name, check in checks.items():
            yield WORDS.claim(name, check, ours=name != "reaches", **how, **said)


def largest(over: pd.Series[float], most: float) -> float:
    """The largest batch size up to which all of them need at most ``most`` times the steps; the base one for
    none. ``over``: by batch size."""
    held = over.sort_index() <= most
    return float(max(held.index[held.cummin()], default=BASE))


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows ``<workload>.<tuned, rule, rule_warmup>``, settings are batch sizes."""
    for workload in WORKLOADS:
        require_alike([run for run in runs if run.model == workload], batch_size.ALIKE)
    tried = tried_of(runs, warmup=lambda run: float(run.setting("schedule.warmup_epochs")))
    tried = tried[tried["batch"] >= BASE]
    tuned = tuned_of(tried[tried["warmup"] == 0])
    base = tuned[tuned["batch"] == BASE].groupby("row")["rate"].first()
    is_rule = np.isclose(tried["rate"], tried["row"].map(base) / BASE * tried["batch"])
    rule = tried[is_rule & (tried["batch"] > BASE)]
    rule = rule.assign(method=np.where(rule["warmup"] > 0, "rule_warmup", "rule"))
    keys = ["row", "batch", "seed"]
    best = tuned.set_index(keys)["steps"].rename("best").where(np.isfinite)
    points = pd.concat([tuned.assign(method="tuned"), rule]).join(best, on=keys)
    points = points.assign(over=points["steps"] / points["best"], workload=points["row"])
    points["row"] += "." + points["method"]
    above = points[(points["batch"] > BASE) & points["best"].notna()]
    run, wanted = (
        above.groupby([key, "seed"])["batch"].transform("nunique") for key in ("row", "workload")
    )
    columns, found = ["row", "seed", LARGEST, REACHES], []
    for (row, seed), own in above[run == wanted].groupby(["row", "seed"]):
        over = own.set_index("batch")["over"]
        ends = {LARGEST: largest(over, HOLDS), REACHES: largest(over, sys.float_info.max)}
        found.append({"row": row, "seed": seed, **ends})
    edges = points.dropna(subset="at_edge").groupby(["row", "seed"])["at_edge"].sum()
    return join(
        longer(points, {"steps": (STEPS, "steps"), "rate": (RATE, ""), "over": (OVER, "x")}),
        longer(edges.reset_index(), {"at_edge": (batch_size.EDGES, "")}),
        longer(
            pd.DataFrame(found, columns=columns),
            {name: (name, "samples") for name in (LARGEST, REACHES)},
        ),
    )


page = Artifact(
    __file__,
    rows=LABELS,
    numbers=numbers,
    tables={
        "Steps to the target": line_for_each(
            "workload, batch size",
            (Column("rate", RATE, first), Column("steps", STEPS, 0), Column(OVER, OVER, times)),
        ),
        "Where the rule holds": (
            *(seeds(LARGEST), Column(LARGEST, LARGEST, 0), Column(REACHES, REACHES, 0)),
        ),
    },
    claims=tuple(_claims()),
    figures={
        "linear_scaling": drawing(
            "Linear learning-rate scaling",
            lambda shown: [
                by_number(
                    shown,
                    STEPS,
                    {f"{w}.{m}": label for m, label in METHODS.items()},
                    WORKLOADS[w],
                    x="batch size",
                    log="xy",
                )
                for w in WORKLOADS
            ],
            BARS,
            legend=3,
        )
    },
    said=lambda _: {"base": BASE, "holds": f"{HOLDS:g}"},
    alike=(),
)
