"""A resolved config to a `Run`: what every rank does first, identically."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor, nested
from dgc_repro.compressor.nesting import NAMES, momentum_of
from dgc_repro.compressor.onebit_adam import OneBitAdam
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.dataset.batches import steps_per_epoch
from dgc_repro.dataset.images import Splits
from dgc_repro.dataset.text import Text, text_steps_per_epoch
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.ahead import compile_ahead
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.ddp import (
    AfterBackward,
    Junction,
    exchange_group,
    fit_together,
    hook_of,
    junction_of,
    wrap,
)
from dgc_repro.exchange.gradients import GradientExchange, tensors_of
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.two_level import InsideNodes, nodes_of
from dgc_repro.exchange.wire import Link, Wire
from dgc_repro.launch import sections
from dgc_repro.launch.components import (
    build_compressor,
    build_policy,
    component,
    low_rank_of,
)
from dgc_repro.launch.environment import available_bytes, available_cores, workers_here
from dgc_repro.launch.netlab import validate_lab
from dgc_repro.launch.networks import (
    modelled,
    network_of,
    refuse_lost_packets,
    refuse_stand_ins,
)
from dgc_repro.launch.parent import inside_torchrun
from dgc_repro.launch.paths import conf_dir, option
from dgc_repro.launch.typed import made
from dgc_repro.network.lab import Lab
from dgc_repro.optimizer.rounded import RoundedSGD
from dgc_repro.optimizer.sam import SAM
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import SPREAD, Policy, measures
from dgc_repro.policy.warmup import Warmup
from dgc_repro.study.generalization import Nothing
from dgc_repro.train.image_task import ImageTask
from dgc_repro.train.language_task import LanguageTask
from dgc_repro.train.local_steps import LocalSteps, outer_optimizer
from dgc_repro.train.meter import InterfaceMeter, NoMeter
from dgc_repro.train.randomness import Workers
from dgc_repro.train.run import Progress, Run, Trained
from dgc_repro.train.settings import MEASURED, MODELLED, TrainSettings
from dgc_repro.train.stopping import TOP5, Stopping
from dgc_repro.train.stopping import refuse_misfit as refuse_stopping
from dgc_repro.train.task import TOP, Prepared, Task, refuse_misfit

Config = Mapping[str, Any]
PROCESS_BYTES = (
    350_000_000  # private to a rank that has loaded torch and a tiny model (measured: 375 MB)
)
COMMON_SIZE = 2048  # a model with no larger setting is not estimated: published ones fit
BYTES_OF_A_PARAMETER = 12  # itself, its gradient and its momentum, in float32
WITHOUT_DATA = 10  # classes or words for a model that is built for its sizes and names none itself
INFINITE = 10**30
LARGE_LR = 100.0
SECTIONS = (
    *("model", "dataset", "compressor", "wrapper", "policy", "optimizer", "schedule", "launch"),
    *("network", "sink", "experiment", "scale", "seed", "wrap", "exchange", "train", "paths"),
    *("stopping", "generalization"),
)
KEYS = sections.KEYS

NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)


def validate(config: Config) -> None:
    """Build everything that can be built without data or processes. Raises UserError."""
    sections.check(config, SECTIONS)
    launch = config["launch"]
    workers = launch["workers"]
    _check_nodes(launch, config["exchange"]["overlap"])
    policy = build_policy(config)
    compressor = build_compressor(config, policy)
    settings = made(TrainSettings, config["train"], "train")
    _refuse_optimizer_without_momentum(config, compressor)
    for group in ("optimizer", "network"):
        component(config[group], group)
    warmup = getattr(component(config["schedule"], "schedule"), "warmup_epochs", 0)
    if warmup > settings.epochs:
        raise UserError(
            f"schedule.warmup_epochs: at most train.epochs={settings.epochs}, or the learning rate never "
            f"reaches optimizer.lr, got {warmup:g}"
        )
    dataset, model = component(config["dataset"], "dataset"), component(config["model"], "model")
    try:
        refuse_misfit(model, dataset)
    except ValueError as error:
        raise UserError(
            f"model: {error}; scale=text/quick sets a text and a model for it, scale=quick images"
        ) from error
    context = getattr(model, "context", None)
    if context is not None and dataset.bptt > context:
        raise UserError(
            f"model.context: at least dataset.bptt={dataset.bptt}, the tokens of a step, got {context}; use "
            "a longer context or a lower dataset.bptt"
        )
    elsewhere = launch["kind"] == sections.SLURM
    check_model(config["model"], model, None if elsewhere else available_bytes())
    stopping = made(Stopping, config["stopping"], "stopping")
    gives = getattr(dataset, "gives", "images")
    measures = component(config["generalization"], "generalization")
    if not isinstance(measures, Nothing):
        check_generalization(config, model, gives)
    try:
        refuse_stopping(stopping, gives)
    except ValueError as error:
        raise UserError(f"stopping.{error}") from error
    if launch["kind"] == sections.NETLAB:
        refuse_stand_ins(config, "and a lab's links are real")
        validate_lab(config)
    refuse_lost_packets(config)
    modelled(config, lambda: 0)
    check_low_rank(config, model, settings.epochs)
    if not elsewhere:
        choose_device(config)
    _check_together(config, settings, policy, compressor)
    _check_enough_data(config, settings)
    if launch["kind"] != "simulated" and not elsewhere and not inside_torchrun():
        check_processes(workers, available_bytes())


def check_processes(workers: int, available: int | None) -> None:
    """Refuse more processes than this machine has memory for, whatever they train."""
    needed = workers * PROCESS_BYTES
    if available is not None and needed > available:
        raise UserError(
            f"launch.workers: {workers} processes take {needed / 1e9:.1f} GB for Python and torch alone "
            f"({PROCESS_BYTES / 1e9:g} GB each), {available / 1e9:.1f} GB are available; use fewer, or "
            "launch=simulated, where one process stands in for all"
        )


def check_model(settings: Config, model: Any, available: int | None) -> None:
    """Refuse a model that this machine cannot hold, by an estimate: it is built without memory."""
    sizes = {key: _largest(value) for key, value in settings.items()}
    key = max(sizes, key=lambda name: sizes[name])
    if sizes[key] <= COMMON_SIZE:
        return
    try:
        with torch.device("meta"):
            module = model.build(settings.get("num_classes") or WITHOUT_DATA)
        needed = BYTES_OF_A_PARAMETER * sum(p.numel() for p in module.parameters())
    except (RuntimeError, OverflowError, MemoryError):  # sizes beyond what torch can count
        needed = INFINITE
    if available is not None and needed > available:
        raise UserError(
            f"model.{key}: {settings[key]} makes a model that takes {needed / 1e9:.3g} GB with its gradients "
            f"and momentum, {available / 1e9:.1f} GB are available; use a smaller one"
        )


def check_generalization(config: Config, model: Any, gives: str) -> None:
    """Refuse measures of generalization where they are not defined."""
    if gives != "images":
        raise UserError(
            f"generalization: measured is for images, and the dataset gives {gives}; use none"
        )
    if low_rank_of(config) is not None:
        raise UserError(
            "generalization: distances from the initial weights need the same layers to the end; use none "
            "with model.low_rank"
        )
    with torch.device("meta"):
        module = model.build(config["model"].get("num_classes") or WITHOUT_DATA)
    if any(isinstance(layer, NORMALIZATIONS) for layer in module.modules()):
        raise UserError(
            "generalization: measured is for networks without normalization, such as model=cnn; use none"
        )


def check_low_rank(config: Config, model: Any, epochs: int) -> None:
    """Refuse to factorize a model after its last epoch, or one without layers for it."""
    low_rank = low_rank_of(config)
    if low_rank is None:
        return
    assert low_rank.from_epoch is not None
    if low_rank.from_epoch >= epochs:
        raise UserError(
            f"model.low_rank.from_epoch: below train.epochs={epochs}, got {low_rank.from_epoch}; null never "
            "factorizes the model"
        )
    with torch.device("meta"):
        module = model.build(config["model"].get("num_classes") or WITHOUT_DATA)
    try:
        low_rank.layers(module)
    except ValueError as error:
        raise UserError(f"model.low_rank.{error}") from error


def _largest(value: Any) -> int:
    """The largest whole number of a setting, 0 where there is none."""
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) else 0


def _check_nodes(launch: Config, overlap: bool) -> None:
    size, workers = launch["workers_per_node"], launch["workers"]
    if size is None:
        return
    if workers % size:
        raise UserError(
            f"launch.workers_per_node: a whole number that divides launch.workers={workers}, or null "
            f"for one level, got {size!r}"
        )
    if size > 1 and overlap:
        raise UserError(
            "exchange.overlap: a two-level world (launch.workers_per_node) averages inside the node "
            "first; use exchange.overlap=false"
        )


def _check_together(
    config: Config, settings: TrainSettings, policy: Policy, compressor: Compressor
) -> None:
    """Refuse settings that contradict each other, or would do nothing together."""
    exchange, optimizer, workers = (
        config["exchange"],
        config["optimizer"],
        config["launch"]["workers"],
    )
    simulated = config["launch"]["kind"] == "simulated"
    smoothing = policy.smoothing if isinstance(policy, GraVAC) else None
    if isinstance(policy, GraVAC) and smoothing is not None and policy.workers != workers:
        raise UserError(
            f"policy.workers: does nothing beside policy.smoothing={smoothing:g}, the weight itself; "
            f"leave it at launch.workers={workers}, or give policy.smoothing=null, got {policy.workers}"
        )
    fit_together(compressor, policy, exchange["unit"], exchange["overlap"])
    if exchange["overlap"] and simulated:
        raise UserError(
            "exchange.overlap: simulated workers have no DDP buckets; use exchange.overlap=false"
        )
    if settings.step_time == MODELLED and not network_of(config).known:
        raise UserError(
            "train.step_time: modelled needs a network to model; name one, such as network=ethernet_1gbit"
        )
    weighs_time = measures(policy) and getattr(policy, "weighs_time", True)
    if weighs_time and settings.step_time == MEASURED and simulated:
        raise UserError(
            "train.step_time: simulated workers move nothing, and this policy weighs compression against "
            "the time it saves; use train.step_time=modelled and a network=..., or launch=local"
        )
    nodes = config["launch"]["workers_per_node"] or 1
    if optimizer.get("compressed") == "first" and (exchange["overlap"] or nodes > 1):
        raise UserError(
            "optimizer.compressed: first exchanges a second gradient after backward, between all workers; "
            "use exchange.overlap=false and launch.workers_per_node=null, or optimizer.compressed=perturbed"
        )
    if optimizer.get("compressed") == "first" and settings.on_nonfinite == "skip":
        raise UserError(
            "train.on_nonfinite: skip leaves out a step that has changed nothing, and "
            "optimizer.compressed=first has exchanged the first gradient before the second is known; use "
            "raise, or optimizer.compressed=perturbed"
        )
    if settings.local_steps > 1:
        _check_local_steps(config, policy, compressor)
    on_workers, decay = momentum_of(compressor), _demo_decay(compressor)
    if optimizer.get("compressed") == "first" and (on_workers is not None or decay is not None):
        name = "error_feedback" if on_workers is None else NAMES[type(on_workers)]
        raise UserError(
            f"optimizer.compressed: first compresses the gradient of the perturbation alone, so that {name} "
            "would not apply momentum to the weights; use optimizer.compressed=perturbed, or a compressor "
            "without this momentum, such as compressor=dgc_sampled"
        )
    if isinstance(on_workers, OneBitAdam):
        if low_rank_of(config) is not None:
            raise UserError(
                "model.low_rank: the factors would begin without the variance that onebit_adam has frozen; "
                "use model.low_rank.from_epoch=null or another compressor"
            )
        for key, name in (("freeze_steps", "warmup_steps"), ("beta1", "beta1")):
            if optimizer.get(key) != getattr(on_workers, name):
                raise UserError(
                    f"optimizer.{key}: onebit_adam needs optimizer=adam with the same setting "
                    f"(wrapper.onebit_adam.{name}={getattr(on_workers, name)}), got {optimizer.get(key)}"
                )
        if optimizer.get("clip_norm") is not None:
            raise UserError(
                "optimizer.clip_norm: after its warm-up onebit_adam answers with a difference of two "
                "momenta, which must not be scaled; use optimizer.clip_norm=null and clip on the workers, "
                "such as wrap=[clip_local,onebit_adam,per_layer,error_feedback] "
                f"wrapper.clip_local.threshold={optimizer['clip_norm']}"
            )
        return
    for key in ("momentum", "beta1"):
        if on_workers is not None and on_workers.momentum > 0 and optimizer.get(key):
            name = NAMES[type(on_workers)]  # momentum would be applied twice
            raise UserError(
                f"optimizer.{key}: {name} applies momentum on the workers "
                f"(wrapper.{name}.momentum={on_workers.momentum:g}), got {optimizer[key]:g} here "
                f"too; use optimizer.{key}=0"
            )
        if decay is not None and settings.local_steps == 1 and optimizer.get(key):
            raise UserError(
                f"optimizer.{key}: the residual of demo is its momentum "
                f"(wrapper.error_feedback.decay={decay:g}), got {optimizer[key]:g} here too; use "
                f"optimizer.{key}=0"
            )


def _demo_decay(compressor: Compressor) -> float | None:
    """The decay of DeMo's residual, which is its momentum; None where nothing is such a momentum."""
    parts = list(nested(compressor))
    if not any(isinstance(part, DeMo) for part in parts):
        return None
    return next((p.decay for p in parts if isinstance(p, ErrorFeedback) and p.decay < 1), None)


