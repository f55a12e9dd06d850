"""What a run takes, without training it: operations, launches, memory, and the hours that follow from them.

Operations, launches and memory are counted on a model without memory (torch's meta device). The hours of a
GPU are reckoned from these counts and the rates that its maker states, between two shares of the rate that
training reaches; no such GPU was timed. The hours of this machine's CPU come from steps that are timed here,
with random data of the same shape.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgc_repro.checked import Count, checked
from dgc_repro.dataset.batches import steps_per_epoch
from dgc_repro.dataset.images import Images, Splits
from dgc_repro.dataset.text import COLUMNS, Text, text_steps_per_epoch
from dgc_repro.errors import UserError
from dgc_repro.launch import environment
from dgc_repro.launch.build import PASSING, build_run, state_bytes
from dgc_repro.launch.settings import build_compressor, build_policy, component, unallocated
from dgc_repro.predict.measure import alone
from dgc_repro.predict.modelled import GPU
from dgc_repro.predict.operations import operations_of
from dgc_repro.train.checkpoint import KEPT
from dgc_repro.train.loop import steps_left
from dgc_repro.train.settings import TrainSettings
from dgc_repro.train.step import train_step

WITHOUT_EFFECT = ("seed", "paths", "sink", "experiment", "scale")
SECONDS_TO_TIME = 10.0  # steps of a run on this CPU, at most; one is timed whatever it takes
WARMUP_STEPS, TIMED_STEPS = 2, 5
START_SECONDS = 1.0, 6.0
"""Time before the first step: where workers are simulated, and where ranks load Python and torch first."""
PASSES = 4, 30
"""Times that an exchange and the optimizer read or write a gradient: dense training, and the most that a
method needs."""
LAUNCH_SECONDS = 15e-6, 45e-6
"""Host time of one operation of torch with autograd and autocast, at best and at worst. On one H100 that
several runs shared it was 46 microseconds (air.dense, seed 0)."""
EXCHANGE_SECONDS = 2e-4, 4e-3
"""Host time of a worker's exchange, at best and at worst (docs/speed.md)."""
EVALUATION = 1 / 3
"""Share of the forward pass in the operations of a training step."""
KNOWN_IMAGES = {
    "Cifar10": (50_000, 10_000, 10),
    "Cifar100": (50_000, 10_000, 100),
    "FashionMnist": (60_000, 10_000, 10),
}
"""Training images, test images and classes of data sets that may not be here yet."""
SIZES = ("train_size", "validation", "test_size")
PTB_TOKENS = {"train": 929_589, "valid": 73_760, "test": 82_430}
PTB_WORDS = {"train": 10_000, "valid": 5_792}
SHAKESPEARE_CHARACTERS, SHAKESPEARE_LETTERS = 1_115_394, 65


BEST = {"fp32": 0.5, "tf32": 0.25, "half": 0.25}
WORST = {"fp32": 0.2, "half": 0.05}
"""Shares of a GPU's stated operations that training reaches (assumptions)."""


class Data(NamedTuple):
    """Sizes of a data set: images or tokens that an epoch trains on and evaluates, classes, and the shape of
    one image or window."""

    trained: int
    evaluated: int
    classes: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Counts:
    """What a run does, whatever its seed.

    steps         of the run
    operations    floating-point operations of the whole run, without evaluations
    launches      torch's operations in forward and backward of a worker's step
    parameters    that learn
    activations   bytes that a micro-batch keeps for backward
    states        bytes of a worker's compressor
    evaluations   samples that an epoch evaluates, over those that it trains on
    own_weights   whether each worker has its own (local steps)
    """

    row: str
    steps: int
    operations: float
    launches: int
    parameters: int
    activations: int
    states: int
    evaluations: float
    workers: int
    precision: str
    own_weights: bool

    def memory(self) -> float:
        """Return the bytes of a device that hosts all workers."""
        values = 4.0 * self.parameters
        each = self.states + (3 * self.own_weights + PASSING) * values
        # Weights, gradient, two moments, and the mean.
        return 5 * values + self.workers * each + self.activations

    def disk(self) -> float:
        """Return the bytes of a run folder's checkpoints."""
        values = 4.0 * self.parameters
        of_worker = self.states + 3 * values * self.own_weights
        return (KEPT + 1) * (3 * values + of_worker * self.workers)  # one more while it is written

    def hours(self, gpu: GPU) -> tuple[float, float]:
        """Return the hours of the run on one GPU, low and high. All workers take turns there."""
        if self.precision == "fp32":
            reached = max(BEST["fp32"] * gpu.operations, BEST["tf32"] * gpu.tf32)
            rates = reached, WORST["fp32"] * gpu.operations
        else:
            rates = BEST["half"] * gpu.half, WORST["half"] * gpu.half
        found = []
        turns = self.steps * self.workers
        ends = zip(rates, PASSES, LAUNCH_SECONDS, EXCHANGE_SECONDS, strict=True)
        for rate, passes, launch, exchange in ends:
            compute = self.operations * (1 + EVALUATION * self.evaluations) / rate
            moved = 4.0 * self.parameters * passes * turns / gpu.memory
            host = (self.launches * launch + exchange) * turns
            found.append((compute + moved, host))
        # At best the host works while the GPU does, at worst one waits for the other.
        return max(found[0]) / 3600, sum(found[1]) / 3600


