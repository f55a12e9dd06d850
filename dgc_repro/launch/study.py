"""One part of an artifact that is computed and not trained: a component in, rows out.

The record is a run folder like any other, with ``rows.csv`` in the place of metrics. A part whose study
takes something of a model (its tensors, gradients, compress times) is composed like a run; any other part
has nothing but its seed and its settings. Gradients of several workers come from a simulated world: after
some training steps with the config's compressor each worker's gradient of the next batch is kept, and its
residual, where there is one, is added: that is what the compressor would be given. A history has the mean of
that over workers at each step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.errors import UserError
from dgc_repro.exchange.gradients import in_memory_order
from dgc_repro.kernel import native
from dgc_repro.launch import environment
from dgc_repro.launch.build import build_run
from dgc_repro.launch.components import component
from dgc_repro.launch.devices import choose_device
from dgc_repro.launch.measure import (
    Computed,
    check_memory,
    computed_once,
    gradients_of,
    joined_gradient,
    trained,
    unallocated,
)
from dgc_repro.launch.paths import option, options
from dgc_repro.launch.rules import validate
from dgc_repro.launch.single import scale_line
from dgc_repro.launch.typed import nearest
from dgc_repro.study import compressing
from dgc_repro.study.given import (
    GRADIENTS,
    HISTORY,
    NOTHING,
    TENSORS,
    TIMES,
    Gradients,
    History,
    Study,
    Tensors,
    Times,
)
from dgc_repro.train.loop import steps_left
from dgc_repro.train.run import Run
from dgc_repro.train.step import forward_backward, train_step
from dgc_repro.train.task import Batch

STUDY = "study"
NETWORKS = "networks"
ROWS_FILE = "rows.csv"
Made = tuple[Any, dict[str, Any]]
"""What a study is handed, and facts about it for the record."""
RESIDUAL = "residual"
SHORTCUT = "downsample"  # torchvision's name of a residual block's projection


def study_config(config: dict[str, Any], given: Sequence[str] = ()) -> Path:
    """Compute unless it is done, and return the run folder. ``config``: seed, scale, experiment, paths
    and ``study``; of a study that takes something of a model, a whole run's.

    Raises UserError.
    """
    study = build_study(config[STUDY])
    plain = {key: value for key, value in config.items() if key != STUDY}
    if study.takes != NOTHING:
        validate(plain)
        print(scale_line(plain), flush=True)

    def computed() -> Computed:
        busy = environment.busy_cores() if study.takes == TIMES else math.nan
        made: tuple[Any, ...] = ()
        facts: dict[str, Any] = {"data": "none"}
        if study.takes != NOTHING:
            handed, facts = recorded(study.takes, plain, study)
            made = (handed,)
        try:
            rows = study.run(config["seed"], *made)
        except ValueError as error:
            raise UserError(f"{_place(config[STUDY])}.{error}") from error
        here = environment.describe(torch.device("cpu"), "none", 1, facts.pop("data"))
        if study.takes == TIMES:
            here |= {"busy_cores": busy, "threads_per_worker": facts.pop("threads")}
        return rows, here, facts

    return computed_once(config, ROWS_FILE, computed)


def build_study(node: Mapping[str, Any]) -> Study:
    """The study of a node that `with_networks` has seen. Raises UserError naming the key."""
    place = _place(node)
    more = {}
    if NETWORKS in node:
        more[NETWORKS] = {
            name: component(inner, f"{place}.{NETWORKS}.{name}")
            for name, inner in node[NETWORKS].items()
        }
    settings = {key: value for key, value in node.items() if key != "part"}
    study: Study = component(settings, place, **more)
    return study


def with_networks(node: dict[str, Any]) -> dict[str, Any]:
    """The node with its networks written out, each as its file in conf/network/ has it, so that the
    record says all that was assumed. Raises UserError for a name that is none."""
    if NETWORKS not in node or isinstance(node[NETWORKS], Mapping):
        return node
    key = f"{_place(node)}.{NETWORKS}"
    names = node[NETWORKS]
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise UserError(f"{key}: a list such as [ethernet_1gbit], got {names!r}")
    known = options("network")
    known.remove("none")
    found = {}
    for name in names:
        if name not in known:
            raise UserError(f"{key}: no network {name!r}; {nearest(str(name), known)}")
        found[name] = option("network", name)
    return {**node, NETWORKS: found}


def _place(node: Mapping[str, Any]) -> str:
    """Where the node stands in the artifact's file."""
    return f"{STUDY}.{node['part']}"


