"""GraVAC against the oracle: modelled time to the target over that of the best static row in hindsight.

The oracle is the quickest of the model's static runs at hand, found after all have run: what a policy that
knew the outcome would have planned. Regret is the quotient of the times, paired by seed; the target is of all
dense runs at hand, whatever their seeds. A row that sends nearly what dense sends is marked: its regret says
nothing about compression.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dgc_repro.paper.gravac import METHODS
from dgc_repro.paper.gravac_training import (
    COMPRESSED_FROM,
    DENSE,
    METHOD_LABELS,
    row_id,
)
from dgc_repro.report.gravac_course import MODELLED, Course, seconds_to_target
from dgc_repro.report.gravac_decisions import cell, times
from dgc_repro.report.gravac_pool import (
    Numbers,
    collect,
    method_of,
    reductions,
    rows_of,
    sent,
)
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block

STATIC = re.compile(rf"(?:{'|'.join(name for name, _ in METHODS)})\d+|{DENSE}")
SECONDS, REGRET, FEWER = "seconds_to_target", "regret", "floats_reduction"


def paired(course: Course, rows: Mapping[str, str]) -> Course:
    """The runs of the seeds that ``rows`` have, if any: others set the target, and are no oracle."""
    seeds = {run.seed for run in course.runs if run.row in rows}
    own = tuple(run for run in course.runs if run.seed in seeds or not seeds)
    return replace(course, runs=own)


def numbers(course: Course, rows: Mapping[str, str]) -> Numbers:
    """Modelled seconds to our target of every run that meets it, the regret of ``rows``, and how many times
    fewer floats than dense each row sends."""
    target = course.target
    if target is None:
        return {}

    def seconds(run: Run) -> float:
        found = seconds_to_target(run, course, target, MODELLED)
        return found if math.isfinite(found) else math.nan

    found = collect(course.runs, {SECONDS: seconds})
    best = oracle(course, found)
    regret = {
        name: {seed: value / best[seed][0] for seed, value in own.items() if seed in best}
        for name, own in found.get(SECONDS, {}).items()
        if name in rows
    }
    fewer = reductions(sent(course.runs), row_id(course.model, DENSE)).get(FEWER, {})
    regret = {name: own for name, own in regret.items() if own}
    return {**found, REGRET: regret, FEWER: {name: fewer[name] for name in rows if name in fewer}}


def statics(course: Course) -> list[str]:
    """The rows of the model that keep one factor, dense among them, by name."""
    return sorted({run.row for run in course.runs if STATIC.fullmatch(method_of(run))})


def statics_text(course: Course) -> str:
    """The same in words, compressors that have the same factors together."""
    own = {method_of(run) for run in course.runs}
    together: dict[str, list[str]] = {}
    for method, label in METHODS:
        factors = [
            int(re.sub(r"\D", "", name)) for name in own if re.fullmatch(rf"{method}\d+", name)
        ]
        if factors:
            at = ", ".join(f"{factor}x" for factor in sorted(factors))
            together.setdefault(at, []).append(label)
    parts = [f"{', '.join(labels)} at {at}" for at, labels in together.items()]
    return "; ".join([*([DENSE] if DENSE in own else []), *parts]) or "none"


def nearly_dense(found: Numbers, name: str) -> str:
    """What is said of a row that sends nearly what dense sends; nothing of others."""
    fewer = list(found.get(FEWER, {}).get(name, {}).values())
    if not fewer or np.mean(fewer) > COMPRESSED_FROM:
        return ""
    return f"nearly dense ({times(found, FEWER, name)} fewer floats)"


def target_text(course: Course) -> str:
    """The target with its unit, and how many dense runs it is of."""
    assert course.target is not None
    value = f"{course.target.value:.4g} {course.metric.unit}".rstrip()
    dense = course.target.dense
    return f"{value} (dense n = {dense.n if dense else 0})"


def oracle(course: Course, found: Numbers) -> dict[int, tuple[float, str]]:
    """By seed: the shortest time to the target of a static row, and which row."""
    best: dict[int, tuple[float, str]] = {}
    for name in statics(course):
        for seed, seconds in found.get(SECONDS, {}).get(name, {}).items():
            best[seed] = min(best.get(seed, (seconds, name)), (seconds, name))
    return best


def of_oracle(best: Mapping[int, tuple[float, str]]) -> Numbers:
    """The oracle's seconds, as those of a row."""
    return {SECONDS: {"oracle": {seed: seconds for seed, (seconds, _) in best.items()}}}


def oracle_label(best: Mapping[int, tuple[float, str]]) -> str:
    """The oracle, and which rows it is."""
    which = ", ".join(dict.fromkeys(_label(name) for _, name in best.values()))
    return f"oracle: {which or '-'}"


def regret_block(course: Course, rows: Mapping[str, str]) -> tuple[Block, Numbers]:
    """The table, and its numbers. ``rows``: labels of the rows that adapt."""
    course = paired(course, rows)
    found = numbers(course, rows)
    best = oracle(course, found)
    lines = [
        (
            label,
            str(len(rows_of(course.runs, name))),
            cell(found, SECONDS, name),
            _regret(found, name),
        )
        for name, label in rows.items()
    ]
    lines.append(
        (
            oracle_label(best),
            str(len(best)),
            cell(of_oracle(best), SECONDS, "oracle"),
            "1x" if best else "-",
        )
    )
    goal = target_text(course) if course.target else "unknown without a dense run"
    block = Block(
        "Regret: modelled time to the target over that of the best static row",
        f"Target: {course.metric.label} of our own dense runs of all seeds at hand, mean less one standard "
        f"deviation (perplexity: plus; of one run its last value), {goal}. Seconds as the network's model "
        "has them, to the first evaluation that meets it; '-': not met, or no network named. The oracle is "
        "the quickest of the static rows at hand "
        f"({statics_text(course)}), chosen in hindsight, paired by seed. Nearly dense: at most "
        f"{COMPRESSED_FROM:g}x fewer floats than dense, so that regret says nothing about compression.",
        ("row", "n", "seconds", "regret"),
        tuple(lines),
    )
    return block, found


def _regret(found: Numbers, name: str) -> str:
    regret, mark = times(found, REGRET, name), nearly_dense(found, name)
    return f"{regret}, {mark}" if mark else regret


def _label(name: str) -> str:
    method = name.partition(".")[2]
    return METHOD_LABELS.get(method, method)
