"""What a policy sees of a step besides its plan: how long it took, and what the gradients were like.

Numbers of a step travel with the next step's signals, so that they cost no collective of their own: a
policy hears of each step one step later. Only policies that ask for something cause anything here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgc_repro.exchange.signals import share
from dgc_repro.policy.interface import MEAN, OWN, SPREAD, Policy, StepReport
from dgc_repro.train.settings import MEASURED

if TYPE_CHECKING:
    from dgc_repro.train.run import Run


@dataclass
class Seen:
    """Of the step under way: ``own_square``, ``mean_square`` as in `Watched`, and rank 0's gradients."""

    own_square: float = 0.0
    mean_square: float = 0.0
    own: list[Tensor] = field(default_factory=list)


@dataclass
class Watched:
    """``step``: the last one, -1 where there is nothing to tell; ``seconds``: it took this process;
    ``samples``: of all workers; ``own_square``: sum of ||g_i||^2 over the workers here;
    ``mean_square``: ||g||^2 as it was applied; ``sums``: of the epoch's gradients, by parameter."""

    step: int = -1
    seconds: float = 0.0
    samples: float = 0.0
    own_square: float = 0.0
    mean_square: float = 0.0
    sums: list[Tensor] = field(default_factory=list)


def is_told(policy: Policy) -> bool:
    """Whether the policy hears of every step."""
    return policy.chooses or policy.watches == SPREAD


def spoken(run: Run) -> list[float]:
    """What this process says of its last step, with the signals of this one."""
    if not is_told(run.policy):
        return []
    watched = run.progress.watched
    return [watched.seconds, watched.own_square]


def see_own(run: Run, index: int, seen: Seen) -> None:
    """After the backward of the ``index``-th worker hosted here, before the exchange takes its gradients."""
    if run.policy.watches == SPREAD:
        seen.own_square += square(gradients(run))
    if run.policy.watches == OWN and run.workers.ranks[index] == 0:
        seen.own = [gradient.clone() for gradient in gradients(run)]


def see_mean(run: Run, seen: Seen) -> None:
    """After the exchange of a step that is not skipped, before the optimizer moves the parameters."""
    if run.policy.watches == SPREAD:
        seen.mean_square = square(gradients(run))
    if run.policy.watches in (MEAN, OWN):
        _add(run.progress.watched, gradients(run) if run.policy.watches == MEAN else seen.own)


def note(run: Run, seen: Seen, samples: float, seconds: float | None) -> None:
    """Keep what the next step tells of this one; ``seconds``: None where it was skipped."""
    watched = run.progress.watched
    watched.step = -1 if seconds is None else run.progress.step
    watched.seconds, watched.samples = seconds or 0.0, samples
    watched.own_square, watched.mean_square = seen.own_square, seen.mean_square


def report(run: Run, heard: Sequence[float]) -> None:
    """Tell the policy of the last step, which all ranks have now spoken of (``heard``: sums)."""
    progress, watched = run.progress, run.progress.watched
    if not heard or watched.step < 0:
        return
    wire = run.link.wire
    seconds, own_square = heard
    progress.policy = run.policy.after_step(
        progress.policy,
        StepReport(
            step=watched.step,
            seconds=seconds * wire.local_workers / wire.world_size,
            samples=watched.samples,
            own_square=own_square / wire.world_size,
            mean_square=watched.mean_square,
        ),
    )


def end_of_epoch(run: Run) -> dict[str, float]:
    """By parameter, the norm of the sum of this epoch's gradients; the same on all ranks."""
    watched = run.progress.watched
    names = [name for name, p in run.module.named_parameters() if p.requires_grad]
    if run.policy.watches not in (MEAN, OWN):
        return {}
    norms = [float(torch.linalg.vector_norm(total, dtype=torch.float64)) for total in watched.sums]
    watched.sums = []
    if run.policy.watches == OWN:
        norms = norms or [0.0] * len(names)  # of other ranks; rank 0's are told
        norms = share(run.link, norms)
    return dict(zip(names, norms, strict=False))


def seconds_of(run: Run, wall: float, modelled: float) -> float:
    """How long the step took, as the policy is told (``train.step_time``): on the wall, or with
    ``modelled`` seconds of communication in the place of what was measured. Simulated workers took
    turns and moved nothing: theirs is the mean of what they computed and compressed, what all
    of them decompress, and the model's communication."""
    if run.settings.step_time == MEASURED and run.link.wire.local_workers == 1:
        return wall
    return modelled_seconds(run, modelled)


def modelled_seconds(run: Run, modelled: float) -> float:
    """The last step with ``modelled`` seconds of communication. The rest of it is ``train.compute_ms``, or
    what was measured here."""
    settings, workers = run.settings, run.link.wire.local_workers
    if settings.compute_ms is not None:  # nothing of it is measured: the same in every run
        return settings.compute_ms / 1e3 + modelled
    spans = run.link.clock.last
    here = (spans["compute"] + spans["compress"]) / workers + spans["decompress"]
    return here + modelled


def gradients(run: Run) -> list[Tensor]:
    """Of all parameters that learn; zeros where there is none."""
    return [
        torch.zeros_like(p) if p.grad is None else p.grad
        for p in run.module.parameters()
        if p.requires_grad
    ]


def square(tensors: Sequence[Tensor]) -> float:
    """Sum of squares, in float64."""
    norms = torch.stack(torch._foreach_norm(list(tensors), 2, torch.float64))
    return float(norms.square().sum())


def _add(watched: Watched, gradients: Sequence[Tensor]) -> None:
    if not gradients:
        return
    if not watched.sums:
        watched.sums = [torch.zeros_like(gradient) for gradient in gradients]
    torch._foreach_add_(watched.sums, list(gradients))
