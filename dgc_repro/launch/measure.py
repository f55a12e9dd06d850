"""One row of an artifact that is a measurement and no training: gradient in, timed repeats out.

The gradient is that of the last of a few training steps, made by the trainer itself (one simulated
worker). The record is a run folder like any other, with ``repeats.csv`` in the place of metrics.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dgc_repro.checked import Count, Rule, checked, within
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.compressor.topk import TopK
from dgc_repro.errors import UserError, writing
from dgc_repro.kernel import native
from dgc_repro.launch import environment
from dgc_repro.launch.build import build_run
from dgc_repro.launch.components import component
from dgc_repro.launch.devices import choose_device
from dgc_repro.launch.identity import RESULTS_VERSION, run_folder
from dgc_repro.launch.paths import option, options
from dgc_repro.launch.rules import WITHOUT_DATA, validate
from dgc_repro.launch.single import is_done, prepare, scale_line
from dgc_repro.launch.typed import made, nearest
from dgc_repro.launch.worker import write_json, write_summary
from dgc_repro.study import compressing
from dgc_repro.study.compressing import Method
from dgc_repro.train.loop import steps_left
from dgc_repro.train.run import Run
from dgc_repro.train.step import train_step
from dgc_repro.train.task import Batch

COPIES_OF_THE_MODEL = 8
"""Parameters, gradients, momentum, the exchange's buffers, the joined gradient and its copy."""
REPEATS_FILE = "repeats.csv"
Computed = tuple[Sequence[Mapping[str, Any]], dict[str, Any], dict[str, Any]]
"""Rows, environment, and facts for the summary."""
FULL_SIZES = ("small", "paper")
TWO_FACTORS = Rule(
    "two numbers from 1, the weaker first, such as [10, 1000]",
    lambda factors: len(factors) == 2 and factors[0] < factors[1],
)


@checked
class MeasureSettings:
    """What is measured. ``factors``: of the first and the second compression; ``methods``: name and
    compressor; ``steps``: training steps before; ``repeats``: paired measurements of each method;
    ``embedded``: data sets of the package that replace those that are not here."""

    factors: Annotated[Sequence[Annotated[float, within(1)]], TWO_FACTORS]
    methods: Annotated[Mapping[str, str], Rule("at least one, as {topk: topk}", bool)]
    steps: Count
    repeats: Count
    embedded: Mapping[str, str]


def measure_config(config: dict[str, Any], given: Sequence[str] = ()) -> Path:
    """Measure unless it is done, and return the run folder. ``config``: a run's, and ``measure``.

    Raises UserError.
    """
    settings = made(MeasureSettings, config["measure"], "measure")
    plain = {key: value for key, value in config.items() if key != "measure"}
    validate(plain)
    methods = [_method(name, settings) for name in settings.methods]
    print(scale_line(plain), flush=True)
    return computed_once(config, REPEATS_FILE, lambda: _measure(plain, settings, methods))


def computed_once(config: dict[str, Any], file: str, compute: Callable[[], Computed]) -> Path:
    """The run folder of a part of an artifact, whose rows are computed unless it is done."""
    folder = run_folder(config)
    if is_done(folder):
        print(f"already done: {folder}", flush=True)
        return folder
    prepare(folder, config)  # first: a folder that cannot be written costs no measurement
    rows, here, facts = compute()
    write_json(folder / "environment.json", here)
    write_csv(folder / file, rows)
    summary = {"status": "finished", "results_version": RESULTS_VERSION, **facts}
    write_summary(folder / "summary.json", summary)
    return folder


def _measure(
    plain: dict[str, Any], settings: MeasureSettings, methods: Sequence[Method]
) -> Computed:
    check_memory(plain)
    native.library()  # built now if it is not in the cache: no repeat pays for it
    device = torch.device(choose_device(plain)[0])
    with environment.threads(plain["launch"]["threads"] or environment.available_cores()):
        busy = environment.busy_cores()
        run, _ = trained(plain, settings.steps, settings.embedded, device)
        gradient, facts = joined_gradient(run)
        del run  # its memory
        here = environment.describe(device, "none", 1, facts.pop("data"))
        repeats, chosen = compressing.measure(
            gradient,
            methods,
            (settings.factors[0], settings.factors[1]),
            settings.repeats,
            say=lambda line: print(f"  {line}", flush=True),
        )
    return repeats, here | {"busy_cores": busy}, {**facts, "chosen": chosen}


