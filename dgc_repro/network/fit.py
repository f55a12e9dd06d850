"""Alpha, beta and what a call costs, from measured collectives.

For each collective a line t = intercept + slope x payload, by least squares of relative errors (a
message of 64 bytes counts as much as one of 64 MB), both coefficients at least 0. The intercepts of all
collectives then share one alpha: intercept = overhead + messages x alpha (cost.py's rounds), and what a
collective needs beyond that is its own overhead. The link's beta is that of the fastest collective,
in bytes on the link; the others' slopes are their software's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import TCP_SHARE, Network

SAME = 0.03
"""Slopes that differ by less are the link's."""


@dataclass(frozen=True)
class Point:
    """A collective of so many payload bytes took so long (the median of its repeats)."""

    collective: str
    payload_bytes: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """``network``: the profile; ``errors``: by point, predicted / measured - 1."""

    network: Network
    points: Sequence[Point]
    errors: Sequence[float]

    @property
    def frame(self) -> pd.DataFrame:
        """A row a point: its fields and its error."""
        return pd.DataFrame(self.points).assign(error=self.errors)

    @property
    def median_error(self) -> float:
        return float(np.median(np.abs(self.errors)))

    @property
    def worst_error(self) -> float:
        return float(np.max(np.abs(self.errors)))


def fit(points: Sequence[Point], workers: int, rate: float | None, source: str = "") -> Fit:
    """A profile of links between so many workers. ``rate``: of the links, bits a second, where they are
    shaped and it is known; then what is slower than it is software. Raises ValueError for too few
    points, and where they tell no rate."""
    shape = Costs(Network("1gbit", efficiency=1.0), workers)
    lines: dict[str, tuple[float, float]] = {}
    for collective in dict.fromkeys(point.collective for point in points):
        own = [point for point in points if point.collective == collective]
        if len({point.payload_bytes for point in own}) < 2:
            raise ValueError(f"sizes: two of each collective are the fewest, {collective} has one")
        lines[collective] = line([p.payload_bytes for p in own], [p.seconds for p in own])
    terms = {collective: shape.terms(collective) for collective in lines}
    # What all calls cost is in each one's overhead.
    alpha = _latency([terms[c][0] for c in lines], [intercept for intercept, _ in lines.values()])
    # Seconds a byte of the link: the fastest collective's, whose payload crosses it `terms` times.
    # A slope of 0 is noise: its sizes are too small to tell a rate.
    beta = min((slope / terms[c][1] for c, (_, slope) in lines.items() if slope > 0), default=0.0)
    if beta == 0 and rate is None:
        raise ValueError(
            "sizes: no collective takes longer for more bytes, so that no rate can be told; give "
            "larger ones, such as sizes=64..64mb"
        )
    goodput = 8 / beta if beta > 0 else float("inf")
    known = rate is not None and goodput >= (1 - SAME) * TCP_SHARE * rate
    link = TCP_SHARE * rate if known and rate is not None else goodput
    software: dict[str, dict[str, str]] = {}
    for collective, (intercept, slope) in lines.items():
        messages, crossings = terms[collective]
        software[collective] = {"overhead": f"{1e6 * max(0.0, intercept - messages * alpha):.1f}us"}
        own_rate = 8 * crossings / slope if slope > 0 else float("inf")
        if own_rate < (1 - SAME) * link:
            software[collective]["rate"] = f"{own_rate / 1e9:.5g}gbit"
    network = Network(
        rate=f"{link / TCP_SHARE / 1e9:.5g}gbit",
        latency=f"{1e6 * alpha:.2f}us",
        efficiency=TCP_SHARE,
        software=software,
        source=source,
    )
    costs = Costs(network, workers)
    errors = [costs.seconds(p.collective, p.payload_bytes) / p.seconds - 1 for p in points]
    return Fit(network, list(points), errors)


ROUNDING = 1e-9  # of nnls: a smaller slope is none


def line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(intercept, slope), at least 0 each, with the least sum of squared relative errors."""
    x, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    largest = x.max()  # columns of one scale lose no digits
    (intercept, rise), _ = nnls(np.stack([1 / t, x / largest / t], axis=1), np.ones_like(t))
    return float(intercept), float(rise / largest) if rise >= ROUNDING * intercept else 0.0


def _latency(messages: Sequence[float], intercepts: Sequence[float]) -> float:
    """Alpha, from collectives of one and of several messages: intercept = overhead + messages x alpha,
    both at least 0, by plain least squares (an intercept may be 0, and has no relative error then); no
    more than any collective's whole intercept allows, lest one that is slow to begin spoils the others."""
    if len(set(messages)) < 2:
        return min(i / m for i, m in zip(intercepts, messages, strict=True))
    table = np.stack([messages, np.ones(len(messages))], axis=1)
    (alpha, _), _ = nnls(table, np.asarray(intercepts, dtype=float))
    most = min((i / m for i, m in zip(intercepts, messages, strict=True) if i > 0), default=0.0)
    return min(float(alpha), most)
