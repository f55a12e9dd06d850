"""Checkpoints: everything a run needs to go on as if it had not stopped, bit for bit.

``checkpoints/step-<n>/`` holds ``shared.pt`` (model, optimizer, policy, ledger, progress; written by
rank 0), ``worker-<r>.pt`` (of each worker: residuals, random state, and what it carries from step to
step, a language model's hidden state) and ``manifest.json``
(written last: sizes, world size, config hash). A folder is written under another name and renamed
when it is whole; the one before the last is kept, and used when the last turns out to be broken.
Files load with ``weights_only=True``: no code is run by loading.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dgc_repro.compressor.scatter import OWNER
from dgc_repro.errors import UserError
from dgc_repro.exchange.gradients import map_tensors
from dgc_repro.exchange.signals import share
from dgc_repro.train.run import Run, Tally
from dgc_repro.train.watch import Watched

KEPT = 2
FOLDER = "checkpoints"


def save(run: Run, folder: Path, config_hash: str) -> None:
    """Write a checkpoint of this step; all ranks call it together."""
    link, progress = run.link, run.progress
    # The buffers are rank 0's: nothing but evaluation reads them, and that broadcasts rank 0's first.
    name = f"step-{progress.step:08d}"
    writing = folder / FOLDER / f".{name}"
    is_first = 0 in run.workers.ranks
    if is_first:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
    link.barrier("of a checkpoint")
    for index, rank in enumerate(run.workers.ranks):
        state = {
            "exchange": run.exchange.state_dict(run.seat(index)),
            "random": run.workers.state_dict(index),
            "carried": run.progress.carried[index],
        }
        _write(state, writing / f"worker-{rank}.pt")
    if is_first:
        _write(_shared(run), writing / "shared.pt")
    link.barrier("of a checkpoint")
    if is_first:
        _seal(writing, folder / FOLDER / name, run, config_hash)
        for old in sorted((folder / FOLDER).glob("step-*"))[:-KEPT]:
            shutil.rmtree(old)
    link.barrier("of a checkpoint")


def load(run: Run, folder: Path, config_hash: str | None) -> list[str]:
    """Continue from the newest whole checkpoint in a run folder, if there is one; all ranks call it.

    Returns what the user should know. Raises UserError when the checkpoint was written by another
    config (``config_hash``; None accepts any), by another number of workers, or when none can be read.
    """
    found = sorted((folder / FOLDER).glob("step-*"), reverse=True)
    notes: list[str] = []
    for candidate in found:
        problem = _refusal(run, candidate, config_hash)
        states: tuple[dict[str, Any], list[dict[str, Any]]] | None = None
        if problem is None:
            try:
                states = _read(run, candidate)
            except Exception as error:  # torch.load raises many kinds for a broken file
                problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        broken_ranks = share(run.link, [float(states is None)])[0]
        if broken_ranks == 0 and states is not None:
            try:
                _restore(run, *states)
            except (RuntimeError, ValueError, KeyError) as error:
                raise UserError(
                    f"train.resume_from: {candidate} is of another model, optimizer or compressor "
                    f"({' '.join(str(error).split())[:200]})"
                ) from error
            return notes
        notes.append(
            f"{candidate} cannot be read ({problem or 'on another rank'}), using the one before"
        )
    if found:
        raise UserError(
            f"paths.runs: no checkpoint in {folder / FOLDER} can be read; remove that folder to "
            f"start again ({notes[-1]})"
        )
    return notes


def _shared(run: Run) -> dict[str, Any]:
    progress = run.progress
    return {
        "model": run.module.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "ledger": run.link.ledger.state_dict(),
        "meter": run.meter.state_dict(),
        "train_seconds": run.link.clock.seconds,
        "step": progress.step,
        "epoch": progress.epoch,
        "steps_per_epoch": run.steps_per_epoch,
        "micro_batches": [run.settings.batch_size, run.settings.accumulate],
        "policy": progress.policy,
        "tally": asdict(progress.tally),
        "epoch_start": progress.epoch_start,
        "last_record": progress.last_record,
        "watched": vars(progress.watched),
        "modelled_seconds": progress.modelled_seconds,
        "reached": progress.reached,
    }


def _write(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _seal(writing: Path, final: Path, run: Run, config_hash: str) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(writing.glob("*.pt"))}
    manifest = {
        "world_size": run.link.wire.world_size,
        "workers_per_node": run.workers_per_node,
        "config_hash": config_hash,
        "sizes": sizes,
    }
    (writing / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    shutil.rmtree(final, ignore_errors=True)
    writing.rename(final)


def _refusal(run: Run, candidate: Path, config_hash: str | None) -> str | None:
    """Why this folder is not whole, or None. Raises UserError when it is whole but not ours."""
    try:
        manifest = json.loads((candidate / "manifest.json").read_text(encoding="utf-8"))
        saved_workers, saved_hash = int(manifest["world_size"]), str(manifest["config_hash"])
        per_node = int(manifest.get("workers_per_node", 1))
        sizes = dict(manifest["sizes"])
    except (OSError, ValueError, KeyError) as error:
        return f"its manifest is broken: {error}"
    if config_hash is not None and saved_hash != config_hash:
        raise UserError(
            f"paths.runs: {candidate} was written by another config (hash {saved_hash}, this run is "
            f"{config_hash}); give another folder, or remove it to start again"
        )
    if per_node != run.workers_per_node:
        raise UserError(
            f"launch.workers_per_node: {candidate} was saved with {per_node} workers a node, each of "
            f"which keeps residuals, this run has {run.workers_per_node}; continue with as many"
        )
    workers = run.link.wire.world_size
    if saved_workers != workers and run.settings.reshard == "refuse":
        raise UserError(
            f"train.reshard: {candidate} was saved by {saved_workers} workers, this run has {workers}; "
            "use train.reshard=mean (each worker gets the mean of the old residuals)"
        )
    if saved_workers != workers and _has_owners(run.exchange.states):
        raise UserError(
            f"train.reshard: {candidate} was saved by {saved_workers} workers, each of which keeps what "
            "exchange.combine=scatter has not sent of the shard it owns: that has no mean; continue with "
            "as many workers"
        )
    for name, size in sizes.items():
        path = candidate / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is missing or truncated"
    return None


def _read(run: Run, candidate: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The shared state, and one state for each worker hosted here."""
    shared = _load(candidate / "shared.pt")
    saved = json.loads((candidate / "manifest.json").read_text(encoding="utf-8"))["world_size"]
    if saved == run.link.wire.world_size:
        return shared, [_load(candidate / f"worker-{rank}.pt") for rank in run.workers.ranks]
    old = [_load(candidate / f"worker-{rank}.pt") for rank in range(saved)]
    mean = {"exchange": _mean([state["exchange"] for state in old])}
    return shared, [mean for _ in run.workers.ranks]


