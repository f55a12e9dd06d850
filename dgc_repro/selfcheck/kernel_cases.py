"""The cases of the GPU kernels: on a device, every kernel gives the bits of the C kernel.

With ``device="cpu"`` Triton's interpreter runs the kernels; TRITON_INTERPRET=1 must be set before Triton is
imported. The tests run all cases so (tests/kernel/gpu_interpreted.py), the row ``kernels-cpu`` some of them.
With ``device="cuda"`` they run on the GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sidco import FITS, SIDCo
from dgc_repro.compressor.sparsifier import select_all
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange import junction as ending
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.fsdp import PerUnit
from dgc_repro.exchange.junction import AfterBackward, PerBucket
from dgc_repro.exchange.world import World
from dgc_repro.kernel import batch as batches
from dgc_repro.kernel import chosen, codes, lowrank, narrow, native, powers, signs, sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.codes import CodeLayout, CodeLayouts
from dgc_repro.kernel.gpu import chosen as gpu_chosen
from dgc_repro.kernel.gpu.launch import Launches
from dgc_repro.kernel.lowrank import Matrices
from dgc_repro.kernel.powers import PowerLayout
from dgc_repro.kernel.signs import SignLayout
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.nests import map_tensors, tensors_of
from dgc_repro.payload import Keyed, KeyedLayout, Sparse
from dgc_repro.payload import sparse as sparse_payload
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.rows import Mismatch
from dgc_repro.selfcheck.values import EPS, context, heavy_tailed

CPU = torch.device("cpu")
SIZES = (700, 0, 1, 2100, 33, 4100)
NAMES = tuple(map(str, SIZES))
CODED = (700, 0, 1, 1100, 33, 70)
"""Values of each tensor that are quantized: the interpreter takes a while for each row."""
SHAPES = ((66, 130), (1, 1), (3, 700), (40, 5), (200, 1))
SELECTIONS: tuple[Compressor, ...] = (
    Threshold(0.1),
    Threshold(threshold=0.7),
    DGCSampled(0.1),
    RedSync(0.05, search_from=0),
    RedSync(0.3, search_from=2000),
    RedSync(0.05, search_from=0, quantized=True),
    *(SIDCo(d, fit=f, stages=n) for f in FITS for d, n in ((0.05, None), (0.3, 2), (0.01, 1))),
)
Run = Callable[[torch.device], list[Tensor]]
"""Gives its results for tensors on a device."""


@dataclass(frozen=True)
class Case:
    """A case and the arguments with which it is called. ``is_short``: the interpreter takes about a second;
    of each function one such case is part of the row ``kernels-cpu``."""

    function: Callable[..., None]
    arguments: Mapping[str, Any]
    is_short: bool

    def __str__(self) -> str:
        """``topk(odd=True)``."""
        given = ", ".join(f"{name}={_said(value)}" for name, value in self.arguments.items())
        return f"{self.function.__name__}({given})" if given else self.function.__name__

    def run(self, device: torch.device) -> None:
        """Raise Mismatch where the kernels on ``device`` and those in C differ."""
        self.function(device, **self.arguments)


CASES: list[Case] = []
_Function = Callable[..., None]


def each(*, is_slow: bool = False, **arguments: Sequence[Any]) -> Callable[[_Function], _Function]:
    """Make a case of a function for each combination of arguments. ``is_slow``: the interpreter takes many
    seconds for every one."""

    def made(function: _Function) -> _Function:
        for number, values in enumerate(itertools.product(*arguments.values())):
            given = dict(zip(arguments, values, strict=True))
            CASES.append(Case(function, given, number == 0 and not is_slow))
        return function

    return made


@contextmanager
def on_gpu(device: torch.device) -> Iterator[None]:
    """Kernels of the GPU must be launched. On the CPU its tensors take them, in the interpreter."""
    before = Launches.count
    if device.type == "cuda":
        yield
    else:
        with (
            patch.object(native, "usable", lambda tensor: False),
            patch.object(native, "library", lambda: None),
            patch.object(batches, "on_gpu", lambda tensors: True),
            patch.object(sparse_payload, "on_gpu", lambda tensors: True),
        ):
            yield
    expect(Launches.count > before, "no kernel of the GPU was launched")


def expect(good: bool, otherwise: str) -> None:
    """Raise Mismatch with these words, unless all is well."""
    if not good:
        raise Mismatch(otherwise)


def same(ours: Tensor, theirs: Tensor, what: str = "") -> None:
    """Raise Mismatch unless both have equal bits; of a NaN the place alone counts."""
    ours, theirs = ours.detach().cpu(), theirs.detach().cpu()
    expect(ours.shape == theirs.shape, f"{what}{tuple(ours.shape)} for {tuple(theirs.shape)}")
    if ours.is_floating_point():
        differ = ours.isnan() != theirs.isnan()
        kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ours.element_size()]
        a, b = (x.nan_to_num(nan=1.0).contiguous().view(kind) for x in (ours, theirs))
        differ |= a != b
    else:
        differ = ours != theirs
    if number := int(differ.sum()):
        place = tuple(int(x) for x in differ.nonzero()[0])
        first = f"{ours[place].item()!r} for {theirs[place].item()!r} at {place}"
        raise Mismatch(f"{what}{number} of {ours.numel()} values differ; the first is {first}")


def close(ours: Tensor, theirs: Tensor, rtol: float, atol: float = 0.0) -> None:
    """Raise Mismatch unless both are equal to such errors."""
    try:
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        raise Mismatch(" ".join(str(error).split())) from error


def both(device: torch.device, run: Run) -> list[Tensor]:
    """Run with C and on the device, compare, and return the results of C."""
    expect(
        native.library() is not None, "the C kernels are not compiled here: there is no C compiler"
    )
    theirs = run(CPU)
    with on_gpu(device):
        ours = run(device)
    expect(len(ours) == len(theirs), f"{len(ours)} results for {len(theirs)}")
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        same(one, other, f"result {number} of {len(ours)}: ")
    return theirs


# Inputs


def tensors(on: torch.device, seed: int = 0, *, odd: bool = True) -> list[Tensor]:
    """Heavy-tailed values with ties, zeros of both signs and denormal numbers; ``odd``: with what is not
    finite in some tensors too. One begins 4 bytes behind a multiple of 16, as in a bucket of DDP's."""
    source = torch.Generator().manual_seed(seed)
    found = [torch.randn(n, generator=source) ** 3 for n in SIZES]
    found[0][100:200] = 0.5
    found[0][200:210] = -0.5
    found[3][:3] = torch.tensor([0.0, -0.0, 1e-40])
    found[4].mul_(1e-38)  # denormal numbers among them
    found[5][4000:] = found[5][:100]
    if odd:
        found[0][5] = math.nan
        found[5][7] = math.inf
        found[5][70] = -math.inf
    found[3] = torch.cat([torch.zeros(1), found[3]])
    return [x.to(on)[1:] if i == 3 else x.to(on) for i, x in enumerate(found)]