def _check_local_steps(config: Config, policy: Policy, compressor: Compressor) -> None:
    """Refuse what needs the gradient of every step, where workers take several between two exchanges."""
    on_workers = momentum_of(compressor)
    name = None if on_workers is None else NAMES[type(on_workers)]
    local = f"train.local_steps={config['train']['local_steps']}"
    sign = f"the answer is a sign, and {local} moves the shared weights by train.outer_lr times the answer"
    parts = list(nested(compressor))
    refuse_first_of(
        {
            f"exchange.overlap: with {local} nothing is sent during backward; use "
            "exchange.overlap=false": config["exchange"]["overlap"],
            f"launch.workers_per_node: with {local} there is no gradient of a node to exchange; use "
            "launch.workers_per_node=null": (config["launch"]["workers_per_node"] or 1) > 1,
            f"wrap: {name} applies momentum to the gradient of every step, and {local} exchanges the sum of "
            "many, with a momentum of its own (train.outer_momentum); leave the wrapper out": name
            is not None,
            f"policy: this policy needs the gradient or time of every step, and with {local} workers "
            "exchange none within a round; use fixed, scheduled, warmup, stepwise or "
            "accordion": measures(policy) or policy.watches == SPREAD,
            f"optimizer: rounded_sgd rounds the weights that it moves, and with {local} plain SGD moves the "
            "shared weights; use optimizer=sgd": isinstance(
                component(config["optimizer"], "optimizer"), RoundedSGD
            ),
            f"optimizer.compressed: first exchanges two gradients a step, and {local} exchanges none in most "
            "steps; use optimizer.compressed=perturbed": config["optimizer"].get("compressed")
            == "first",
            f"compressor.sign: {sign}; use compressor.sign=false": any(
                isinstance(part, DeMo) and part.sign for part in parts
            ),
            f"compressor: {sign}; use one with magnitudes, such as compressor=ef_signsgd": any(
                isinstance(part, SignSGD) for part in parts
            ),
        }
    )


