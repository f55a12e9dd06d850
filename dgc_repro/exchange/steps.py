"""What a step is made of, the same for the trainer and for `attach`: the plan, the policy's inputs, the
agreement of all ranks.

All inputs of a policy travel with the signals, so that they cost no collective of their own: squares,
sketches and energies of a gradient that is sent as planned (`ENERGIES`) with those of the step itself, its
time with those of the next step. So `after_step` reports each step one step later. Only policies that ask for
something cause anything here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from dgc_repro.errors import UserError
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.junction import Junction, Parameters
from dgc_repro.exchange.sketch import common_square, sketch
from dgc_repro.exchange.world import World
from dgc_repro.policy.interface import MEAN, OWN, SPREAD, Plan, Policy, StepReport, measures


@dataclass
class PolicyInputs:
    """Of a step. ``step``: its number, -1 where there is none to report; ``seconds``: its time here;
    ``samples``: of all workers (`Steps.samples_by_rank`: of this one); ``own_square``: mean of ||g_i||^2
    over all workers; ``mean_square``: ||g||^2 as it was applied; ``signal_square``: as in `StepReport`;
    ``chosen``: the rung that the policy has chosen last by a gradient; ``sums``: of the epoch's gradients, by
    parameter."""

    step: int = -1
    seconds: float = 0.0
    samples: float = 0.0
    own_square: float = 0.0
    mean_square: float = 0.0
    signal_square: float = math.nan
    chosen: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class PolicyProgress:
    """What changes from step to step and is saved: the policy's state, and what it gets of the last step."""

    policy: dict[str, Any] = field(default_factory=dict)
    watched: PolicyInputs = field(default_factory=PolicyInputs)


