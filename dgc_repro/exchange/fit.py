"""Whether a compressor, a policy and a model of a user's own fit together, before any rank has begun."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.interface import Compressor, Measurable, check_complete, nested
from dgc_repro.compressor.joined import MODEL
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.nesting import check_nesting, without_feedback
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.collective import CollectiveFailed
from dgc_repro.exchange.junction import sparse_gradient
from dgc_repro.policy.interface import MEAN, OWN, SPREAD, Policy, measures

UNITS = ("layer", MODEL)
ON_NONFINITE = ("raise", "skip")
"""Where a gradient of any rank is not finite: raise UserError on all ranks, or leave the step out on all."""
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.complex64, torch.complex128),
)
OF_THE_COMMAND_LINE = re.compile(r"\b(exchange|compressor|policy|train)\.(?=[a-z_]+(=|:| ))")
"""In messages: where the keys of the command line begin that are arguments here."""


def fit_together(compressor: Compressor, policy: Policy, unit: str, overlap: bool) -> None:
    """Raise UserError unless unit and overlap are known, suit compressor and policy and each other,
    and the policy's rungs are the ladder's."""
    late = " or policy.decide=last" if hasattr(policy, "decide") else ""
    refuse_first_of(
        {
            f"exchange.unit: one of {', '.join(UNITS)}, got {unit!r}": unit not in UNITS,
            f"exchange.overlap: true or false, got {overlap!r}": not isinstance(overlap, bool),
            "exchange.overlap=true: each bucket is sent as it comes, and exchange.unit=model "
            "needs all gradients first; use exchange.overlap=false": overlap and unit == MODEL,
            "exchange.overlap=true: plans are needed before the step, and this policy decides from the "
            f"step's gradients; use exchange.overlap=false{late}": overlap and policy.chooses,
            "exchange.overlap=true: each worker's own gradient is sent away, and this policy "
            "needs it; use exchange.overlap=false": overlap and policy.watches in (OWN, SPREAD),
            "exchange.unit: model joins all tensors into one, and this policy judges each by itself; "
            "use exchange.unit=layer": unit == MODEL and policy.watches in (MEAN, OWN),
        }
    )
    try:
        check_complete(compressor)
        check_nesting(compressor)
    except ValueError as error:
        raise UserError(str(error)) from error
    planned = len(policy.values) + 1
    ladders = [part for part in nested(compressor) if isinstance(part, Ladder)]
    if planned > 1 and not ladders:
        raise UserError(
            f"policy: plans {planned} rungs (dense and policy.values), and the compressor has no Ladder; "
            "give it one: Ladder((Dense(), ...)), with a compressor for each of policy.values"
        )
    for rung in (rung for ladder in ladders for rung in ladder.rungs[1:]):
        if measures(policy) and not isinstance(getattr(rung, "method", rung), Measurable):
            raise UserError(
                f"policy: it must measure each rung before it chooses, and {type(rung).__name__} cannot be "
                "measured; use a policy that plans beforehand"
            )
    for part in nested(compressor):
        rungs = len(part.rungs) if isinstance(part, Ladder) else planned
        refuse_first_of(
            {
                f"policy: plans {planned} rungs (dense and policy.values), the ladder has {rungs}; give a "
                "policy whose values are the ladder's": rungs != planned,
                **_other_values(part, policy),
                "wrap: clip_local needs the norm of the whole gradient, exchange.overlap=true sends each "
                "bucket as it comes; use exchange.overlap=false": overlap
                and isinstance(part, ClipLocal),
                "wrap: per_layer chooses between tensors, exchange.unit=model joins them into one; "
                "leave one of them out": unit == MODEL and isinstance(part, PerLayer),
            }
        )


def _other_values(part: object, policy: Policy) -> dict[str, bool]:
    """The rungs of a ladder whose setting is not the policy's value, each as a problem. A rung without such a
    setting, or whose setting is None, is of any value."""
    rungs = part.rungs[1:] if isinstance(part, Ladder) and policy.field else ()
    pairs = zip(rungs, policy.values, strict=False)
    has = [(getattr(rung, policy.field or "", None), value) for rung, value in pairs]
    return {
        f"policy: rung {number} is {policy.field}={value}, and the ladder's has {policy.field}={own}; give a "
        "policy whose values are the ladder's": own not in (None, value)
        for number, (own, value) in enumerate(has, 1)
    }


def fit_units(compressor: Compressor, policy: Policy, unit: str, overlap: bool) -> None:
    """Raise UserError unless compressor and policy can do with one unit of FSDP's after another."""
    fit_together(compressor, policy, unit, False)
    other = 'policy with decide="last"' if hasattr(policy, "decide") else "policy that plans before"
    name = type(policy).__name__
    clips = any(isinstance(part, ClipLocal) for part in nested(compressor))
    refuse_first_of(
        {
            "unit: FSDP hands over one unit of the model after another; leave unit out": unit
            != "layer",
            "overlap: FSDP's gradients are always exchanged during backward; leave overlap out": overlap,
            f"policy: {name} decides from the gradients of the whole step, and FSDP hands over one unit "
            f"after another; take a {other}": policy.chooses,
            f"policy: {name} needs each worker's own gradient, which FSDP has reduced by then; take another "
            "policy": policy.watches == OWN,
            "compressor: clip_local needs the norm of the whole gradient, and FSDP hands over one unit after "
            "another; leave it out": clips,
        }
    )