def _refuse_optimizer_without_momentum(config: Config, compressor: Compressor) -> None:
    """Raise UserError where dgc.yaml or demo.yaml (conf/compressor/) has set a key that the optimizer does
    not have."""
    key, of_dgc = "momentum", option("compressor", "dgc")["optimizer"]
    try:
        component(config["optimizer"], "optimizer")
    except UserError as error:
        no_such_key = str(error).startswith(f"optimizer.{key}: no such key")
        if not no_such_key or config["optimizer"][key] != of_dgc[key]:
            raise
        name = str(config["optimizer"]["_target_"]).rpartition(".")[2]
        by, why = (
            "dgc",
            "its wrapper momentum_correction applies momentum on the workers; use optimizer=sgd, or DGC "
            "without that wrapper: compressor=dgc_sampled policy=warmup wrap=[per_layer,error_feedback]",
        )
        if any(isinstance(part, DeMo) for part in nested(compressor)):
            by, why = "demo", "the residual of error_feedback is the momentum; use optimizer=sgd"
        raise UserError(
            f"optimizer.{key}: {name} has no momentum, and compressor={by} sets it to {of_dgc[key]} because "
            f"{why}"
        ) from error


def _check_enough_data(config: Config, settings: TrainSettings) -> None:
    """Refuse too few data before thousands of processes are started that would each refuse them.

    With at most one worker a core, simulated workers, or a text that has to be downloaded, the run checks it,
    so that the data set is not read twice."""
    workers, dataset = config["launch"]["workers"], component(config["dataset"], "dataset")
    is_text = getattr(dataset, "gives", "images") == "words"
    size = config["dataset"].get("train_size")
    if size is not None and is_text:
        steps = text_steps_per_epoch(
            size, dataset.bptt, settings.step_size, workers, dataset.windows(size)
        )
    elif size is not None:
        steps = steps_per_epoch(size, settings.step_size, workers)
    elif config["launch"]["kind"] != "simulated" and (
        workers > available_cores() and not (is_text and config["dataset"].get("root", "") is None)
    ):
        steps = _task(dataset.load(), settings, config["seed"]).steps_per_epoch(workers)
    else:
        return
    _refuse_long_rounds(settings, steps)


