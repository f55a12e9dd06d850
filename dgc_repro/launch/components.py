"""Config nodes to objects: the one place where ``_target_`` is read.

A component is a frozen dataclass that checks its own values. What it says begins with the bare
field; here the config group is put before it, so that the user reads the key to change.
"""

from __future__ import annotations

import dataclasses
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.interface import Compressor, Measurable, nested
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.errors import UserError
from dgc_repro.exchange.aggregation import aggregated
from dgc_repro.launch.paths import members, option
from dgc_repro.launch.typed import made as typed
from dgc_repro.launch.typed import mapping, nearest
from dgc_repro.model.low_rank import LowRank
from dgc_repro.optimizer.muon import names_of_others
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import Policy, measures
from dgc_repro.policy.planned import PlansByEpoch

PACKAGE = __name__.partition(".")[0]
TORCHVISION_FIX = f"; install the torchvision that was built for torch {torch.__version__}"
LADDER = "ladder"
LOW_RANK = "low_rank"
PER_LAYER = "per_layer"
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


def component(config: Config, group: str, **more: Any) -> Any:
    """The object a config node describes. Raises UserError naming the key that is wrong."""
    apart = ("_target_", LOW_RANK) if group == "model" else ("_target_",)
    settings = {
        key: value for key, value in mapping(config, group).items() if key not in apart
    } | more
    target = config.get("_target_")
    if target is None:
        raise UserError(f"{group}: names no component; choose one by {group}=<name>")
    try:
        factory = pkgutil.resolve_name(str(target))
    except Exception as error:
        reason = " ".join(str(error).split())
        fix = TORCHVISION_FIX if "torchvision" in reason else ""
        raise UserError(f"{group}._target_: cannot import {target} ({reason}){fix}") from error
    role = "worker_rates" if ".networks." in group else ROLES.get(group.partition(".")[0])
    is_component = isinstance(factory, type) and dataclasses.is_dataclass(factory)
    if not is_component or (role is not None and not hasattr(factory, role)):
        what = f"a dataclass with a method {role}" if role else "a dataclass"
        raise UserError(f"{group}._target_: {what}, as those named in conf/, got {target}")
    if factory.__module__.partition(".")[0] != PACKAGE:
        settings = _without_left_over(factory, settings, group)
    return typed(factory, settings, group)


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
    low_rank = None if settings is None else typed(LowRank, settings, f"model.{LOW_RANK}")
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


def settled(config: Config) -> dict[str, Any]:
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

    def made(**setting: Any) -> Compressor:
        method = component(leaf, "compressor", **setting)
        return aggregated(method, config["exchange"]["aggregation"])

    if not has_ladder:
        return _wrapped(wrap, made(), config)
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
        rungs.append(_wrapped(wrap[place + 1 :], made(**{field: value}), config))
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
