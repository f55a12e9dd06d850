"""A resolved config to a `Run`: what every rank does first, identically. `rules` has checked the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor
from dgc_repro.dataset.images import Splits
from dgc_repro.dataset.text import Text
from dgc_repro.errors import UserError
from dgc_repro.exchange.ahead import compile_ahead
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.hook import hook_of, wrap
from dgc_repro.exchange.junction import AfterBackward, Junction, PerBucket
from dgc_repro.exchange.world import World
from dgc_repro.launch import rules
from dgc_repro.launch.devices import computed_precision, emulated_bf16
from dgc_repro.launch.environment import shortage
from dgc_repro.launch.networks import modelled
from dgc_repro.launch.settings import build_compressor, component
from dgc_repro.network.lab import Lab
from dgc_repro.optimizer.sam import SAM
from dgc_repro.policy.interface import Plan
from dgc_repro.train.image_task import ImageTask
from dgc_repro.train.language_task import LanguageTask
from dgc_repro.train.local_steps import LocalSteps, outer_optimizer
from dgc_repro.train.loss_scale import LossScale
from dgc_repro.train.meter import InterfaceMeter, NoMeter
from dgc_repro.train.randomness import Workers
from dgc_repro.train.run import Progress, Run, Trained
from dgc_repro.train.settings import TrainSettings
from dgc_repro.train.stopping import TOP5, Stopping
from dgc_repro.train.streaming import Streaming
from dgc_repro.train.task import TOP, Prepared, Task

Config = Mapping[str, Any]
PASSING = 1.3
"""Bytes of a simulated worker over those of the parameters, beside its states: its gradient and payload.
Measured on a CPU (ResNet18, 4 to 24 workers): 1.25 with dense training, 1.27 with top-k."""
HAS_LSTM: dict[str, Callable[[], bool]] = {
    "bf16": lambda: bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    "fp16": lambda: bool(torch.ops.mkldnn._is_mkldnn_fp16_supported()),
}
"""Whether oneDNN has an LSTM in this precision for this CPU. Not every build of torch has these operators, so
that they are called only where they are needed."""


def build_run(
    config: Config, device: torch.device, ready: Callable[[Splits | Text], object] = lambda _: None
) -> Run:
    """All parts of a run on this rank; in a process world torch.distributed is initialized.

    ``ready``: called with the data before the first collective, when what may take long on one rank alone is
    done.
    """
    c = rules.Setup(config)
    settings, seed = c.train, config["seed"]
    settings = replace(settings, precision=computed_precision(settings.precision, device))
    progress = Progress(policy=c.policy.init())
    world = World(
        c.workers if c.simulated else None,
        device=device,
        cost=modelled(config, lambda: progress.step),
    )
    task = _task(c.dataset.load().to(device), settings, seed)
    steps = task.steps_per_epoch(world.size)
    rules.refuse_long_rounds(settings, steps)
    refuse_classes(config, task, c.stopping)
    torch.manual_seed(seed)
    module = fresh_module(config, task).to(device)
    _refuse_precision(module, settings, device, sam_first=c.sam_first)
    if settings.channels_last and channels_last_corrupts(module, device):
        settings = replace(settings, channels_last=False)
        task = _task(task.splits, settings, seed)
    # What one step of the optimizer learns from: local steps are each worker's own.
    optimizer_batch = settings.step_size * (1 if c.has_local_steps else world.size)
    if settings.precision == "fp16":
        progress.loss_scales = [LossScale() for _ in range(world.local)]
    ready(task.splits)

    def trained(module: nn.Module) -> Trained:
        if settings.channels_last:
            module = module.to(memory_format=torch.channels_last)
        named = dict(module.named_parameters())
        compressor = build_compressor(config, c.policy, module)
        parameters = {name: p for name, p in named.items() if p.requires_grad}
        exchange = Exchange(compressor, parameters, world, seed=seed, unit=c.exchange.unit)
        compile_ahead(compressor, exchange.parameters, device, c.policy, unit=c.exchange.unit)
        junction: Junction
        forward: Any = module if c.simulated else wrap(module, device)
        if c.simulated:
            junction = AfterBackward(exchange, parameters)
        else:
            hook = hook_of(forward, c.overlap)
            scale = next(iter(progress.loss_scales), None)
            if c.overlap:
                junction = PerBucket(exchange, parameters, scaler=scale)
            else:
                junction = AfterBackward(exchange, parameters)
            hook.junction = junction
        uncompressed = None
        if c.sam_first:
            plain = Exchange(Dense(), parameters, world)
            compile_ahead(Dense(), plain.parameters, device)
            uncompressed = AfterBackward(plain, parameters)
            uncompressed.begin(Plan(0))
        if settings.compile:
            module.compile()
        local = c.has_local_steps
        inner = [
            c.optimizer.build(module, optimizer_batch) for _ in range(world.local if local else 1)
        ]
        steps: LocalSteps | None = None
        if settings.fragments > 1:
            steps = Streaming(parameters, inner, settings)
        elif local:
            steps = LocalSteps(parameters.values(), inner)
        return Trained(
            module=module,
            forward=forward,
            parameters=parameters,
            exchange=exchange,
            junction=junction,
            optimizer=outer_optimizer(parameters.values(), settings) if local else inner[0],
            uncompressed=uncompressed,
            local=steps,
        )

    slow = emulated_bf16(settings.precision, device.type)
    if c.simulated:  # factors take no more than the whole model
        learn = {name: p for name, p in module.named_parameters() if p.requires_grad}
        nest = build_compressor(config, c.policy, module)
        check_memory(nest, learn, world.size, local=c.has_local_steps)
    first = trained(module)
    return Run(
        **vars(first),
        settings=settings,
        base_lr=c.optimizer.base_lr(optimizer_batch),
        schedule=c.schedule,
        task=task,
        world=world,
        policy=c.policy,
        workers=Workers(world.rank, world.local, seed, first.module),
        progress=progress,
        seed=seed,
        steps_per_epoch=steps,
        trained=trained,
        sam=c.optimizer if isinstance(c.optimizer, SAM) else None,
        low_rank=c.low_rank,
        notes=([slow] if slow else []) + rules.notes(c),
        stopping=c.stopping,
        meter=InterfaceMeter(world, Lab.interface) if c.in_lab else NoMeter(),
    )


def fresh_module(config: Config, task: Task) -> nn.Module:
    """The model of a run as it is before training, on the CPU. Draws from torch's global generator."""
    module: nn.Module = component(config["model"], "model").build(task.splits.num_classes)
    if isinstance(task, ImageTask) and isinstance(module, Prepared):
        module.prepare(task.training_images(module.prepared_from).cpu())
    return module


