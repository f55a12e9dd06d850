"""How long compressing a gradient takes: twice (direct, multi-level, single pass), and at several factors.

direct         both settings choose from the whole gradient
multi-level    the weak setting chooses, the strong one chooses among what is left (`refine`)
single pass    both at once, from one scan, where a method has it

A repeat times all ways right after one another, in an order that turns from repeat to repeat, so that what
disturbs the machine falls on all of them.

Paper: GraVAC (IEEE CLOUD 2023), Table III. Letters: n = values, k = entries chosen.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import Sparsifier, num_kept, select_all
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import topk
from dgc_repro.kernel.select import Selection
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.payload import Sparse
from dgc_repro.payload.sparse import PLAIN

LAYERWISE, ONE_VECTOR = "layerwise", "one vector"
BLOCKS = (LAYERWISE, ONE_VECTOR)
WEAK, DIRECT, MULTILEVEL, SINGLE_PASS = WAYS = ("weak", "direct", "multilevel", "single_pass")
COPY = "copy"
WARMUP = 2  # buffers are made and pages touched here

Row = dict[str, Any]
SinglePass = Callable[[Tensor, Context], tuple[Selection, Selection]]
"""The weak and the strong selection of a tensor (f32[n]), from one scan."""


@dataclass(frozen=True)
class Method:
    """A sparsifier at two settings. ``single_pass``: both in one, None where there is no such way."""

    name: str
    weak: Sparsifier
    strong: Sparsifier
    single_pass: SinglePass | None = None

    @property
    def ways(self) -> tuple[str, ...]:
        """The names of what it can do."""
        return WAYS if self.single_pass else WAYS[:-1]


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
    first = next(iter(tensors.values()))
    vector = first.as_strided((sum(part.numel() for part in tensors.values()),), (1,))
    timed: list[Row] = []
    chosen: list[Row] = []
    for block, parts in {LAYERWISE: tensors, ONE_VECTOR: {"gradient": vector}}.items():
        for method in methods:
            about = {"block": block, "method": method.name}
            places = _places(parts)
            chosen.append(about | _chosen(method, places, factors))
            found = _timed(method, places, vector, repeats)
            timed += [about | row for row in found]
            middle = statistics.median(row["direct_ms"] / row["multilevel_ms"] for row in found)
            say(f"{block}, {method.name}: direct / multi-level {middle:.2f}")
    return timed, chosen


def compress_ms(
    tensors: Mapping[str, Tensor], methods: Mapping[float, Sparsifier], repeats: int
) -> dict[float, list[float]]:
    """Milliseconds of choosing and coding the entries of a whole gradient, tensor by tensor: by factor, those
    of each repeat. tensors: f32, by name, read only."""
    workspace = Workspace()
    batch = Batch(tuple(tensors), list(tensors.values()))

    def compress(factor: float) -> None:
        context = Context(0, 0, 0, 1, workspace, path=(str(factor),))
        method = methods[factor]
        chosen = select_all(method, batch, context)
        Sparse.of(batch.names, chosen, context.scratch, indices=PLAIN)

    ways = {str(factor): partial(compress, factor) for factor in methods}
    found = in_turns(ways, repeats, batch.device)
    return {factor: [took[str(factor)] for took in found] for factor in methods}


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


def in_turns(
    ways: Mapping[str, Callable[[], object]], repeats: int, device: torch.device
) -> list[dict[str, float]]:
    """Milliseconds of each way in each repeat, the device's work included, after a warm-up."""
    names, found = list(ways), []
    for number in range(WARMUP + repeats):
        turn, took = number % len(names), {}
        for name in (*names[turn:], *names[:turn]):
            wait_for(device)
            begin = time.perf_counter()
            ways[name]()
            wait_for(device)
            took[name] = 1e3 * (time.perf_counter() - begin)
        found.append(took)
    return found[WARMUP:]


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class _Place:
    """A tensor, and where each selection of it keeps its buffers."""

    tensor: Tensor
    weak: Context
    strong: Context
    both: Context


