"""Rules about several settings of a run, as tables. A component checks its own settings (checked.py).

The file is long because it is one table: a reader looks up a rule by its key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import nested
from dgc_repro.compressor.joined import MODEL
from dgc_repro.compressor.nesting import NAMES, momentum_of, worker_momentum
from dgc_repro.compressor.onebit_adam import OneBitAdam
from dgc_repro.compressor.per_layer import VECTORS, PerLayer
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.dataset.batches import steps_per_epoch
from dgc_repro.dataset.text import text_steps_per_epoch
from dgc_repro.errors import UserError
from dgc_repro.exchange.fit import fit_together
from dgc_repro.launch import settings
from dgc_repro.launch.devices import choose_device
from dgc_repro.launch.environment import available_cores, shortage
from dgc_repro.launch.networks import modelled, rates_of
from dgc_repro.launch.paths import members, option
from dgc_repro.launch.rank_process import inside_torchrun
from dgc_repro.launch.settings import (
    NETLAB,
    SLURM,
    build_compressor,
    build_optimizer,
    build_policy,
    component,
    low_rank_of,
    unallocated,
)
from dgc_repro.optimizer import dion
from dgc_repro.optimizer.rounded import RoundedSGD
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import SPREAD, measures
from dgc_repro.policy.warmup import Warmup
from dgc_repro.study.generalization import Nothing
from dgc_repro.train.settings import MEASURED, MODELLED, TrainSettings
from dgc_repro.train.stopping import COLUMNS, PERPLEXITY, TOP5, TRAIN_CROSS_ENTROPY, Stopping
from dgc_repro.train.streaming import layers

PROCESS_BYTES = 350_000_000  # of a rank that has loaded torch and a tiny model (measured: 375 MB)
COMMON_SIZE = 2048  # a model with no larger setting is not estimated: published ones fit
BYTES_OF_A_PARAMETER = 12  # itself, its gradient and its momentum, in float32
INFINITE = 10**30
LARGE_LR = 100.0
NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
NOT_OF = {"images": (PERPLEXITY,), "words": (TOP5, TRAIN_CROSS_ENTROPY)}
"""Metrics of `stopping` that data of a kind have not."""


class Setup:
    """The components and sections of a run's config, each built once, and what rules ask of them. Raises
    UserError naming the key that is wrong."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        made = settings.check(config)
        self.launch: settings.Launch = made["launch"]
        self.exchange: settings.Exchange = made["exchange"]
        self.train: TrainSettings = made["train"]
        self.stopping: Stopping = made["stopping"]
        self.policy = build_policy(config)
        self.compressor = build_compressor(config, self.policy)
        self.optimizer = build_optimizer(config, self.compressor)
        groups = ("network", "schedule", "dataset", "model", "generalization")
        parts = (component(config[group], group) for group in groups)
        self.network, self.schedule, self.dataset, self.model, self.generalization = parts
        self.low_rank = low_rank_of(config)
        self.kind, self.workers = self.launch.kind, self.launch.workers
        self.overlap = self.exchange.overlap
        self.simulated, self.in_lab = self.kind == "simulated", self.kind == NETLAB
        self.gives = getattr(self.dataset, "gives", "images")
        self.measures = not isinstance(self.generalization, Nothing)
        self.has_local_steps = self.train.local_steps > 1
        self.local = f"train.local_steps={self.train.local_steps}"
        self.sam_first = getattr(self.optimizer, "compressed", "") == "first"
        self.parts = list(nested(self.compressor))
        self.momentum: Any = momentum_of(self.compressor)
        self.wrapper = self.momentum and NAMES[type(self.momentum)]
        self.worker_momentum = worker_momentum(self.compressor)
        demos = [part for part in self.parts if isinstance(part, DeMo)]
        self.decays = [p.decay for p in self.parts if isinstance(p, ErrorFeedback) and p.decay < 1]
        self.per_layer = next((p for p in self.parts if isinstance(p, PerLayer)), None)
        self.has_dion = any(isinstance(part, Dion) for part in self.parts)
        self.demo_signs = any(demo.sign for demo in demos)
        self.demo_decay = self.decays[0] if demos and self.decays else None
        """Of the residual, which is DeMo's momentum."""
        keys = (key for key in ("momentum", "beta1") if getattr(self.optimizer, key, 0))
        self.own_momentum = next(keys, None)
        self.own_value = getattr(self.optimizer, self.own_momentum or "", 0)