@dataclass(kw_only=True)
class Steps:
    """The steps of a loop in this process, in the order `begin`, `open` (for each worker hosted here),
    `settle`, `end`.

    ``world``: of all workers; the exchange's may be of nodes. ``parameters``: those that learn, by
    name. ``samples_by_rank``: a step's samples are known on each rank alone, and are summed with its time.
    ``sharded``: gradients are parts of tensors, and all nodes have the same parts. ``on_nonfinite``: see
    `ON_NONFINITE` (exchange/fit.py)."""

    world: World
    exchange: Exchange
    junction: Junction
    policy: Policy
    parameters: Parameters
    progress: PolicyProgress
    seed: int = 0
    samples_by_rank: bool = False
    sharded: bool = False
    on_nonfinite: str = "raise"
    step: int = field(default=0, init=False)  # the one that has begun
    plan: Plan = field(default=Plan(None), init=False)
    inputs: PolicyInputs = field(default_factory=PolicyInputs, init=False)  # of this step

    def __post_init__(self) -> None:
        self.exchange.choose = self.choose
        # Whether the policy gets the time of each step. On a GPU such a step ends when the device has done
        # it: otherwise its end would count as time of the next step.
        self.times_steps = measures(self.policy) or self.policy.watches == SPREAD
        self._kept: tuple[list[Tensor], list[Tensor]] = [], []  # buffers, and their values before
        self._copies: list[Tensor] = []  # where these values are kept

    def begin(self, step: int) -> None:
        """Plan a step, before its backward."""
        self.step, self.inputs = step, PolicyInputs()
        self._sketch: Tensor | None = None  # summed over the workers here
        self._own: dict[str, Tensor] = {}  # rank 0's gradients, in its process
        self.plan = self.policy.plan(self.progress.policy, step)
        self.junction.begin(self.plan)

    def keep(self, model: nn.Module) -> None:
        """Before the first forward of a step: remember the model's buffers where the step may be skipped.
        Batch-norm statistics see the inputs of a gradient that is not finite; `settle` puts them back."""
        if self.may_skip and model.training and not self._kept[0]:
            buffers = list(model.buffers())
            alike = [(one.shape, one.dtype) for one in self._copies]
            if alike != [(one.shape, one.dtype) for one in buffers]:
                self._copies = [torch.empty_like(one) for one in buffers]
            self._kept = buffers, self._copies
            with torch.no_grad():
                copy_all(self._copies, buffers)

    def open(self, index: int, names: Collection[str] | None = None) -> str | None:
        """Backward of the ``index``-th worker hosted here is over. The name of a gradient that is not finite,
        if one is known. ``names``: see `Junction.open`."""
        watches = self.policy.watches
        if watches == SPREAD:  # the sum over the workers here, until the ranks agree
            self.inputs.own_square += square(self.gradients().values())
        if getattr(self.policy, "sketches", False):
            present = self.gradients()
            found = sketch(map(present.get, self.parameters), self.seed, self.step).cpu()
            self._sketch = found if self._sketch is None else self._sketch + found
        if watches == OWN and self.world.rank + index == 0:
            self._own = {name: gradient.clone() for name, gradient in self.gradients().items()}
        return self.junction.open(names)

    def settle(
        self, numbers: Sequence[float | Tensor], *, finite: bool
    ) -> tuple[bool, list[float]]:
        """Agree on the step, exchange or leave it out, and give the policy its inputs. Arguments and what is
        returned: those of `Junction.settle`."""
        watched, inputs = self.progress.watched, self.inputs
        kept, self._kept = self._kept, ([], [])
        about: list[float] = []
        if self.times_steps:
            sketched = [] if self._sketch is None else self._sketch.tolist()
            squares = [inputs.own_square, *sketched]
            about = [watched.seconds, *([watched.samples] if self.samples_by_rank else squares)]
        happened, sums = self.junction.settle([*numbers, *about], finite=finite)
        sums, told = sums[: len(numbers)], sums[len(numbers) :]
        workers = self.world.size
        if told and not self.samples_by_rank:
            inputs.own_square = told[1] / workers
            if self._sketch is not None:
                total = torch.tensor(told[2:], dtype=torch.float64)
                inputs.signal_square = common_square(total, workers)
        if happened:
            if energies := self.exchange.told:
                # In float32, as a policy's choice gets them: sums of other orders round to one number.
                self.choose(torch.stack(energies).sum(0).float().cpu())
            self._add_mean()
        else:
            with torch.no_grad():
                copy_all(*kept)
        self.exchange.told.clear()
        self.exchange.step += 1
        if told and watched.step >= 0:
            report = StepReport(
                step=watched.step,
                seconds=told[0] * self.world.local / workers,
                samples=told[1] if self.samples_by_rank else watched.samples,
                own_square=watched.own_square,
                mean_square=watched.mean_square,
                signal_square=watched.signal_square,
            )
            self.progress.policy = self.policy.after_step(self.progress.policy, report)
        return happened, sums

    def end(self, samples: float, seconds: float | None) -> None:
        """Keep what the next step reports of this one; ``seconds``: None where it was left out."""
        last = self.progress.watched
        self.progress.watched = replace(
            self.inputs,
            step=-1 if seconds is None else self.step,
            seconds=seconds or 0.0,
            samples=samples,
            chosen=last.chosen,
            sums=last.sums,
        )

    def choose(self, energies: Tensor) -> int:
        """The policy's rung, and its state is kept."""
        progress = self.progress
        progress.watched.chosen, progress.policy = self.policy.choose(progress.policy, energies)
        return int(progress.watched.chosen)

    @property
    def may_skip(self) -> bool:
        """Whether a step whose gradient is not finite may be left out."""
        return self.on_nonfinite == "skip"

    @property
    def excludes_compression(self) -> bool:
        """Whether the time of this step, for the policy, is without compression: in a dense step candidates
        were compressed that were not sent (t_o + t_s in GraVAC, algorithm 1). Where compression overlaps
        backward, how much it added is unknown."""
        rung = self.progress.watched.chosen if self.plan.rung is None else self.plan.rung
        return rung == 0 and not self.junction.overlaps

    def gradients(self) -> dict[str, Tensor]:
        """As they are now, by parameter, where there is one. With FSDP: this rank's parts."""
        found = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        return {name: getattr(g, "_local_tensor", g) for name, g in found.items()}

    def gradient_norms(self) -> dict[str, float]:
        """By parameter, the norm of the sum of this epoch's gradients, the same on all ranks; another epoch
        begins. Empty where the policy does not watch them."""
        if self.policy.watches not in (MEAN, OWN):
            return {}
        sums, self.progress.watched.sums = self.progress.watched.sums, {}
        norms = [norm(sums[name]) if name in sums else 0.0 for name in self.parameters]
        if self.policy.watches == OWN:
            # Rank 0's are shared. After a resume others hold them too: a checkpoint has one set of sums.
            norms = self.world.share(norms if self.world.rank == 0 else [0.0] * len(norms))
        if self.sharded:
            squares = self.world.share([n * n for n in norms])
            norms = [math.sqrt(s / self.exchange.world.size) for s in squares]
        return dict(zip(self.parameters, norms, strict=True))

    def _add_mean(self) -> None:
        """After the exchange, before the optimizer moves the parameters."""
        watches, sums = self.policy.watches, self.progress.watched.sums
        if watches == SPREAD:
            self.inputs.mean_square = square(self.gradients().values())
        if watches not in (MEAN, OWN):
            return
        for name, gradient in (self.gradients() if watches == MEAN else self._own).items():
            if name in sums:
                sums[name] += gradient
            else:  # in float32 at least
                wide = torch.promote_types(gradient.dtype, torch.float32)
                sums[name] = gradient.to(wide, copy=True)


def refuse_non_finite(
    world: World, names: Sequence[str | None], step: int, key: str, fix: str
) -> NoReturn:
    """Raise on all ranks one line that names the ranks and tensors with a non-finite gradient.

    ``step`` counts from 1. ``names``: a tensor, or None, for each worker hosted here. The line begins with
    ``key`` and ends with ``fix``."""
    ours = [f"rank {world.rank + i}: {name}" for i, name in enumerate(names) if name]
    said = dict.fromkeys(world.tell(", ".join(ours)))  # simulated workers say the same
    where = ", ".join(text for text in said if text)
    raise UserError(f"{key}: the gradient is not finite at step {step} ({where}); {fix}")


def copy_all(to: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Write tensors into others, those of one type in one launch on a GPU."""
    by_types: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for one, other in zip(to, given, strict=True):
        ones, others = by_types.setdefault((one.dtype, other.dtype), ([], []))
        ones.append(one)
        others.append(other)
    for ones, others in by_types.values():
        torch._foreach_copy_(ones, others)


def square(tensors: Iterable[Tensor]) -> float:
    """Sum of squares, in float64."""
    present = list(tensors)
    if not present:
        return 0.0
    norms = torch.stack(torch._foreach_norm(present, 2, torch.float64))
    return float(norms.square().sum())


def norm(tensor: Tensor) -> float:
    """L2, in float64."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return float(torch.linalg.vector_norm(real, dtype=torch.float64))