def _refuse_long_rounds(settings: TrainSettings, steps: int) -> None:
    """``steps``: of an epoch. Raises UserError."""
    if settings.local_steps > steps:
        raise UserError(
            f"train.local_steps: at most the {steps} steps of an epoch, whose end ends a round, got "
            f"{settings.local_steps}; use fewer, or a smaller train.batch_size"
        )


def unexpected(config: Config, policy: Policy, compressor: Compressor) -> list[str]:
    """Effects of a valid config that its author may not have meant: a sentence each."""
    notes = []
    if isinstance(policy, Warmup) and (never := policy.never_reached(config["train"]["epochs"])):
        notes.append(f"policy.{never} (train.epochs)")
    notes += _moved_by_policy(config, policy)
    # conf/compressor/dgc.yaml sets the optimizer, because its wrapper applies momentum.
    optimizer, of_dgc = config["optimizer"], option("compressor", "dgc")["optimizer"]
    lr = optimizer.get("lr", 0.0)
    if lr > LARGE_LR:
        notes.append(f"optimizer.lr: {lr:g} is above {LARGE_LR:g}, where training usually diverges")
    left_over = all(optimizer.get(key) == value for key, value in of_dgc.items())
    if momentum_of(compressor) is None and left_over:
        kept = " ".join(f"optimizer.{key}={value:g}" for key, value in of_dgc.items())
        notes.append(
            f"optimizer.momentum: {kept}, as compressor=dgc sets them for its wrapper "
            f"momentum_correction, which wrap={list(config['wrap'])} leaves out: there is no momentum; "
            "give optimizer.momentum=0.9 optimizer.weight_decay=5e-4 to have it in the optimizer"
        )
    return notes


