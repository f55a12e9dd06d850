"""Cases of passes over whole tensors: sums, finiteness, products, casts and codes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange import junction as ending
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.fsdp import PerUnit
from dgc_repro.exchange.junction import AfterBackward, PerBucket
from dgc_repro.exchange.world import World
from dgc_repro.kernel import batch as batches
from dgc_repro.kernel import codes, lowrank, narrow, powers, signs, sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.codes import CodeLayout, CodeLayouts
from dgc_repro.kernel.lowrank import Matrices
from dgc_repro.kernel.powers import PowerLayout
from dgc_repro.kernel.signs import SignLayout
from dgc_repro.nests import map_tensors, tensors_of
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.kernel_cases.base import (
    CODED,
    CPU,
    SHAPES,
    SIZES,
    batch,
    both,
    close,
    each,
    expect,
    normal,
    on_gpu,
    same,
    tensors,
)
from dgc_repro.selfcheck.values import EPS


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
    with on_gpu(device):
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