def _has_owners(state: Any) -> bool:
    """Whether a nest holds residuals of compressor/scatter.py."""
    if isinstance(state, dict):
        return OWNER in state or any(map(_has_owners, state.values()))
    return isinstance(state, list) and any(map(_has_owners, state))


def _load(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _mean(states: list[Any]) -> Any:
    """The nest whose tensors are the means of all nests' (residuals keep their mass, as the model,
    which averages over workers, sees it)."""
    flattened: list[list[Tensor]] = []
    for state in states:
        tensors: list[Tensor] = []
        map_tensors(state, tensors.append)
        flattened.append(tensors)
    means = iter([torch.stack(same).mean(0) for same in zip(*flattened, strict=True)])
    return map_tensors(states[0], lambda _: next(means).clone())


def _place(shared: dict[str, Any], steps_per_epoch: int) -> int:
    """The step to go on from. Where an epoch has another number of steps here (another number of
    workers), as far into it as the old run was: both walk through one permutation."""
    step: int = shared["step"]
    old = shared.get("steps_per_epoch", steps_per_epoch)
    if old == steps_per_epoch:
        return step
    done = step - shared["epoch"] * old
    place: int = shared["epoch"] * steps_per_epoch + done * steps_per_epoch // old
    return place


def _carries(shared: dict[str, Any], run: Run) -> bool:
    """Whether hidden states fit: micro-batches of another size or number begin without any."""
    here = [run.settings.batch_size, run.settings.accumulate]
    return bool(shared.get("micro_batches", here) == here)


def _restore(run: Run, shared: dict[str, Any], workers: list[dict[str, Any]]) -> None:
    progress = run.progress
    run.module.load_state_dict(shared["model"])
    run.optimizer.load_state_dict(shared["optimizer"])
    run.link.ledger.load_state_dict(shared["ledger"])
    run.meter.load_state_dict(shared.get("meter", {}))
    run.link.clock.seconds = shared["train_seconds"]
    progress.step, progress.epoch = _place(shared, run.steps_per_epoch), shared["epoch"]
    progress.policy, progress.tally = shared["policy"], Tally(**shared["tally"])
    progress.epoch_start = [tensor.to(run.device) for tensor in shared["epoch_start"]]
    progress.last_record = shared["last_record"]
    progress.modelled_seconds = shared.get("modelled_seconds", 0.0)
    progress.reached = shared.get("reached", {})
    watched = shared.get("watched", {})
    sums = [tensor.to(run.device) for tensor in watched.get("sums", [])]
    progress.watched = Watched(**{**watched, "sums": sums})
    for index, state in enumerate(workers):
        run.exchange.load_state_dict(state["exchange"], run.seat(index))
        if "random" in state:
            run.workers.load_state_dict(index, state["random"])
        if "carried" in state and _carries(shared, run):
            moved = [tuple(tensor.to(run.device) for tensor in place) for place in state["carried"]]
            progress.carried[index] = moved
