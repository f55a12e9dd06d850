"""A run that is computed and not trained: a part of an artifact with ``study``, or with ``measure``.

Its record is a run folder like any other, with ``rows.csv`` or ``repeats.csv`` in the place of metrics. A
study is a component that may take something of a model; then its config is a whole run's, and the trainer
makes what is taken. Otherwise it has nothing but its seed and its settings. A measurement times compressing
the gradient of the last of a few training steps twice, in several ways (GraVAC's Table III).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dgc_repro.checked import Count, Rule, checked, within
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.compressor.topk import TopK
from dgc_repro.errors import UserError
from dgc_repro.exchange.exchange import in_memory_order
from dgc_repro.files import replace
from dgc_repro.kernel import native
from dgc_repro.launch import environment
from dgc_repro.launch.build import build_run
from dgc_repro.launch.devices import choose_device
from dgc_repro.launch.identity import RESULTS_VERSION
from dgc_repro.launch.overrides import made, nearest
from dgc_repro.launch.paths import option, options
from dgc_repro.launch.rules import validate
from dgc_repro.launch.settings import component, unallocated
from dgc_repro.launch.worker import write_json, write_summary
from dgc_repro.study import compressing
from dgc_repro.study.compressing import Method
from dgc_repro.study.given import (
    GRADIENTS,
    HISTORY,
    NOTHING,
    SNAPSHOTS,
    TENSORS,
    TIMES,
    Gradients,
    History,
    Snapshots,
    Study,
    Tensors,
    Times,
)
from dgc_repro.train.loop import steps_left
from dgc_repro.train.run import Run
from dgc_repro.train.step import forward_backward, train_step
from dgc_repro.train.task import Batch

STUDY, MEASURE, NETWORKS = "study", "measure", "networks"
FILES = {STUDY: "rows.csv", MEASURE: "repeats.csv"}
"""The table of a record, by the section that its config has."""
RESIDUAL = "residual"
SHORTCUT = "downsample"  # torchvision's name of a residual block's projection
COPIES_OF_THE_MODEL = 8
"""Parameters, gradients, momentum, the exchange's buffers, the joined gradient and its copy."""
FULL_SIZES = ("small", "paper")
TWO_FACTORS = Rule(
    "two numbers from 1, the weaker first, such as [10, 1000]",
    lambda factors: len(factors) == 2 and factors[0] < factors[1],
)
Made = tuple[Any, dict[str, Any]]
"""What a study takes, and facts about it for the record."""


@checked
class Measure:
    """What is measured. ``factors``: of the first and the second compression; ``methods``: name and
    compressor; ``steps``: training steps before; ``repeats``: paired measurements of each method;
    ``embedded``: data sets of the package that replace those that are not here."""

    factors: Annotated[Sequence[Annotated[float, within(1)]], TWO_FACTORS]
    methods: Annotated[Mapping[str, str], Rule("at least one, as {topk: topk}", bool)]
    steps: Count
    repeats: Count
    embedded: Mapping[str, str]
    takes: ClassVar[str] = MEASURE

    def of(self, name: str) -> Method:
        """Return a method at both factors. Raises UserError for one that chooses no entries."""
        key, known = f"measure.methods.{name}", options("compressor")
        compressor = self.methods[name]
        if compressor not in known:
            raise UserError(
                f"{key}: no compressor {compressor!r}; {nearest(str(compressor), known)}"
            )
        node = option("compressor", compressor)
        node = node.get("compressor", node)  # a YAML that brings its method's nest too
        more = {"density": None} if "density" in node else {}
        weak, strong = (component(node, key, factor=factor, **more) for factor in self.factors)
        if not isinstance(weak, Sparsifier):
            raise UserError(
                f"{key}: a sparsifier such as topk, got {compressor}, which chooses no entries"
            )
        densities = [1 / factor for factor in self.factors]
        single_pass = compressing.topk_in_one_scan(*densities) if isinstance(weak, TopK) else None
        return Method(name, weak, strong, single_pass)


def kind_of(config: Mapping[str, Any]) -> str | None:
    """Return the section that makes a run a computed one, None for one that is trained."""
    return next((kind for kind in FILES if kind in config), None)


