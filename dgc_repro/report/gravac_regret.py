"""GraVAC against the oracle: modelled time to the target over that of the best static row in hindsight.

The oracle is the quickest of the model's static runs at hand, found after all have run: what a policy that
knew the outcome would have planned. Regret is the quotient of the times, paired by seed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from dgc_repro.paper.gravac import METHODS
from dgc_repro.paper.gravac_training import DENSE, METHOD_LABELS
from dgc_repro.report.gravac_course import MODELLED, Course, seconds_to_target
from dgc_repro.report.gravac_decisions import cell, times
from dgc_repro.report.gravac_pool import Numbers, collect, method_of, rows_of
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block

STATIC = re.compile(rf"(?:{'|'.join(name for name, _ in METHODS)})\d+|{DENSE}")
SECONDS, REGRET = "seconds_to_target", "regret"


def numbers(course: Course, rows: Mapping[str, str]) -> Numbers:
    """Modelled seconds to our target of every run that meets it, and the regret of ``rows``."""
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
    return {**found, REGRET: {name: own for name, own in regret.items() if own}}


def statics(course: Course) -> list[str]:
    """The rows of the model that keep one factor, dense among them, by name."""
    return sorted({run.row for run in course.runs if STATIC.fullmatch(method_of(run))})


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
    found, target = numbers(course, rows), course.target
    best = oracle(course, found)
    lines = [
        (
            label,
            str(len(rows_of(course.runs, name))),
            cell(found, SECONDS, name),
            times(found, REGRET, name),
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
    tried = ", ".join(_label(name) for name in statics(course)) or "none"
    goal = "unknown without a dense run"
    if target is not None:
        goal = f"{target.value:.4g} {course.metric.unit}".rstrip()
    block = Block(
        "Regret: modelled time to the target over that of the best static row",
        f"Target: {course.metric.label} of our own dense runs, mean less one standard deviation "
        f"(perplexity: plus), {goal}. Seconds as the network's model has them, to the first evaluation that "
        f"meets it; '-': not met, or no network named. The oracle is the quickest of the static rows at hand "
        f"({tried}), chosen in hindsight.",
        ("row", "n", "seconds", "regret"),
        tuple(lines),
    )
    return block, found


def _label(name: str) -> str:
    method = name.partition(".")[2]
    return METHOD_LABELS.get(method, method)
