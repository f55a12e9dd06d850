"""SIDCo: a threshold from a distribution that is fitted to the magnitudes, in several stages.

Paper: Abdelmoniem, Elzanaty, Alouini and Canini, "An efficient statistical-based gradient
compression technique for distributed training systems", MLSys 2021 (arXiv:2101.10761), section 2,
corollaries 1.1 to 1.3 (exponential, gamma, generalized Pareto), lemma 2 and its corollaries (what
exceeds a threshold, in stages), algorithm 1 (adapted number of stages).
Asks: `GatherRagged` of k' entries: 8 bytes of header, places and values as in topk. k' is what passes
the fitted threshold, near k = max(1, round(n density)). The adaptation corrects what is more than 20 % off,
but stages are whole numbers, so it does not always get there. Measured at densities 0.1, 0.01 and 0.001 on
30,000 values, drawn anew in each step (normal, normal of log-normal scale, Laplace, Student's t with 3
degrees of freedom, gamma of shape 0.6, log-normal of spread 1 and 2; the first three on 300,000 too), k' / k
in steps 61 to 120:

    fit            mean of them      each            where values are Laplace: each
    exponential    0.58 to 1.17      0.25 to 4.3     0.70 to 1.33 (k = 30 scatters)
    gamma          0.45 to 1.6       0.4 to 6.4      0.70 to 1.17
    Pareto         0.8 to 1.15       0.5 to 1.9      0.73 to 1.20

The gamma fit is the least exact: 1.4 to 1.6 k of normal values (a step at 0.001: up to 2.6 k), 0.5 to 1.2 k
of normal values of log-normal scale (up to 6.4 k). On magnitudes of a gamma distribution it sends 0.8 k
with adapted stages, and 0.45 k to 0.66 k with one stage, which is the paper's approximation.
State: seven numbers. In a ladder whose policy measures its rungs, what was measured is sent: the number of
stages stays the first one there. `Sharded` refuses the method, because it carries no state on.
Differs: exact zeros are left out of the fits (their logarithm is none) and of n. The first number of
stages is the one at which every stage passes at least a share of 0.25, instead of 1: the first steps
are then not off by a multiple. Stages are adapted every 5 steps by one, as in algorithm 1: fewer when
too many entries were sent, more when too few. That is right for tails lighter than the fit, where
more stages send more; for heavier tails they send less (measured), and algorithm 1 runs away. So the
direction is the one in which the last change of stages moved what is sent (the authors' code has a
similar second rule); a change after which k' lies on the other side of k, and farther, is undone, and
the next 50 steps change nothing. Each tensor has its own count of stages; the authors' code has one for all.
Stages end early where nothing exceeds the threshold or nothing can be fitted to it; where nothing or
everything would be sent (a constant tensor), or the first fit has no finite threshold, the k largest
entries are. The gamma threshold holds for a < 1 (the paper says so); where it is not above 0, the
exponential one stands in.

    exponential    b = mean |x|                             t = b log(1 / d)
    gamma          s = log mean |x| - mean log |x|,
                   a = (3 - s + sqrt((s - 3)^2 + 24 s)) / (12 s),  b = mean |x| / a
                                                            t = -b (log d + log Gamma(a))
    Pareto         q = mean^2 / variance,  a = (1 - q) / 2,  b = mean (q + 1) / 2
                                                            t = b / a (exp(-a log d) - 1)
    stage m > 1    the same of the excess |x| - t of those with |x| > t (exponential, or Pareto
                   after gamma), added to t
    shares         d1 = 0.25, the others (d / d1)^(1 / (M - 1)); d alone where M = 1

Letters: n = values, k = entries wanted, d = share a stage passes, M = stages, t = threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from dgc_repro.checked import Count, checked, one_of
from dgc_repro.compressor.interface import Context, State
from dgc_repro.compressor.sparsifier import DensitySparsifier, exchange_selected, mark_finite
from dgc_repro.kernel import select, thresholds
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.select import Selection
from dgc_repro.kernel.thresholds import Moments
from dgc_repro.payload.requests import Exchange

FITS = ("exponential", "gamma", "pareto")
FIRST_SHARE = 0.25  # what the first of several stages passes
ADAPT_EVERY = 5  # steps
TOLERANCE = 0.2  # of k, above and below
HELD = 10  # changes to sit out where one stage more sends too much and one fewer too little


@checked
class SIDCo(DensitySparsifier):
    """``density`` or ``factor``, ``indices``, ``values``: as in `DensitySparsifier`.
    ``fit``: exponential, gamma (then Pareto), pareto. ``stages``: how many, null to adapt them.

    State: ``stages``; ``direction``, 1 where more stages send more, -1 where they send less;
    ``change``, the last change of stages; ``last``, k' / k before it; ``sent`` and ``steps`` since;
    ``hold``, changes to sit out."""

    fit: Annotated[str, one_of(FITS)] = "exponential"
    stages: Annotated[Count | None, "null to adapt them to what is sent"] = None
    ragged = True
    refines = False  # a fit of survivors, which begin at a threshold, would take them to begin at 0

    def init(self, tensor: Tensor) -> State:
        first = self._first_stages()
        stages = first if self.stages else min(first, self._most_stages())
        return {
            "stages": stages, "direction": 1, "change": 0, "hold": 0,
            "sent": 0, "steps": 0, "last": 0.0,
        }  # fmt: skip

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        chosen = context.selection
        if chosen is None:
            chosen = [
                self._in_stages(x.view(-1), n, state["stages"], context.of(i, name))
                for i, (name, x, n, state) in enumerate(
                    zip(batch.names, batch.tensors, batch.sizes, states, strict=True)
                )
            ]
            chosen = mark_finite(batch, Selections.of(chosen))
        following = [
            self._adapted(state, one.values.numel(), n)
            for state, one, n in zip(states, chosen, batch.sizes, strict=True)
        ]
        inside = replace(context, selection=chosen)
        return (yield from exchange_selected(self, batch, following, inside))

    def choose(self, x: Tensor, n: int, context: Context) -> Selection:
        """With the first number of stages: the state is the exchange's."""
        return self._in_stages(x, n, self._first_stages(), context)

    def _first_stages(self) -> int:
        if self.stages is not None:
            return self.stages
        return max(1, math.ceil(math.log(self.share_sent) / math.log(FIRST_SHARE)))

    def _most_stages(self) -> int:
        """So many that a stage passes a half."""
        return max(1, math.ceil(math.log(self.share_sent) / math.log(0.5)))

    def _adapted(self, state: State, sent: int, n: int) -> State:
        """The state after a step that sent so many entries: algorithm 1, with a direction."""
        k = self.num_kept(n)
        if self.stages is not None or k == 0:
            return state
        following = {**state, "sent": state["sent"] + sent, "steps": state["steps"] + 1}
        if following["steps"] < ADAPT_EVERY:
            return following
        estimate, last = following["sent"] / (ADAPT_EVERY * k), state["last"]
        stages, direction, hold = state["stages"], state["direction"], max(state["hold"] - 1, 0)
        change, moved = 0, state["change"]
        off = abs(estimate - 1) > TOLERANCE
        if moved and estimate != last:
            direction = moved if estimate > last else -moved
        if off and moved and (estimate > 1) != (last > 1) and _worse(estimate, last):
            stages, hold = stages - moved, HELD
        elif off and not hold:
            change = direction if estimate < 1 else -direction
            if not 1 <= stages + change <= self._most_stages():
                change = -change
            change = min(max(stages + change, 1), self._most_stages()) - stages
        return {
            "stages": stages + change, "direction": direction, "change": change, "hold": hold,
            "sent": 0, "steps": 0, "last": estimate,
        }  # fmt: skip

    def _in_stages(self, x: Tensor, n: int, stages: int, context: Context) -> Selection:
        """From x, the entries of a tensor of n values or its survivors."""
        k = self.num_kept(n)
        if k >= x.numel():
            return select.topk(x, k, scratch=context.scratch)
        chunks = context.scratch("chunks", thresholds.chunk_sums(x), torch.float64, x.device)
        found: Selection | None = None
        inside, threshold, share, every = x, 0.0, 1.0, 0
        for stage in range(stages):
            logs = self.fit == "gamma" and stage == 0
            squares = self.fit != "exponential" and not logs
            seen = thresholds.moments(inside, threshold, squares=squares, logs=logs, scratch=chunks)
            if stage == 0:
                every = seen.count
                if k >= every:  # all that is not zero, and zeros as far as k goes
                    return select.topk(x, k, scratch=context.scratch)
                share = k / every
            if seen.count == 0:
                break
            excess = _fitted(self.fit, seen, stage, _share(share, stage, stages))
            further = thresholds.rounded(threshold + max(excess, 0.0))
            if not math.isfinite(further):
                if stage == 0:
                    return select.topk(x, k, scratch=context.scratch)
                break
            threshold = further
            if stage == 1 and stages > 2:  # from here on few are left: read them alone
                expected = int(seen.count * _share(share, stage, stages))
                found = select.above(
                    x, threshold, scratch=context.scratch, expected=expected, label="inside"
                )
                inside = found.values
        sent = select.above(
            inside, max(threshold, thresholds.SMALLEST), scratch=context.scratch, expected=k
        )
        if not 0 < sent.values.numel() < every:
            return select.topk(x, k, scratch=context.scratch)
        if found is None:
            return sent
        return select.among(found, sent.indices, scratch=context.scratch)


