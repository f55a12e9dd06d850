"""Compressing a gradient twice: how long direct, multi-level and single-pass compression take.

direct         both settings choose from the whole gradient
multi-level    the weak setting chooses, the strong one chooses among what is left (`refine`)
single pass    both at once, from one scan, where a method has it

One repeat times a `copy_` of the gradient and each way right after one another, in an order that
turns from repeat to repeat, so that what disturbs the machine falls on all of them.

Paper: GraVAC (IEEE CLOUD 2023), Table III. Letters: n = values, k = entries chosen.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import Sparsifier, num_kept
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import topk
from dgc_repro.kernel.select import Selection
from dgc_repro.kernel.workspace import Workspace

LAYERWISE, ONE_VECTOR = "layerwise", "one vector"
BLOCKS = (LAYERWISE, ONE_VECTOR)
WAYS = ("weak", "direct", "multilevel", "single_pass")
WARMUP = 2  # buffers are made and pages touched here

SinglePass = Callable[[Tensor, Context], tuple[Selection, Selection]]
"""The weak and the strong selection of a tensor (f32[n]), from one scan."""


@dataclass(frozen=True)
class Method:
    """A sparsifier at two settings. ``single_pass``: both in one, None where there is no such way."""

    name: str
    weak: Sparsifier
    strong: Sparsifier
    single_pass: SinglePass | None = None


Row = dict[str, Any]


def measure(
    tensors: Mapping[str, Tensor],
    methods: Sequence[Method],
    factors: tuple[float, float],
    repeats: int,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[list[Row], list[Row]]:
    """Measure every method on a gradient, by tensor and as one vector.

    tensors: f32, by name, consecutive views of one buffer (see `joined`); read only.
    factors: of the weak and the strong setting, for the k that is asked.

    Returns, as rows for a record:

    repeats  one paired measurement: milliseconds of a copy and of each way (None: the method has no such
             way); ``weak_ms`` is the first compression alone, part of the others
    chosen   summed over the tensors of a block: ``*_asked`` is k from the original n, ``*_kept`` the entries
             chosen, ``*_apart`` the entries of the strong setting that only one of this way and direct
             compression has, or that differ in value
    """
    vector = _vector_of(tensors)
    blocks = {LAYERWISE: tensors, ONE_VECTOR: {"gradient": vector}}
    target = torch.empty_like(vector)
    timed: list[Row] = []
    chosen: list[Row] = []
    for block, parts in blocks.items():
        for method in methods:
            ways = _Ways(method, parts)
            about = {"block": block, "method": method.name}
            chosen.append(about | _chosen(ways, factors))
            found = _timed(ways, lambda: target.copy_(vector), repeats, vector.device)
            timed += [about | row for row in found]
            middle = statistics.median(row["direct_ms"] / row["multilevel_ms"] for row in found)
            say(f"{block}, {method.name}: direct / multi-level {middle:.2f}")
    return timed, chosen


def topk_in_one_scan(weak: float, strong: float) -> SinglePass:
    """Exact top-k at two densities: both thresholds from one sample, the tensor read once."""

    def both(tensor: Tensor, context: Context) -> tuple[Selection, Selection]:
        n = tensor.numel()
        ks = [(num_kept(n, weak),), (num_kept(n, strong),)]
        first, second = topk(Batch(("",), [tensor]), ks, context.scratch)
        return first[0], second[0]

    return both


def joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that lie one after another in one buffer, flat, in the order in which each lies in
    memory (a channels-last weight's own), as the exchange hands them over."""
    sizes = [tensor.numel() for tensor in tensors.values()]
    buffer = torch.empty(sum(sizes), device=next(iter(tensors.values())).device)
    parts = dict(zip(tensors, buffer.split(sizes), strict=True))
    for name, tensor in tensors.items():
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        parts[name].copy_(tensor.detach().permute(order).reshape(-1))
    return parts