def _moved_by_policy(config: Config, policy: Policy) -> list[str]:
    """A setting of the compressor that was given, and that the policy replaces on every rung."""
    leaf, field = config["compressor"], policy.field or ""
    value = leaf.get(field)
    if value is None or value in policy.values:
        return []
    names = (path.stem for path in (conf_dir() / "compressor").glob("*.yaml"))
    stated = (option("compressor", name) for name in names)
    nodes = [node.get("compressor", node) for node in stated]
    target = leaf["_target_"]  # which dgc.yaml leaves to the file that it extends
    if all(node.get("_target_") != target for node in nodes):
        return []  # a user's own
    if value in [node.get(field) for node in nodes if node.get("_target_", target) == target]:
        return []  # its file's own value
    name = str(config["policy"]["_target_"]).split(".")[-2]
    return [
        f"compressor.{field}: {value} has no effect, because policy={name} sets it to one of "
        f"{list(policy.values)}; change the values of the policy, or use policy=fixed policy.field=null"
    ]


def choose_device(config: Config) -> tuple[str, str]:
    """(device type, backend). Raises UserError when a GPU is asked for where there is none."""
    launch = config["launch"]
    device, backend = launch["device"], launch["backend"]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cuda" and not gpus:
        raise UserError(
            "launch.device: cuda asked for, torch sees no GPU here; use launch.device=cpu"
        )
    needed = 1 if launch["kind"] == "simulated" else workers_here(launch["workers"])
    if device == "auto":
        device = "cuda" if gpus >= needed else "cpu"
    if device == "cuda":
        for gpu in range(min(gpus, needed)):
            refuse_unknown_gpu(gpu)
            if config.get("train", {}).get("precision") == "bf16":
                refuse_emulated_bf16(gpu)
    own_gpus = device == "cuda" and gpus >= needed
    if backend == "nccl" and not own_gpus:
        raise UserError(
            f"launch.backend: nccl needs a GPU for each of {needed} workers, there are {gpus}; use gloo"
        )
    return device, ("nccl" if own_gpus else "gloo") if backend == "auto" else backend


