"""What a policy is: settings in a frozen dataclass, everything that changes in a state it is given.

A policy sees only numbers that are the same on every rank (metrics that were averaged, energies
that were averaged) and draws nothing at random, so that all ranks plan the same without asking.

Rung 0 is no compression, rung r sends with ``values[r - 1]``; values are weakest first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

MEAN, OWN, SPREAD, ENERGIES = "mean", "own", "spread", "energies"

State = dict[str, Any]
"""Numbers, strings, lists and dicts: it checkpoints as it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rung each tensor takes in the next step. ``rung``: for all, None to ask `Policy.choose`;
    ``by_tensor``: exceptions; ``candidates``: the two rungs whose energies it gets; ``norms``: whether it
    gets sums of per-tensor L2 norms too; ``measures``: whether it gets them although the rung is known."""

    rung: int | None
    by_tensor: Mapping[str, int] = field(default_factory=dict)
    candidates: tuple[int, int] = (0, 0)
    norms: bool = False
    measures: bool = False

    def for_tensor(self, name: str) -> int | None:
        return self.by_tensor.get(name, self.rung)


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What all ranks know at the end of an epoch (1-based); accuracies in percent. Of a text, losses
    are nats a token, a word or a character (perplexity is exp of them), and the accuracy is that of
    the next token.
    ``learning_rate``: of the epoch's last step and of the next epoch's last, so that a decay is known
    before the epoch in which it comes (NaN: not known); ``gradient_norms``: by tensor, where the policy
    `watches` them, the norm of the sum of the gradients of this epoch."""

    epoch: int
    train_loss: float
    validation_loss: float
    validation_accuracy_percent: float
    learning_rate: tuple[float, float] = (math.nan, math.nan)
    gradient_norms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepReport:
    """What all ranks know after a step (0-based). ``seconds``: its wall time, mean over workers, with
    the network's modelled communication in the place of the measured one where the run says so, NaN where
    nobody knows. Reports come in the order of steps, each during the step after it;
    ``samples``: of all workers together. Where the policy watches `SPREAD`: ``own_square``, the mean over
    workers of ||g_i||^2, and ``mean_square``, ||g||^2 of the mean that was applied. Where it also
    ``sketches``: ``signal_square``, an unbiased estimate of ||mu||^2, mu what the g_i have in common
    (exchange/sketch.py)."""

    step: int
    seconds: float
    samples: float
    own_square: float = 0.0
    mean_square: float = 0.0
    signal_square: float = math.nan


class Policy(Protocol):
    """Plans rungs. ``field`` is the compressor's setting that ``values`` are for; None: no ladder.

    One that measures and does not care how long a step takes sets ``weighs_time`` to False. One that watches
    `SPREAD` and asks for `StepReport.signal_square` too sets ``sketches`` to True."""

    @property
    def field(self) -> str | None: ...

    @property
    def values(self) -> Sequence[Any]: ...

    @property
    def chooses(self) -> bool:
        """Whether it must see this step's gradient (`Choose`) before it plans."""

    @property
    def watches(self) -> str | None:
        """Whose gradients `EpochReport.gradient_norms` are of: `MEAN` (over workers, as applied), `OWN`
        (rank 0's, before the exchange). `SPREAD`: it asks for the squares of `StepReport`. `ENERGIES`: it
        plans before the step, and asks for that step's energies after it (`Plan.measures`). Or None."""

    def init(self) -> State:
        """The state before the first step."""

    def plan(self, state: State, step: int) -> Plan:
        """The plan for one step (0-based)."""

    def observe(self, state: State, report: EpochReport) -> State:
        """The state after an epoch."""

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        """The rung and the state after, from energies that all ranks share. The rung is that of this step;
        where the policy watches `ENERGIES`, of the next one that is not skipped.

        ``energies``: f32[3] or f32[6]. The first three are ||g||^2 and the energy ||g||^2 - ||g - C(g)||^2
        that the weakest rung and the candidate explain, where g includes the residual. (The explained energy
        of a sparsifier is ||C(g)||^2. It does not count a quantizer's noise as signal.) With `Plan.norms`
        three L2 norms follow: of the gradient without its residual, and the square roots of the two explained
        energies. All are sums over tensors and averages over workers."""

    def after_step(self, state: State, report: StepReport) -> State:
        """The state after a step that was not skipped; called where the policy `chooses`, or watches
        `SPREAD` or `ENERGIES`."""


def measures(policy: Policy) -> bool:
    """Whether it sees energies of its rungs, before it plans (`Policy.chooses`) or after (`ENERGIES`)."""
    return policy.chooses or policy.watches == ENERGIES


def label(policy: Policy, rung: int | None) -> str:
    """A rung in words: ``bits=4``, ``dense``; ``fixed`` where there is no ladder."""
    if policy.field is None:
        return "fixed"
    if rung is None:
        return "chosen by gradient"
    return "dense" if rung == 0 else f"{policy.field}={policy.values[rung - 1]}"
