"""Rows ``methods``: three steps of each line of the settings table on the device and on the CPU.

On a machine without a GPU the C kernels are compared with the tensor operations that serve without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.kernel import native
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.selfcheck.rows import CUDA, Checks, Mismatch, Skip
from dgc_repro.selfcheck.values import tensors

CPU = torch.device("cpu")
WORKERS, STEPS = 2, 3


def checks(device: str) -> Checks:
    """A case for each setting."""
    if device != CUDA and native.library() is None:
        raise Skip("no C compiler: tensor operations alone serve here")
    for setting in SETTINGS:
        yield setting.name, partial(compared, setting, torch.device(device))
    other = "the CPU" if device == CUDA else "tensor operations"
    return f"{len(SETTINGS)} settings, {STEPS} steps: the means of {other}"


def compared(setting: Setting, device: torch.device) -> str:
    """Whether the means of all steps are equal to the setting's tolerance. Raises Mismatch."""
    expected = steps(setting, CPU)
    without_c = patch.object(native, "library", lambda: None)
    with nullcontext() if device.type == CUDA else without_c:
        found = steps(setting, device)
    differ = 0
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for name, mean in theirs.items():
            differ += difference(setting, ours[name].cpu(), mean, f"step {step}, {name!r}: ")
    return f"{differ} values differ within the tolerance" if differ else ""


def steps(setting: Setting, device: torch.device) -> list[dict[str, Tensor]]:
    """The means of each step of simulated workers."""
    given = [[_on(device, tensors(w, step)) for w in range(WORKERS)] for step in range(STEPS)]
    exchange = simulation(setting, WORKERS, given[0][0])
    return [play(exchange, setting, every) for every in given]


def difference(setting: Setting, ours: Tensor, theirs: Tensor, where: str) -> int:
    """How many values differ. Raises Mismatch where one differs by more than the setting allows: a few
    roundings of its arithmetic, and of sums of products their error relative to the largest value."""
    nan = ours.isnan() & theirs.isnan()
    differ = (ours != theirs) & ~nan
    if not (number := int(differ.sum())):
        return 0
    largest = theirs[theirs.isfinite()].abs().max()
    # Each step hands its error on, as residual or as directions.
    allowed = STEPS * (setting.cancelled * largest + setting.smallest)
    error = (ours.double() - theirs.double()).abs()
    if setting.cancelled and bool((error[differ] <= allowed).all()):
        return number
    place = tuple(int(x) for x in differ.nonzero()[0])
    raise Mismatch(
        f"{where}{number} of {ours.numel()} values differ, by at most {float(error[differ].max()):.2e} "
        f"(largest value {float(largest):.2e}); the first is {ours[place].item()!r} for "
        f"{theirs[place].item()!r}"
    )


def simulation(
    setting: Setting, workers: int, like: Mapping[str, Tensor], compressor: Compressor | None = None
) -> Exchange:
    """The exchange of a model with such tensors by so many simulated workers."""
    world = World(workers, device=next(iter(like.values())).device)
    inside = compressor or setting.compressor
    return Exchange(inside, like, world, seed=7, choose=setting.choose)


def play(
    exchange: Exchange, setting: Setting, gradients: list[dict[str, Tensor]]
) -> dict[str, Tensor]:
    """One step on copies of the gradients, which an exchange may overwrite; the means."""
    given: list[dict[str, Tensor]] = [copied(own) for own in gradients]
    exchange.average(given, setting.plan)
    return given[0]


def copied(state: Any) -> Any:
    """A deep copy of a state."""
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, Mapping):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [copied(value) for value in state]
    return state


def _on(device: torch.device, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in given.items()}