def refuse_unknown_gpu(gpu: int) -> None:
    """Raise UserError where this torch has no code for a GPU: its first kernel would fail.

    Code for sm_80 runs on sm_86 (same major version, a minor version as high); compute_80 is compiled at
    start for all that came later."""
    major, minor = torch.cuda.get_device_capability(gpu)
    known = torch.cuda.get_arch_list()
    for name in known:
        kind, _, number = name.partition("_")
        digits = number.rstrip("af")
        its_major, its_minor = int(digits[:-1]), int(digits[-1])
        if kind == "sm" and its_major == major and its_minor <= minor:
            return
        if kind == "compute" and (its_major, its_minor) <= (major, minor):
            return
    raise UserError(
        f"launch.device: torch {torch.__version__} has no code for GPU {gpu} "
        f"({torch.cuda.get_device_name(gpu)}, sm_{major}{minor}; it has {', '.join(known)}); install a torch "
        "build for this GPU (docs/gpus.md), or use launch.device=cpu"
    )


def refuse_emulated_bf16(gpu: int) -> None:
    """Raise UserError where torch would emulate bfloat16, as before sm_80; float32 is faster there."""
    major, minor = torch.cuda.get_device_capability(gpu)
    if major < 8 and torch.version.hip is None:
        raise UserError(
            f"train.precision: GPU {gpu} ({torch.cuda.get_device_name(gpu)}, sm_{major}{minor}) computes no "
            "bfloat16 itself, which begins with sm_80, and torch would emulate it slowly; use "
            "train.precision=fp32"
        )


def build_run(
    config: Config, device: torch.device, ready: Callable[[Splits | Text], object] = lambda _: None
) -> Run:
    """All parts of a run on this rank; in a process world torch.distributed is initialized.

    ``ready``: called with the data before the first collective, when what may take long on one rank alone is
    done.
    """
    settings = made(TrainSettings, config["train"], "train")
    simulated = config["launch"]["kind"] == "simulated"
    node_size = config["launch"]["workers_per_node"] or 1
    wire: Wire
    if simulated:
        wire = SimulatedWire(config["launch"]["workers"], device)
    else:
        overlaps = config["exchange"]["overlap"]
        group = exchange_group(config["launch"]["timeout_seconds"]) if overlaps else None
        wire = ProcessGroupWire(device, group)
    task = _task(
        component(config["dataset"], "dataset").load().to(device), settings, config["seed"]
    )
    steps = task.steps_per_epoch(wire.world_size)
    _refuse_long_rounds(settings, steps)

    stopping = made(Stopping, config["stopping"], "stopping")
    refuse_classes(config, task, stopping)
    torch.manual_seed(config["seed"])
    module = fresh_module(config, task).to(device)
    recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
    on_cpu = settings.precision == "bf16" and recurrent and device.type == "cpu"
    if (
        on_cpu and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):  # not every build has this operator
        raise UserError(
            "train.precision: this CPU has no bf16 kernel for an LSTM (it needs AVX512); use "
            "train.precision=fp32"
        )
    if settings.channels_last and channels_last_corrupts(module, device):
        settings = replace(settings, channels_last=False)
        task = _task(task.splits, settings, config["seed"])
    optimizer_settings = component(config["optimizer"], "optimizer")
    local = settings.local_steps > 1
    # What one step of the optimizer learns from: local steps are each worker's own.
    optimizer_batch = settings.step_size * (1 if local else wire.world_size)
    policy = build_policy(config)
    progress = Progress(policy=policy.init())
    notes: list[str] = []
    check = bool(config["exchange"]["check"])
    cost = modelled(config, lambda: progress.step)
    link = Link(wire, Ledger(), Clock(device), check=check, cost=cost.between_all)
    timeout = config["launch"]["timeout_seconds"]
    ready(task.splits)
    nodes = nodes_of(wire, node_size, timeout) if node_size > 1 else None
    between = link
    if nodes is not None:
        between = Link(
            nodes.between,
            link.ledger,
            link.clock,
            check=check,
            node_size=node_size,
            everybody=link,
            cost=cost.between_nodes,
            node_cost=cost.inside_node,
        )
    sam = optimizer_settings if isinstance(optimizer_settings, SAM) else None

    def trained(module: nn.Module, notes: list[str]) -> Trained:
        if settings.channels_last:
            module = module.to(memory_format=torch.channels_last)
        named = dict(module.named_parameters())
        compressor = build_compressor(config, policy, named, notes)
        parameters = {name: p for name, p in named.items() if p.requires_grad}
        exchange = GradientExchange(
            compressor,
            parameters,
            between,
            seed=config["seed"],
            unit=config["exchange"]["unit"],
        )
        compile_ahead(exchange, policy)
        junction: Junction
        forward: Any = module
        if not simulated:
            forward = wrap(module, device)
        if nodes is not None:
            if not simulated:
                leaves_alone = AfterBackward(exchange, {})
                hook_of(forward, False).junction = leaves_alone
            junction = InsideNodes(exchange, parameters, nodes.inside, node_size)
            compile_ahead(junction.node)
        elif simulated:
            junction = AfterBackward(exchange, parameters)
        else:
            overlap = config["exchange"]["overlap"]
            hook = hook_of(forward, overlap)
            hook.junction = junction = junction_of(forward, exchange, overlap)
        uncompressed = None
        if sam is not None and sam.compressed == "first":
            plain = GradientExchange(Dense(), parameters, link)
            compile_ahead(plain)
            uncompressed = plain, AfterBackward(plain, parameters)
        if settings.compile:
            module.compile()
        inner = [
            optimizer_settings.build(module, optimizer_batch)
            for _ in range(wire.local_workers if local else 1)
        ]
        return Trained(
            module=module,
            forward=forward,
            parameters=parameters,
            exchange=exchange,
            junction=junction,
            optimizer=outer_optimizer(parameters.values(), settings) if local else inner[0],
            uncompressed=uncompressed,
            local=LocalSteps(parameters.values(), inner) if local else None,
        )

    first = trained(module, notes)
    if simulated:  # factors take no more than the whole model
        named = dict(first.module.named_parameters())
        workers = wire.world_size // node_size
        check_memory(first.exchange.compressor, named, workers, available_bytes(), local=local)
    notes += unexpected(config, policy, first.exchange.compressor)
    in_a_lab = config["launch"]["kind"] == sections.NETLAB
    meter = InterfaceMeter(link, Lab.interface) if in_a_lab else NoMeter()
    return Run(
        **vars(first),
        settings=settings,
        base_lr=optimizer_settings.base_lr(optimizer_batch),
        schedule=component(config["schedule"], "schedule"),
        task=task,
        link=link,
        policy=policy,
        workers=Workers(wire.rank, wire.local_workers, config["seed"], first.module),
        progress=progress,
        seed=config["seed"],
        steps_per_epoch=steps,
        trained=lambda module: trained(module, []),  # its notes are those of the first model
        sam=sam,
        low_rank=low_rank_of(config),
        workers_per_node=node_size,
        notes=notes,
        stopping=stopping,
        meter=meter,
    )