def fit_loop(
    policy: Policy, on_nonfinite: str, scaler: GradScaler | None, *, sharded: bool = False
) -> None:
    """Raise UserError where a loop of the user's own cannot do with these."""
    name = type(policy).__name__
    refuse_first_of(
        {
            f"on_nonfinite: one of {', '.join(ON_NONFINITE)}, got {on_nonfinite!r}": on_nonfinite
            not in ON_NONFINITE,
            f"policy: {name} asks for the squares of every step's gradients, which an attached loop does not "
            "have; train with python -m dgc_repro, or take another policy": policy.watches
            == SPREAD,
            "scaler: a torch.amp.GradScaler or None, got " + type(scaler).__name__: not isinstance(
                scaler, GradScaler | None
            ),
            "scaler: FSDP exchanges scaled gradients during backward; use bfloat16, without one": sharded
            and scaler is not None,
        }
    )


def suitable(model: object) -> tuple[DistributedDataParallel, dict[str, nn.Parameter]]:
    """The model, and the parameters that learn, by name. Raises UserError where they cannot be exchanged."""
    if not isinstance(model, DistributedDataParallel):
        raise UserError(
            f"model: attach takes a DistributedDataParallel model, or one that fully_shard has sharded, got "
            f"{type(model).__name__}; wrap it first"
        )
    if getattr(model, "_use_python_reducer", False):
        raise UserError(
            "model: DistributedDataParallel was called under torch._dynamo.config.optimize_ddp = "
            '"python_reducer", which hands over no buckets; set it to True, torch\'s default, and wrap the '
            "module again"
        )
    for path, module in model.module.named_modules():
        is_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if is_embedding and module.sparse and module.weight.requires_grad:
            raise UserError(sparse_gradient(f"{path}.weight".lstrip(".")))
    parameters = parameters_of(model)
    if not parameters:
        raise UserError("model: all its parameters are frozen; attach when some are to learn")
    first = next(iter(parameters.values()))
    known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    for name, parameter in parameters.items():
        strides = zip(parameter.shape, parameter.stride(), strict=True)
        reach = 1 + sum((n - 1) * stride for n, stride in strides)
        refuse_first_of(
            {
                f"model: {name} is {parameter.dtype}, an exchange takes {known}": parameter.dtype
                not in DTYPES,
                f"model: {name} is on {parameter.device}, others on {first.device}; use one "
                "device": parameter.device != first.device,
                f"model: {name} is a view with gaps; use a contiguous tensor": 0
                < parameter.numel()
                != reach,
            }
        )
    return model, parameters


def parameters_of(
    model: DistributedDataParallel, *, learning: bool = True
) -> dict[str, nn.Parameter]:
    """The parameters that get gradients, or the frozen ones, by name, without those that DDP was told to
    ignore."""
    ignored = getattr(model, "parameters_to_ignore", ())
    named = model.module.named_parameters()
    return {n: p for n, p in named if p.requires_grad == learning and n not in ignored}


def refuse_no_policy(policy: object) -> None:
    """Raise UserError where a class or a name was given."""
    if isinstance(policy, type) or not hasattr(policy, "plan"):
        name = policy.__name__ if isinstance(policy, type) else repr(policy)
        raise UserError(
            f"policy: {name} is no policy; give an object, such as Stepwise(field='bits', values=[8, 4], ...)"
        )


def refuse_no_object(compressor: object) -> None:
    """Raise UserError where a class or a name is given in place of a compressor."""
    example = "give an object, such as ErrorFeedback(TopK(density=0.01))"
    if isinstance(compressor, type):
        raise UserError(f"compressor: {compressor.__name__} is a class; {example}")
    if isinstance(compressor, str):
        raise UserError(f"compressor: {compressor} is a name; {example}")


def note_lost(compressor: Compressor) -> None:
    """Warn, once in a process, where nothing keeps what a method loses."""
    if (method := without_feedback(compressor)) is not None:
        _warn_lost(type(method).__name__)


@functools.cache
def _warn_lost(name: str) -> None:
    warnings.warn(
        f"compressor: {name} has no error feedback, and what it does not send is lost; use "
        f"ErrorFeedback({name}(...))",
        stacklevel=4,
    )


@contextlib.contextmanager
def as_arguments(
    explain: Callable[[CollectiveFailed], CollectiveFailed] | None = None,
) -> Iterator[None]:
    """Have a UserError name arguments of `attach`, not the command line's. ``explain``: what to raise in
    place of a collective's error, where that knows less."""
    try:
        yield
    except CollectiveFailed as error:
        if explain is None or (found := explain(error)) is error:
            raise
        raise found from error
    except UserError as error:
        text = OF_THE_COMMAND_LINE.sub("", str(error))
        raise UserError(re.sub("^wrap: ", "compressor: ", text)) from None


def uncompiled(model: Any) -> Any:
    """The model that `torch.compile` was given, of what it returned; any other model as it is."""
    return getattr(model, "_orig_mod", model)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module in a DDP model; any other model as it is."""
    return model.module if isinstance(model, DistributedDataParallel) else model