def joined_gradient(run: Run) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The gradient of the last step, joined, and how it came about."""
    gradients = gradients_of(run)
    norms = torch._foreach_norm(list(gradients.values()))
    facts = {
        "data": run.task.splits.label,
        "steps": run.progress.step,
        "train/loss": run.progress.tally.mean_loss,
        "parameters": sum(p.numel() for p in run.module.parameters()),
        "tensors": len(gradients),
        "gradient_norm": float(torch.linalg.vector_norm(torch.stack(norms))),
    }
    return compressing.joined(gradients), facts


def trained(
    config: dict[str, Any],
    steps: int,
    embedded: Mapping[str, str],
    device: torch.device,
    key: str = "measure.steps",
) -> tuple[Run, Iterator[tuple[Batch, ...]]]:
    """A run after some steps of the trainer, and the batches of the epoch that are left. ``key``: where
    ``steps`` stands in the config. Raises UserError."""
    if config["train"]["local_steps"] > 1:
        raise UserError(
            "train.local_steps: a gradient is measured step by step; use train.local_steps=1"
        )
    run: Run = _built(config, embedded, device)
    batches = steps_left(run)
    for number in range(steps):
        batch = next(batches, None)
        if batch is None:
            raise UserError(f"{key}: the data make {number} steps, got {steps}; use fewer")
        train_step(run, batch)
    return run, batches


def gradients_of(run: Run) -> dict[str, Tensor]:
    """What the last step has left, by parameter name."""
    return {
        name: parameter.grad
        for name, parameter in run.module.named_parameters()
        if parameter.grad is not None
    }


def _built(config: dict[str, Any], embedded: Mapping[str, str], device: torch.device) -> Any:
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
    instead = deepcopy(config)
    instead["dataset"] = option("dataset", embedded[name])
    return build_run(instead, device)


def dataset_name(config: Mapping[str, Any]) -> str:
    """The data set's module: its name on the command line."""
    return str(config["dataset"]["_target_"]).split(".")[-2]


def _method(name: str, settings: MeasureSettings) -> Method:
    """A method at both factors. Raises UserError for one that chooses no entries."""
    compressor = settings.methods[name]
    known = options("compressor")
    if compressor not in known:
        raise UserError(
            f"measure.methods.{name}: no compressor {compressor!r}; {nearest(str(compressor), known)}"
        )
    node = option("compressor", compressor)
    node = node.get("compressor", node)  # a YAML that brings its method's nest too
    more = {"density": None} if "density" in node else {}
    rungs = [
        component(node, f"measure.methods.{name}", factor=factor, **more)
        for factor in settings.factors
    ]
    if not all(isinstance(rung, Sparsifier) for rung in rungs):
        raise UserError(
            f"measure.methods.{name}: a sparsifier such as topk, got {compressor}, which chooses no "
            "entries"
        )
    single_pass = None
    if isinstance(rungs[0], TopK):
        densities = tuple(1 / factor for factor in settings.factors)
        single_pass = compressing.topk_in_one_scan(densities[0], densities[1])
    return Method(name, rungs[0], rungs[1], single_pass)


def check_memory(config: Mapping[str, Any]) -> None:
    """Refuse what will not fit, before anything is allocated."""
    count = parameters(config)
    needed, available = 4 * COPIES_OF_THE_MODEL * count, environment.available_bytes()
    if available is not None and needed > available:
        raise UserError(
            f"model.width: {count / 1e6:.0f} M parameters need about {needed / 1e9:.1f} GB here, "
            f"{available / 1e9:.1f} GB are available; use a slimmer model (model.width)"
        )


def parameters(config: Mapping[str, Any]) -> int:
    """Of the config's model with ten classes."""
    return sum(p.numel() for p in unallocated(config).parameters())


def unallocated(config: Mapping[str, Any]) -> nn.Module:
    """The config's model, for its sizes alone."""
    with torch.device("meta"):
        module: nn.Module = component(config["model"], "model").build(WITHOUT_DATA)
    return module


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of the same keys as a table; numbers with six digits."""
    with writing(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            short = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
            writer.writerow(short)