def fresh_module(config: Config, task: Task) -> nn.Module:
    """The model of a run as it is before training, on the CPU. Draws from torch's global generator."""
    module: nn.Module = component(config["model"], "model").build(task.splits.num_classes)
    if isinstance(task, ImageTask) and isinstance(module, Prepared):
        module.prepare(task.training_images(module.prepared_from).cpu())
    return module


def _task(splits: Splits | Text, settings: TrainSettings, seed: int) -> Task:
    """The task that a data set is for."""
    if isinstance(splits, Text):
        return LanguageTask(splits, settings, seed)
    return ImageTask(splits, settings, seed)


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
    compressor: Compressor,
    parameters: Mapping[str, Tensor],
    workers: int,
    available: int | None,
    *,
    local: bool = False,
) -> None:
    """Refuse simulated workers whose states will not fit; payloads come on top.

    Each worker keeps its states and, from the first step on, a spare of the same size; with ``local`` steps
    also its weights and up to two moments of its optimizer.
    """
    shapes = [torch.empty(p.shape, device="meta") for p in parameters.values()]
    kept = sum(t.nbytes for shape in shapes for t in tensors_of(compressor.init(shape)))
    own = 3 * sum(shape.nbytes for shape in shapes) if local else 0
    needed = (2 * kept + own) * workers
    if available is not None and needed > available:
        more = f", and {own / 1e9:.2f} GB of weights and moments each" if local else ""
        raise UserError(
            f"launch.workers: {workers} simulated workers keep {needed / 1e9:.1f} GB of compressor state "
            f"({kept / 1e9:.2f} GB each, twice{more}), {available / 1e9:.1f} GB are available; use fewer"
        )


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
