"""One training step. In a real process one worker lives here; simulated, all of them do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dgc_repro.exchange.finite import known_non_finite
from dgc_repro.exchange.junction import Junction
from dgc_repro.exchange.steps import refuse_non_finite
from dgc_repro.optimizer.sam import perturbed
from dgc_repro.optimizer.sgd import set_learning_rate
from dgc_repro.train.loss_scale import LossScale
from dgc_repro.train.run import Run
from dgc_repro.train.settings import MEASURED
from dgc_repro.train.task import Batch, Carried

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The type of each precision in which autocast computes."""


def train_step(run: Run, batches: Sequence[Batch]) -> bool:
    """One step on one batch for each worker hosted here.

    Returns whether training goes on: False when some worker was asked to stop.
    Raises UserError on all ranks when a gradient is not finite (``train.on_nonfinite=raise``).
    """
    begin = time.perf_counter()
    clock, progress = run.world.clock, run.progress
    learning_rate = run.base_lr * run.lr_factor(progress.step / run.steps_per_epoch)
    if run.sam is not None:  # its two passes see the same inputs
        batches = [replace(batch, micro_batches=list(batch.micro_batches)) for batch in batches]
    modelled_before = run.world.ledger.step_seconds or 0.0
    take = exchanged_step if run.local is None else local_step
    happened, count, stop = take(run, batches, learning_rate)

    if run.times_steps:
        clock.drain()
    wall = time.perf_counter() - begin
    clock.end_step(wall)
    modelled = (run.world.ledger.step_seconds or 0.0) - modelled_before
    if run.world.ledger.step_seconds is not None:
        progress.modelled_seconds += modelled_seconds(run, modelled)
    seconds = seconds_of(run, wall, modelled) if run.times_steps else wall
    run.end(count, seconds if happened else None)
    progress.step += 1
    return not stop


def exchanged_step(
    run: Run, batches: Sequence[Batch], learning_rate: float
) -> tuple[bool, float, bool]:
    """The gradients of all workers are exchanged, and their mean moves the weights. Returns whether this has
    happened, the number of answers, and whether some worker was asked to stop."""
    exchange, clock, progress = run.exchange, run.world.clock, run.progress
    exchange.learning_rate = learning_rate
    run.begin(progress.step)
    run.keep(run.module)
    loss = correct = torch.zeros((), dtype=torch.float64, device=run.device)
    count = 0.0
    bad: list[str | None] = []  # for each worker hosted here, a tensor that is not finite
    carried: list[list[Carried]] = []  # for each of them, what its next step begins with
    with casts_kept(run):
        for index, batch in enumerate(batches):
            with clock.span("compute"), run.workers.turn_of(index):
                worker_loss, worker_correct, worker_carried = worker_gradient(run, index, batch)
            loss, correct = loss + worker_loss, correct + worker_correct
            count += batch.count
            carried.append(worker_carried)
            bad.append(run.open(index))  # no residual changes

    if clock.measures_wait:
        run.world.wait()
    numbers: list[float | Tensor] = [loss, correct, count, float(run.stop_requested)]
    happened, sums = run.settle(numbers, finite=not any(bad))
    count, stop = sums[2:]
    junction: Junction = run.junction
    if happened and run.uncompressed is not None:
        junction = run.uncompressed
        happened = second_gradient(run, junction, batches)
    if happened:
        for scale in progress.loss_scales:
            scale.grow()
        set_learning_rate(run.optimizer, learning_rate)
        with clock.span("compute"):
            run.optimizer.step()
        progress.tally.add(*sums[:3])
        progress.carried = carried
    else:
        # All ranks agree that the step is left out, so that their scales stay the same.
        overflowed = [scale.back_off() for scale in progress.loss_scales]
        if any(overflowed):
            progress.tally.skipped_steps += 1
        else:
            leave_out(run, junction.named(), 1)
    return happened, count, bool(stop)