def counted(config: Mapping[str, Any]) -> Counts:
    """Count what a run does, without its data and without memory for its model. Raises UserError."""
    plain = {key: value for key, value in config.items() if key not in WITHOUT_EFFECT}
    return _counted(config["experiment"]["row"], json.dumps(plain, sort_keys=True, default=str))


@functools.cache
def _counted(row: str, text: str) -> Counts:
    config = json.loads(text)
    data, train, workers = data_of(config), config["train"], int(config["launch"]["workers"])
    micro, accumulate = int(train["batch_size"]), int(train["accumulate"])
    size = micro * accumulate
    dataset = component(config["dataset"], "dataset")
    if len(data.shape) == 1:
        windows = dataset.windows(data.trained)
        steps = text_steps_per_epoch(data.trained, data.shape[0], size, workers, windows)
        trained = steps * size * workers * data.shape[0]
    else:
        steps = steps_per_epoch(data.trained, size, workers)
        trained = steps * size * workers
    module = unallocated(config, data.classes)
    words = getattr(component(config["model"], "model"), "reads", "") == "words"
    step = operations_of(module, (micro, *data.shape), words=words)
    learn = {name: p for name, p in module.named_parameters() if p.requires_grad}
    compressor = build_compressor(config, build_policy(config), module)
    states = state_bytes(compressor, learn, workers)
    passes = 2 if str(config["optimizer"]["_target_"]).endswith(".SAM") else 1
    total = TrainSettings(**train).num_steps(steps)
    precision = str(train["precision"])
    return Counts(
        row=row,
        steps=total,
        operations=passes * step.floating_point * accumulate * workers * total,
        launches=passes * step.dispatched * accumulate,
        parameters=sum(p.numel() for p in learn.values()),
        activations=step.kept_bytes // (1 if precision == "fp32" else 2),
        states=states,
        evaluations=data.evaluated / trained,
        workers=workers,
        precision=precision,
        own_weights=int(train["local_steps"]) > 1,
    )


def data_of(config: Mapping[str, Any]) -> Data:
    """Return the sizes of a run's data. The usual data sets need not be here. Raises UserError."""
    settings, name = config["dataset"], str(config["dataset"]["_target_"]).rpartition(".")[2]
    if name in KNOWN_IMAGES:
        whole, test, classes = KNOWN_IMAGES[name]
        trained = settings["train_size"] or whole - settings["validation"]
        return Data(
            trained, settings["validation"] + (settings["test_size"] or test), classes, (3, 32, 32)
        )
    if name == "Ptb":
        part = settings["train_part"]
        whole, held_out = PTB_TOKENS[part], PTB_TOKENS["valid"]
        if part == "valid":
            held_out = whole // 10
            whole -= held_out
        sizes, classes = (whole, held_out, PTB_TOKENS["test"]), PTB_WORDS[part]
    elif name == "Shakespeare":
        end = int(0.9 * SHAKESPEARE_CHARACTERS)
        first = settings["validation"]
        sizes, classes = (end - first, first, SHAKESPEARE_CHARACTERS - end), SHAKESPEARE_LETTERS
    else:
        return _loaded(json.dumps(settings, sort_keys=True))
    taken = [settings.get(key) or size for key, size in zip(SIZES, sizes, strict=True)]
    return Data(taken[0], taken[1] + taken[2], classes, (int(settings["bptt"]),))


