"""A policy's inputs from a step besides its plan: the step's time and statistics of its gradients.

All of it travels with the signals, so that it costs no collective of its own: squares, sketches and energies
of a gradient that is sent as planned (`ENERGIES`) with those of the step itself, its time with those of the
next step. So `after_step` reports each step one step later. Only policies that ask for something cause
anything here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgc_repro.exchange.signals import share
from dgc_repro.exchange.sketch import BUCKETS, common_square, sketch
from dgc_repro.policy.interface import MEAN, OWN, SPREAD, Plan, Policy, StepReport, measures
from dgc_repro.train.settings import MEASURED

if TYPE_CHECKING:
    from dgc_repro.train.run import Run


Gradients = list[Tensor | None]
"""Of all parameters that learn, in their order; None where there is none, which counts as zeros."""


@dataclass
class StepInputs:
    """Statistics of the current step: ``own_square``, ``mean_square``, ``signal_square`` as in `PolicyInputs`
    (until `set_shared`, ``own_square`` is the sum over the workers here); ``sketch``: summed over them, empty
    where the policy needs none; ``own``: rank 0's gradients, in its process."""

    own_square: float = 0.0
    mean_square: float = 0.0
    signal_square: float = math.nan
    sketch: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    own: Gradients = field(default_factory=list)


@dataclass
class PolicyInputs:
    """``step``: the last one, -1 where there is none to report; ``seconds``: its time in this process;
    ``samples``: of all workers; ``own_square``: mean of ||g_i||^2 over all workers; ``mean_square``:
    ||g||^2 as it was applied; ``signal_square``: as in `StepReport`; ``chosen``: the rung of the last step
    that was chosen by its gradient; ``sums``: of the epoch's gradients, by parameter."""

    step: int = -1
    seconds: float = 0.0
    samples: float = 0.0
    own_square: float = 0.0
    mean_square: float = 0.0
    signal_square: float = math.nan
    chosen: int = 0
    sums: list[Tensor] = field(default_factory=list)


def needs_reports(policy: Policy) -> bool:
    """Whether the policy gets a report of every step."""
    return measures(policy) or policy.watches == SPREAD


def sketches(policy: Policy) -> bool:
    """Whether the policy needs a sketch of what the workers' gradients have in common."""
    return getattr(policy, "sketches", False)


def numbers_to_share(run: Run, inputs: StepInputs) -> list[float]:
    """Numbers that this process adds to the signals of this step: the time of its last step, and squares
    and sketch of this one."""
    if not needs_reports(run.policy):
        return []
    return [run.progress.watched.seconds, inputs.own_square, *inputs.sketch.tolist()]


def set_shared(run: Run, inputs: StepInputs, sums_of_ranks: Sequence[float]) -> None:
    """Set what all processes have shared of this step (``sums_of_ranks``: of `numbers_to_share`)."""
    if not sums_of_ranks:
        return
    workers = run.link.wire.world_size
    inputs.own_square = sums_of_ranks[1] / workers
    if sketches(run.policy):
        total = torch.tensor(sums_of_ranks[2 : 2 + BUCKETS + 1], dtype=torch.float64)
        inputs.signal_square = common_square(total, workers)


def choose_next(run: Run, energies: Sequence[float]) -> None:
    """Of a step that is not skipped: the policy decides on the next one (``energies``: of `settle`)."""
    if energies:
        # In float32, as `Choose` answers: sums of other orders round to one number.
        mean = torch.tensor(energies, dtype=torch.float64).float()
        _, run.progress.policy = run.policy.choose(run.progress.policy, mean)


def add_own(run: Run, index: int, inputs: StepInputs) -> None:
    """After the backward of the ``index``-th worker hosted here, before the exchange takes its gradients."""
    if run.policy.watches == SPREAD:
        inputs.own_square += square(gradients(run))
    if sketches(run.policy):
        found = sketch(gradients(run), run.seed, run.progress.step).cpu()
        inputs.sketch = inputs.sketch + found if inputs.sketch.numel() else found
    if run.policy.watches == OWN and run.workers.ranks[index] == 0:
        inputs.own = [None if g is None else g.clone() for g in gradients(run)]


def add_mean(run: Run, inputs: StepInputs) -> None:
    """After the exchange of a step that is not skipped, before the optimizer moves the parameters."""
    if run.policy.watches == SPREAD:
        inputs.mean_square = square(gradients(run))
    if run.policy.watches in (MEAN, OWN):
        _add(run, gradients(run) if run.policy.watches == MEAN else inputs.own)