def local_step(
    run: Run, batches: Sequence[Batch], learning_rate: float
) -> tuple[bool, float, bool]:
    """Each worker moves its own weights; at the end of a round their outer gradients are exchanged and the
    shared weights move (train/local_steps.py, train/streaming.py). Returns what `exchanged_step` does. That a
    worker was asked to stop is known at the end of a round."""
    assert run.local is not None
    local, clock, progress = run.local, run.world.clock, run.progress
    ends = run.ends_round(progress.step + 1)
    sends = local.sends(progress.step + 1, ends)
    if sends or (ends and not local.under_way):
        run.begin(progress.step)
    run.keep(run.module)  # the buffers as they are before the first step of a round
    if local.begins_round:
        local.carried = list(progress.carried)
    for index, batch in enumerate(batches):
        with clock.span("compute"), run.workers.turn_of(index):
            local.begin_turn(index)
            own_step(run, index, batch, learning_rate)
            if sends:
                local.leave_outer_gradient()
        if sends:
            opened = run.open(index, local.sent_names)
            local.bad[index] = local.bad[index] or opened
    local.taken += 1
    if not ends:
        if sends:
            run.junction.send()
        return True, 0.0, False

    if not sends:
        run.zero_grad()  # for the means of what was sent before
    run.world.wait()
    answers = torch.stack(local.answers).sum(0).unbind()
    numbers: list[float | Tensor] = [*answers, float(local.skipped), float(run.stop_requested)]
    happened, sums = run.settle(numbers, finite=not any(local.bad))
    loss, correct, count, skipped, stop = sums
    local.end_round()
    if happened:
        with clock.span("compute"):
            run.optimizer.step()
            local.merge()
        progress.tally.add(loss, correct, count)
        progress.tally.skipped_steps += skipped / run.world.size
    else:
        leave_out(run, local.bad, local.taken)
        progress.carried = local.carried
        local.drop()
    return happened, count, bool(stop)


def own_step(run: Run, index: int, batch: Batch, learning_rate: float) -> None:
    """Move a worker's own weights by its own gradient. Where that is not finite, this worker alone leaves the
    step out; with ``train.on_nonfinite=raise`` the run ends when the round does."""
    assert run.local is not None
    kept = [(buffer, buffer.clone()) for buffer in run.module.buffers()] if run.may_skip else []
    loss, correct, carried = worker_gradient(run, index, batch)
    scale = loss_scale(run, index)
    if name := known_non_finite(run.gradients()):
        overflowed = scale is not None and scale.back_off()
        if overflowed or run.on_nonfinite == "skip":
            run.local.skipped += 1
        elif run.local.bad[index] is None:
            run.local.bad[index] = f"{name} in local step {run.local.taken + 1}"
        for buffer, before in kept:
            buffer.copy_(before)
        return
    if scale is not None:
        scale.grow()
    run.local.step(index, learning_rate)
    run.local.answers[index] += torch.stack([loss, correct, loss.new_full((), batch.count)])
    run.progress.carried[index] = carried


def leave_out(run: Run, bad: Sequence[str | None], steps: int) -> None:
    """Count ``steps`` that a gradient has spoiled, or raise UserError on all ranks. ``bad``: for each worker
    hosted here, a tensor that is known not to be finite."""
    if run.on_nonfinite == "raise":
        fix = "lower optimizer.lr, clip, or leave such steps out with train.on_nonfinite=skip"
        refuse_non_finite(run.world, bad, run.progress.step + 1, "train.on_nonfinite", fix)
    run.progress.tally.skipped_steps += steps


def seconds_of(run: Run, wall: float, modelled: float) -> float:
    """Seconds of the step for the policy (``train.step_time``): measured, or with ``modelled`` seconds of
    communication in place of the measured ones. Simulated workers take turns and move nothing: their step
    is the mean of what they compute and compress, what all of them decompress, and the modelled
    communication."""
    measured = run.settings.step_time == MEASURED and run.world.local == 1
    seconds = wall if measured else modelled_seconds(run, modelled)
    if run.excludes_compression and (measured or run.settings.compute_ms is None):
        seconds -= run.world.clock.last["compress"] / run.world.local
    return seconds