class _Ways:
    """The ways of one method over one block's tensors, buffers of their own."""

    def __init__(self, method: Method, parts: Mapping[str, Tensor]) -> None:
        self.method = method
        workspace = Workspace()
        self._places = [
            (tensor, context.within("weak"), context.within("strong"), context.within("both"))
            for name, tensor in parts.items()
            for context in [Context(name, 0, 0, 0, 1, None, (0, 0), workspace)]
        ]
        self.sizes = [tensor.numel() for tensor in parts.values()]

    def weak(self) -> None:
        for tensor, weakly, _, _ in self._places:
            _first(self.method.weak, tensor, weakly)

    def direct(self) -> None:
        for tensor, weakly, strongly, _ in self._places:
            _first(self.method.weak, tensor, weakly)
            _first(self.method.strong, tensor, strongly)

    def multilevel(self) -> None:
        for tensor, weakly, strongly, _ in self._places:
            survivors = _first(self.method.weak, tensor, weakly)
            if isinstance(survivors, Tensor):
                self.method.strong.draw_again(survivors, tensor.numel())  # type: ignore[attr-defined]
            else:
                self.method.strong.refine(survivors, strongly)

    def single_pass(self) -> None:
        for _ in self.each_single_pass():
            pass

    def each_direct(self) -> Iterator[tuple[Selection, Selection]]:
        for tensor, weakly, strongly, _ in self._places:
            yield (
                self.method.weak.select(tensor, weakly),
                self.method.strong.select(tensor, strongly),
            )

    def each_multilevel(self) -> Iterator[tuple[Selection, Selection]]:
        for tensor, weakly, strongly, _ in self._places:
            survivors = self.method.weak.select(tensor, weakly)
            yield survivors, self.method.strong.refine(survivors, strongly)

    def each_single_pass(self) -> Iterator[tuple[Selection, Selection]]:
        assert self.method.single_pass is not None
        for tensor, _, _, both in self._places:
            yield self.method.single_pass(tensor, both)


def _first(method: Sparsifier, tensor: Tensor, context: Context) -> Selection | Tensor:
    """What a method does before it sends: it selects; one whose places are drawn (random-k) takes the
    values there, and never looks at its places as a selection."""
    draw = getattr(method, "draw", None)
    return method.select(tensor, context) if draw is None else draw(tensor, context)


def _timed(
    ways: _Ways, copy: Callable[[], object], repeats: int, device: torch.device
) -> list[Row]:
    names = ["weak", "direct", "multilevel"]
    names += ["single_pass"] if ways.method.single_pass is not None else []
    actions: dict[str, Callable[[], object]] = {name: getattr(ways, name) for name in names}
    for action in (copy, *actions.values()):
        for _ in range(WARMUP):
            action()
    found = []
    for number in range(repeats):
        turn = number % len(names)
        took: dict[str, float] = {}
        copies = []
        for name in (*names[turn:], *names[:turn]):
            copies.append(milliseconds(copy, device))
            took[name] = milliseconds(actions[name], device)
        row: Row = {"repeat": number, "copy_ms": statistics.median(copies)}
        found.append(row | {f"{name}_ms": took.get(name) for name in WAYS})
    return found


def milliseconds(action: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call, the device's work included."""
    _wait_for(device)
    begin = time.perf_counter()
    action()
    _wait_for(device)
    return 1e3 * (time.perf_counter() - begin)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _chosen(ways: _Ways, factors: tuple[float, float]) -> Row:
    weak_asked, strong_asked = (
        sum(num_kept(n, 1 / factor) for n in ways.sizes) for factor in factors
    )
    pairs = [(len(weak.values), _kept(strong)) for weak, strong in ways.each_direct()]
    direct = [strong for _, strong in pairs]
    row: Row = {
        "tensors": len(ways.sizes),
        "values": sum(ways.sizes),
        "weak_asked": weak_asked,
        "strong_asked": strong_asked,
        "weak_kept": sum(count for count, _ in pairs),
        "direct_kept": _entries(direct),
    }
    others = {"multilevel": ways.each_multilevel, "single_pass": ways.each_single_pass}
    for name, each in others.items():
        has = name != "single_pass" or ways.method.single_pass is not None
        kept = [_kept(strong) for _, strong in each()] if has else None
        row[f"{name}_kept"] = None if kept is None else _entries(kept)
        row[f"{name}_apart"] = None if kept is None else _apart(direct, kept)
    return row


_Kept = tuple[Any, Any]  # places i64[k] and values f32[k], numpy


def _kept(selection: Selection) -> _Kept:
    """A copy: the selection's buffers are used again."""
    places = selection.indices.to("cpu", torch.int64, copy=True).numpy()
    return places, selection.values.to("cpu", copy=True).numpy()


def _entries(kept: Sequence[_Kept]) -> int:
    return sum(len(places) for places, _ in kept)


def _apart(one: Sequence[_Kept], other: Sequence[_Kept]) -> int:
    """Entries that only one side has, and common ones of unequal bits."""
    count = 0
    for (places, values), (others, other_values) in zip(one, other, strict=True):
        common, here, there = np.intersect1d(
            places, others, assume_unique=True, return_indices=True
        )
        count += len(places) + len(others) - 2 * len(common)
        count += int(
            np.count_nonzero(values[here].view(np.int32) != other_values[there].view(np.int32))
        )
    return count


def _vector_of(tensors: Mapping[str, Tensor]) -> Tensor:
    """The buffer that these consecutive views lie in."""
    parts = list(tensors.values())
    start = parts[0].data_ptr()
    for part in parts:
        assert part.dim() == 1
        assert part.data_ptr() == start, "make them with `joined`"
        start += part.nbytes
    size = sum(part.numel() for part in parts)
    return parts[0].as_strided((size,), (1,))
