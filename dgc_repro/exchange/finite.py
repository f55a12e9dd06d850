"""Find gradients that are not finite: at once on a CPU, and without a wait of the host on a GPU."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch

Seen = tuple[int, tuple[str, ...], tuple[int, ...], Tensor]
"""A worker, names of gradients on a GPU, and largest magnitudes, so many of each: f32, NaN where there is
one."""


def on_cpu(tensor: Tensor) -> bool:
    """Whether the host may look at the values of a tensor without waiting."""
    return tensor.device.type == "cpu"


def first_non_finite(
    gradients: Mapping[str, Tensor], converted: Collection[str] = ()
) -> str | None:
    """Return the name of a gradient on the CPU that holds a NaN or an infinity, or None: one pass over each.
    ``converted``: names of those that go on as float32, in which a large value is an infinity."""
    if not gradients or not on_cpu(next(iter(gradients.values()))):
        return None  # all are on one device
    wide: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    for name, gradient in gradients.items():
        if on_cpu(gradient) and gradient.numel():
            (wide if gradient.dtype == torch.float32 else others)[name] = gradient
    batch = Batch(tuple(wide), list(wide.values()))
    if not (batch.native and kernels.all_finite(batch)):
        others = {**wide, **others}
    for name, gradient in others.items():
        wider = gradient.dtype in (torch.float64, torch.complex128) and name in converted
        seen = gradient.abs().float() if wider else gradient
        if not bool(torch.isfinite(seen).all()):
            return name
    return None


def known_non_finite(gradients: Mapping[str, Tensor]) -> str | None:
    """Return the name of a gradient on any device that is not finite, or None. On a GPU the host waits."""
    if name := first_non_finite(gradients):
        return name
    found = map(first_bad, seen_on_gpu([gradients]))
    return next((bad for bad in found if bad is not None), None)


def first_bad(seen: Seen) -> str | None:
    """The first name of which a magnitude is not finite. The host waits."""
    _, names, counts, largest = seen
    of_each = zip(names, largest.cpu().split(list(counts)), strict=True)
    return next((name for name, some in of_each if not bool((some < math.inf).all())), None)


def seen_on_gpu(given: Sequence[Mapping[str, Tensor]]) -> list[Seen]:
    """Return, by worker and type, the largest magnitudes of gradients on a GPU. The host does not wait."""
    found: list[Seen] = []
    for worker, own in enumerate(given):
        by_type: dict[torch.dtype, dict[str, Tensor]] = {}
        for name, gradient in own.items():
            if not on_cpu(gradient) and gradient.numel():
                by_type.setdefault(gradient.dtype, {})[name] = gradient
        for same in by_type.values():
            largest = torch.stack(torch._foreach_norm(list(same.values()), math.inf))
            found.append((worker, tuple(same), (1,) * len(same), largest))
    return found