def _task(splits: Splits | Text, settings: TrainSettings, seed: int) -> Task:
    """The task that a data set is for."""
    kind = LanguageTask if isinstance(splits, Text) else ImageTask
    return kind(splits, settings, seed)  # type: ignore[arg-type]


def _refuse_precision(
    module: nn.Module, settings: TrainSettings, device: torch.device, *, sam_first: bool
) -> None:
    """Raise UserError where this CPU cannot train an LSTM in the precision, and for SAM with
    ``compressed=first`` in fp16: where its second gradient overflows, the first one has been exchanged."""
    precision = settings.precision
    recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
    if recurrent and device.type == "cpu" and precision in HAS_LSTM and not HAS_LSTM[precision]():
        raise UserError(
            f"train.precision: this CPU has no {precision} kernel for an LSTM (bf16 needs AVX512, fp16 "
            "AVX512-FP16); use train.precision=fp32"
        )
    if sam_first and precision == "fp16":
        raise UserError(
            "train.precision: fp16 leaves out a step whose gradient overflows, and "
            "optimizer.compressed=first has exchanged the first gradient before the second is known; use "
            "train.precision=fp32, or optimizer.compressed=perturbed"
        )


def channels_last_corrupts(module: nn.Module, device: torch.device) -> bool:
    """Whether oneDNN would write beyond a buffer in the backward pass of this model.

    Its AVX2 kernel does so for the weights of a strided 1x1 convolution with fewer than 8 input channels in
    channels-last order (uxlfoundation/oneDNN issue 6035; torch 2.15). The contiguous order is not affected.
    """
    return device.type == "cpu" and any(
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size == (1, 1)
        and max(layer.stride) > 1
        and layer.in_channels < 8
        for layer in module.modules()
    )


def check_memory(
    compressor: Compressor, parameters: Mapping[str, Tensor], workers: int, *, local: bool = False
) -> None:
    """Refuse simulated workers whose states and gradients will not fit into the memory of the parameters'
    device.

    With ``local`` steps each worker keeps its weights too, and up to two moments of its optimizer.
    """
    kept = state_bytes(compressor, parameters, workers)
    own = (3 * local + PASSING) * sum(p.nbytes for p in parameters.values())
    device = next(iter(parameters.values())).device if parameters else torch.device("cpu")
    if words := shortage((kept + own) * workers, device):
        more = ", weights and moments" if local else ""
        raise UserError(
            f"launch.workers: {workers} simulated workers need {words}: each has {kept / 1e9:.2f} GB of "
            f"compressor state, and {own / 1e9:.2f} GB of gradients, payloads{more}; use fewer"
        )


def state_bytes(compressor: Compressor, parameters: Mapping[str, Tensor], workers: int) -> int:
    """Bytes of compressor state that each of so many workers keeps. No memory is taken for them."""
    meta = {name: torch.empty_like(p, device="meta") for name, p in parameters.items()}
    return Exchange(compressor, meta, World(workers, device=torch.device("meta"))).state_bytes()


def refuse_classes(config: Config, task: Task, stopping: Stopping) -> None:
    """Refuse a model with fewer outputs than the data have classes or tokens, and a metric that nobody
    counts."""
    outputs, classes = config["model"].get("num_classes"), task.splits.num_classes
    if outputs is not None and outputs < classes:
        what = "tokens" if isinstance(task, LanguageTask) else "classes"
        raise UserError(
            f"model.num_classes: at least the {classes} {what} of {task.splits.label}, got {outputs}; "
            "null takes as many"
        )
    if stopping.metric == TOP5 and not task.counts_top5:
        raise UserError(
            f"stopping.metric: top5 says something of more than {TOP} classes, {task.splits.label} has "
            f"{classes}; use accuracy"
        )
