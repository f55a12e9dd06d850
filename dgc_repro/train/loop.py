"""The loop around the step: epochs, evaluation, the record, checkpoints, a stop that all ranks share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dgc_repro.policy.interface import EpochReport, label
from dgc_repro.train.evaluate import Score, broadcast_buffers, evaluate
from dgc_repro.train.run import Run, Tally
from dgc_repro.train.step import train_step
from dgc_repro.train.stopping import COLUMNS, TRAIN_CROSS_ENTROPY, where_reached
from dgc_repro.train.task import Batch

TIMES = {"seconds": "time/train_seconds", "modelled_seconds": "time/modelled_seconds"}
"""Columns of a record that say how long a run had trained."""
FIT_SIZE = 10_000
"""The last record of a run has the scores of its weights on the first so many images or words of the training
split, not augmented and without dropout, in columns ``fit/...``."""


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
    while not run.is_finished:
        if run.is_due:
            run.factorize()
        run.meter.start()
        for batches in steps_left(run):
            goes_on = train_step(run, batches)
            on_step(step_record(run))
            look_for_target(run)
            if not goes_on:
                run.world.clock.catch_up()
                run.meter.stop()
                checkpoint()
                return False
            if run.ends_early or progress.step == run.num_steps:
                break
        on_epoch(end_epoch(run))
        if run.is_finished or progress.epoch % run.settings.checkpoint_every_epochs == 0:
            checkpoint()
    return True


def look_for_target(run: Run) -> None:
    """Within an epoch, after every ``stopping.every_steps`` steps, or where the round ends in which they were
    taken: note whether the target is reached."""
    progress, every = run.progress, run.stopping.every_steps
    if every is None or progress.reached or not run.ends_round(progress.step):
        return
    steps = 1 if run.local is None else run.local.taken  # since the workers had the same weights
    is_due = progress.step // every > (progress.step - steps) // every
    if not is_due or progress.step in ((progress.epoch + 1) * run.steps_per_epoch, run.num_steps):
        return  # the end of an epoch evaluates by itself
    run.world.clock.catch_up()
    broadcast_buffers(run.world, run.module)
    record = {
        "epoch": progress.epoch + 1,
        "step": progress.step,
        **(fit(run) or metrics(run, "test", evaluate(run, run.splits.test))),
        "time/train_seconds": run.world.clock.seconds,
        **modelled(run),
    }
    if run.stopping.is_reached(record):
        progress.reached = where_reached(record, TIMES)


def steps_left(run: Run) -> Iterator[tuple[Batch, ...]]:
    """The batches of the current epoch that are still to come: one for each worker hosted here."""
    progress = run.progress
    done = progress.step - progress.epoch * run.steps_per_epoch
    if done == 0:
        progress.tally = Tally(modelled_before=run.world.ledger.step_seconds or 0.0)
        progress.epoch_start = [p.detach().clone() for p in run.module.parameters()]
        run.carry_nothing()
    world = run.world.size
    shards = [run.task.batches(progress.epoch, world, rank, done) for rank in run.workers.ranks]
    run.module.train()
    return zip(*shards, strict=True)


def end_epoch(run: Run) -> dict[str, Any]:
    """Evaluate, let the policy see the agreed numbers, and return the record of this epoch."""
    progress = run.progress
    run.world.clock.catch_up()
    rung = run.policy.plan(progress.policy, progress.step - 1).rung
    broadcast_buffers(run.world, run.module)
    compare_replicas(run)
    validation = evaluate(run, run.splits.validation)
    test = evaluate(run, run.splits.test)
    run.meter.stop()
    progress.epoch += 1
    change = [
        p.detach() - old
        for p, old in zip(run.module.parameters(), progress.epoch_start, strict=True)
    ]
    record = {
        "epoch": progress.epoch,
        "step": progress.step,
        "lr": run.current_lr,
        **metrics(run, "train", progress.tally),
        "train/skipped_steps": progress.tally.skipped_steps,
        **fit(run),
        **metrics(run, "validation", validation),
        **metrics(run, "test", test),
        "policy/rung": rung,
        "policy/label": label(run.policy, rung),
        **run.world.ledger.metrics(),
        **run.meter.metrics(),
        "time/train_seconds": run.world.clock.seconds,
        **run.world.clock.report(),
        **modelled(run),
        "weights/change_norm": float(
            torch.linalg.vector_norm(torch.stack(torch._foreach_norm(change)))
        ),
    }
    steps = run.steps_per_epoch
    ends = (min(end, run.num_steps / steps) for end in (progress.epoch, progress.epoch + 1))
    factors = [run.lr_factor(end - 1 / steps) for end in ends]
    report = EpochReport(
        progress.epoch,
        progress.tally.mean_loss,
        validation.mean_loss,
        validation.accuracy_percent,
        (run.base_lr * factors[0], run.base_lr * factors[1]),
        run.gradient_norms(),
    )
    progress.policy = run.policy.observe(progress.policy, report)
    progress.last_record = record
    if run.stopping.is_reached(record) and not progress.reached:
        progress.reached = where_reached(record, TIMES)
    if run.is_finished:
        record |= metrics(run, "fit", evaluate(run, run.splits.train[:FIT_SIZE]))
    return record


def fit(run: Run) -> dict[str, float]:
    """The cross-entropy of the training split where it is the metric of the target, else empty."""
    if run.stopping.metric != TRAIN_CROSS_ENTROPY:
        return {}
    return {COLUMNS[TRAIN_CROSS_ENTROPY]: evaluate(run, run.splits.train).mean_loss}


def modelled(run: Run) -> dict[str, float]:
    """On the network that the run names, as its model has it: communication, mean milliseconds a step of
    this epoch and seconds since the start, and the seconds of all steps with the rest of them as
    ``train.compute_ms`` has it or as measured here. Empty where no network is named."""
    seconds = run.world.ledger.step_seconds
    if seconds is None:
        return {}
    here = seconds - run.progress.tally.modelled_before
    steps = (run.progress.step - 1) % run.steps_per_epoch + 1  # of this epoch
    return {
        "time/modelled_communicate_ms": 1e3 * here / steps,
        "time/modelled_communicate_seconds": seconds,
        "time/modelled_seconds": run.progress.modelled_seconds,
    }


def step_record(run: Run) -> dict[str, Any]:
    """What a progress bar shows of the last step."""
    progress = run.progress
    rung = run.policy.plan(progress.policy, progress.step - 1).rung
    return {
        "step": progress.step,
        "epoch": progress.epoch + 1,
        **metrics(run, "train", progress.tally),
        "policy/rung": rung,
        "policy/label": label(run.policy, rung),
        "comm/payload_bytes": run.world.ledger.payload_bytes,
        **(decision(progress.policy) if progress.watched.step >= 0 else {}),  # none: it was skipped
    }


def decision(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a policy that chooses has decided in the last step, and the last time that it was told (of the
    step before): keys ``decision/...``. Empty where nothing was decided."""
    found = {f"decision/{key}": value for key, value in state.get("last", {}).items()}
    timed = state.get("timed", {})
    told = ("step", "seconds", "samples", "throughput", "own_square", "mean_square")
    return found | {f"decision/timed_{key}": timed[key] for key in told if key in timed}


def metrics(run: Run, part: str, score: Score | Tally) -> dict[str, float]:
    """The task's metrics of a part under their names in the record."""
    named = run.task.metrics(score.mean_loss, score.accuracy_percent)
    if score.top5_percent is not None:
        named["top5_percent"] = score.top5_percent
    return {f"{part}/{name}": value for name, value in named.items()}


def compare_replicas(run: Run) -> None:
    """Once an epoch: all ranks hold the same parameters, or training ends here."""
    digest = hashlib.sha256()
    for parameter in run.module.parameters():
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    said = run.world.tell(digest.hexdigest()[:16], purpose="check")
    drifted = [str(rank) for rank, other in enumerate(said) if other != said[0]]
    if drifted:
        raise ReplicasDrifted(
            f"after epoch {run.progress.epoch + 1} the parameters of rank {', '.join(drifted)} differ "
            "from rank 0's; run again with TORCH_DISTRIBUTED_DEBUG=DETAIL to see where"
        )