def keep_step(run: Run, inputs: StepInputs, samples: float, seconds: float | None) -> None:
    """Keep what the next step reports of this one; ``seconds``: None where it was skipped."""
    watched = run.progress.watched
    watched.step = -1 if seconds is None else run.progress.step
    watched.seconds, watched.samples = seconds or 0.0, samples
    watched.own_square, watched.mean_square = inputs.own_square, inputs.mean_square
    watched.signal_square = inputs.signal_square


def report(run: Run, sums_of_ranks: Sequence[float]) -> None:
    """Report the last step to the policy; all ranks have shared its time by now (in ``sums_of_ranks``)."""
    progress, watched = run.progress, run.progress.watched
    if not sums_of_ranks or watched.step < 0:
        return
    wire = run.link.wire
    progress.policy = run.policy.after_step(
        progress.policy,
        StepReport(
            step=watched.step,
            seconds=sums_of_ranks[0] * wire.local_workers / wire.world_size,
            samples=watched.samples,
            own_square=watched.own_square,
            mean_square=watched.mean_square,
            signal_square=watched.signal_square,
        ),
    )


def end_of_epoch(run: Run) -> dict[str, float]:
    """By parameter, the norm of the sum of this epoch's gradients; the same on all ranks."""
    if run.policy.watches not in (MEAN, OWN):
        return {}
    watched = run.progress.watched
    names = [name for name, p in run.module.named_parameters() if p.requires_grad]
    norms = [float(torch.linalg.vector_norm(total, dtype=torch.float64)) for total in watched.sums]
    norms = norms or [0.0] * len(names)  # nothing was summed: all steps skipped
    watched.sums = []
    if run.policy.watches == OWN:
        # Rank 0's are shared. After a resume others hold them too: a checkpoint has one set of sums.
        hosts = 0 in run.workers.ranks
        norms = share(run.link, norms if hosts else [0.0] * len(names))
    return dict(zip(names, norms, strict=True))


def seconds_of(run: Run, plan: Plan, wall: float, modelled: float) -> float:
    """Seconds of the step for the policy (``train.step_time``): measured, or with ``modelled`` seconds of
    communication in place of the measured ones. Simulated workers take turns and move nothing: their step
    is the mean of what they compute and compress, what all of them decompress, and the modelled
    communication. A dense step excludes the compression of candidates that were not sent (t_o + t_s in
    GraVAC, algorithm 1), unless compression overlaps backward: then how much it added is unknown."""
    measured = run.settings.step_time == MEASURED and run.link.wire.local_workers == 1
    seconds = wall if measured else modelled_seconds(run, modelled)
    rung = run.progress.watched.chosen if plan.rung is None else plan.rung
    if rung == 0 and not run.junction.overlaps and (measured or run.settings.compute_ms is None):
        seconds -= run.link.clock.last["compress"] / run.link.wire.local_workers
    return seconds


def modelled_seconds(run: Run, modelled: float) -> float:
    """The last step with ``modelled`` seconds of communication. The rest of it is ``train.compute_ms``, or
    what was measured here."""
    settings, workers = run.settings, run.link.wire.local_workers
    if settings.compute_ms is not None:  # nothing of it is measured: the same in every run
        return settings.compute_ms / 1e3 + modelled
    spans = run.link.clock.last
    here = (spans["compute"] + spans["compress"]) / workers + spans["decompress"]
    return here + modelled


def gradients(run: Run) -> Gradients:
    """As they are now."""
    return [p.grad for p in run.module.parameters() if p.requires_grad]


def square(found: Gradients) -> float:
    """Sum of squares, in float64."""
    present = [gradient for gradient in found if gradient is not None]
    if not present:
        return 0.0
    norms = torch.stack(torch._foreach_norm(present, 2, torch.float64))
    return float(norms.square().sum())


def _add(run: Run, found: Gradients) -> None:
    if not found:
        return
    watched = run.progress.watched
    if not watched.sums:
        watched.sums = [torch.zeros_like(p) for p in run.module.parameters() if p.requires_grad]
    pairs = [(s, g) for s, g in zip(watched.sums, found, strict=True) if g is not None]
    torch._foreach_add_([total for total, _ in pairs], [gradient for _, gradient in pairs])