def check(config: Mapping[str, Any]) -> None:
    """Build what is computed, and validate the run that it takes something of. Raises UserError."""
    study = built(config)
    if study.takes != NOTHING:
        validate(without_section(config))


def compute(config: Mapping[str, Any], folder: Path) -> None:
    """Compute the rows and write the record. Raises UserError."""
    study, plain, kind = built(config), without_section(config), str(kind_of(config))
    threads = (plain.get("launch") or {}).get("threads") or environment.available_cores()
    more: dict[str, Any] = {}
    if study.takes in (TIMES, MEASURE):
        check_memory(plain)
        native.library()  # built now if it is not in the cache: no repeat pays for it
        more["busy_cores"] = environment.busy_cores()
    with environment.threads(threads):
        if isinstance(study, Measure):
            rows, device, facts = _measured(study, plain)
        else:
            device = torch.device("cpu")
            given, facts = _taken(study, plain)
            try:
                rows = study.run(config["seed"], *given)
            except ValueError as error:
                raise UserError(f"{_place(config[STUDY])}.{error}") from error
        here = environment.describe(device, "none", 1, facts.pop("data"))
    write_json(folder / "environment.json", here | more)
    import pandas as pd  # takes half a second: a training, which reads this module too, needs none

    short = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    replace(folder / FILES[kind], pd.DataFrame(short, dtype=object).to_csv(index=False).encode())
    summary = {"status": "finished", "results_version": RESULTS_VERSION, **facts}
    write_summary(folder / "summary.json", summary)


def built(config: Mapping[str, Any]) -> Any:
    """Return the study or the measurement of a config. Raises UserError naming the key."""
    if MEASURE not in config:
        return build_study(config[STUDY])
    settings = made(Measure, config[MEASURE], MEASURE)
    for name in settings.methods:
        settings.of(name)
    return settings


def without_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the run that something is taken of."""
    return {key: value for key, value in config.items() if key not in FILES}


def build_study(node: Mapping[str, Any]) -> Study:
    """Return the study of a node that `with_networks` has seen. Raises UserError naming the key."""
    place = _place(node)
    settings = {key: value for key, value in node.items() if key != "part"}
    if NETWORKS in node:
        settings[NETWORKS] = {
            name: component(inner, f"{place}.{NETWORKS}.{name}")
            for name, inner in node[NETWORKS].items()
        }
    study: Study = component(settings, place)
    return study


def with_networks(node: dict[str, Any]) -> dict[str, Any]:
    """Return the node with its networks written out, each as its file in conf/network/ has it, so that the
    record says all that was assumed. Raises UserError for a name that is none."""
    if NETWORKS not in node or isinstance(node[NETWORKS], Mapping):
        return node
    key, names = f"{_place(node)}.{NETWORKS}", node[NETWORKS]
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise UserError(f"{key}: a list such as [ethernet_1gbit], got {names!r}")
    known = [name for name in options("network") if name != "none"]
    for name in names:
        if name not in known:
            raise UserError(f"{key}: no network {name!r}; {nearest(str(name), known)}")
    return {**node, NETWORKS: {name: option("network", name) for name in names}}


def _place(node: Mapping[str, Any]) -> str:
    """Where the node stands in the artifact's file."""
    return f"{STUDY}.{node['part']}"


def _measured(
    settings: Measure, config: dict[str, Any]
) -> tuple[Sequence[Mapping[str, Any]], torch.device, dict[str, Any]]:
    """Rows, device and facts of a measurement."""
    gradient, device, facts = last_gradient(
        config, settings.steps, settings.embedded, "measure.steps"
    )
    repeats, facts["chosen"] = compressing.measure(
        gradient,
        [settings.of(name) for name in settings.methods],
        (settings.factors[0], settings.factors[1]),
        settings.repeats,
        say=lambda line: print(f"  {line}", flush=True),
    )
    return repeats, device, facts


