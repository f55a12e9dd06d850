"""Small things all workers must know of each other before a step goes on: losses, a wish to stop,
a gradient that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from dgc_repro.errors import UserError
from dgc_repro.exchange.wire import SUM, Link
from dgc_repro.kernel import native
from dgc_repro.kernel.batch import INFINITE, Batch, Peaks, all_finite
from dgc_repro.kernel.transfer import fetched


def share(link: Link, numbers: Sequence[float] | Tensor, purpose: str = "signal") -> list[float]:
    """Sums over processes, by one small allreduce in float64. For local workers: their sums.

    On a GPU the process waits here for the device, once."""
    return sharing(link, numbers, purpose)()


def sharing(
    link: Link,
    numbers: Sequence[float] | Tensor,
    purpose: str = "signal",
    *,
    unread: Sequence[Any] = (),
) -> Callable[[], list[float]]:
    """Begin `share`, and return a function that gives the sums. On a GPU the function waits for them, and not
    for work that was begun in between.

    ``unread``: other numbers on the device (`Unread` of kernel/gpu/launch.py), which are read with the sums
    and stay this process's own."""
    flat = torch.as_tensor(numbers, dtype=torch.float64).to(link.wire.device, non_blocking=True)
    link.combine_(SUM, flat, purpose).wait()
    every = [flat.view(torch.int64), *(one.numbers for one in unread)]
    get = fetched(torch.cat(every) if unread else every[0])

    def read() -> list[float]:
        sums, *others = get().split([one.numel() for one in every])
        for one, found in zip(unread, others, strict=True):
            one.tell(found)
        return list(sums.view(torch.float64).tolist())

    return read


def check(tensors: Mapping[str, Tensor]) -> tuple[str | None, list[Peaks]]:
    """The name of a tensor on the CPU that is not finite, and the unread peaks of those on a GPU."""
    here: dict[str, Tensor] = {}
    on_gpu: dict[torch.dtype, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "cpu":
            here[name] = tensor
        elif tensor.numel():
            on_gpu.setdefault(tensor.dtype, {})[name] = tensor
    peaks = []
    for same in on_gpu.values():
        largest = torch.stack(torch._foreach_norm(list(same.values()), math.inf))
        bits = largest.isfinite().logical_not().int() * INFINITE
        peaks.append(Peaks(tuple(same), (1,) * len(same), bits))
    return _first_here(here), peaks


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor that holds a NaN or an infinity; None if all are finite. One pass over each."""
    name, peaks = check(tensors)
    return name or next(filter(None, (one.first_non_finite() for one in peaks)), None)


def _first_here(tensors: Mapping[str, Tensor]) -> str | None:
    """The same of tensors on the CPU."""
    here = {n: t for n, t in tensors.items() if native.usable(t) and t.is_contiguous()}
    if here and not all_finite(Batch(tuple(here), list(here.values()))):
        return next(name for name, tensor in here.items() if not native.all_finite(tensor))
    # Lowest and highest together propagate NaN.
    others = ((n, t) for n, t in tensors.items() if n not in here and t.numel())
    extremes = [(name, torch.aminmax(tensor)) for name, tensor in others]
    if not extremes:
        return None
    spans = torch.stack([high - low for _, (low, high) in extremes])
    # inf - inf and NaN are NaN; a finite range may overflow, hence the second look at each end.
    if bool(torch.isfinite(spans).all()):
        return None
    for name, (low, high) in extremes:
        if not (bool(torch.isfinite(low)) and bool(torch.isfinite(high))):
            return name
    return None


def refuse_non_finite(
    link: Link, names: Sequence[str | None], step: int, key: str, fix: str
) -> NoReturn:
    """Raise on all ranks one line that names the ranks and tensors with a non-finite gradient.

    ``step`` counts from 1. ``names``: a tensor, or None, for each worker hosted here. The line begins with
    ``key`` and ends with ``fix``."""
    ours = [f"rank {link.wire.rank + i}: {name}" for i, name in enumerate(names) if name]
    said = dict.fromkeys(link.tell_all(", ".join(ours)))  # simulated workers say the same
    where = ", ".join(text for text in said if text)
    raise UserError(f"{key}: the gradient is not finite at step {step} ({where}); {fix}")


def refuse_first(problems: Sequence[str], ranks: Sequence[int] | None = None) -> None:
    """Raise UserError with the first of the ranks' problems, and the ranks that have it where not all do.
    A problem is empty where there is none. ``ranks``: whose they are, where that is not 0, 1, 2 ..."""
    if first := next(filter(None, problems), None):
        pairs = zip(ranks or range(len(problems)), problems, strict=True)
        said_by = [str(rank) for rank, text in pairs if text == first]
        whose = "" if len(said_by) == len(problems) else f" (rank {', '.join(said_by)})"
        raise UserError(f"{first}{whose}")