def _worse(estimate: float, last: float) -> bool:
    """Whether k' / k is farther from 1 than it was, as a factor."""
    return abs(math.log(estimate)) > abs(math.log(last))


def _share(share: float, stage: int, stages: int) -> float:
    """What a stage passes, so that all of them together pass ``share``."""
    if stages == 1 or share >= FIRST_SHARE:
        return share if stage == 0 else 1.0
    return FIRST_SHARE if stage == 0 else (share / FIRST_SHARE) ** (1 / (stages - 1))


def _fitted(fit: str, seen: Moments, stage: int, share: float) -> float:
    """What to add to the threshold so that a share of those above passes. NaN where nothing fits."""
    mean = seen.total / seen.count
    if not math.isfinite(mean) or not math.isfinite(seen.squares):
        return math.nan
    if fit == "exponential":
        return -mean * math.log(share)
    if fit == "gamma" and stage == 0:
        s = math.log(mean) - seen.log_total / seen.count
        if s <= 0:  # all are equal, but for rounding
            return math.nan
        shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
        excess = -mean / shape * (math.log(share) + math.lgamma(shape))
        return excess if excess > 0 else -mean * math.log(share)
    variance = seen.squares / seen.count - mean * mean
    if mean == 0 or variance <= mean * mean * 1e-12:  # all are equal, but for rounding
        return math.nan
    ratio = mean * mean / variance
    shape, scale = (1 - ratio) / 2, mean * (ratio + 1) / 2
    if shape == 0:  # the exponential distribution
        return -scale * math.log(share)
    return scale / shape * math.expm1(-shape * math.log(share))