def _places(parts: Mapping[str, Tensor]) -> list[_Place]:
    workspace = Workspace()
    contexts = [Context(0, 0, 0, 1, workspace, name=name) for name in parts]
    return [
        _Place(tensor, *(at.within(name) for name in ("weak", "strong", "both")))
        for tensor, at in zip(parts.values(), contexts, strict=True)
    ]


def _both(method: Method, way: str, at: _Place, *, draws: bool = False) -> tuple[Any, Any]:
    """The weak and the strong selection of one tensor; without the strong one if ``way`` is weak. ``draws``:
    do what a method does before it sends. One whose places are drawn (random-k) then takes the values there,
    and never looks at its places as a selection."""

    def choose(sparsifier: Any, context: Context) -> Any:
        select = getattr(sparsifier, "draw", sparsifier.select) if draws else sparsifier.select
        return select(at.tensor, context)

    if way == SINGLE_PASS:
        assert method.single_pass is not None
        return method.single_pass(at.tensor, at.both)
    weak = choose(method.weak, at.weak)
    if way == WEAK:
        return weak, None
    if way == DIRECT:
        return weak, choose(method.strong, at.strong)
    if isinstance(weak, Tensor):
        return weak, method.strong.draw_again(weak, at.tensor.numel())  # type: ignore[attr-defined]
    return weak, method.strong.refine(weak, at.strong)


def _timed(method: Method, places: Sequence[_Place], vector: Tensor, repeats: int) -> list[Row]:
    target = torch.empty_like(vector)

    def choose(way: str) -> None:
        for place in places:
            _both(method, way, place, draws=True)

    ways = {way: partial(choose, way) for way in method.ways}
    found = in_turns({COPY: lambda: target.copy_(vector), **ways}, repeats, vector.device)
    return [
        {"repeat": number, **{f"{way}_ms": took.get(way) for way in (COPY, *WAYS)}}
        for number, took in enumerate(found)
    ]


def _chosen(method: Method, places: Sequence[_Place], factors: tuple[float, float]) -> Row:
    sizes = [place.tensor.numel() for place in places]
    weak_asked, strong_asked = (sum(num_kept(n, 1 / factor) for n in sizes) for factor in factors)
    row: Row = {
        "tensors": len(sizes),
        "values": sum(sizes),
        "weak_asked": weak_asked,
        "strong_asked": strong_asked,
        "weak_kept": 0,
    }
    direct: list[_Kept] = []
    for place in places:
        weak, strong = _both(method, DIRECT, place)
        row["weak_kept"] += len(weak.values)
        direct.append(_kept(strong))
    row["direct_kept"] = _entries(direct)
    for way in (MULTILEVEL, SINGLE_PASS):
        row[f"{way}_kept"] = row[f"{way}_apart"] = None
        if way in method.ways:
            kept = [_kept(_both(method, way, place)[1]) for place in places]
            row[f"{way}_kept"] = _entries(kept)
            row[f"{way}_apart"] = sum(map(_apart, direct, kept))
    return row


_Kept = tuple[Any, Any]  # places i64[k] and values f32[k], numpy


def _kept(selection: Selection) -> _Kept:
    """A copy: the selection's buffers are used again."""
    places = selection.indices.to("cpu", torch.int64, copy=True).numpy()
    return places, selection.values.to("cpu", copy=True).numpy()


def _entries(kept: Iterable[_Kept]) -> int:
    return sum(len(places) for places, _ in kept)


def _apart(one: _Kept, other: _Kept) -> int:
    """Entries that only one side has, and common ones of unequal bits."""
    common, here, there = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    unequal = one[1][here].view(np.int32) != other[1][there].view(np.int32)
    return len(one[0]) + len(other[0]) - 2 * len(common) + int(np.count_nonzero(unequal))