@functools.cache
def _loaded(text: str) -> Data:
    """The sizes of a data set that has to be read: an embedded one, or a user's own."""
    data = component(json.loads(text), "dataset").load()
    sizes = len(data.train), len(data.validation) + len(data.test), data.num_classes
    shape = tuple(data.train.images.shape[1:]) if isinstance(data, Splits) else (data.bptt,)
    return Data(*sizes, shape)


def hours_here(config: Mapping[str, Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the hours of a run on this CPU, from a few of its steps on embedded data. Simulated workers take
    turns; real ones share the cores. ``clock``: that of the steps. Raises UserError where it does not fit
    into memory."""
    counts = counted(config)
    if words := environment.shortage(counts.memory()):
        raise UserError(
            f"launch.workers: {counts.workers} workers keep {words} with weights, compressor states (each "
            f"{counts.states / 1e9:.2f} GB) and activations; use fewer, or another device="
        )
    seconds = _step_seconds(config, clock)
    turns, of_ranks = counts.workers, config["launch"]["kind"] != "simulated"
    if of_ranks:
        turns = math.ceil(counts.workers / environment.available_cores())
    evaluation, start = 1 + EVALUATION * counts.evaluations, START_SECONDS[of_ranks]
    return (counts.steps * seconds * turns * evaluation + start) / 3600


def _step_seconds(config: Mapping[str, Any], clock: Callable[[], float]) -> float:
    """Seconds of a worker's step with its exchange: the median of a few."""
    own = _on_random_data(config)
    with environment.threads(environment.threads_of_worker(config["launch"])):
        run = build_run(own, torch.device("cpu"))
        seconds: list[float] = []
        begin = time.perf_counter()
        for number, batches in enumerate(steps_left(run)):
            start = clock()
            train_step(run, batches)
            seconds.append(clock() - start)
            spent = time.perf_counter() - begin
            if number + 1 >= WARMUP_STEPS + TIMED_STEPS or (number and spent > SECONDS_TO_TIME):
                break
    return statistics.median(seconds[min(WARMUP_STEPS, len(seconds) - 1) :])


def _on_random_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of one simulated worker, with random data of the same shape for a few steps."""
    own, data = alone(config), data_of(config)
    size = own["train"]["batch_size"] * own["train"]["accumulate"]
    own["dataset"] = {
        "_target_": f"{__name__}.{RandomData.__name__}",
        "shape": list(data.shape),
        "classes": data.classes,
        "batches": max(
            WARMUP_STEPS + TIMED_STEPS, int(own["train"]["local_steps"])
        ),  # a whole round
        "batch": size,
        "augment": config["dataset"].get("augment", "none"),
        "reading": config["dataset"].get("reading", COLUMNS),
    }
    return own


@checked
class RandomData:
    """``batches`` of random images, or of random tokens where ``shape`` is the length of a window."""

    shape: Sequence[int]
    classes: Count
    batches: Count
    batch: Count
    augment: str
    reading: str

    @property
    def gives(self) -> str:
        """What a model has to read."""
        return "words" if len(self.shape) == 1 else "images"

    def load(self) -> Splits | Text:
        """Draw the data."""
        generator = torch.Generator().manual_seed(0)

        def drawn(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, generator=generator)

        count, label = self.batches * self.batch, "random"
        if len(self.shape) == 1:
            (bptt,) = self.shape
            train, held_out = (
                drawn(self.classes, self.batch * (bptt * batches + 1))
                for batches in (self.batches, 1)
            )
            windows = None if self.reading == COLUMNS else count * bptt
            columns = self.batch
            return Text(train, held_out, held_out, self.classes, bptt, columns, label, windows)
        train_images, few = (
            Images(drawn(256, n, *self.shape).to(torch.uint8), drawn(self.classes, n))
            for n in (count, self.batch)
        )
        mean, std = (0.5,) * self.shape[0], (0.25,) * self.shape[0]
        return Splits(train_images, few, few, self.classes, mean, std, label, self.augment)