def batch(on: torch.device, seed: int = 0, *, odd: bool = True) -> Batch:
    """The same as a batch."""
    return Batch(NAMES, tensors(on, seed, odd=odd))


def normal(on: torch.device, *shape: int, source: torch.Generator) -> Tensor:
    """Normal values that are the same on every device."""
    return torch.randn(*shape, generator=source).to(on)


def scratch(label: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A new buffer, as methods get from their workspace."""
    return Workspace().scratch((label,), size, dtype, device).zero_()


def listed(selections: Sequence[Any]) -> list[Tensor]:
    """Values and places of some selections."""
    return [part for one in selections for part in (one.values, one.indices)]


def _said(value: object) -> str:
    return repr(value).replace(", factor=None", "")


# Passes over whole tensors


@each(weight=(1.0, -0.37))
def add_and_scale(device: torch.device, weight: float) -> None:
    """a + weight * b and weight * a."""

    def run(on: torch.device) -> list[Tensor]:
        x, to = batch(on), batch(on, 1)
        total = batches.add(x, tensors(on, 2), to.tensors, weight)
        scaled = x.like([torch.empty_like(one) for one in x.tensors])
        batches.scale(x, weight, scaled)
        return [*total.tensors, *scaled.tensors]

    both(device, run)


@each()
def sums_to_rounding_and_peaks_to_the_bit(device: torch.device) -> None:
    """Sums are added in another order, in float64."""
    both(device, lambda on: [sums.peaks(batch(on))])
    for odd in (False, True):
        x = batch(CPU, odd=odd)
        expected = batches.energies(x), *sums.squares(x), sums.magnitudes(x)
        with on_gpu(device):
            x = batch(device, odd=odd)
            found = batches.energies(x), *sums.squares(x), sums.magnitudes(x)
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, theirs, rtol=1e-13)


@each(weight=(1.0, 0.5))
def energies_of_a_sum(device: torch.device, weight: float) -> None:
    """A sum tells the energies that a pass of its own finds."""
    with on_gpu(device):
        x = batch(device, odd=False)
        total = batches.add(x, tensors(device, 2, odd=False), x.tensors, weight, measured=True)
        expect(total.energies is not None, "the sum has no energies")
        same(total.energies, batches.energies(Batch(total.names, total.tensors)))  # type: ignore[arg-type]


@each(
    method=(ErrorFeedback(EFSignSGD()), Uniform(8), Dense()),
    unit=("layer", "model"),
    sends_first=(False, True),
)
def a_step_that_is_not_finite_is_discarded(
    device: torch.device, method: Compressor, unit: str, sends_first: bool
) -> None:
    """No kernel of the CPU looks, and the name is read afterwards. ``sends_first``: payloads are sent before
    the signals are read, a NaN travels, and states are put back."""
    like = {str(n): torch.zeros(n, device=device) for n in (40, 2100)}
    parameters = {name: nn.Parameter(one) for name, one in like.items()}
    world = World(1 if sends_first else 2, size=2, device=device)
    last = world.local - 1
    source = torch.Generator().manual_seed(0)
    states: object = []
    with (
        on_gpu(device),
        patch.object(ending, "on_cpu", lambda tensor: False),
        patch.object(ending, "SEND_FIRST", {device.type} if sends_first else set()),
    ):
        exchange = Exchange(method, parameters, world, unit=unit)
        junction = AfterBackward(exchange, parameters)
        for broken in (None, "2100", None):
            junction.begin(Plan(0))
            for worker in range(world.local):
                for name, parameter in parameters.items():
                    parameter.grad = normal(device, int(name), source=source)
                    if worker == last and name == broken:
                        parameter.grad[2050] = math.nan
                expect(junction.open() is None, "the host has looked")
            happened, _ = junction.settle([], finite=True)
            now = [exchange.states(worker) for worker in range(world.local)]
            if broken:
                kept = zip(tensors_of(states), tensors_of(now), strict=True)
                expect(all(torch.equal(*pair) for pair in kept), "a state has changed")
            states = map_tensors(now, Tensor.clone)
            expect(happened == (broken is None), f"the step has happened: {happened}")
            named, wanted = junction.named(), [*[None] * last, broken]
            expect(named == wanted, f"not finite: {named}, expected {wanted}")


@each(
    method=(
        ErrorFeedback(Ladder((Dense(), Uniform(8), Uniform(4)))),
        Ladder((Dense(), ErrorFeedback(Uniform(8)), ErrorFeedback(Uniform(4)))),
        Ladder((Dense(), Uniform(8), Uniform(4))),
    )
)
def a_tensor_that_is_read_in_another_part_hides_nothing(
    device: torch.device, method: Compressor
) -> None:
    """A rung of its own for one tensor makes parts of a batch: what kernels note of a part counts."""
    parameters = {n: nn.Parameter(torch.zeros(300, device=device)) for n in "abc"}
    world = World(1, size=2, device=device)
    source = torch.Generator().manual_seed(0)
    with (
        on_gpu(device),
        patch.object(ending, "on_cpu", lambda tensor: False),
        patch.object(ending, "SEND_FIRST", {device.type}),
    ):
        junction = AfterBackward(Exchange(method, parameters, world), parameters)
        for plan, broken in ((Plan(1), ""), (Plan(1, {"b": 2}), "b"), (Plan(1, {"b": 2}), "")):
            junction.begin(plan)
            for name, parameter in parameters.items():
                parameter.grad = normal(device, 300, source=source)
                if name == broken:
                    parameter.grad[7] = math.nan
            junction.open()
            happened, _ = junction.settle([], finite=True)
            expect(happened != bool(broken), f"the step has happened: {happened}")
            kept = tensors_of(junction.exchange.states(0))
            expect(all(bool(one.isfinite().all()) for one in kept), "a state is not finite")


@each(sharded=(False, True))
def a_part_that_is_not_finite_is_discarded(device: torch.device, sharded: bool) -> None:
    """The same of a bucket of DDP's, and of a unit of FSDP's (``sharded``), which are sent first anyway."""
    sizes = {"40": 40, "2100": 2100}
    parameters = {name: nn.Parameter(torch.zeros(n, device=device)) for name, n in sizes.items()}
    world = World(1, size=2, device=device)
    source = torch.Generator().manual_seed(0)
    states: object = []
    with on_gpu(device), patch.object(ending, "on_cpu", lambda tensor: False):
        exchange = Exchange(ErrorFeedback(EFSignSGD()), parameters, world)
        for broken in (False, True, False):
            flat = normal(device, sum(sizes.values()), source=source)
            if broken:
                flat[2050] = math.nan
            views = dict(zip(sizes, flat.split(list(sizes.values())), strict=True))
            junction: Any
            if sharded:
                unit: Any = SimpleNamespace(name="unit", parts=lambda _, views=views: views)
                junction = PerUnit(exchange, parameters, world, [unit], {})
                handed: tuple[Any, ...] = (0, flat)
            else:
                junction = PerBucket(exchange, parameters)
                told = {
                    "index": 0, "buffer": flat, "gradients": [*views.values()], "is_last": True,
                    "parameters": [*parameters.values()],
                }  # fmt: skip
                bucket = SimpleNamespace(**{k: lambda one=one: one for k, one in told.items()})
                handed = (bucket, torch.futures.Future[Tensor]())
            junction.begin(Plan(0))
            junction.hand_over(*handed)
            expect(junction.open() is None, "the host has looked")
            happened, _ = junction.settle([], finite=True)
            expect(happened != broken, f"the step has happened: {happened}")
            now = exchange.states(0)
            if broken:
                kept = zip(tensors_of(states), tensors_of(now), strict=True)
                expect(all(torch.equal(*pair) for pair in kept), "a state has changed")
            states = map_tensors(now, Tensor.clone)
            named, wanted = junction.named(), ["2100" if broken else None]
            expect(named == wanted, f"not finite: {named}, expected {wanted}")
            exchange.step += 1


# Low rank


@each(r=(1, 3, 20))
def thin_products(device: torch.device, r: int) -> None:
    """Sums of the same terms in another order: off by at most (terms + 1) EPS of their magnitudes. What is
    subtracted is what is decoded."""
    of = Matrices.of(SHAPES, r)
    source = torch.Generator().manual_seed(r)
    m = [normal(device, *shape, source=source) for shape in SHAPES]
    p, q = (normal(device, sum(n), source=source) for n in (of.p_sizes, of.q_sizes))
    names, decoded = tuple(map(str, SHAPES)), [torch.empty_like(one) for one in m]
    by_rows, by_columns, left = torch.empty_like(p), torch.empty_like(q), [one.clone() for one in m]
    with on_gpu(device):
        lowrank.times(Batch(names, m), of, q, by_rows)
        lowrank.transposed_times(Batch(names, m), of, p, torch.empty(0, device=device), by_columns)
        lowrank.outer(Batch(names, decoded), of, p, q, 0.5, accumulate=False)
        lowrank.outer(Batch(names, left), of, p, q, -0.5, accumulate=True)
    for i, one in enumerate(m):
        dm, dp, dq = (x.cpu().double() for x in (one, of.each_p(p)[i], of.each_q(q)[i]))
        for found, left_side, right_side in (
            (of.each_p(by_rows)[i], dq, dm.t()), (of.each_q(by_columns)[i], dp, dm),
            (2 * decoded[i], dp.t(), dq),
        ):  # fmt: skip
            terms = left_side.shape[1]
            bound = (terms + 1) * EPS * (left_side.abs() @ right_side.abs())
            over = ((found.cpu() - left_side @ right_side).abs() - bound).max()
            expect(float(over) <= 0, f"a product of {names[i]} is {float(over):.1e} over its bound")
        same(left[i], one - decoded[i])


@each(r=(1, 5))
def orthonormal_rows_and_directions(device: torch.device, r: int) -> None:
    """Computed in float64 in another order, and rounded once: equal but for the last bit of a float32."""
    of = Matrices.of(SHAPES, r)
    source = torch.Generator().manual_seed(r)
    given = [torch.randn(sum(n), generator=source) for n in (of.p_sizes, of.q_sizes)]
    keys = np.arange(len(SHAPES), dtype=np.int32) * -77777777

    def run(on: torch.device) -> list[Tensor]:
        p, q = (one.to(on, copy=True) for one in given)
        p *= 1e-30
        of.each_p(p)[0][r // 2] = 0.0
        of.each_p(p)[2][-1] = 3 * of.each_p(p)[2][0]
        last = [one.clone() for one in of.each_q(q)]
        last[0][0], last[2][-1, 7], last[3][0, 2], last[3][-1, 1] = 0.0, math.inf, math.nan, 1e-42
        work = torch.empty(p.numel(), dtype=torch.float64, device=on)
        out, scaled = torch.empty_like(p), torch.empty_like(q)
        lowrank.orthonormal(p, of, work, out)
        lowrank.directions(Batch(("",) * len(last), last), of, lambda: keys, scaled)
        return [out, scaled]

    out, scaled = run(CPU)
    with on_gpu(device):
        ours, drawn = run(device)
    close(ours, out, rtol=2 * EPS, atol=1e-12)
    same(drawn, scaled)


@each()
def a_matrix_that_is_not_finite(device: torch.device) -> None:
    """It neither hangs nor hides."""
    of = Matrices.of(((9, 40), (5, 5)), 3)
    bad, good = torch.ones(9, 40, device=device), torch.ones(5, 5, device=device)
    bad[8, 39] = math.nan
    p, q = (torch.ones(sum(n), device=device) for n in (of.p_sizes, of.q_sizes))
    with on_gpu(device):
        lowrank.times(Batch(("bad", "good"), [bad, good]), of, q, p)
        unit = torch.empty_like(p)
        work = torch.empty(p.numel(), dtype=torch.float64, device=device)
        lowrank.orthonormal(p, of, work, unit)
    columns = of.each_p(p)[0].isnan().any(0).tolist()
    expect(columns == [False] * 8 + [True], f"NaN in columns {columns}")
    bad, good = of.each_p(unit)
    expect(not bool(bad.isfinite().any()), "a matrix with a NaN has finite directions")
    expect(bool(good.isfinite().all()), "the other matrix is not finite any more")


@each(odd=(False, True))
def sums_of_columns(device: torch.device, odd: bool) -> None:
    """Sums in float64 in another order; counts are exact."""
    columns = (70, 0, 1, 1, 11, 410)
    expected = sums.parts(batch(CPU, odd=odd), columns)
    with on_gpu(device):
        found = sums.parts(batch(device, odd=odd), columns)
    close(found, expected, rtol=1e-13)
    same(found[2], expected[2])
    source = torch.Generator().manual_seed(0)
    long = [torch.randn(n, generator=source) for n in (3000 * 5, 2**17 + 2100)]
    expected = sums.parts(Batch(("rows", "vector"), long), (5, 1))
    with on_gpu(device):
        found = sums.parts(Batch(("rows", "vector"), [one.to(device) for one in long]), (5, 1))
    close(found, expected, rtol=1e-13)


# Formats that have every value


@each(dtype=(torch.float16, torch.bfloat16))
def casts(device: torch.device, dtype: torch.dtype) -> None:
    """To 16 bits and back."""

    def run(on: torch.device) -> list[Tensor]:
        source = batch(on)
        source.tensors[3][10:20] = 3e38
        source.tensors[3][20:40] *= 1e-6
        half = torch.zeros(sum(SIZES), dtype=dtype, device=on)
        narrow.narrow(source, half)
        x, y = batch(on, 3, odd=False), batch(on, 3, odd=False)
        narrow.widen(half, x, 0.3, accumulate=False, saturate=True)
        narrow.widen(half, y, -1.0, accumulate=True)
        return [half, *x.tensors, *y.tensors]

    both(device, run)


def layouts(bits: int, block: int | None) -> CodeLayouts:
    """Of the tensors that are quantized."""
    return CodeLayouts([CodeLayout(n, block or 512, bits, block is not None) for n in CODED])


def first_values(x: Batch) -> Batch:
    """As many as are quantized."""
    return x.slices((0,) * len(CODED), CODED)


def parts(layout: CodeLayouts, buffer: Tensor) -> list[Tensor]:
    """Scales and codes of each tensor."""
    return [part for i in range(len(SIZES)) for part in layout.views(buffer, i)]


BITS = (
    (8, 2048), (2, 512), (3, None), (3, 500), (4, 100), (6, None), (7, 330), (9, 512), (12, None), (16, 99),
)  # fmt: skip


@each(bits_and_block=BITS, odd=(False, True))
def quantize_and_dequantize(
    device: torch.device, bits_and_block: tuple[int, int | None], odd: bool
) -> None:
    """Codes of every width."""
    bits, block = bits_and_block
    layout = layouts(bits, block)
    keys = np.arange(len(SIZES), dtype=np.int32) * -77777777
    rounding = (codes.NEAREST, codes.TOWARD_ZERO, codes.STOCHASTIC)[bits % 3]
    rule = codes.TWO_NORM if bits % 2 and block else codes.LARGEST

    def run(on: torch.device) -> list[Tensor]:
        buffers = [torch.zeros(layout.size, dtype=torch.uint8, device=on) for _ in range(2)]
        for seed, buffer in enumerate(buffers):
            x = first_values(batch(on, seed, odd=odd))
            codes.quantize(x, layout, buffer, rounding, keys, rule=rule)
        x, y = first_values(batch(on, 3, odd=False)), first_values(batch(on, 3, odd=False))
        layout.decode(x, buffers, 0.3, accumulate=False)
        layout.decode(y, buffers[:1], -1.0, accumulate=True)
        found = [part for buffer in buffers for part in parts(layout, buffer)]
        return [*found, *x.tensors, *y.tensors]

    both(device, run)


@each(
    rounding=(codes.NEAREST, codes.TOWARD_ZERO, codes.STOCHASTIC),
    rule=(codes.LARGEST, codes.TWO_NORM, codes.GIVEN),
)
def every_rounding_with_every_scale(device: torch.device, rounding: int, rule: int) -> None:
    """Few levels; values at the ends of what a float32 holds."""
    block = None if rule == codes.GIVEN else 256
    layout = layouts(4, block)
    keys = np.arange(len(SIZES), dtype=np.int32)

    def run(on: torch.device) -> list[Tensor]:
        buffer = torch.zeros(layout.size, dtype=torch.uint8, device=on)
        for i in range(len(SIZES)):
            layout.views(buffer, i)[0].fill_((0.01, 1e-41, 0.0)[i % 3])
        x = first_values(batch(on, odd=False))
        x.tensors[3].mul_(3e37 / float(x.tensors[3].abs().max()))
        codes.quantize(x, layout, buffer, rounding, keys, levels=1, rule=rule)
        decoded = first_values(batch(on, odd=False))
        layout.decode(decoded, [buffer], 1.0, accumulate=False)
        return [*parts(layout, buffer), *decoded.tensors]

    both(device, run)


@each(levels=(2, 0, 1, 6, 1400))
def packed_signs(device: torch.device, levels: int) -> None:
    """Signs, their decoding, and the vote of several workers."""
    counts = tuple(levels if n else 0 for n in SIZES)
    layout = SignLayout(SIZES, counts)

    def run(on: torch.device) -> list[Tensor]:
        buffers = [torch.zeros(layout.size, dtype=torch.uint8, device=on) for _ in range(4)]
        for seed, buffer in enumerate(buffers):
            source = torch.Generator().manual_seed(seed)
            if levels:
                layout.put(buffer, normal(on, sum(counts), source=source))
            signs.pack(batch(on, seed), layout, buffer, zero_too=seed % 2 == 1)
        x, y, votes = batch(on, 3, odd=False), batch(on, 3, odd=False), batch(on, odd=False)
        layout.decode(x, buffers, 0.3, accumulate=False)
        layout.decode(y, buffers[:1], -1.0, accumulate=True)
        signs.vote(votes, layout, buffers)
        return [*buffers, *x.tensors, *y.tensors, *votes.tensors]

    both(device, run)


@each()
def packed_powers(device: torch.device) -> None:
    """Powers of two, as `Natural` sends them."""
    layout = PowerLayout(SIZES)
    keys = np.arange(len(SIZES), dtype=np.int32) * 99999999

    def run(on: torch.device) -> list[Tensor]:
        buffers = [torch.zeros(layout.size, dtype=torch.uint8, device=on) for _ in range(2)]
        for seed, buffer in enumerate(buffers):
            powers.pack(batch(on, seed), keys, layout, buffer)
        x, y = batch(on, 3, odd=False), batch(on, 3, odd=False)
        layout.decode(x, buffers, 0.3, accumulate=False)
        layout.decode(y, buffers[:1], -1.0, accumulate=True)
        return [*buffers, *x.tensors, *y.tensors]

    both(device, run)


# Selections


@each(odd=(False, True), widths=(gpu_chosen.SMALL, gpu_chosen.LARGE))
def topk(device: torch.device, odd: bool, widths: tuple[int, ...]) -> None:
    """Several numbers of entries from one batch."""
    ks = [(690, 5, 3, 2000, 20, 4099), (150, 0, 1, 40, 19, 60), (7, 0, 0, 40, 1, 1)]

    def run(on: torch.device) -> list[Tensor]:
        found = chosen.topk(batch(on, odd=odd), ks, scratch)
        return [part for one in found for part in listed(list(one))]

    with patch.object(gpu_chosen, "WIDTHS", widths):
        both(device, run)


@each()
def topk_of_ties_takes_the_lower_index(device: torch.device) -> None:
    """Every value is as large as the others."""

    def run(on: torch.device) -> list[Tensor]:
        x = Batch(
            ("ones", "few"),
            [torch.ones(5000, device=on), torch.tensor([1.0, -1.0, 1.0], device=on)],
        )
        found = chosen.topk(x, [(4500, 2)], scratch)[0]
        return [found.indices, found.values]

    indices, _ = both(device, run)
    expect(indices.tolist() == [*range(4500), 0, 1], "ties do not go to the lower index")


@each(odd=(False, True))
def what_reaches_a_limit(device: torch.device, odd: bool) -> None:
    """Entries above a threshold, and of those the ones above a higher one."""
    limits = np.array([0.5, 0.0, 9.0, 1.0, 1e-39, 0.0], dtype=np.float32).view(np.int32)
    for most in (0, 150, 10**6):

        def run(on: torch.device, most: int = most) -> list[Tensor]:
            x = batch(on, odd=odd)
            found = chosen.reaching(x, limits, np.full(len(x), most), scratch)
            again = found.values_of(x)
            some = chosen.reaching(again, limits + 9, again.counts, scratch, through=found)
            return listed([*found, *some])

        both(device, run)


@each(method=SELECTIONS, odd=(False, True))
def threshold_methods(device: torch.device, method: Any, odd: bool) -> None:
    """SIDCo's thresholds are equal to C's to 2^-40 before they are rounded to float32, so that selections
    differ once in a great many cases: not here."""

    def run(on: torch.device) -> list[Tensor]:
        x = batch(on, odd=odd)
        x.tensors[4].mul_(1e38)
        return listed(list(select_all(method, x, context(int(odd)))))

    both(device, run)


@each(step=(0, 1))
def redsync_quantized_takes_the_other_sign(device: torch.device, step: int) -> None:
    """Where there is one sign alone."""
    method = RedSync(0.05, search_from=300, quantized=True)
    few = torch.zeros(400)
    few[[3, 7]] = torch.tensor([-2.0, 1e-40])  # fewer than k of either sign

    def run(on: torch.device) -> list[Tensor]:
        rows = [heavy_tailed(500, seed, 1.0) for seed in range(2)]
        cases = (rows[0].abs(), -rows[0].abs(), few, torch.zeros(40), rows[1].abs()[:90] * -1)
        x = Batch(tuple("abcde"), [one.to(on, copy=True) for one in cases])
        return listed(list(select_all(method, x, context(step))))

    found = both(device, run)
    signs = [float(values.sign().unique()) for values in found[::2]]
    expect(signs == [1, -1, 1 if step == 0 else -1, 0, -1], f"signs {signs}")
    expect(len(found[4]) == 1, f"{len(found[4])} entries of the smallest tensor")


@each(is_slow=True)
def thresholds_of_larger_tensors(device: torch.device) -> None:
    """Several chunks of each sum: an odd number of them, and a power of two."""

    def run(on: torch.device) -> list[Tensor]:
        given = [heavy_tailed(n, seed, 1.0).to(on) for seed, n in ((1, 20_000), (2, 16_384))]
        x = Batch(("odd", "even"), given)
        found: list[Any] = [select_all(method, x, context()) for method in SELECTIONS]
        return [part for one in found for part in listed(list(one))]

    both(device, run)


@each(density_and_seed=((0.05, 3), (0.1, 31)))
def dgc_lowers_a_threshold(device: torch.device, density_and_seed: tuple[float, int]) -> None:
    """With these seeds 0.71 k entries pass the sampled threshold."""
    density, seed = density_and_seed

    def run(on: torch.device) -> list[Tensor]:
        x = Batch(("w",), [heavy_tailed(20_000, seed).to(on)])
        return listed(list(select_all(DGCSampled(density), x, context(seed))))

    values, _ = both(device, run)
    share = values.numel() / (20_000 * density)
    expect(0.8 <= share <= 1, f"{share:.2f} of the wanted entries")


# Sparse payloads


@each(indices=("auto", "int32", "delta16", "bitmap"), shared=(False, True))
def sparse(device: torch.device, indices: str, shared: bool) -> None:
    """Two payloads, their sum, and zeros where one has entries."""
    ks = [(90, 0, 1, 2000, 20, 60), (1, 0, 1, 3, 33, 2500)]

    def run(on: torch.device) -> list[Tensor]:
        sent = []
        for seed, k in enumerate(ks):
            one = chosen.topk(batch(on, seed, odd=False), [k], scratch)[0]
            sent.append(Sparse.of(NAMES, one, scratch, indices=indices, shared=shared))
        (like,) = sent[0].announced(sent[1].lengths)
        sent[1] = like.like(sent[1].row)
        x, y, zeros = (batch(on, 3, odd=False) for _ in range(3))
        sent[0].add_sum_to_(sent[1:], x, 0.3, accumulate=False)
        sent[1].add_sum_to_((), y, -1.0, accumulate=True)
        sent[1].zero_at_(zeros)
        chosen_of_each = [part for s in sent for part in listed(list(s.selections()))]
        return [*(s.buffer for s in sent), *x.tensors, *y.tensors, *zeros.tensors, *chosen_of_each]

    both(device, run)


@each(is_slow=True, travels=(False, True))
def keyed(device: torch.device, travels: bool) -> None:
    """Random-k: places are drawn from a key. ``travels``: whether the key does."""
    layout = KeyedLayout(SIZES, (2, 0, 1, 2100, 20, 60), travels)
    keys = [torch.arange(len(SIZES), dtype=torch.int32) * seed for seed in (12345678, -7)]

    def run(on: torch.device) -> list[Tensor]:
        buffers = [torch.zeros(layout.size, dtype=torch.uint8, device=on) for _ in keys]
        sent = [
            Keyed.of(batch(on, i, odd=False), layout, keys[i].to(on), buffers[i], scaled=i == 1)
            for i in range(2)
        ]
        x, y, zeros = (batch(on, 3, odd=False) for _ in range(3))
        sent[0].add_sum_to_(sent[1:], x, 0.3, accumulate=False)
        sent[1].add_sum_to_((), y, -1.0, accumulate=True)
        sent[1].zero_at_(zeros)
        expect(sent[0].names == NAMES, f"names {sent[0].names}")
        return [*buffers, *x.tensors, *y.tensors, *zeros.tensors]

    both(device, run)


@each()
def gaps_longer_than_a_code(device: torch.device) -> None:
    """DELTA16 writes escapes, several in a row, in front of the entries of a later tile too."""
    n = 600_000
    x = torch.zeros(n)
    x[torch.arange(2200)] = 1.0
    x[[70_000, 400_000, 599_999]] = torch.tensor([2.0, -3.0, 4.0])

    def run(on: torch.device) -> list[Tensor]:
        values = torch.cat([x[x != 0], torch.ones(1)])
        places = torch.cat([x.nonzero().view(-1), torch.tensor([199_999])]).int()
        batch = Batch(("few", "none"), [x.to(on, copy=True), torch.zeros(200_000, device=on)])
        found = chosen.Selections((n, 200_000), (2203, 1), values.to(on), places.to(on))
        sent = Sparse.of(batch.names, found, scratch, indices="delta16")
        to = batch.like([torch.empty(n, device=on), torch.empty(200_000, device=on)])
        sent.copy_to_(to, 1.0)
        return [sent.buffer, *to.tensors]

    same(both(device, run)[1], x)


@each()
def a_broken_payload_stays_inside_its_tensors(device: torch.device) -> None:
    """Places that are no places are not written to."""
    one = chosen.topk(batch(device, odd=False), [(90, 0, 1, 2000, 20, 60)], scratch)[0]
    for indices in ("int32", "delta16", "bitmap"):
        sent = Sparse.of(NAMES, one, scratch, indices=indices)
        fences = torch.zeros(len(SIZES), 6000, device=device)
        inside = [row[500 : 500 + n] for row, n in zip(fences, SIZES, strict=True)]
        for damage in range(4):
            broken = sent.buffer.clone()
            source = torch.Generator().manual_seed(damage)
            for i in range(len(SIZES)):
                words = sent.layout.view(broken, i, 1)
                low, high = torch.iinfo(words.dtype).min, torch.iinfo(words.dtype).max
                drawn = torch.randint(low, high, words.shape, generator=source, dtype=torch.int64)
                words.copy_(drawn)
            with on_gpu(device):
                sent.like(broken).add_to_(Batch(NAMES, inside), 1.0)
        for row, n in zip(fences, SIZES, strict=True):
            outside = int(row[:500].count_nonzero()) + int(row[500 + n :].count_nonzero())
            expect(not outside, f"{outside} values were written outside of a tensor")
