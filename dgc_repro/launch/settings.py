"""A run's config to objects: sections, which say how it runs, and components, which ``_target_`` names.

Both are frozen dataclasses that check their own values. What they say begins with the bare field; here the
section or the config group is put before it, so that the user reads the key to change. Sections and
components stand in one file because that rule is the same for both.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import Annotated, Any

import torch
from torch import nn

from dgc_repro.checked import MOST, Count, Rule, checked, one_of, within
from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.interface import Compressor, Measurable, nested
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.errors import UserError
from dgc_repro.exchange.aggregation import aggregated
from dgc_repro.launch.overrides import made, mapping, nearest
from dgc_repro.launch.paths import members, option
from dgc_repro.model.low_rank import LowRank
from dgc_repro.names import renamed
from dgc_repro.network.profile import MOST_WORKERS
from dgc_repro.optimizer.muon import names_of_others
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import Policy, measures
from dgc_repro.policy.planned import PlansByEpoch
from dgc_repro.sink.jsonl import EverySteps
from dgc_repro.train.settings import TrainSettings
from dgc_repro.train.stopping import Stopping

NETLAB, SLURM = "netlab", "slurm"
KINDS = ("local", "simulated", NETLAB, SLURM)
MOST_THREADS = 1024
SHORTEST_SECONDS = 1  # of a timeout: a rank that waits less cannot tell a slow peer from a lost one
LONGEST_SECONDS = 30 * 24 * 3600  # of a timeout: torch counts them in a number that overflows
Timeout = Annotated[
    float, within(SHORTEST_SECONDS, LONGEST_SECONDS, name="seconds"), "a month at most"
]
LONGEST_NAME = 255  # bytes, of every usual file system
Folder = Annotated[
    str,
    Rule(
        f"a folder's name, each part at most {LONGEST_NAME} bytes long",
        lambda path: (
            path and all(len(os.fsencode(part)) <= LONGEST_NAME for part in path.split("/"))
        ),
    ),
]
Name = Annotated[str, Rule("{}, at most 64 characters long", lambda name: len(name) <= 64)]


@checked
class Launch:
    """How many ranks, where, and how long they wait for each other (conf/launch).

    kind: local processes, simulated in one process, a netlab of shaped links, or a job of slurm;
    launch=<kind> sets it. workers: ranks of the run, which average their gradients. device: auto takes GPUs
    where each worker has its own, else the CPU. backend: auto takes nccl on GPUs of their own, else gloo.
    threads: of a worker, null: the cores divided by the workers. timeout_seconds: the longest that a
    collective may take; then the run ends and names who is missing. start_timeout_seconds: the longest
    start; in it all ranks start and read their data.
    """

    kind: Annotated[str, one_of(KINDS)]
    workers: Annotated[int, within(1, MOST_WORKERS)]
    device: Annotated[str, one_of(("auto", "cpu", "cuda"))]
    backend: Annotated[str, one_of(("auto", "gloo", "nccl"))]
    threads: Annotated[int, within(1, MOST_THREADS)] | None
    timeout_seconds: Timeout
    start_timeout_seconds: Timeout


OTHER_NAMES = {
    "array": "array_parallelism",
    "error": "logs",
    "no_requeue": "requeues",
    "ntasks": "workers",
    "ntasks_per_node": "workers",
    "output": "logs",
    "requeue": "requeues",
    "signal": "signal_seconds",
    "time": "time_minutes",
}
"""sbatch's names for what keys of `Slurm` set."""
OfSbatch = Annotated[
    Any,
    Rule(
        "a word, a number or true",
        lambda value: value is not False and isinstance(value, str | int | float),
    ),
]