class Rule(NamedTuple):
    """The line ``<key>: <says>`` where ``applies`` returns something true. The line may name ``{c...}``, a
    part of the `Setup`, and ``{found}``, what ``applies`` has returned."""

    key: str
    applies: Callable[[Setup], object]
    says: str

    def line(self, c: Setup) -> str | None:
        """The line; None where the rule does not apply."""
        found = self.applies(c)
        return f"{self.key}: {self.says}".format(c=c, found=found) if found else None


def replaced_by_policy(c: Setup) -> str | None:
    """A setting of the compressor that was given, and that the policy replaces on every rung."""
    field, leaf = c.policy.field, c.config["compressor"]
    value = leaf.get(field)
    nodes = [file.get("compressor", file) for file in members("compressor")]
    if leaf["_target_"] not in [node.get("_target_") for node in nodes]:
        return None  # a user's own
    stated = [
        node.get(field) for node in nodes if node.get("_target_", "") in ("", leaf["_target_"])
    ]
    if value in (None, *c.policy.values, *stated):
        return None
    policy = str(c.config["policy"]["_target_"]).split(".")[-2]
    return f"{value} has no effect, because policy={policy} sets it to one of {[*c.policy.values]}"


def left_by_dgc(c: Setup) -> str | None:
    """The settings of the optimizer that conf/compressor/dgc.yaml makes, because its wrapper applies
    momentum; None where they are others."""
    made = option("compressor", "dgc")["optimizer"]
    if any(c.config["optimizer"].get(key) != value for key, value in made.items()):
        return None
    return " ".join(f"optimizer.{key}={value:g}" for key, value in made.items())