def modelled_seconds(run: Run, modelled: float) -> float:
    """The last step with ``modelled`` seconds of communication. The rest of it is ``train.compute_ms``, or
    what was measured here."""
    settings, workers = run.settings, run.world.local
    if settings.compute_ms is not None:  # nothing of it is measured: the same in every run
        return settings.compute_ms / 1e3 + modelled
    spans = run.world.clock.last
    return (spans["compute"] + spans["compress"]) / workers + spans["decompress"] + modelled


Answers = tuple[Tensor, Tensor, list[Carried]]
"""Sums of loss and correct answers, f64[] each on the device, and what each micro-batch carries on."""


def worker_gradient(run: Run, index: int, batch: Batch) -> Answers:
    """Leave the gradient that a worker compresses in ``param.grad``. With SAM it belongs to the weights that
    the worker's own first gradient has perturbed; the answers are the first pass's."""
    run.zero_grad()
    if run.sam is None or run.uncompressed is not None:
        return forward_backward(run, index, batch)
    cuda = [run.device] if run.device.type == "cuda" else []
    with torch.random.fork_rng(cuda):  # so that the second pass draws the same numbers
        answers = forward_backward(run, index, batch, sends=False)
    with perturbed(run.module, run.sam.rho):
        run.zero_grad()
        forward_backward(run, index, batch)
    return answers


def second_gradient(run: Run, junction: Junction, batches: Sequence[Batch]) -> bool:
    """SAM with ``compressed=first``: perturb by the mean in ``param.grad``, and leave there the uncompressed
    mean of the workers' second gradients. Returns whether all were finite."""
    assert run.sam is not None
    bad = []
    with perturbed(run.module, run.sam.rho):
        for index, batch in enumerate(batches):
            with run.world.clock.span("compute"), run.workers.turn_of(index):
                run.zero_grad()
                forward_backward(run, index, batch)
            bad.append(junction.open())
        happened, _ = junction.settle([], finite=not any(bad))
    return happened


def forward_backward(run: Run, index: int, batch: Batch, *, sends: bool = True) -> Answers:
    """Leave the gradient of the mean loss in ``param.grad``. ``sends``: whether DDP's buckets go out."""
    loss_sum = torch.zeros((), device=run.device)
    correct = torch.zeros((), device=run.device)
    carried: list[Carried] = []
    scale = loss_scale(run, index)
    for number, (inputs, targets) in enumerate(batch.micro_batches):
        # Buckets may go out during the last micro-step's backward only.
        is_last = number == run.settings.accumulate - 1
        holds = run.junction.overlaps and not (sends and is_last)
        with run.forward.no_sync() if holds else contextlib.nullcontext():
            with autocast(run):
                logits, after = run.task.answer(
                    run.forward, inputs, run.progress.carried[index][number]
                )
            smoothing = run.settings.label_smoothing
            loss = F.cross_entropy(
                logits.float(), targets, reduction="sum", label_smoothing=smoothing
            )
            mean = loss / batch.count
            (mean if scale is None else scale.scaled(mean)).backward()
        loss_sum += loss.detach()
        correct += (logits.argmax(1) == targets).sum()
        carried.append(after)
    if scale is not None and not (run.junction.overlaps and sends):  # else each bucket was unscaled
        scale.unscale(run.gradients().values())
    return loss_sum.double(), correct.double(), carried


def casts_kept(run: Run) -> contextlib.AbstractContextManager[object]:
    """Inside, autocast casts each weight once and not once for each worker hosted here. With SAM the weights
    move in between. (Autocast drops its casts where the outermost context ends; this one casts nothing.)"""
    if len(run.workers.ranks) == 1 or run.sam is not None:
        return contextlib.nullcontext()
    return torch.autocast(run.device.type, enabled=False)


def autocast(run: Run) -> contextlib.AbstractContextManager[object]:
    """Compute in the run's precision; parameters and gradients stay float32."""
    dtype = AUTOCAST.get(run.settings.precision)
    return torch.autocast(run.device.type, dtype or torch.bfloat16, enabled=dtype is not None)


def loss_scale(run: Run, index: int) -> LossScale | None:
    """Return the loss scale of the ``index``-th worker hosted here; None where losses are not scaled."""
    scales = run.progress.loss_scales
    return scales[index] if scales else None
