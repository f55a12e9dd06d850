"""What of a run is in a checkpoint, and how a run takes it back (checkpoint.py has the files)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from dgc_repro.exchange import saved as saved_states
from dgc_repro.exchange.steps import PolicyInputs
from dgc_repro.train.run import Run, Tally
from dgc_repro.train.streaming import Streaming

INNER = "inner"  # the optimizer of one worker, with local steps
LOSS_SCALE = "loss_scale"  # of one worker, in fp16
OWN = "own"  # the weights of one worker, with fragments
PLAIN = ("step", "epoch", "policy", "last_record", "modelled_seconds", "reached", "is_low_rank")
"""Attributes of `Progress` that are saved as they are."""


def _with_states(run: Run) -> dict[str, Any]:
    """The parts of a run whose ``state_dict`` all workers share."""
    return {
        "model": run.module,
        "optimizer" if run.local is None else "outer": run.optimizer,
        "ledger": run.world.ledger,
        "meter": run.meter,
    }


def shared_state(run: Run) -> dict[str, Any]:
    """Return the state that all workers share."""
    progress = run.progress
    return {
        **{name: part.state_dict() for name, part in _with_states(run).items()},
        **{name: getattr(progress, name) for name in PLAIN},
        "train_seconds": run.world.clock.seconds,
        "cpu_seconds": run.cpu_seconds,
        "steps_per_epoch": run.steps_per_epoch,
        "micro_batches": _micro_batches(run),
        "tally": asdict(progress.tally),
        "epoch_start": progress.epoch_start,
        "watched": vars(progress.watched),
    }


def _micro_batches(run: Run) -> list[int]:
    return [run.settings.batch_size, run.settings.accumulate]


def state_of_worker(run: Run, index: int) -> dict[str, Any]:
    """Return the state of one of the workers hosted here."""
    state: dict[str, Any] = {
        "exchange": saved_states.state_dict(run.exchange, index),
        "random": run.workers.state_dict(index),
        "carried": run.progress.carried[index],
    }
    if run.progress.loss_scales:
        state[LOSS_SCALE] = asdict(run.progress.loss_scales[index])
    if run.local is not None:
        state[INNER] = run.local.inner[index].state_dict()
    if isinstance(run.local, Streaming):
        state[OWN] = run.local.state_dict(index)
    return state


def begin_anew(run: Run) -> None:
    """Forget what another run has reached. An epoch that its target has cut short goes on."""
    progress = run.progress
    progress.reached = {}
    if progress.step < progress.epoch * run.steps_per_epoch:
        progress.epoch -= 1


def _load_state(part: Any, state: Mapping[str, Any], *, is_outer: bool = False) -> None:
    """Load the state of a part. An optimizer keeps the settings of its own config: the run that was saved may
    have had another momentum or weight decay. The learning rate is a setting of the outer optimizer alone;
    the others take it from the schedule at each step. Raises ValueError for another optimizer."""
    is_optimizer = isinstance(part, torch.optim.Optimizer)
    groups = part.param_groups if is_optimizer else []
    own_keys = [*part.defaults, "lr_factor"] if is_optimizer else []
    settings = [
        {key: group[key] for key in own_keys if key in group and (key != "lr" or is_outer)}
        for group in groups
    ]
    for group, saved in zip(groups, state.get("param_groups", ()), strict=False):
        if group.keys() - saved.keys() and saved.keys() - group.keys():
            raise ValueError("another optimizer")
    part.load_state_dict(state)
    for group, own in zip(part.param_groups if is_optimizer else [], settings, strict=True):
        group.update(own)


def restore(run: Run, shared: dict[str, Any], workers: list[dict[str, Any]]) -> list[str]:
    """Put a run into a saved state, and return what begins anew, in words. Parts and attributes that are not
    in ``shared`` came later than the version that has written it. Raises ValueError for another optimizer.

    Where one of the two runs has local steps and the other has none, the states of the exchange do not fit:
    one exchanges gradients, the other differences of weights."""
    progress, notes = run.progress, []
    is_same_kind = ("outer" in shared) == (run.local is not None)
    if not is_same_kind:
        notes.append(
            "train.resume_from: only one of the two runs has local steps; the states of the compressor and "
            "the optimizer begin anew"
        )
    elif run.local is not None and INNER not in workers[0]:
        notes.append(
            "train.reshard: the optimizers of the workers begin anew, because their saved states do not have "
            "the same tensors"
        )
    if shared.get("is_low_rank", False) and run.low_rank is not None:
        run.factorize()  # for the shapes; the values are loaded
    for name, part in _with_states(run).items():
        if name in shared:
            _load_state(part, shared[name], is_outer=name == "outer")
    for name in PLAIN:
        if name in shared:
            setattr(progress, name, shared[name])
    # Where an epoch has another number of steps here (another number of workers), as far into it as the old
    # run was: both walk through one permutation.
    here = run.steps_per_epoch
    old = shared.get("steps_per_epoch", here)
    whole = min(
        shared["epoch"], shared["step"] // old
    )  # a target may have cut the last epoch short
    done = shared["step"] - whole * old
    progress.step = whole * here + done * here // old
    run.world.clock.seconds = shared["train_seconds"]
    progress.cpu_seconds_before = shared.get("cpu_seconds", 0.0)
    progress.tally = Tally(**shared["tally"])
    progress.epoch_start = [tensor.to(run.device) for tensor in shared["epoch_start"]]
    watched = shared.get("watched", {}) if is_same_kind else {}
    sums = watched.get("sums", {})
    if isinstance(sums, list):  # as older versions wrote it
        sums = dict(zip(run.parameters, sums, strict=False))
    sums = {name: tensor.to(run.device) for name, tensor in sums.items()}
    progress.watched = PolicyInputs(**{**watched, "sums": sums})
    # Hidden states do not fit micro-batches of another size or number, which begin without any.
    carries = shared.get("micro_batches", _micro_batches(run)) == _micro_batches(run)
    for index, state in enumerate(workers):
        if is_same_kind:
            saved_states.load_state_dict(run.exchange, state["exchange"], index)
        if "random" in state:
            run.workers.load_state_dict(index, state["random"])
        if INNER in state and run.local is not None:
            _load_state(run.local.inner[index], state[INNER])
        if OWN in state and isinstance(run.local, Streaming):
            run.local.load_state_dict(state[OWN], index)
        if LOSS_SCALE in state and progress.loss_scales and is_same_kind:
            # In place: a hook holds it.
            vars(progress.loss_scales[index]).update(state[LOSS_SCALE])
        if "carried" in state and carries:
            moved = [tuple(tensor.to(run.device) for tensor in place) for place in state["carried"]]
            progress.carried[index] = moved
    return notes
