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

Differs, where it is asked to: ``decide=last`` sends each step as the gains of the step before decide, so
that the plan is known when backward begins and communication overlaps it (exchange.junction=per_bucket). The
first step, of which nothing is known, is sent whole. ``ladder`` names settings of any kind, weakest first,
in the place of factors.

Letters: N = workers, theta = factor, eps, omega as printed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made_of
from typing import Any

import torch
from torch import Tensor

from dgc_repro.policy.checks import (
    check_flag,
    check_ladder,
    check_number,
    check_one_of,
    check_share,
    check_whole,
)
from dgc_repro.policy.factors import EXPONENTIAL, GEOMETRIC, factors_between
from dgc_repro.policy.interface import ENERGIES, EpochReport, Plan, State, StepReport

RATIO_OF_AVERAGES, AVERAGE_OF_RATIOS = "ratio_of_averages", "average_of_ratios"
WINDOW, NOW, LAST = "window", "now", "last"
ERROR_FED, RAW = "error_fed", "raw"
CANDIDATE, WEAKEST, DENSE = "candidate", "theta_min", "dense"
DENSE_PLACE = -1  # before all places of ``values``


@dataclass(frozen=True)
class GraVAC:
    """``field``: the compressor's setting that factors are values of. ``theta_min``, ``theta_max``: the
    weakest and the strongest factor; ``scaling``: exponential (theta_min times 2, 4, 16, 256, ...) or
    geometric (times ``ratio`` each); ``eps``: the share of a gradient that must survive; ``omega``: what
    counts as no difference; ``window``: steps between decisions on factors; ``smoothing``: weight of a
    step in the averages, null for min(1, ``workers`` / 100); ``gain``: error_fed, or raw (against the
    gradient without its residual, as the authors' code); ``decide``: now (from this step's gradient), or
    last (from the last step's); ``ladder``: settings in the place of all factors, weakest first."""

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
    decide: str = NOW
    ladder: Sequence[Any] | None = None
    values: Sequence[Any] = made_of(init=False, compare=False)

    def __post_init__(self) -> None:
        check_number("theta_min", self.theta_min, "a factor from 1", lambda x: x >= 1)
        check_number("theta_max", self.theta_max, "a factor from 1", lambda x: x >= 1)
        check_number("ratio", self.ratio, "a number above 1", lambda x: x > 1)
        self._check_without_effect()
        if self.theta_min > self.theta_max:
            raise ValueError(
                f"theta_min: at most theta_max, got {self.theta_min:g} above {self.theta_max:g}"
            )
        check_share("eps", self.eps, "a share above 0 and at most 1")
        check_number("omega", self.omega, "a share from 0, 0.01 is 1 %", lambda x: x >= 0)
        for name in ("window", "workers"):
            check_whole(name, getattr(self, name))
        if self.smoothing is not None:
            check_share("smoothing", self.smoothing)
        for name, known in (
            ("scaling", (EXPONENTIAL, GEOMETRIC)),
            ("gain", (ERROR_FED, RAW)),
            ("average", (RATIO_OF_AVERAGES, AVERAGE_OF_RATIOS)),
            ("throughput", (WINDOW, LAST)),
            ("decide", (NOW, LAST)),
        ):
            check_one_of(name, getattr(self, name), known)
        check_flag("freeze", self.freeze)
        if self.ladder is not None and (
            isinstance(self.ladder, str) or not isinstance(self.ladder, Sequence) or not self.ladder
        ):
            raise ValueError(f"ladder: settings, weakest first, or null, got {self.ladder!r}")
        factors = factors_between(self.theta_min, self.theta_max, self.scaling, self.ratio)
        object.__setattr__(self, "values", tuple(self.ladder or factors))
        check_ladder(self.field, self.values)

    def _check_without_effect(self) -> None:
        """Refuse what would do nothing. (``workers`` beside ``smoothing``: launch/build.py, which knows the
        run's.)"""
        if self.ladder is not None:
            idle: tuple[str, ...] = ("theta_min", "theta_max", "scaling", "ratio")
            why = "beside policy.ladder, which stands in the place of all factors; leave one of them out"
        elif self.scaling == EXPONENTIAL:
            idle, why = ("ratio",), "with policy.scaling=exponential; give policy.scaling=geometric"
        else:
            return
        for name in idle:
            given = getattr(self, name)
            if given != getattr(type(self), name):
                raise ValueError(f"{name}: does nothing {why}, got {given!r}")

    @property
    def chooses(self) -> bool:
        return self.decide == NOW

    @property
    def watches(self) -> str | None:
        return None if self.decide == NOW else ENERGIES

    @property
    def weight(self) -> float:
        """Of one step in an average."""
        return min(1.0, self.workers / 100) if self.smoothing is None else self.smoothing

    def init(self) -> State:
        """``theta_min``, ``candidate``: places in ``values``; ``gains``: by place, the two smoothed
        energies; ``window``: by factor, the sum of throughputs and their
        number since the last decision; ``throughputs``: by factor, of the last window that used it;
        ``next``: branch and rung of the next step, where they are known before it; ``last``: how the last
        step was sent, and why; ``waiting``: those whose time is not known yet; ``timed``: the last one
        whose time is."""
        return {
            "theta_min": 0, "candidate": 0, "steps": 0, "frozen": False, "gains": {}, "window": {},
            "throughputs": {}, "next": {"branch": DENSE, "rung": 0}, "last": {}, "waiting": [],
            "timed": {}, "trace": [],
        }  # fmt: skip

    def plan(self, state: State, step: int) -> Plan:
        candidates = (state["theta_min"] + 1, state["candidate"] + 1)
        raw = self.gain == RAW
        if self.decide == LAST:
            return Plan(state["next"]["rung"], candidates=candidates, raw=raw, measures=True)
        return Plan(None, candidates=candidates, raw=raw)

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
            decided = {"branch": CANDIDATE, "rung": tried + 1}
        elif of_weakest >= self.eps:
            decided = {"branch": WEAKEST, "rung": least + 1}
        else:
            decided = {"branch": DENSE, "rung": 0}
        sent = state["next"] if self.decide == LAST else decided
        last = {
            "theta_min": self.values[least],
            "candidate": self.values[tried],
            "gain_theta_min": of_weakest,
            "gain_candidate": of_candidate,
            **sent,
            "gain": 1.0 if sent["rung"] == 0 else _gain(gains[str(sent["rung"] - 1)]),
            "energies": energies.tolist(),
        }
        after = {
            "gains": gains,
            "next": decided,
            "last": last,
            "waiting": [*state["waiting"], last],
        }
        return int(decided["rung"]), {**state, **after}

    def after_step(self, state: State, report: StepReport) -> State:
        if not state["waiting"]:  # no tensor of the model is compressed
            return state
        decision, *waiting = state["waiting"]
        factor = 1.0 if decision["rung"] == 0 else self.values[decision["rung"] - 1]
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
            return self._decided(after, report.step + 1)
        return after

    def observe(self, state: State, report: EpochReport) -> State:
        return state

    def _decided(self, state: State, step: int) -> State:
        """The factors of the next window, after so many steps."""
        means = {factor: total / count for factor, (total, count) in state["window"].items()}
        throughputs = {**state["throughputs"], **means}
        theta_min, candidate = state["theta_min"], state["candidate"]
        frozen, reasons = state["frozen"], []
        tried = str(candidate) in state["gains"]  # not where every step of the window was skipped
        if not frozen and tried:
            if candidate > theta_min and self._is_as_good(state):
                theta_min = candidate
                reasons.append(f"theta_min is {self._named(candidate)}: it loses no more")
            ideal = self._ideal(throughputs)
            if ideal is not None and ideal >= theta_min:
                candidate = ideal
                frozen = self.freeze
                reasons.append(f"{self._named(ideal)} is as fast as any")
            elif candidate + 1 < len(self.values):
                candidate += 1
        entry = {
            "step": step,
            "rung": state["candidate"] + 1,
            "next_rung": candidate + 1,
            "theta_min": self.values[theta_min],
            "throughputs": json.dumps(throughputs),
            "reason": "; ".join(reasons),
        }
        after = {
            **state, "theta_min": theta_min, "candidate": candidate, "frozen": frozen, "window": {},
            "throughputs": throughputs, "trace": [*state["trace"], entry],
        }  # fmt: skip
        return {**after, "next": self._still(after)}

    def _still(self, state: State) -> dict[str, Any]:
        """What was decided for the next step, in terms of the new factors: a rung that is not watched any
        more gives way to theta_min."""
        rung, weakest, candidate = state["next"]["rung"], state["theta_min"], state["candidate"]
        if rung == 0:
            return {"branch": DENSE, "rung": 0}
        if rung == candidate + 1 != weakest + 1:
            return {"branch": CANDIDATE, "rung": rung}
        return {"branch": WEAKEST, "rung": weakest + 1}

    def _is_as_good(self, state: State) -> bool:
        weakest = _gain(state["gains"][str(state["theta_min"])])
        candidate = _gain(state["gains"][str(state["candidate"])])
        return weakest > 0 and abs(weakest - candidate) / weakest <= self.omega

    def _ideal(self, throughputs: dict[str, float]) -> int | None:
        """The place of the weaker of the two with the largest throughput, where these hardly differ."""
        best = sorted(throughputs.items(), key=lambda item: item[1], reverse=True)[:2]
        if (
            len(best) < 2
            or not best[0][1] > 0
            or (best[0][1] - best[1][1]) / best[0][1] > self.omega
        ):
            return None
        places = {str(value): place for place, value in enumerate(self.values)}
        ideal = min(places.get(factor, DENSE_PLACE) for factor, _ in best)
        return None if ideal == DENSE_PLACE else ideal  # dense is no factor to stay with

    def _named(self, place: int) -> str:
        """A factor as the paper writes it, other settings by their name."""
        value = self.values[place]
        return f"{value:g}x" if self.ladder is None else f"{self.field}={value}"

    def _averaged(self, before: Any, energy: float, whole: float) -> list[float]:
        """[numerator, denominator] of the smoothed gain. Both begin at 0 and lack the same weight."""
        if self.average == AVERAGE_OF_RATIOS:
            energy, whole = (energy / whole if whole else 1.0), 1.0
        above, below = before or (0.0, 0.0)
        w = self.weight
        return [(1 - w) * above + w * energy, (1 - w) * below + w * whole]


