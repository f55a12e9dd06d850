"""The loop around the step: epochs, evaluation, the record, checkpoints, a stop that all ranks share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dgc_repro.dataset.batches import epoch_batches
from dgc_repro.policy.interface import EpochReport, label
from dgc_repro.train.evaluate import broadcast_buffers, evaluate
from dgc_repro.train.run import Run, Tally
from dgc_repro.train.step import train_step


class ReplicasDrifted(RuntimeError):
    """Ranks hold different parameters: an exchange did not give all of them the same mean."""


def train(
    run: Run,
    on_step: Callable[[Mapping[str, Any]], None],
    on_epoch: Callable[[Mapping[str, Any]], None],
    checkpoint: Callable[[], None],
) -> bool:
    """Train to the end. Returns False when stopped early, after a checkpoint of the last step."""
    progress = run.progress
    while progress.epoch < run.settings.epochs:
        for batches in steps_left(run):
            goes_on = train_step(run, batches)
            on_step(step_record(run))
            if not goes_on:
                checkpoint()
                return False
        on_epoch(end_epoch(run))
        last = progress.epoch == run.settings.epochs
        if last or progress.epoch % run.settings.checkpoint_every_epochs == 0:
            checkpoint()
    return True


def steps_left(run: Run) -> Iterator[tuple[Tensor, ...]]:
    """The batches of the current epoch that are still to come: one for each worker hosted here."""
    progress, settings = run.progress, run.settings
    done = progress.step - progress.epoch * run.steps_per_epoch
    if done == 0:
        progress.tally = Tally()
        progress.epoch_start = [p.detach().clone() for p in run.module.parameters()]
    size = settings.batch_size * settings.accumulate
    world = run.link.wire.world_size
    shards = [
        epoch_batches(len(run.splits.train), size, world, rank, run.seed, progress.epoch, done)
        for rank in run.workers.ranks
    ]
    run.module.train()
    return zip(*shards, strict=True)


def end_epoch(run: Run) -> dict[str, Any]:
    """Evaluate, let the policy see the agreed numbers, and return the record of this epoch."""
    progress = run.progress
    rung = run.policy.plan(progress.policy, progress.step - 1).rung
    broadcast_buffers(run.link, run.module)
    compare_replicas(run)
    validation = evaluate(run, run.splits.validation)
    test = evaluate(run, run.splits.test)
    progress.epoch += 1
    change = [
        p.detach() - old
        for p, old in zip(run.module.parameters(), progress.epoch_start, strict=True)
    ]
    record = {
        "epoch": progress.epoch,
        "step": progress.step,
        "lr": run.optimizer.param_groups[0]["lr"],
        "train/loss": progress.tally.mean_loss,
        "train/accuracy_percent": progress.tally.accuracy_percent,
        "train/skipped_steps": progress.tally.skipped_steps,
        "validation/loss": validation.loss,
        "validation/accuracy_percent": validation.accuracy_percent,
        "test/loss": test.loss,
        "test/accuracy_percent": test.accuracy_percent,
        "policy/rung": rung,
        "policy/label": label(run.policy, rung),
        **run.link.ledger.metrics(),
        "time/train_seconds": run.link.clock.seconds,
        **run.link.clock.report(),
        "weights/change_norm": float(
            torch.linalg.vector_norm(torch.stack(torch._foreach_norm(change)))
        ),
    }
    report = EpochReport(
        progress.epoch, progress.tally.mean_loss, validation.loss, validation.accuracy_percent
    )
    progress.policy = run.policy.observe(progress.policy, report)
    progress.last_record = record
    return record


def step_record(run: Run) -> dict[str, Any]:
    """What a progress bar shows of the last step."""
    progress = run.progress
    rung = run.policy.plan(progress.policy, progress.step - 1).rung
    return {
        "step": progress.step,
        "epoch": progress.epoch + 1,
        "train/loss": progress.tally.mean_loss,
        "train/accuracy_percent": progress.tally.accuracy_percent,
        "policy/rung": rung,
        "policy/label": label(run.policy, rung),
        "comm/payload_bytes": run.link.ledger.payload_bytes,
    }


def compare_replicas(run: Run) -> None:
    """Once an epoch: all ranks hold the same parameters, or training ends here."""
    digest = hashlib.sha256()
    for parameter in run.module.parameters():
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    said = run.link.tell_all(digest.hexdigest()[:16], purpose="check")
    drifted = [str(rank) for rank, other in enumerate(said) if other != said[0]]
    if drifted:
        raise ReplicasDrifted(
            f"after epoch {run.progress.epoch + 1} the parameters of rank {', '.join(drifted)} differ "
            "from rank 0's; run again with exchange.check=true to see where"
        )
