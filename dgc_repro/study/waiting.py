"""Waiting for the slowest of K workers: simulated beside theory.

A synchronous step ends when the slowest worker is there. Delays are independent, of unit variance:
Gaussian (mean 0) or exponential (mean 1).

Paper: EECE695D, distributed training part 2 (lecture): the time lost grows like sqrt(log K) for
Gaussian delays, like the sum of 1/i, about log K, for exponential ones.
Theory, exact: the expected largest of K is the integral of 1 - F(x)^K over x > 0, less that of
F(x)^K over x < 0; for exponential delays it is H_K = 1 + 1/2 + ... + 1/K. First term for large K:
sqrt(2 ln K), and ln K.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, special

from dgc_repro.checked import Positive, checked, within
from dgc_repro.study.given import NOTHING, Counts, Row

GAUSSIAN, EXPONENTIAL = "gaussian", "exponential"
MEANS = {GAUSSIAN: 0.0, EXPONENTIAL: 1.0}
AT_ONCE = 1_000_000  # delays drawn at a time
Z95 = 1.959964  # of the normal distribution: 95 % lie within
REACH = 12.0  # of the numerical integral, in deviations


@checked
class Waiting:
    """``workers``: the numbers K; ``trials``: steps simulated for each. ``mean_ms``, ``deviation_ms``:
    of one worker's step, for the share of a step that is lost."""

    workers: Counts
    trials: Annotated[int, within(2)]
    mean_ms: Positive
    deviation_ms: Annotated[float, within(0)]
    takes = NOTHING

    def run(self, seed: int) -> list[Row]:
        rows: list[Row] = []
        for index, law in enumerate(MEANS):
            for count in self.workers:
                generator = np.random.default_rng([seed, index, count])
                slowest = largest(law, count, self.trials, generator)
                mean = float(slowest.mean())
                half = Z95 * float(slowest.std(ddof=1)) / math.sqrt(self.trials)
                lost = mean - MEANS[law]
                measured = {"slowest": mean, "low": mean - half, "high": mean + half}
                theory = {
                    "theory": expected_largest(law, count),
                    "first_term": first_term(law, count),
                }
                waits = {"lost": lost, "share_lost": self.share_lost(lost)}
                rows.append({"law": law, "workers": count, **measured, **theory, **waits})
        return rows

    def share_lost(self, lost: float) -> float:
        """Of a step that ends when the slowest is there, the part in which the mean worker waits."""
        wait_ms = self.deviation_ms * lost
        return wait_ms / (self.mean_ms + wait_ms)


def largest(
    law: str, count: int, trials: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """f64[trials]: the largest of ``count`` delays, for each trial."""
    found = []
    step = max(1, AT_ONCE // count)
    for start in range(0, trials, step):
        shape = (min(step, trials - start), count)
        is_gaussian = law == GAUSSIAN
        draw = generator.standard_normal if is_gaussian else generator.standard_exponential
        found.append(draw(shape).max(axis=1))
    return np.concatenate(found)


def expected_largest(law: str, count: int) -> float:
    """The exact expectation: H_K, or the integral for Gaussian delays (error below 1e-6)."""
    if law == EXPONENTIAL:
        return math.fsum(1 / i for i in range(1, count + 1))
    missing, _ = integrate.quad(
        lambda x: 1 - special.ndtr(x) ** count - special.ndtr(-x) ** count, 0, REACH
    )
    return round(missing, 6)


def first_term(law: str, count: int) -> float:
    """What theory gives for large K, its first term alone."""
    return math.sqrt(2 * math.log(count)) if law == GAUSSIAN else math.log(count)
