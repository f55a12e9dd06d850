"""The loop that all benchmarks measure with: several ways to do the same, one right after the other.

A slow minute of a shared machine then meets all of them alike, and quotients or differences inside a round
show what the ways differ by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd

from dgc_repro.bench.world import everyone, together

ROUNDS = 3
"""Repeats of a case are spread over so many rounds over all cases, minutes apart."""
Numbers: TypeAlias = Mapping[str, float]
Steps: TypeAlias = dict[str, pd.DataFrame]
"""By way, a row a round. Columns that end in ``_ms`` or begin with ``calls`` are means over ranks, others the
highest of any rank: seconds of the slowest."""


def rounds(ways: Mapping[str, Callable[[], Numbers]], repeats: int, warmup: int = 0) -> Steps:
    """Do every way in each round, the first one in front and the others in an order that turns by one.
    ``warmup`` rounds are not counted. Called by all ranks; what a way returns are this rank's numbers."""
    first, *others = ways
    found: dict[str, list[Numbers]] = {name: [] for name in ways}
    for number in range(warmup + repeats):
        turn = number % max(1, len(others))
        for name in (first, *others[turn:], *others[:turn]):
            numbers = ways[name]()
            if number >= warmup:
                found[name].append(numbers)
    return {name: over_ranks(numbers) for name, numbers in found.items()}


def over_ranks(steps: Sequence[Numbers]) -> pd.DataFrame:
    """One table for all ranks."""
    own = pd.DataFrame(list(steps), dtype=float).fillna(0.0)
    by_step = pd.concat(everyone(own)).groupby(level=0)
    means = own.columns[own.columns.str.contains("_ms$|^calls")]
    table: pd.DataFrame = by_step.max().assign(**by_step.mean()[means])
    return table


def spread_out(
    cases: Mapping[str, Callable[[int], Steps]], repeats: int, turns: int = ROUNDS
) -> dict[str, Steps]:
    """Each case's steps, measured in several turns over all cases. A case is a function of a number of
    rounds; what it holds is free again when it returns."""
    found: dict[str, list[Steps]] = {name: [] for name in cases}
    for share in np.array_split(np.arange(repeats), min(turns, repeats)):
        for name, measure in cases.items():
            found[name].append(measure(len(share)))
    return {
        name: {way: pd.concat([of[way] for of in steps], ignore_index=True) for way in steps[0]}
        for name, steps in found.items()
    }


def timed(action: Callable[[], object]) -> Callable[[], Numbers]:
    """A way whose one number is its wall time; all ranks begin together."""

    def way() -> Numbers:
        together()
        begin = time.perf_counter()
        action()
        return {"seconds": time.perf_counter() - begin}

    return way