@checked
class Slurm(Launch):
    """A job of Slurm (conf/launch/slurm.yaml, launch/slurm.py): what sbatch is asked for.

    nodes: of the job; a divisor of workers. gpus_per_node: asked for; null: none. cpus_per_task: cores of a
    task, which is a worker; null asks for one. time_minutes: the time limit. partition, account, qos:
    sbatch's options of these names; null leaves them out. sbatch: other options of sbatch, such as {mem:
    64G, exclusive: true}. setup: lines of bash before the run, such as module load cuda. python: starts
    Python on the nodes; null takes this one. logs: folder of the logs and the submitted scripts.
    signal_seconds: so long before the time limit the run writes a checkpoint and is queued again. requeues:
    how many times at most; 0 is never. array_parallelism: runs of one sweep, a job array, that run at the
    same time. wait: print states and the log until the job ends.
    """

    nodes: Count
    gpus_per_node: Annotated[int, within(0)] | None
    cpus_per_task: Count | None
    time_minutes: Count
    partition: str | None
    account: str | None
    qos: str | None
    sbatch: Mapping[str, OfSbatch] | None
    setup: Sequence[str]
    python: str | None
    logs: Folder
    signal_seconds: Annotated[int, within(1, 65535)]  # sbatch's range
    requeues: Annotated[int, within(0)]
    array_parallelism: Count
    wait: bool

    def __post_init__(self) -> None:
        if self.workers % self.nodes:
            raise ValueError(
                f"nodes: a whole number that divides launch.workers={self.workers}, got {self.nodes}"
            )
        here, gpus = self.workers // self.nodes, self.gpus_per_node
        if self.device == "auto" and gpus and gpus < here:
            raise ValueError(
                f"gpus_per_node: {gpus} for {here} workers of a node, and each needs a GPU of its own; "
                f"ask for {here}, use fewer workers, or launch.device=cuda to share GPUs"
            )
        if self.signal_seconds >= 60 * self.time_minutes:
            raise ValueError(
                f"signal_seconds: less than launch.time_minutes={self.time_minutes}, got "
                f"{self.signal_seconds} s"
            )
        for word in self.sbatch or ():
            key = word.replace("-", "_")
            if hasattr(self, own := OTHER_NAMES.get(key, key)):
                raise ValueError(f"sbatch: {word} is set by launch.{own}; give that")


@checked
class Top:
    """Settings of the whole run.

    seed: the start of all random numbers. wrap: wrappers around the compressor, outermost first; ladder may
    be named to say where it goes. optimized_metric: what a search optimizes; a number of the
    record such as test/accuracy_percent, or a list of them.
    """

    seed: Annotated[int, within(0, MOST)]
    wrap: Sequence[str]
    optimized_metric: str | Sequence[str] | None = None


@checked
class Exchange:
    """How gradients are exchanged. (exchange/ddp.py and exchange/aggregation.py check the words.)

    unit: layer or model, what is compressed at once; model takes all tensors as one vector. overlap:
    exchange each bucket of DDP during backward. aggregation: gather or sharded payloads; sharded has each
    worker average a shard.
    """

    unit: str
    overlap: bool
    aggregation: str


@checked
class Paths:
    """Folders.

    runs: run folders, the only cache. reproduced: tables and figures that `reproduce` makes. results:
    published results; `reproduce ... publish=true` writes there.
    """

    runs: Folder
    reproduced: Folder
    results: Folder


@checked
class Experiment:
    """What a run belongs to; its folder is named by these.

    paper: the paper, or none. artifact: its table or figure. row: the run's row there.
    """

    paper: Name
    artifact: Name
    row: Annotated[str, Rule("{}, at most 100 characters long", lambda row: len(row) <= 100)]


@checked
class Scale:
    """How large a run is: a scale's name and seeds; its other keys are numbers that methods read.

    name: of a scale. seeds: those that `reproduce` trains. family: the folder of the scale in conf/scale.
    """

    name: Name
    seeds: Annotated[Sequence[int], Rule("{}, at least one", bool)]
    family: str = ""


@checked
class Sink:
    """Where numbers go beside the record.

    every_steps: steps between two lines of steps.jsonl; 0: no lines. console: print a
    line an epoch. mirror: a copy of the numbers elsewhere; sink=wandb sets it.
    """

    every_steps: EverySteps
    console: bool
    mirror: Mapping[str, Any] | None


SLURM_KEYS = tuple(inspect.get_annotations(Slurm))
SECTIONS = {
    "launch": Launch,
    "exchange": Exchange,
    "paths": Paths,
    "experiment": Experiment,
    "scale": Scale,
    "sink": Sink,
    "train": TrainSettings,
    "stopping": Stopping,
}
OPEN = (Experiment, Scale, Sink)  # overlays read other keys of theirs
NAMES = (
    *("model", "dataset", "compressor", "wrapper", "policy", "optimizer", "schedule", "network"),
    *("generalization", "seed", "wrap", *SECTIONS),
)
"""All sections of a run's config."""


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that are no components, as objects by name. Raises UserError for a section that is
    missing, unknown or not as it should be."""
    for name in NAMES:
        if name not in config:
            raise UserError(
                f"{name}: has no value; leave it as conf/config.yaml has it, or give one"
            )
    for name in config:
        if name not in NAMES:
            raise UserError(
                f"{name}: no such key; {renamed(str(name)) or nearest(str(name), NAMES)}"
            )
    found: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        section = mapping(config[name], name)
        if kind in OPEN:
            own = {field.name for field in fields(kind)}
            section = {key: value for key, value in section.items() if key in own}
        if kind is Launch and section.get("kind") == SLURM:
            if "nodes" not in section:
                raise UserError("launch.kind: slurm has settings of its own; give launch=slurm")
            kind = Slurm
        found[name] = made(kind, section, name)
    check_seed("seed", config["seed"])
    for name, wrapper in mapping(config["wrapper"], "wrapper").items():
        mapping(wrapper, f"wrapper.{name}")
    return found


def check_seed(key: str, seed: Any) -> None:
    """Raise UserError for what cannot seed every generator here."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MOST:
        raise UserError(f"{key}: a whole number from 0, at most {MOST:.0e}, got {seed!r}")