WORLD = (
    Rule(
        "exchange.overlap",
        lambda c: c.overlap and c.simulated,
        "simulated workers have no DDP buckets; use exchange.overlap=false",
    ),
    Rule(
        "network.loss",
        lambda c: not c.in_lab and c.network.loss,
        "only a lab loses packets, launch={c.kind} and the model do not; use launch=netlab or "
        "network.loss=0, got {found}",
    ),
)
LAB = (
    Rule(
        "network.as_workers",
        lambda c: c.network.as_workers,
        "is for a run's modelled time alone, and a lab's links are real; leave it out, got {found}",
    ),
    Rule(
        "network.message_scale",
        lambda c: c.network.message_scale != 1 and c.network.message_scale,
        "is for a run's modelled time alone, and a lab's links are real; leave it out, got {found}",
    ),
    Rule(
        "network.rate",
        lambda c: not c.network.known,
        "launch=netlab needs one, such as network.rate=100mbit or network=ethernet_1gbit",
    ),
    Rule(
        "network.workers_per_node",
        lambda c: c.network.workers_per_node,
        "a lab has one level of links; use a network without, or launch=simulated and the model",
    ),
    Rule(
        "launch.backend",
        lambda c: c.launch.backend == "nccl",
        "nccl would go past the lab's links on one machine; use gloo",
    ),
    Rule(
        "sink.mode",
        lambda c: (c.config["sink"]["mirror"] or {}).get("mode") == "online",
        "there is no way out of a lab; use offline and sync later",
    ),
)
TRAINING = (
    Rule(
        "schedule.warmup_epochs",
        lambda c: getattr(c.schedule, "warmup_epochs", 0) > c.train.epochs,
        "at most train.epochs={c.train.epochs}, or the learning rate never reaches optimizer.lr, got "
        "{c.schedule.warmup_epochs:g}",
    ),
    Rule(
        "model",
        lambda c: (reads := getattr(c.model, "reads", "images")) != c.gives and reads,
        "{found} are what this model reads, and the dataset gives {c.gives}; scale=text/quick sets a text "
        "and a model for it, scale=quick images",
    ),
    Rule(
        "model.context",
        lambda c: (getattr(c.model, "context", None) or INFINITE) < getattr(c.dataset, "bptt", 0),
        "at least dataset.bptt={c.dataset.bptt}, the tokens of a step, got {c.model.context}; use a longer "
        "context or a lower dataset.bptt",
    ),
    Rule(
        "stopping.metric",
        lambda c: (
            c.stopping.metric in NOT_OF.get(c.gives, ())
            and ", ".join(name for name in COLUMNS if name not in NOT_OF[c.gives])
        ),
        "of {c.gives} there is {found}, got {c.stopping.metric}",
    ),
    Rule(
        "generalization",
        lambda c: c.measures and c.gives != "images",
        "measured is for images, and the dataset gives {c.gives}; use none",
    ),
    Rule(
        "generalization",
        lambda c: c.measures and c.low_rank,
        "distances from the initial weights need the same layers to the end; use none with model.low_rank",
    ),
    Rule(
        "generalization",
        lambda c: (
            c.measures
            and any(isinstance(layer, NORMALIZATIONS) for layer in unallocated(c.config).modules())
        ),
        "measured is for networks without normalization, such as model=cnn; use none",
    ),
    Rule(
        "model.low_rank.from_epoch",
        lambda c: c.low_rank and (c.low_rank.from_epoch or 0) >= c.train.epochs,
        "below train.epochs={c.train.epochs}, got {c.low_rank.from_epoch}; null never factorizes the model",
    ),
    Rule(
        "policy.workers",
        lambda c: (
            isinstance(c.policy, GraVAC)
            and c.policy.smoothing is not None
            and c.policy.workers != c.workers
        ),
        "does nothing beside policy.smoothing={c.policy.smoothing:g}, the weight itself; leave it at "
        "launch.workers={c.workers}, or give policy.smoothing=null, got {c.policy.workers}",
    ),
    Rule(
        "train.step_time",
        lambda c: c.train.step_time == MODELLED and not c.network.known,
        "modelled needs a network to model; name one, such as network=ethernet_1gbit",
    ),
    Rule(
        "train.step_time",
        lambda c: (
            c.simulated
            and c.train.step_time == MEASURED
            and measures(c.policy)
            and getattr(c.policy, "weighs_time", True)
        ),
        "simulated workers move nothing, and this policy weighs compression against the time it saves; use "
        "train.step_time=modelled and a network=..., or launch=local",
    ),
)
OPTIMIZER = (
    Rule(
        "compressor",
        lambda c: isinstance(c.optimizer, dion.Dion) and not c.has_dion,
        "optimizer=dion applies the directions that compressor=dion makes; use compressor=dion, or "
        "optimizer=muon",
    ),
    Rule(
        "optimizer.compressed",
        lambda c: c.sam_first and c.overlap,
        "first exchanges a second gradient after backward; use exchange.overlap=false, or "
        "optimizer.compressed=perturbed",
    ),
    Rule(
        "train.on_nonfinite",
        lambda c: c.sam_first and c.train.on_nonfinite == "skip",
        "skip leaves out a step that has changed nothing, and optimizer.compressed=first has exchanged the "
        "first gradient before the second is known; use raise, or optimizer.compressed=perturbed",
    ),
    Rule(
        "optimizer.compressed",
        lambda c: c.sam_first and (c.wrapper or (c.demo_decay and "error_feedback")),
        "first compresses the gradient of the perturbation alone, so that {found} would not apply momentum "
        "to the weights; use optimizer.compressed=perturbed, or a compressor without this momentum, such as "
        "compressor=dgc_sampled",
    ),
    Rule(
        "optimizer.{found}",
        lambda c: c.worker_momentum and not c.has_local_steps and c.own_momentum,
        "{c.worker_momentum}, got {c.own_value:g} here too; use optimizer.{found}=0",
    ),
)
DIONS_NESTS = [["per_layer", "error_feedback"], ["clip_local", "per_layer", "error_feedback"]]
EVERY_MATRIX = (
    "optimizer=dion takes the answer for every matrix as a direction, which a gradient that is sent "
    "uncompressed is not, "
)
DION = (
    Rule(
        "optimizer",
        lambda c: not isinstance(c.optimizer, dion.Dion) and type(c.optimizer).__name__,
        "compressor=dion answers with directions, which optimizer=dion alone applies, got {found}; use "
        "optimizer=dion",
    ),
    Rule(
        "policy.field",
        lambda c: c.policy.field,
        "rung 0 would answer with gradients, and compressor=dion answers with directions, got {found}; use "
        "policy=fixed policy.field=null",
    ),
    Rule(
        "wrap",
        lambda c: list(c.config["wrap"]) not in DIONS_NESTS and ",".join(c.config["wrap"]),
        "per_layer sends embeddings and vectors uncompressed, and the residual of error_feedback is dion's "
        "momentum, got [{found}]; use [per_layer,error_feedback], or [clip_local,per_layer,error_feedback]",
    ),
    Rule(
        "wrapper.per_layer.smaller_than",
        lambda c: c.per_layer and c.per_layer.smaller_than,
        EVERY_MATRIX + "got {found}; use 0",
    ),
    Rule(
        "wrapper.per_layer.dense",
        lambda c: c.per_layer and [*c.per_layer.dense] != [VECTORS] and ",".join(c.per_layer.dense),
        EVERY_MATRIX + "got [{found}]; use [vectors], to which embeddings and the head are added",
    ),
    Rule(
        "wrapper.error_feedback.decay",
        lambda c: c.decays and c.decays[0],
        "the residual is dion's momentum, which compressor.momentum lets decay, got {found:g}; use 1",
    ),
    Rule(
        "optimizer.clip_norm",
        lambda c: c.optimizer.clip_norm,
        "compressor=dion answers with directions, which must not be scaled; use "
        "optimizer.clip_norm=null and clip on the workers: wrap=[clip_local,per_layer,error_feedback] "
        "wrapper.clip_local.threshold={found}",
    ),
    Rule(
        "train.local_steps",
        lambda c: c.has_local_steps and c.train.local_steps,
        "dion orthonormalizes the momentum of every step's gradient, and with {c.local} workers exchange "
        "none within a round; use train.local_steps=1, or optimizer=muon with another compressor",
    ),
)
SAME_SETTING = "onebit_adam needs optimizer=adam with the same setting (wrapper.onebit_adam."
ONEBIT_ADAM = (
    Rule(
        "model.low_rank",
        lambda c: c.low_rank,
        "the factors would begin without the variance that onebit_adam has frozen; use "
        "model.low_rank.from_epoch=null or another compressor",
    ),
    Rule(
        "optimizer.freeze_steps",
        lambda c: getattr(c.optimizer, "freeze_steps", None) != c.momentum.warmup_steps,
        SAME_SETTING + "warmup_steps={c.momentum.warmup_steps})",
    ),
    Rule(
        "optimizer.beta1",
        lambda c: getattr(c.optimizer, "beta1", None) != c.momentum.beta1,
        SAME_SETTING + "beta1={c.momentum.beta1})",
    ),
    Rule(
        "optimizer.clip_norm",
        lambda c: c.optimizer.clip_norm,
        "after its warm-up onebit_adam answers with a difference of two momenta, which must not be scaled; "
        "use optimizer.clip_norm=null and clip on the workers, such as "
        "wrap=[clip_local,onebit_adam,per_layer,error_feedback] wrapper.clip_local.threshold={found}",
    ),
)
A_SIGN = (
    "the answer is a sign, and {c.local} moves the shared weights by train.outer_lr times it; use "
)
LOCAL_STEPS = (
    Rule(
        "exchange.overlap",
        lambda c: c.overlap,
        "with {c.local} nothing is sent during backward; use exchange.overlap=false",
    ),
    Rule(
        "wrap",
        lambda c: c.wrapper,
        "{found} applies momentum to the gradient of every step, and {c.local} exchanges the sum of many, "
        "with a momentum of its own (train.outer_momentum); leave the wrapper out",
    ),
    Rule(
        "policy",
        lambda c: measures(c.policy) or c.policy.watches == SPREAD,
        "this policy needs the gradient or time of every step, and with {c.local} workers exchange none "
        "within a round; use fixed, scheduled, warmup, stepwise or accordion",
    ),
    Rule(
        "optimizer",
        lambda c: isinstance(c.optimizer, RoundedSGD),
        "rounded_sgd rounds the weights that it moves, and with {c.local} plain SGD moves the shared "
        "weights; use optimizer=sgd",
    ),
    Rule(
        "optimizer.compressed",
        lambda c: c.sam_first,
        "first exchanges two gradients a step, and {c.local} exchanges none in most steps; use "
        "optimizer.compressed=perturbed",
    ),
    Rule(
        "exchange.unit",
        lambda c: c.train.fragments > 1 and c.exchange.unit == MODEL,
        "model joins all tensors into one, and train.fragments={c.train.fragments} exchanges some of them at "
        "a time; use exchange.unit=layer",
    ),
    Rule(
        "train.fragments",
        lambda c: c.train.fragments > 1 and c.train.fragments > (n := _num_layers(c)) and n,
        "at most the {found} layers of this model, got {c.train.fragments}",
    ),
    Rule("compressor.sign", lambda c: c.demo_signs, A_SIGN + "compressor.sign=false"),
    Rule(
        "compressor",
        lambda c: any(isinstance(part, SignSGD) for part in c.parts),
        A_SIGN + "one with magnitudes, such as compressor=ef_signsgd",
    ),
)
NOTES = (
    Rule(
        "policy.epochs_each",
        lambda c: isinstance(c.policy, Warmup) and c.policy.never_reached(c.train.epochs),
        "{found} (train.epochs)",
    ),
    Rule(
        "compressor.{c.policy.field}",
        replaced_by_policy,
        "{found}; change the values of the policy, or use policy=fixed policy.field=null",
    ),
    Rule(
        "optimizer.lr",
        lambda c: c.config["optimizer"].get("lr", 0) > LARGE_LR,
        f"{{c.optimizer.lr:g}} is above {LARGE_LR:g}, where training usually diverges",
    ),
    Rule(
        "optimizer.momentum",
        lambda c: c.momentum is None and left_by_dgc(c),
        "{found}, as compressor=dgc sets them for its wrapper momentum_correction, which "
        "wrap={c.config[wrap]} leaves out: there is no momentum; give optimizer.momentum=0.9 "
        "optimizer.weight_decay=5e-4 to have it in the optimizer",
    ),
)
"""Effects of a valid config that its author may not have meant."""


