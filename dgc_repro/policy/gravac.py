"""GraVAC: choose the compression factor by how much of this step's gradient survives compression.

Paper: Tyagi and Swany, "GraVAC: adaptive compression for communication-efficient distributed DL
training", IEEE CLOUD 2023 (arXiv:2305.12201), algorithm 1 and section III. Each step compresses to a
factor that is known to be safe (theta_min) and to a stronger candidate. The strongest of the two whose gain
reaches eps is sent, otherwise the dense gradient. Every ``window`` steps the candidate grows.

    gain(candidate) >= eps: send the candidate
    else gain(theta_min) >= eps: send theta_min
    else: send everything; the residual is then empty

    every window: if |gain(theta_min) - gain(candidate)| / gain(theta_min) <= omega, the candidate
    becomes theta_min; if the two largest throughputs differ by at most omega, relative to the smaller one,
    the smaller factor of the two (1 is dense) is ideal and stays; else the next candidate.

    throughput of a factor = samples a second * gain of what was sent (1 for a dense step)

Two gains (``gain``), both smoothed, neither clipped. Sums are over all tensors and the mean is over workers:

    energy (as printed):      sum_l ||C(g_l + e_l)||^2 / sum_l ||g_l + e_l||^2
    norm (authors' code):     sum_l ||C(g_l + e_l)||   / sum_l ||g_l||

The norm gain exceeds 1 when residuals outgrow the gradient. Of a method that is no sparsifier, ||C(x)||^2 is
the explained energy ||x||^2 - ||x - C(x)||^2, so that a quantizer's noise does not count as signal.

What the paper leaves open is a setting, or resolved so (letters: papers.md):
(a) the candidate on trial is promoted, not the next one. Factors are absolute.
(b) the first candidate is theta_min; nothing is promoted while they are equal.
(c) ``average``: ratio of two smoothed sums (as the authors' code), or a smoothed ratio (as printed);
    bias-corrected, one per factor, never reset; a step has the weight min(1, N / 100).
(d) all workers share one gain, so all ranks take one branch.
(e) ``throughput``: mean over the window, or the last step's (as printed).
(f) ``freeze``: the ideal factor stays for good (as the authors' code), or the next window goes on.
(g) eps of tables II and IV: 0.7 (conf/policy/gravac.yaml).
(k) theta_s = ideal / theta_min below 1, which includes a dense ideal, compresses no further than theta_min:
    the search ends with theta_min as the candidate. A dense step's time excludes compression (t_o + t_s).

Differs, where it is asked to: ``decide=last`` sends each step by the gains of the step before, so that the
plan is known when backward begins and communication overlaps it (exchange.overlap=true). The
first step is then dense. ``ladder`` lists settings of any kind, weakest first, in place of factors.

Letters: N = workers, l = tensor, e = residual, theta = factor, eps, omega as printed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import field as made_of
from typing import Annotated, Any

from torch import Tensor

from dgc_repro.checked import Count, Share, checked, one_of, within
from dgc_repro.policy.factors import EXPONENTIAL, GEOMETRIC, factors_between
from dgc_repro.policy.interface import ENERGIES, Plan, State, StepReport
from dgc_repro.policy.planned import PlansAhead, Rungs

RATIO_OF_AVERAGES, AVERAGE_OF_RATIOS = "ratio_of_averages", "average_of_ratios"
WINDOW, NOW, LAST = "window", "now", "last"
ENERGY, NORM = "energy", "norm"
CANDIDATE, WEAKEST, DENSE = "candidate", "theta_min", "dense"
DENSE_PLACE = -1  # before all places in ``values``: rung 0
Factor = Annotated[float, within(1, name="a factor")]


@checked
class GraVAC(PlansAhead):
    """``field``: the compressor's setting that takes the factors; ``theta_min``, ``theta_max``: the weakest
    and the strongest factor; ``scaling``: exponential (theta_min times 2, 4, 16, 256, ...) or geometric
    (each ratio times the last). ``ratio``: of geometric factors; ``eps``: the least gain of what is sent;
    ``omega``: relative difference of gains or throughputs that counts as none; ``window``: steps between
    decisions on factors; ``smoothing``: weight of a step in the averages, null for min(1, workers / 100).
    ``workers``: of the run. ``gain``: energy (as printed) or norm (as the authors' code); ``average``:
    ratio_of_averages, or average_of_ratios (as printed). ``throughput``: the mean over the window, or the
    last step's (as printed). ``freeze``: the ideal factor stays for good; ``decide``: now (by this step's
    gradient) or last (by the last step's); ``ladder``: settings in place of all factors, weakest first.
    Raises ValueError."""

    field: str = "factor"
    theta_min: Factor = 10.0
    theta_max: Factor = 1000.0
    scaling: Annotated[str, one_of((EXPONENTIAL, GEOMETRIC))] = EXPONENTIAL
    ratio: Annotated[float, within(above=1)] = 2.0
    eps: Annotated[float, within(above=0, most=1, name="a share")] = 0.7
    omega: Annotated[float, within(0, name="a share"), "0.01 is 1 %"] = 0.01
    window: Count = 500
    smoothing: Share | None = None
    workers: Count = 1
    gain: Annotated[str, one_of((ENERGY, NORM))] = ENERGY
    average: Annotated[str, one_of((RATIO_OF_AVERAGES, AVERAGE_OF_RATIOS))] = RATIO_OF_AVERAGES
    throughput: Annotated[str, one_of((WINDOW, LAST))] = WINDOW
    freeze: bool = True
    decide: Annotated[str, one_of((NOW, LAST))] = NOW
    ladder: Rungs | None = None
    values: Sequence[Any] = made_of(init=False, compare=False)

    def __post_init__(self) -> None:
        self._check_without_effect()
        if self.theta_min > self.theta_max:
            raise ValueError(
                f"theta_min: at most theta_max, got {self.theta_min:g} above {self.theta_max:g}"
            )
        factors = factors_between(self.theta_min, self.theta_max, self.scaling, self.ratio)
        object.__setattr__(self, "values", tuple(self.ladder or factors))

    def _check_without_effect(self) -> None:
        """Refuse what would do nothing. (``workers`` beside ``smoothing``: launch/rules.py, which knows the
        run's.)"""
        if self.ladder is not None:
            idle: tuple[str, ...] = ("theta_min", "theta_max", "scaling", "ratio")
            why = "beside ladder, which stands in the place of all factors; leave one of them out"
        elif self.scaling == EXPONENTIAL:
            idle, why = ("ratio",), "with scaling=exponential; give scaling=geometric"
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
        """``theta_min``, ``candidate``: places in ``values``; ``gains``: by place, the two smoothed sums;
        ``window``: by factor, sum and number of throughputs since the last decision; ``throughputs``: by
        factor, of the last window that used it; ``next``: branch and rung of the next step, if known before
        it; ``last``: how the last step was sent, and why; ``waiting``: decisions whose time is not known
        yet; ``timed``: the last one whose time is."""
        return {
            "theta_min": 0, "candidate": 0, "steps": 0, "frozen": False, "gains": {}, "window": {},
            "throughputs": {}, "next": {"branch": DENSE, "rung": 0}, "last": {}, "waiting": [],
            "timed": {}, "trace": [],
        }  # fmt: skip

    def plan(self, state: State, step: int) -> Plan:
        candidates = (state["theta_min"] + 1, state["candidate"] + 1)
        norms = self.gain == NORM
        if self.decide == LAST:
            return Plan(state["next"]["rung"], candidates=candidates, norms=norms, measures=True)
        return Plan(None, candidates=candidates, norms=norms)

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        whole, weakest, candidate = energies.tolist()[3 if self.gain == NORM else 0 :][:3]
        least, tried = state["theta_min"], state["candidate"]
        gains = dict(state["gains"])
        for place, kept in {
            tried: candidate,
            least: weakest,
        }.items():  # one entry if both are equal
            gains[str(place)] = self._averaged(gains.get(str(place)), kept, whole)
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

    def _decided(self, state: State, step: int) -> State:
        """The factors of the next window, after so many steps."""
        means = {factor: total / count for factor, (total, count) in state["window"].items()}
        throughputs = {**state["throughputs"], **means}
        theta_min, candidate = state["theta_min"], state["candidate"]
        frozen, reasons = state["frozen"], []
        measured = str(candidate) in state["gains"]  # False: all steps were skipped
        if not frozen and measured:
            if candidate > theta_min and self._is_as_good(state):
                theta_min = candidate
                reasons.append(f"theta_min is {self._named(candidate)}: its gain is as high")
            ideal = self._ideal(throughputs)
            if ideal is not None:
                candidate, frozen = max(ideal, theta_min), self.freeze
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
        """What was decided for the next step, in terms of the new factors: theta_min replaces a rung that is
        no longer watched."""
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
        """The place of the weaker of the two factors with the largest throughputs, if these differ by at
        most omega, else None."""
        best = sorted(throughputs.items(), key=lambda item: item[1], reverse=True)[:2]
        if len(best) < 2 or not best[1][1] > 0:
            return None
        (_, largest), (_, second) = best
        if (largest - second) / second > self.omega:
            return None
        places = {str(value): place for place, value in enumerate(self.values)}
        return min(places.get(factor, DENSE_PLACE) for factor, _ in best)

    def _named(self, place: int) -> str:
        """A factor as the paper writes it, other settings by their name."""
        if place == DENSE_PLACE:
            return DENSE
        value = self.values[place]
        return f"{value:g}x" if self.ladder is None else f"{self.field}={value}"

    def _averaged(self, before: Any, energy: float, whole: float) -> list[float]:
        """[numerator, denominator] of the smoothed gain. Both begin at 0, so their bias cancels."""
        if self.average == AVERAGE_OF_RATIOS:
            energy, whole = (energy / whole if whole else 1.0), 1.0
        above, below = before or (0.0, 0.0)
        w = self.weight
        return [(1 - w) * above + w * energy, (1 - w) * below + w * whole]


def _gain(averages: Sequence[float]) -> float:
    """The ratio of the two averages; 1 for a gradient of zeros."""
    above, below = averages
    return above / below if below > 0 else 1.0