# -- components --

PACKAGE = __name__.partition(".")[0]
TORCHVISION_FIX = f"; install the torchvision that was built for torch {torch.__version__}"
LADDER = "ladder"
LOW_RANK = "low_rank"
ROLES = {
    "model": "build",
    "dataset": "load",
    "compressor": "step",
    "wrapper": "step",
    "policy": "plan",
    "optimizer": "base_lr",
    "schedule": "factor",
    "network": "worker_rates",
    "sink": "start",
    "study": "run",
    "generalization": "measure",
}
"""A method that every component of a group has."""
WITHOUT_DATA = 10
"""Classes or words of a model that is built for its sizes and states none."""
WITHOUT_MOMENTUM = "compressor=dgc_sampled policy=warmup wrap=[per_layer,error_feedback]"
Config = Mapping[str, Any]


def imported(target: str, group: str) -> Any:
    """Import what a ``_target_`` names. Raises UserError, whatever the import may raise."""
    try:
        return pkgutil.resolve_name(target)
    except Exception as error:
        reason = " ".join(str(error).split())
        fix = TORCHVISION_FIX if "torchvision" in reason else ""
        raise UserError(f"{group}._target_: cannot import {target} ({reason}){fix}") from error


def component(config: Config, group: str, **more: Any) -> Any:
    """The object a config node describes. Raises UserError naming the key that is wrong."""
    apart = ("_target_", LOW_RANK) if group == "model" else ("_target_",)
    settings = {
        key: value for key, value in mapping(config, group).items() if key not in apart
    } | more
    target = config.get("_target_")
    if target is None:
        raise UserError(f"{group}: names no component; choose one by {group}=<name>")
    factory = imported(str(target), group)
    role = "worker_rates" if ".networks." in group else ROLES.get(group.partition(".")[0])
    is_component = isinstance(factory, type) and dataclasses.is_dataclass(factory)
    if not is_component or (role is not None and not hasattr(factory, role)):
        what = f"a dataclass with a method {role}" if role else "a dataclass"
        raise UserError(f"{group}._target_: {what}, as those named in conf/, got {target}")
    if factory.__module__.partition(".")[0] != PACKAGE:
        settings = _without_left_over(factory, settings, group)
    return made(factory, settings, group)


def _without_left_over(factory: type[Any], settings: Config, group: str) -> dict[str, Any]:
    """The settings without those that the YAML of the replaced ``_target_`` has left as it states them."""
    own = {field.name for field in dataclasses.fields(factory)}
    stated = [pair for member in members(group) for pair in member.items()]
    return {
        key: value for key, value in settings.items() if key in own or (key, value) not in stated
    }


def low_rank_of(config: Config) -> LowRank | None:
    """When and how the model of a run is factorized; None: never. Raises UserError."""
    settings = config["model"].get(LOW_RANK)
    low_rank = None if settings is None else made(LowRank, settings, f"model.{LOW_RANK}")
    return None if low_rank is None or low_rank.from_epoch is None else low_rank


def build_policy(config: Config) -> Policy:
    """The policy of a run. Raises UserError naming the key that is wrong."""
    policy: Policy = component(config["policy"], "policy")
    return policy


def unallocated(config: Config, classes: int = WITHOUT_DATA) -> nn.Module:
    """The model without memory for its parameters, for its sizes alone. ``classes``: where it states none."""
    with torch.device("meta"):
        module: nn.Module = component(config["model"], "model").build(
            config["model"].get("num_classes") or classes
        )
    return module


def build_optimizer(config: Config, compressor: Compressor) -> Any:
    """The optimizer's settings. Raises UserError, with the reason where conf/compressor/{dgc,demo}.yaml has
    set a momentum of 0 that the optimizer does not have."""
    node, key = config["optimizer"], "optimizer.momentum"
    try:
        return component(node, "optimizer")
    except UserError as error:
        if not str(error).startswith(f"{key}: no such key") or node["momentum"] != 0:
            raise
        name, by, fix = str(node["_target_"]).rpartition(".")[2], "demo", ""
        if not any(isinstance(part, DeMo) for part in nested(compressor)):
            by, fix = "dgc", f", or DGC without that wrapper: {WITHOUT_MOMENTUM}"
        raise UserError(
            f"{key}: {name} has no momentum, and compressor={by} sets it to 0, because a wrapper applies "
            f"momentum on the workers; use optimizer=sgd{fix}"
        ) from error


