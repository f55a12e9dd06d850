"""Recorded gradients: what the trainer computes, a file a worker, kept under runs/gradients/.

A few steps of dense training on one simulated worker; then, with the parameters held as they are,
a gradient a worker, each on a batch of its own as far as the data go: what the workers of a
data-parallel step have before their exchange. Beside them the layers' multiply-adds, which say how a
step's compute is spread.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dgc_repro.bench.replay import multiply_adds
from dgc_repro.checksums import Damaged
from dgc_repro.errors import UserError
from dgc_repro.launch.build import validate
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.measure import dataset_name, gradients_of, trained
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.worker import write_json
from dgc_repro.progress import Progress
from dgc_repro.train.checkpoint import load_data
from dgc_repro.train.step import train_step

FACTS = "gradients.json"
VERSION = 1
STEPS = 4  # of training before, as GraVAC's Table III has it here
MOST_WORKERS = 4
EMBEDDED = {"cifar10": "digits", "ptb": "descriptions"}
IMAGES = ("dataset=cifar10", "dataset.train_size=null", "train.batch_size=32")
WORDS = (
    *("dataset=ptb", "dataset.train_part=valid", "dataset.train_size=null"),
    *("dataset.validation=null", "dataset.test_size=null", "train.batch_size=20"),
)
MODELS: Mapping[str, Sequence[str]] = {
    "resnet18": ("experiment=gravac/table3", "model=resnet18", "model.width=64", *IMAGES),
    "resnet101": ("experiment=gravac/table3_resnet101", "model.width=64", *IMAGES),
    "lstm": ("experiment=gravac/table3_lstm", "model.width=1500", *WORDS),
}
"""Overrides of a run that trains each model at full size: 11.2, 44.5 and 66.0 M parameters."""


@dataclass(frozen=True)
class Recorded:
    """A folder of gradients. ``multiply_adds``: of one forward pass of one worker's batch, by layer."""

    folder: Path
    model: str
    workers: int
    values: int
    tensors: int
    batch: int
    data: str
    multiply_adds: Mapping[str, float]

    @classmethod
    def read(cls, folder: Path) -> Recorded | None:
        """None: nothing is recorded, or the file is damaged."""
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            return cls(folder=folder, **facts)
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def gradients(self, rank: int) -> dict[str, Tensor]:
        """A worker's, f32 by parameter name. Raises UserError for a file that holds something else."""
        path = self.folder / f"worker-{rank}.pt"
        try:
            return load_data(path, str(path))
        except Damaged as error:
            raise UserError(f"{error}; remove {self.folder}") from error


def record(
    model: str, runs: Path, given: Sequence[str] = (), workers: int = MOST_WORKERS
) -> Recorded:
    """The gradients of a model, from the cache or recorded now. ``given``: overrides of its run. An embedded
    data set stands in for one that is missing in data/.

    Raises UserError.
    """
    if model not in MODELS:
        raise UserError(f"model: one of {', '.join(MODELS)}, got {model!r}")
    config = composed((*MODELS[model], *given, "seed=0"))
    data = Path("data", dataset_name(config))
    is_there = data.is_dir()
    identity = json.dumps([VERSION, STEPS, workers, config_hash(config), is_there])
    if is_there and not config["dataset"].get("root"):
        config["dataset"]["root"] = str(data)
    validate(config)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    folder = runs / "gradients" / f"{model}-{digest}"
    if (found := Recorded.read(folder)) is not None:
        return found
    partial_folder = folder.with_name(folder.name + ".partial")
    for old in (partial_folder, folder):
        shutil.rmtree(old, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    _record(model, config, partial_folder, workers)
    partial_folder.rename(folder)
    found = Recorded.read(folder)
    assert found is not None
    return found


def _record(model: str, config: dict[str, Any], folder: Path, workers: int) -> None:
    what = f"recording {workers} gradients of {model}"
    print(f"{what} ...", flush=True)
    run, batches = trained(config, STEPS, EMBEDDED, torch.device("cpu"))
    counted: dict[str, float] = {}

    def count(name: str, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        counted[name] = counted.get(name, 0.0) + multiply_adds(module, output)

    leaves = [(n, part) for n, part in run.module.named_modules() if not list(part.children())]
    hooks = [part.register_forward_hook(partial(count, name)) for name, part in leaves]
    before = [parameter.detach().clone() for parameter in run.module.parameters()]
    gradients: dict[str, Tensor] = {}
    few = list(itertools.islice(batches, workers))
    again = itertools.cycle(few)  # the embedded text makes fewer batches than workers need
    with Progress(what, workers) as progress:
        for worker in range(workers):
            batch = next(again, None)
            if batch is None:
                raise UserError(f"workers: the data make {STEPS} steps, too few for {workers}")
            train_step(run, batch)
            gradients = {name: g.detach() for name, g in gradients_of(run).items()}
            torch.save(gradients, folder / f"worker-{worker}.pt")
            with torch.no_grad():
                for parameter, old in zip(run.module.parameters(), before, strict=True):
                    parameter.copy_(old)
            for hook in hooks:  # of one batch
                hook.remove()
            progress.advance()
    facts = {
        "values": sum(gradient.numel() for gradient in gradients.values()),
        "tensors": len(gradients),
        "batch": config["train"]["batch_size"],
        "data": run.task.splits.label
        + (f" (workers share {len(few)} batches)" if len(few) < workers else ""),
        "model": model,
        "workers": workers,
        "multiply_adds": counted,
    }
    write_json(folder / FACTS, facts)