def replayed(policy: GraVAC, decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The branches that ``policy`` takes on the energies and times of recorded decisions (decisions.jsonl of
    a run from its first step on): those of the record, where nothing has changed."""
    state, branches, told = policy.init(), [], -1
    for decision in decisions:
        step, report = int(decision["decision"]) - 1, _report(decision)
        is_new = report is not None and report.step > told
        if report is not None and is_new and report.step < step - 1:
            state = policy.after_step(state, report)  # told in a step between, which was skipped
        energies = torch.tensor(decision["decision/energies"], dtype=torch.float64)
        _, state = policy.choose(state, energies)
        branches.append(state["last"]["branch"])
        if report is not None and is_new and report.step == step - 1:
            state = policy.after_step(state, report)
        told = told if report is None else report.step
    return branches


def _report(decision: Mapping[str, Any]) -> StepReport | None:
    """What the policy had been told last, when this decision was recorded."""
    if "decision/timed_step" not in decision:
        return None
    told = [decision[f"decision/timed_{name}"] for name in ("step", "seconds", "samples")]
    step, seconds, samples = (math.nan if value is None else float(value) for value in told)
    return StepReport(int(step), seconds, samples)


def _gain(averages: Sequence[float]) -> float:
    """In [0, 1]; of nothing, all."""
    above, below = averages
    return min(1.0, max(0.0, above / below)) if below > 0 else 1.0