def recorded(takes: str, config: dict[str, Any], study: Any) -> Made:
    """What a study that ``takes`` tensors, gradients or times is handed. Raises UserError."""
    if takes == TENSORS:
        tensors = model_tensors(config)
        sizes = tensors.sizes
        return tensors, {"parameters": sum(sizes), "tensors": len(sizes), "data": "none"}
    if takes == GRADIENTS:
        return worker_gradients(config, study.steps)
    if takes == HISTORY:
        return gradient_history(config, study.steps)
    assert takes == TIMES, takes
    return compress_times(config, study.factors, study.steps, study.repeats)


def model_tensors(config: Mapping[str, Any]) -> Tensors:
    """Sizes of the config's model, which is not allocated."""
    module = unallocated(config)
    sizes = tuple(parameter.numel() for parameter in module.parameters())
    return Tensors(config["experiment"]["row"], sizes, layers_of(module))


def layers_of(module: nn.Module) -> int:
    """Layers as papers count them: recurrent ones where there are any, else convolutions and linear
    layers that are no shortcut's projection."""
    recurrent = [part.num_layers for part in module.modules() if isinstance(part, nn.RNNBase)]
    if recurrent:
        return sum(recurrent)
    return sum(
        isinstance(part, nn.Conv2d | nn.Linear) and SHORTCUT not in name
        for name, part in module.named_modules()
    )


def worker_gradients(config: Mapping[str, Any], steps: int) -> Made:
    """The gradient of each simulated worker after ``steps`` steps, its residual added."""
    run = _simulated(config)
    left = _batches(run)
    for _ in range(steps):
        train_step(run, next(left))
    batches = next(left)
    vectors, fed, sizes = [], False, ()
    for index, batch in enumerate(batches):
        with run.workers.turn_of(index):
            run.module.zero_grad(set_to_none=True)
            forward_backward(run, index, batch)
        gradients = run.junction.gradients()  # type: ignore[attr-defined]  # after backward
        states = run.exchange.states[run.seat(index)]
        residuals = {name: state[RESIDUAL] for name, state in states.items() if RESIDUAL in state}
        fed = bool(residuals)
        sizes = tuple(gradient.numel() for gradient in gradients.values())
        parts = [
            (gradient + residuals[name]) if fed else gradient
            for name, gradient in gradients.items()
        ]
        vectors.append(torch.cat([part.reshape(-1) for part in parts]).numpy())
    facts = {
        "data": run.splits.label,
        "steps": steps,
        "train/loss": run.progress.tally.mean_loss,
        "parameters": sum(sizes),
        "tensors": len(sizes),
    }
    return Gradients(sizes, np.stack(vectors), fed), facts


def gradient_history(config: Mapping[str, Any], steps: int) -> Made:
    """What the workers compress at each of ``steps`` steps, their mean. It trains as it is read."""
    run = _simulated(config)

    def history() -> History:
        for batches in itertools.islice(_batches(run), steps):
            train_step(run, batches)
            found = {n: in_memory_order(g).clone() for n, g in gradients_of(run).items()}
            seats = run.exchange.states
            for name in found:  # gradient + old residual = sent + new residual
                for states in seats:
                    if RESIDUAL in states[name]:
                        found[name] += states[name][RESIDUAL] / len(seats)
            yield run.progress.step, {name: mean.numpy() for name, mean in found.items()}

    parameters = [p.numel() for p in run.module.parameters()]
    sizes = {"parameters": sum(parameters), "tensors": len(parameters)}
    return history(), {"data": run.splits.label, "steps": steps, **sizes}


def _simulated(config: Mapping[str, Any]) -> Run:
    """A run whose workers are all here. Raises UserError."""
    if config["launch"]["kind"] != "simulated":
        raise UserError(
            f"launch.kind: simulated, so that every worker's gradient is here, got "
            f"{config['launch']['kind']}; use launch=simulated"
        )
    run: Run = build_run(config, torch.device("cpu"))
    return run


def _batches(run: Run) -> Iterator[tuple[Batch, ...]]:
    """The batches of all steps, epoch after epoch, without end."""
    while True:
        yield from steps_left(run)
        run.progress.epoch += 1


def compress_times(
    config: dict[str, Any], factors: Mapping[float, Any], steps: int, repeats: int
) -> Made:
    """Milliseconds of compressing a real gradient of the model tensor by tensor (DGC)."""
    check_memory(config)
    device = torch.device(choose_device(config)[0])
    native.library()  # built now if it is not in the cache: no repeat pays for it
    threads = config["launch"]["threads"] or environment.available_cores()
    with environment.threads(threads):
        key = "study.saturation.steps"
        gradient, facts = joined_gradient(trained(config, steps, {}, device, key)[0])
        methods = {float(factor): DGCSampled(factor=factor, indices="int32") for factor in factors}
        found = compressing.compress_ms(gradient, methods, repeats)
    facts["threads"] = threads
    tensors = Tensors(
        config["experiment"]["row"], tuple(part.numel() for part in gradient.values())
    )
    return Times(tensors, found), facts