def _taken(study: Any, config: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a study is handed, and facts about it. Raises UserError."""
    if study.takes == NOTHING:
        return (), {"data": "none"}
    name = config["experiment"]["row"]
    if study.takes == TENSORS:
        module = unallocated(config)
        sizes = tuple(parameter.numel() for parameter in module.parameters())
        facts = {"parameters": sum(sizes), "tensors": len(sizes), "data": "none"}
        return (Tensors(name, sizes, layers_of(module)),), facts
    if study.takes == TIMES:  # of compressing a real gradient of the model tensor by tensor (DGC)
        gradient, _, facts = last_gradient(config, study.steps, {}, "study.saturation.steps")
        methods = {float(f): DGCSampled(factor=f) for f in study.factors}
        found = compressing.compress_ms(gradient, methods, study.repeats)
        sizes = tuple(part.numel() for part in gradient.values())
        return (Times(Tensors(name, sizes), found),), facts
    takers: dict[str, Callable[[Any, Any], Made]] = {
        GRADIENTS: worker_gradients,
        HISTORY: gradient_history,
        SNAPSHOTS: snapshots,
    }
    given, facts = takers[study.takes](config, study.steps)
    return (given,), facts


def layers_of(module: nn.Module) -> int:
    """Count layers as papers do: recurrent ones where there are any, else convolutions and linear layers that
    are no shortcut's projection."""
    recurrent = [part.num_layers for part in module.modules() if isinstance(part, nn.RNNBase)]
    return sum(recurrent) or sum(
        isinstance(part, nn.Conv2d | nn.Linear) and SHORTCUT not in name
        for name, part in module.named_modules()
    )


def worker_gradients(config: Mapping[str, Any], steps: int) -> Made:
    """Return the gradient of each simulated worker after ``steps`` steps, its residual added: what the
    compressor of the config would be given."""
    run, left = _simulated(config)
    for batches in itertools.islice(left, steps):
        train_step(run, batches)
    return _gradients_at(run, next(left)), facts_of(run)


def snapshots(config: Mapping[str, Any], steps: Sequence[int]) -> Made:
    """Return the gradients of each simulated worker at these steps. It trains as it is read."""
    run, left = _simulated(config)

    def each() -> Snapshots:
        for step, batches in enumerate(itertools.islice(left, max(steps)), 1):
            if step in steps:  # then they are read twice
                batches = tuple(Batch(b.count, tuple(b.micro_batches)) for b in batches)
                yield step, _gradients_at(run, batches)
            if step < max(steps):
                train_step(run, batches)

    parameters = [p.numel() for p in run.module.parameters()]
    sizes = {"parameters": sum(parameters), "tensors": len(parameters)}
    return each(), {"data": run.splits.label, "steps": max(steps), **sizes}


def _gradients_at(run: Run, batches: tuple[Batch, ...]) -> Gradients:
    """The gradient of each simulated worker from its batch, its residual added. The weights stay."""
    vectors, fed = [], False
    sizes: tuple[int, ...] = ()
    for index, batch in enumerate(batches):
        with run.workers.turn_of(index):
            run.module.zero_grad(set_to_none=True)
            forward_backward(run, index, batch)
        found = {n: in_memory_order(g) for n, g in gradients_of(run).items()}
        residuals = run.exchange.states(index).get(RESIDUAL, {})
        fed = bool(residuals)
        sizes = tuple(gradient.numel() for gradient in found.values())
        parts = [found[name] + residuals[name] if fed else found[name] for name in found]
        vectors.append(torch.cat([part.reshape(-1) for part in parts]).numpy())
    return Gradients(sizes, np.stack(vectors), fed)


def gradient_history(config: Mapping[str, Any], steps: int) -> Made:
    """Return what the workers compress at each of ``steps`` steps, their mean. It trains as it is read."""
    run, left = _simulated(config)

    def history() -> History:
        for batches in itertools.islice(left, steps):
            train_step(run, batches)
            found = {n: in_memory_order(g).clone() for n, g in gradients_of(run).items()}
            workers = run.world.local
            for worker in range(workers):  # gradient + old residual = sent + new residual
                for name, residual in run.exchange.states(worker).get(RESIDUAL, {}).items():
                    found[name] += residual / workers
            yield run.progress.step, {name: mean.numpy() for name, mean in found.items()}

    parameters = [p.numel() for p in run.module.parameters()]
    sizes = {"parameters": sum(parameters), "tensors": len(parameters)}
    return history(), {"data": run.splits.label, "steps": steps, **sizes}


def _simulated(config: Mapping[str, Any]) -> tuple[Run, Iterator[tuple[Batch, ...]]]:
    """A run whose workers are all here, and the batches of its steps, epoch after epoch. Raises UserError."""
    if config["launch"]["kind"] != "simulated":
        raise UserError(
            "launch.kind: simulated, so that every worker's gradient is here, got "
            f"{config['launch']['kind']}; use launch=simulated"
        )
    run: Run = build_run(config, torch.device("cpu"))

    def batches() -> Iterator[tuple[Batch, ...]]:
        while True:
            yield from steps_left(run)
            run.progress.epoch += 1

    return run, batches()


def trained(
    config: dict[str, Any],
    steps: int,
    embedded: Mapping[str, str],
    device: torch.device,
    key: str = "measure.steps",
) -> tuple[Run, Iterator[tuple[Batch, ...]]]:
    """Return a run after some steps of the trainer, and the batches of the epoch that are left. ``key``: that
    of ``steps`` in the config. Raises UserError."""
    if config["train"]["local_steps"] > 1:
        raise UserError(
            "train.local_steps: a gradient is measured step by step; use train.local_steps=1"
        )
    run: Run = _built_with_data(config, embedded, device)
    batches = steps_left(run)
    for number in range(steps):
        batch = next(batches, None)
        if batch is None:
            raise UserError(f"{key}: the data make {number} steps, got {steps}; use fewer")
        train_step(run, batch)
    return run, batches


def last_gradient(
    config: dict[str, Any], steps: int, embedded: Mapping[str, str], key: str
) -> tuple[dict[str, Tensor], torch.device, dict[str, Any]]:
    """Return the gradient of the last of some training steps, joined, its device, and how it came about."""
    device = torch.device(choose_device(config)[0])
    run, _ = trained(config, steps, embedded, device, key)
    gradients = gradients_of(run)
    norms = torch._foreach_norm(list(gradients.values()))
    norm = float(torch.linalg.vector_norm(torch.stack(norms)))
    return compressing.joined(gradients), device, facts_of(run) | {"gradient_norm": norm}


def facts_of(run: Run) -> dict[str, Any]:
    """Return what the record says of the training before a gradient was taken."""
    sizes = [parameter.numel() for parameter in run.module.parameters()]
    return {
        "data": run.splits.label,
        "steps": run.progress.step,
        "train/loss": run.progress.tally.mean_loss,
        "parameters": sum(sizes),
        "tensors": len(sizes),
    }


def gradients_of(run: Run) -> dict[str, Tensor]:
    """Return what the last step has left, by parameter name."""
    named = run.module.named_parameters()
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def _built_with_data(config: dict[str, Any], embedded: Mapping[str, str], device: Any) -> Any:
    """The run; where its data set is not here and no folder was named, on an embedded one."""
    try:
        return build_run(config, device)
    except UserError as error:
        name = dataset_name(config)
        if config["dataset"].get("root") or name not in embedded:
            raise
        if config["scale"]["name"] in FULL_SIZES:  # never a reproduction on other data than it says
            raise UserError(
                f"roots.{name}: {error}; give its folder, or use scale=quick"
            ) from error
        print(f"  no {name} here, the embedded {embedded[name]} take its place ({error})")
    instead = deepcopy(config) | {"dataset": option("dataset", embedded[name])}
    return build_run(instead, device)


def dataset_name(config: Mapping[str, Any]) -> str:
    """Return the data set's module: its name on the command line."""
    return str(config["dataset"]["_target_"]).split(".")[-2]


def check_memory(config: Mapping[str, Any]) -> None:
    """Refuse what will not fit, before anything is allocated."""
    count = sum(p.numel() for p in unallocated(config).parameters())
    if words := environment.shortage(4 * COPIES_OF_THE_MODEL * count):
        raise UserError(
            f"model.width: {count / 1e6:.0f} M parameters need {words}; use a slimmer model (model.width)"
        )