def validate(config: Mapping[str, Any]) -> None:
    """Build everything that can be built without data or processes. Raises UserError."""
    c = Setup(config)
    _refuse_large_model(c)  # before a rule builds the model
    fit_together(c.compressor, c.policy, c.exchange.unit, c.overlap)
    tables = [WORLD, LAB * c.in_lab, TRAINING, LOCAL_STEPS * c.has_local_steps, OPTIMIZER]
    tables.append(DION * c.has_dion)
    for rule in (*itertools.chain(*tables), *ONEBIT_ADAM * isinstance(c.momentum, OneBitAdam)):
        if line := rule.line(c):
            raise UserError(line)
    modelled(config, lambda: 0)
    if c.in_lab:
        rates_of(c.network, c.workers)
    if c.low_rank:
        try:
            c.low_rank.layers(unallocated(c.config))
        except ValueError as error:
            raise UserError(f"model.low_rank.{error}") from error
    if c.kind != SLURM and not inside_torchrun():  # there the ranks compare their GPUs first
        choose_device(config)
    _refuse_few_data(c)
    in_processes = c.kind not in ("simulated", SLURM) and not inside_torchrun()
    if in_processes and (words := shortage(c.workers * PROCESS_BYTES)):
        raise UserError(
            f"launch.workers: {c.workers} processes take {words} for Python and torch alone; use fewer, or "
            "launch=simulated, where one process stands in for all"
        )