def after_warmups(config: Config) -> dict[str, Any]:
    """The config after its warm-ups: the last rung of a policy that plans by epoch or step, and 1-bit Adam
    without its uncompressed steps. Raises UserError for a policy that decides in the run."""
    own, policy = deepcopy(dict(config)), build_policy(config)
    if isinstance(policy, PlansByEpoch):
        ladder = {"field": policy.field, "values": [*policy.values]}
        own["policy"] = (
            option("policy", "fixed") | ladder | {"rung": policy.rung_after(sys.maxsize)}
        )
    elif not isinstance(policy, Fixed):
        name = str(config["policy"]["_target_"]).split(".")[-2]
        raise UserError(
            f"policy: a prediction is of one setting, and {name} decides in the run; use policy=fixed, and "
            "policy.rung where there are policy.values"
        )
    own["wrapper"]["onebit_adam"]["warmup_steps"] = 0
    return own


def build_compressor(config: Config, policy: Policy, module: nn.Module | None = None) -> Compressor:
    """Fold leaf, ladder and wrappers: ``wrap`` is outermost first; ``ladder`` in it says where the
    ladder goes (default: innermost, so that all rungs share what is around it). ``module``: the model, which
    `Dion` needs to know which tensors are matrices."""
    compressor = _folded(config, policy)
    if module is None or not any(isinstance(part, Dion) for part in nested(compressor)):
        return compressor
    return _exempting(compressor, names_of_others(module))


def _exempting(nest: Any, names: Sequence[str]) -> Compressor:
    """The nest whose `PerLayer` also sends the tensors of these names uncompressed."""
    if isinstance(nest, PerLayer):
        return dataclasses.replace(nest, dense=(*nest.dense, *names))
    if hasattr(nest, "inner"):
        return dataclasses.replace(nest, inner=_exempting(nest.inner, names))  # type: ignore[no-any-return]
    return nest  # type: ignore[no-any-return]


def _folded(config: Config, policy: Policy) -> Compressor:
    """The nest of a config."""
    wrap = _wrap_list(config)
    has_ladder = policy.field is not None
    if LADDER in wrap and not has_ladder:
        raise UserError(
            "wrap: `ladder` needs a policy with policy.field and policy.values, this one has none"
        )
    if has_ladder and LADDER not in wrap:
        wrap.append(LADDER)
    leaf = config["compressor"]

    def leaf_with(**setting: Any) -> Compressor:
        method = component(leaf, "compressor", **setting)
        return aggregated(method, config["exchange"]["aggregation"])

    if not has_ladder:
        return _wrapped(wrap, leaf_with(), config)
    field = str(policy.field)
    if field not in leaf:
        fields = [key for key in leaf if key != "_target_"]
        raise UserError(
            f"policy.field: the compressor has no setting {field!r} "
            f"({'it has ' + ', '.join(fields) if fields else 'it has none'}); choose a compressor that has"
        )
    component(leaf, "compressor")  # what the ladder replaces is checked too
    place = wrap.index(LADDER)
    rungs: list[Compressor] = [Dense()]
    for value in policy.values:
        rungs.append(_wrapped(wrap[place + 1 :], leaf_with(**{field: value}), config))
    if measures(policy):
        for value, rung in zip(policy.values, rungs[1:], strict=True):
            if not isinstance(getattr(rung, "method", rung), Measurable):  # of what is combined
                raise UserError(
                    f"policy: it must measure each rung before it chooses, and {field}={value} of this "
                    "compressor cannot be measured; use a policy that plans beforehand"
                )
    return _wrapped(wrap[:place], Ladder(tuple(rungs)), config)


def _wrap_list(config: Config) -> list[str]:
    wrap = config["wrap"]
    if isinstance(wrap, str) or not isinstance(wrap, Sequence):
        raise UserError(f"wrap: a list such as [error_feedback,per_layer], got {wrap!r}")
    known = [*config["wrapper"], LADDER]
    for name in wrap:
        if name not in known:
            raise UserError(f"wrap: no wrapper {name!r}; {nearest(str(name), known)}")
    if len(set(wrap)) != len(wrap):
        raise UserError(f"wrap: each wrapper once, got {list(wrap)}")
    return list(wrap)


def _wrapped(names: Sequence[str], inner: Compressor, config: Config) -> Compressor:
    for name in reversed(names):
        try:
            inner = component(config["wrapper"][name], f"wrapper.{name}", inner=inner)
        except UserError as error:
            if not str(error).startswith(f"wrapper.{name}.inner:"):
                raise
            others = ",".join(other for other in config["wrap"] if other != name)
            raise UserError(f"{error} (wrap=[{others}])") from error
    return inner
