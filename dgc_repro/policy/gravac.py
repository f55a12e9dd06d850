"""GraVAC: how strongly to compress follows from how much of this step's gradient survives.

Paper: Tyagi and Swany, "GraVAC: adaptive compression for communication-efficient distributed DL
training", IEEE CLOUD 2023 (arXiv:2305.12201), algorithm 1 and section III. Each step compresses to a
factor that is known to be safe (theta_min) and to a stronger one on trial (the candidate), and sends
what still holds a share eps of the gradient; every ``window`` steps the candidate grows.

Gain of a factor: ||C(g)||^2 / ||g||^2, g with error feedback, over all tensors and workers, smoothed.
Throughput of compression: samples a second, times the gain of what was sent.

    gain(candidate) >= eps: the candidate is sent
    else gain(theta_min) >= eps: theta_min is sent
    else: everything is sent, and the residual is empty

    every window: if |gain(theta_min) - gain(candidate)| / gain(theta_min) <= omega, the candidate
    becomes theta_min; if the two largest throughputs differ by at most omega, the smaller factor of
    the two is ideal and stays; else the next candidate.

What the paper leaves open is a setting, or resolved so (letters: papers.md):
(a) what is promoted is the candidate on trial, not the next one. Factors are absolute.
(b) the first candidate is theta_min; nothing is promoted while they are one.
(c) ``average``: ratio of two smoothed energies (as the authors' code), or a smoothed ratio (as printed);
    corrected for their beginning, one for each factor, never reset; weight of a step min(1, N / 100).
(d) gains are sums over tensors and the mean over workers: all ranks take one branch. Compressed energy is
    ||g||^2 - ||g - C(g)||^2, which is ||C(g)||^2 of a sparsifier and stays a share for a quantizer.
(e) ``throughput``: mean over the window, or the last step's (as printed).
(f) ``freeze``: the ideal factor stays for good (as the authors' code), or the next window goes on.
(g) eps of tables 2 and 4: 0.7 (conf/policy/gravac.yaml).

Letters: N = workers, theta = factor, eps, omega as printed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made_of
from typing import Any

import torch
from torch import Tensor

from dgc_repro.policy.interface import EpochReport, Plan, State, StepReport

EXPONENTIAL, GEOMETRIC = "exponential", "geometric"
RATIO_OF_AVERAGES, AVERAGE_OF_RATIOS = "ratio_of_averages", "average_of_ratios"
WINDOW, LAST = "window", "last"
ERROR_FED, RAW = "error_fed", "raw"
CANDIDATE, WEAKEST, DENSE = "candidate", "theta_min", "dense"
MOST_FACTORS = 64


@dataclass(frozen=True)
class GraVAC:
    """``field``: the compressor's setting that factors are values of. ``theta_min``, ``theta_max``: the
    weakest and the strongest factor; ``scaling``: exponential (theta_min times 2, 4, 16, 256, ...) or
    geometric (times ``ratio`` each); ``eps``: the share of a gradient that must survive; ``omega``: what
    counts as no difference; ``window``: steps between decisions on factors; ``smoothing``: weight of a
    step in the averages, null for min(1, ``workers`` / 100); ``gain``: error_fed, or raw (against the
    gradient without its residual, as the authors' code)."""

    field: str = "factor"
    theta_min: float = 10.0
    theta_max: float = 1000.0
    scaling: str = EXPONENTIAL
    ratio: float = 2.0
    eps: float = 0.7
    omega: float = 0.01
    window: int = 500
    smoothing: float | None = None
    workers: int = 1
    gain: str = ERROR_FED
    average: str = RATIO_OF_AVERAGES
    throughput: str = WINDOW
    freeze: bool = True
    values: Sequence[float] = made_of(init=False, compare=False)
    chooses = True
    watches = None

    def __post_init__(self) -> None:
        _check_number("theta_min", self.theta_min, "a factor from 1", lambda x: x >= 1)
        _check_number("theta_max", self.theta_max, "a factor from 1", lambda x: x >= 1)
        if self.theta_min > self.theta_max:
            raise ValueError(
                f"theta_min: at most theta_max, got {self.theta_min:g} above {self.theta_max:g}"
            )
        _check_number("ratio", self.ratio, "a number above 1", lambda x: x > 1)
        _check_number("eps", self.eps, "a share above 0 and at most 1", lambda x: 0 < x <= 1)
        _check_number("omega", self.omega, "a share from 0, 0.01 is 1 %", lambda x: x >= 0)
        for name in ("window", "workers"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: a whole number from 1, got {value!r}")
        if self.smoothing is not None:
            _check_number(
                "smoothing", self.smoothing, "above 0 and at most 1", lambda x: 0 < x <= 1
            )
        for name, known in (
            ("scaling", (EXPONENTIAL, GEOMETRIC)),
            ("gain", (ERROR_FED, RAW)),
            ("average", (RATIO_OF_AVERAGES, AVERAGE_OF_RATIOS)),
            ("throughput", (WINDOW, LAST)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: one of {', '.join(known)}, got {getattr(self, name)!r}")
        if not isinstance(self.freeze, bool):
            raise ValueError(f"freeze: true or false, got {self.freeze!r}")
        object.__setattr__(self, "values", self._factors())

    @property
    def weight(self) -> float:
        """Of one step in an average."""
        return min(1.0, self.workers / 100) if self.smoothing is None else self.smoothing

    def init(self) -> State:
        """``theta_min``, ``candidate``: places in ``values``; ``gains``: by place, the two smoothed
        energies; ``window``: by factor, the sum of throughputs and their
        number since the last decision; ``throughputs``: by factor, of the last window that used it;
        ``last``: this step's decision; ``waiting``: those whose time is not known yet; ``timed``: the last
        one whose time is."""
        return {
            "theta_min": 0, "candidate": 0, "steps": 0, "frozen": False, "gains": {}, "window": {},
            "throughputs": {}, "last": {}, "waiting": [], "timed": {}, "trace": [],
        }  # fmt: skip

    def plan(self, state: State, step: int) -> Plan:
        candidates = (state["theta_min"] + 1, state["candidate"] + 1)
        return Plan(None, candidates=candidates, raw=self.gain == RAW)

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        whole, weakest, candidate, *raw = energies.tolist()
        if self.gain == RAW:
            (whole,) = raw
        least, tried = state["theta_min"], state["candidate"]
        gains = dict(state["gains"])
        for place, energy in {tried: candidate, least: weakest}.items():  # one, where they are one
            gains[str(place)] = self._averaged(gains.get(str(place)), energy, whole)
        of_weakest, of_candidate = _gain(gains[str(least)]), _gain(gains[str(tried)])
        if tried != least and of_candidate >= self.eps:
            branch, rung, gain = CANDIDATE, tried + 1, of_candidate
        elif of_weakest >= self.eps:
            branch, rung, gain = WEAKEST, least + 1, of_weakest
        else:
            branch, rung, gain = DENSE, 0, 1.0
        last = {
            "theta_min": self.values[least],
            "candidate": self.values[tried],
            "gain_theta_min": of_weakest,
            "gain_candidate": of_candidate,
            "branch": branch,
            "rung": rung,
            "gain": gain,
            "energies": energies.tolist(),
        }
        return rung, {**state, "gains": gains, "last": last, "waiting": [*state["waiting"], last]}

    def after_step(self, state: State, report: StepReport) -> State:
        decision, *waiting = state["waiting"]
        factor = 1.0 if decision["rung"] == 0 else float(self.values[decision["rung"] - 1])
        window, rate = state["window"], math.nan
        if report.seconds > 0:
            rate = report.samples / report.seconds * decision["gain"]
            total, count = window.get(str(factor), (0.0, 0))
            if self.throughput == LAST:
                total, count = 0.0, 0
            window = {**window, str(factor): (total + rate, count + 1)}
        timed = {
            **decision,
            "step": report.step,
            "seconds": report.seconds,
            "samples": report.samples,
            "throughput": rate,
        }
        after = {
            **state, "steps": state["steps"] + 1, "window": window, "waiting": waiting, "timed": timed,
        }  # fmt: skip
        if after["steps"] % self.window == 0:
            return self._decided(after)
        return after

    def observe(self, state: State, report: EpochReport) -> State:
        return state

    def _decided(self, state: State) -> State:
        """The factors of the next window."""
        means = {factor: total / count for factor, (total, count) in state["window"].items()}
        throughputs = {**state["throughputs"], **means}
        theta_min, candidate = state["theta_min"], state["candidate"]
        frozen, reasons = state["frozen"], []
        if not frozen:
            if candidate > theta_min and self._is_as_good(state):
                theta_min = candidate
                reasons.append(f"theta_min is {self.values[candidate]:g}x: it loses no more")
            ideal = self._ideal(throughputs)
            if ideal is not None and ideal >= self.values[theta_min]:
                candidate = list(self.values).index(ideal)
                frozen = self.freeze
                reasons.append(f"{ideal:g}x is as fast as any")
            elif candidate + 1 < len(self.values):
                candidate += 1
        entry = {
            "step": state["steps"],
            "rung": state["candidate"] + 1,
            "next_rung": candidate + 1,
            "theta_min": self.values[theta_min],
            "throughputs": dict(throughputs),
            "reason": "; ".join(reasons),
        }
        return {
            **state, "theta_min": theta_min, "candidate": candidate, "frozen": frozen, "window": {},
            "throughputs": throughputs, "trace": [*state["trace"], entry],
        }  # fmt: skip

    def _is_as_good(self, state: State) -> bool:
        weakest = _gain(state["gains"][str(state["theta_min"])])
        candidate = _gain(state["gains"][str(state["candidate"])])
        return weakest > 0 and abs(weakest - candidate) / weakest <= self.omega

    def _ideal(self, throughputs: dict[str, float]) -> float | None:
        """The smaller factor of the two with the largest throughput, where these hardly differ."""
        best = sorted(throughputs.items(), key=lambda item: item[1], reverse=True)[:2]
        if (
            len(best) < 2
            or not best[0][1] > 0
            or (best[0][1] - best[1][1]) / best[0][1] > self.omega
        ):
            return None
        ideal = min(float(factor) for factor, _ in best)
        return ideal if ideal in self.values else None  # dense is no factor to stay with

    def _averaged(self, before: Any, energy: float, whole: float) -> list[float]:
        """[numerator, denominator] of the smoothed gain. Both begin at 0 and lack the same weight."""
        if self.average == AVERAGE_OF_RATIOS:
            energy, whole = (energy / whole if whole else 1.0), 1.0
        above, below = before or (0.0, 0.0)
        w = self.weight
        return [(1 - w) * above + w * energy, (1 - w) * below + w * whole]

    def _factors(self) -> tuple[float, ...]:
        factors, exponent = [float(self.theta_min)], 1.0
        while factors[-1] < self.theta_max:
            if len(factors) == MOST_FACTORS:
                raise ValueError(
                    f"ratio: {self.ratio:g} makes more than {MOST_FACTORS} factors up to "
                    f"{self.theta_max:g}; give a larger one"
                )
            if self.scaling == GEOMETRIC:
                factor = factors[-1] * self.ratio
            else:
                factor, exponent = self.theta_min * 2.0**exponent, exponent * 2
            factors.append(min(factor, float(self.theta_max)))
        return tuple(factors)


def replayed(policy: GraVAC, decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The branches that ``policy`` takes on the energies and times of recorded decisions (decisions.jsonl of
    a run from its first step on): those of the record, where nothing has changed."""
    state, branches = policy.init(), []
    for number, decision in enumerate(decisions):
        energies = torch.tensor(decision["decision/energies"], dtype=torch.float64)
        _, state = policy.choose(state, energies)
        branches.append(state["last"]["branch"])
        if number:
            report = StepReport(
                int(decision["decision/timed_step"]),
                float(decision["decision/timed_seconds"]),
                float(decision["decision/timed_samples"]),
            )
            state = policy.after_step(state, report)
    return branches


def _gain(averages: Sequence[float]) -> float:
    """In [0, 1]; of nothing, all."""
    above, below = averages
    return min(1.0, max(0.0, above / below)) if below > 0 else 1.0


def _check_number(name: str, value: Any, like: str, fits: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not fits(value):
        raise ValueError(f"{name}: {like}, got {value!r}")