def notes(c: Setup) -> list[str]:
    """Effects of a valid config that its author may not have meant: a sentence each."""
    return [line for rule in NOTES if (line := rule.line(c))]


def _refuse_large_model(c: Setup) -> None:
    """Refuse a model that this machine cannot hold, by an estimate: it is built without memory. Jobs of Slurm
    run on other machines; for them only a model that torch cannot count is refused."""
    settings = c.config["model"]
    sizes = {key: _largest(value) for key, value in settings.items()}
    key = max(sizes, key=lambda name: sizes[name])
    if sizes[key] <= COMMON_SIZE:
        return
    try:
        needed = BYTES_OF_A_PARAMETER * sum(p.numel() for p in unallocated(c.config).parameters())
    except (RuntimeError, OverflowError, MemoryError):
        words: str | None = "more memory than torch can count"
    else:
        words = None if c.kind == SLURM else shortage(needed)
    if words:
        raise UserError(
            f"model.{key}: {settings[key]} makes a model that needs, with its gradients and "
            f"momentum, {words}; use a smaller one"
        )


def _largest(value: Any) -> int:
    """The largest whole number of a setting, 0 where there is none."""
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) else 0


def _num_layers(c: Setup) -> int:
    """How many layers there are to make fragments of."""
    named = unallocated(c.config).named_parameters()
    return len(layers(name for name, parameter in named if parameter.requires_grad))


def _refuse_few_data(c: Setup) -> None:
    """Refuse too few data before thousands of processes are started that would each refuse them.

    With at most one worker a core, simulated workers, or a text that has to be downloaded, the run checks it,
    so that the data set is not read twice."""
    size, is_text = c.config["dataset"].get("train_size"), c.gives == "words"
    if size is None:
        is_download = is_text and c.config["dataset"].get("root", "") is None
        if c.simulated or c.workers <= available_cores() or is_download:
            return
        size = len(c.dataset.load().train)
    batch, workers = c.train.step_size, c.workers
    if is_text:
        windows = c.dataset.windows(size)
        steps = text_steps_per_epoch(size, c.dataset.bptt, batch, workers, windows)
    else:
        steps = steps_per_epoch(size, batch, workers)
    refuse_long_rounds(c.train, steps)


def refuse_long_rounds(settings: TrainSettings, steps: int) -> None:
    """Refuse more local steps than the ``steps`` of an epoch. Raises UserError."""
    if settings.local_steps > steps:
        raise UserError(
            f"train.local_steps: at most the {steps} steps of an epoch, whose end ends a round, got "
            f"{settings.local_steps}; use fewer, or a smaller train.batch_size"
        )
