"""One training step. In a real process one worker lives here; simulated, all of them do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from dgc_repro.exchange.signals import refuse_non_finite
from dgc_repro.train.run import Run
from dgc_repro.train.settings import MEASURED
from dgc_repro.train.task import Batch, Carried


def train_step(run: Run, batches: Sequence[Batch]) -> bool:
    """One step on one batch for each worker hosted here.

    Returns whether training goes on: False when some worker was asked to stop.
    Raises UserError on all ranks when a gradient is not finite (``train.on_nonfinite=raise``).
    """
    begin = time.perf_counter()
    exchange, clock, progress = run.exchange, run.link.clock, run.progress
    epoch = progress.step / run.steps_per_epoch
    learning_rate = run.base_lr * run.schedule.factor(epoch, run.settings.epochs)
    exchange.learning_rate = learning_rate
    run.begin(progress.step)

    run.keep(run.module)
    modelled_before = run.link.ledger.step_seconds or 0.0
    loss = correct = count = 0.0
    bad: list[str | None] = []  # for each worker hosted here, a tensor that is not finite
    carried: list[list[Carried]] = []  # for each of them, what its next step begins with
    for index, batch in enumerate(batches):
        with clock.span("compute"), run.workers.turn_of(index):
            run.module.zero_grad(set_to_none=True)
            worker_loss, worker_correct, worker_carried = forward_backward(run, index, batch)
        loss, correct = loss + worker_loss, correct + worker_correct
        count += batch.count
        carried.append(worker_carried)
        bad.append(run.open(index))  # no residual changes

    if clock.measures_wait:
        run.link.wait()
    numbers = [loss, correct, count, run.stop_requested]
    happened, (loss, correct, count, stop) = run.settle(numbers, finite=not any(bad))
    if happened:
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate
        with clock.span("compute"):
            run.optimizer.step()
        progress.tally.add(loss, correct, count)
        progress.carried = carried
    else:
        if run.on_nonfinite == "raise":
            fix = "lower optimizer.lr, clip, or leave such steps out with train.on_nonfinite=skip"
            refuse_non_finite(
                run.link, exchange.named(bad), progress.step + 1, "train.on_nonfinite", fix
            )
        progress.tally.skipped_steps += 1

    wall = time.perf_counter() - begin
    clock.end_step(wall)
    modelled = (run.link.ledger.step_seconds or 0.0) - modelled_before
    if run.link.ledger.step_seconds is not None:
        progress.modelled_seconds += modelled_seconds(run, modelled)
    run.end(count, seconds_of(run, wall, modelled) if happened else None)
    progress.step += 1
    return not stop


def seconds_of(run: Run, wall: float, modelled: float) -> float:
    """Seconds of the step for the policy (``train.step_time``): measured, or with ``modelled`` seconds of
    communication in place of the measured ones. Simulated workers take turns and move nothing: their step
    is the mean of what they compute and compress, what all of them decompress, and the modelled
    communication."""
    measured = run.settings.step_time == MEASURED and run.link.wire.local_workers == 1
    seconds = wall if measured else modelled_seconds(run, modelled)
    if run.excludes_compression and (measured or run.settings.compute_ms is None):
        seconds -= run.link.clock.last["compress"] / run.link.wire.local_workers
    return seconds


def modelled_seconds(run: Run, modelled: float) -> float:
    """The last step with ``modelled`` seconds of communication. The rest of it is ``train.compute_ms``, or
    what was measured here."""
    settings, workers = run.settings, run.link.wire.local_workers
    if settings.compute_ms is not None:  # nothing of it is measured: the same in every run
        return settings.compute_ms / 1e3 + modelled
    spans = run.link.clock.last
    return (spans["compute"] + spans["compress"]) / workers + spans["decompress"] + modelled


def forward_backward(run: Run, index: int, batch: Batch) -> tuple[float, float, list[Carried]]:
    """Leave the gradient of the mean loss in ``param.grad``; sums of loss and correct answers, and
    what each micro-batch carries on."""
    loss_sum = torch.zeros((), device=run.device)
    correct = torch.zeros((), device=run.device)
    carried: list[Carried] = []
    for number, (inputs, targets) in enumerate(batch.micro_batches):
        # Buckets may go out during the last micro-step's backward only.
        holds = run.junction.overlaps and number < run.settings.accumulate - 1
        with run.forward.no_sync() if holds else contextlib.nullcontext():
            with autocast(run):
                logits, after = run.task.answer(
                    run.forward, inputs, run.progress.carried[index][number]
                )
            loss = F.cross_entropy(logits.float(), targets, reduction="sum")
            (loss / batch.count).backward()
        loss_sum += loss.detach()
        correct += (logits.argmax(1) == targets).sum()
        carried.append(after)
    return loss_sum.item(), correct.item(), carried


def autocast(run: Run) -> contextlib.AbstractContextManager[object]:
    """bf16 where ``train.precision`` says so."""
    return torch.autocast(run.device.type, torch.bfloat16, enabled=run.settings.precision == "bf16")
