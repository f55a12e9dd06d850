"""Run by Triton's interpreter, every GPU kernel gives the bits of the C kernel.

test_gpu.py runs this file in a process of its own: Triton reads TRITON_INTERPRET when it is imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numeric import EPS, context, heavy_tailed
from torch import Tensor, nn

from dgc_repro import DGCSampled, RedSync, SIDCo, Threshold
from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.gtopk import GTopK
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.sidco import FITS
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.sparsifier import select_all
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.ddp import AfterBackward, Junction
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.settle import settle
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.two_level import InsideNodes
from dgc_repro.exchange.wire import Link
from dgc_repro.kernel import batch as batches
from dgc_repro.kernel import chosen, codes, lowrank, narrow, native, powers, signs, sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.codes import CodeLayout, CodeLayouts
from dgc_repro.kernel.gpu.launch import Launches
from dgc_repro.kernel.lowrank import Matrices
from dgc_repro.kernel.powers import PowerLayout
from dgc_repro.kernel.signs import SignLayout
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.payload import Keyed, KeyedLayout, Sparse
from dgc_repro.payload import sparse as sparse_payload
from dgc_repro.policy.interface import Plan

# numpy's, of a NaN or of an integer that wraps
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SIZES = (700, 0, 1, 2100, 33, 4100)


@contextmanager
def on_gpu() -> Iterator[None]:
    """Tensors on the CPU take the kernels of the GPU."""
    with (
        patch.object(native, "usable", lambda tensor: False),
        patch.object(native, "library", lambda: None),
        patch.object(batches, "on_gpu", lambda tensors: True),
        patch.object(sparse_payload, "on_gpu", lambda tensors: True),
    ):
        before = Launches.count
        yield
        assert Launches.count > before


def tensors(seed: int = 0, *, odd: bool = True) -> list[Tensor]:
    """Heavy-tailed values with ties, zeros of both signs and denormal numbers; ``odd``: with what is not
    finite in some tensors too."""
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
    return found


CONTEXT = Context("batch", 0, 0, 0, 2, None, (0, 0), Workspace())


def batch(seed: int = 0, *, odd: bool = True) -> Batch:
    return Batch(tuple(map(str, SIZES)), tensors(seed, odd=odd))


def same(ours: Tensor, theirs: Tensor) -> None:
    """Equal bits; of a NaN the place alone."""
    if ours.is_floating_point():
        assert torch.equal(ours.isnan(), theirs.isnan())
        ours, theirs = ours.nan_to_num(nan=1.0), theirs.nan_to_num(nan=1.0)
        kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ours.element_size()]
        ours, theirs = ours.view(kind), theirs.view(kind)
    assert torch.equal(ours, theirs)


def both(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Run with C and on the GPU, compare, and return the results."""
    assert native.library() is not None
    theirs = run()
    with on_gpu():
        ours = run()
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        same(one, other)
    return theirs


@pytest.mark.parametrize("weight", [1.0, -0.37])
def test_add_and_scale(weight: float) -> None:
    def run() -> list[Tensor]:
        x, to = batch(), batch(1)
        total = batches.add(x, tensors(2), to.tensors, weight)
        scaled = x.like([torch.empty_like(one) for one in x.tensors])
        batches.scale(x, weight, scaled)
        return [*total.tensors, *scaled.tensors]

    both(run)


def test_sums_are_equal_to_rounding_and_peaks_to_the_bit() -> None:
    both(lambda: [sums.peaks(batch())])
    for odd in (False, True):
        x = batch(odd=odd)
        expected = batches.energies(x), *sums.squares(x), sums.magnitudes(x)
        with on_gpu():
            x = batch(odd=odd)
            found = batches.energies(x), *sums.squares(x), sums.magnitudes(x)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0, equal_nan=True)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_sum_tells_the_energies_that_a_pass_of_its_own_finds(weight: float) -> None:
    with on_gpu():
        x = batch(odd=False)
        total = batches.add(x, tensors(2, odd=False), x.tensors, weight, measured=True)
        assert total.energies is not None
        same(total.energies, batches.energies(Batch(total.names, total.tensors)))


@pytest.mark.parametrize("odd", [False, True])
def test_what_reads_every_value_leaves_whether_it_is_finite(odd: bool) -> None:
    """Without a pass of its own, and told apart by tensor; a sum that overflows says nothing."""
    with on_gpu():
        for read in (
            lambda x: batches.add(x, [torch.full_like(one, 3e38) for one in x.tensors], x.tensors),
            lambda x: batches.scale(x, 0.5, x),
            lambda x: batches.scale(x, torch.tensor(0.5), x),
            batches.energies,
            sums.peaks,
            lambda x: narrow.narrow(x, torch.empty(sum(SIZES), dtype=torch.bfloat16)),
            lambda x: SignSGD().encode_batch(x, CONTEXT),
            lambda x: Natural().encode_batch(x, CONTEXT),
            lambda x: QSGD(7).encode_batch(x, CONTEXT),
        ):
            x = batch(odd=odd)
            x.tensors[1 if odd else 0].fill_(3e38)
            read(x)
            (found,) = x.unchecked.peaks
            assert not x.unchecked
            assert found.first_non_finite() == (str(SIZES[0]) if odd else None)
        read(x)
        assert len(x.unchecked.peaks) == 1  # they are known


@pytest.mark.parametrize("unit", ["layer", "model"])
@pytest.mark.parametrize("node_size", [1, 2])
@pytest.mark.parametrize(
    "method", [ErrorFeedback(EFSignSGD()), Uniform(8), Dense()], ids=lambda x: type(x).__name__
)
def test_a_step_is_discarded_where_the_gpu_has_met_what_is_not_finite(
    method: Compressor, node_size: int, unit: str
) -> None:
    """No kernel of the CPU looks, and the name is read afterwards."""
    like = {str(n): torch.zeros(n) for n in (40, 2100)}
    parameters = {name: nn.Parameter(one) for name, one in like.items()}
    nodes, everybody = (
        Link(SimulatedWire(n), Ledger(), Clock(torch.device("cpu"))) for n in (2, 2 * node_size)
    )
    exchange = GradientExchange(method, parameters, nodes, unit=unit)
    junction: Junction = AfterBackward(exchange, parameters)
    if node_size > 1:
        junction = InsideNodes(exchange, parameters, SimulatedWire(node_size), node_size)
    finite = [None] * (2 * node_size)
    # The tensors of one vector, and what the second simulated worker adds to a dense mean, are looked at.
    on_cpu = unit == "model" or (isinstance(method, Dense) and node_size == 1)
    for broken in (None, "2100", None):
        junction.begin(Plan(0))
        with on_gpu():
            bad = []
            for worker, _ in enumerate(finite):
                for name, parameter in parameters.items():
                    parameter.grad = torch.randn(like[name].shape)
                    if worker == node_size and name == broken:
                        parameter.grad[2050] = math.nan
                bad.append(junction.open(worker))
            happened, *_ = settle(everybody, exchange, junction, [], Plan(0), finite=not any(bad))
        assert on_cpu or bad == finite
        assert happened == (broken is None)
        assert exchange.named(bad) == [broken if i == node_size else None for i in range(len(bad))]


@pytest.mark.parametrize("norm", [0.5, 1.0, 2.0, math.nan, math.inf])
def test_the_factor_of_a_norm_on_the_gpu_is_that_of_a_number(norm: float) -> None:
    clip = ClipLocal(Dense(), 1.0)
    factor = clip.factor(torch.tensor(norm, dtype=torch.float64), 2)
    assert torch.equal(factor, torch.tensor(clip.factor(norm, 2)))


SHAPES = ((66, 130), (1, 1), (3, 700), (40, 5), (200, 1))


@pytest.mark.parametrize("r", [1, 3, 20])
def test_thin_products(r: int) -> None:
    """Sums of the same terms in another order: off by at most (terms + 1) EPS of their magnitudes. What is
    subtracted is what is decoded."""
    of = Matrices.of(SHAPES, r)
    source = torch.Generator().manual_seed(r)
    m = [torch.randn(shape, generator=source) for shape in SHAPES]
    p, q = (torch.randn(sum(n), generator=source) for n in (of.p_sizes, of.q_sizes))
    names, decoded = tuple(map(str, SHAPES)), [torch.empty_like(one) for one in m]
    by_rows, by_columns, left = torch.empty_like(p), torch.empty_like(q), [one.clone() for one in m]
    with on_gpu():
        lowrank.times(Batch(names, m), of, q, by_rows)
        lowrank.transposed_times(Batch(names, m), of, p, torch.empty(0), by_columns)
        lowrank.outer(Batch(names, decoded), of, p, q, 0.5, accumulate=False)
        lowrank.outer(Batch(names, left), of, p, q, -0.5, accumulate=True)
    for i, one in enumerate(m):
        dm, dp, dq = one.double(), of.each_p(p)[i].double(), of.each_q(q)[i].double()
        for found, left_side, right_side in (
            (of.each_p(by_rows)[i], dq, dm.t()), (of.each_q(by_columns)[i], dp, dm),
            (2 * decoded[i], dp.t(), dq),
        ):  # fmt: skip
            terms = left_side.shape[1]
            bound = (terms + 1) * EPS * (left_side.abs() @ right_side.abs())
            assert bool(((found - left_side @ right_side).abs() <= bound).all())
        assert torch.equal(left[i], one - decoded[i])


@pytest.mark.parametrize("r", [1, 5])
def test_orthonormal_rows_and_directions(r: int) -> None:
    """Computed in float64 in another order, and rounded once: equal but for the last bit of a float32."""
    of = Matrices.of(SHAPES, r)
    source = torch.Generator().manual_seed(r)
    p, q = (torch.randn(sum(n), generator=source) for n in (of.p_sizes, of.q_sizes))
    p *= 1e-30
    of.each_p(p)[0][r // 2] = 0.0
    of.each_p(p)[2][-1] = 3 * of.each_p(p)[2][0]
    last = [one.clone() for one in of.each_q(q)]
    last[0][0], last[2][-1, 7], last[3][0, 2], last[3][-1, 1] = 0.0, math.inf, math.nan, 1e-42
    keys = np.arange(len(SHAPES), dtype=np.int32) * -77777777

    def run() -> tuple[Tensor, Tensor]:
        work, out, scaled = (
            torch.empty(p.numel(), dtype=torch.float64),
            torch.empty_like(p),
            torch.empty_like(q),
        )
        lowrank.orthonormal(p, of, work, out)
        lowrank.directions(Batch(("",) * len(last), last), of, lambda: keys, scaled)
        return out, scaled

    out, scaled = run()
    with on_gpu():
        ours, drawn = run()
    torch.testing.assert_close(ours, out, rtol=2 * EPS, atol=1e-12)
    same(drawn, scaled)


def test_a_matrix_that_is_not_finite_neither_hangs_nor_hides() -> None:
    of = Matrices.of(((9, 40), (5, 5)), 3)
    bad, good = torch.ones(9, 40), torch.ones(5, 5)
    bad[8, 39] = math.nan
    p, q = torch.ones(sum(of.p_sizes)), torch.ones(sum(of.q_sizes))
    with on_gpu():
        lowrank.times(Batch(("bad", "good"), [bad, good]), of, q, p)
        unit = torch.empty_like(p)
        lowrank.orthonormal(p, of, torch.empty(p.numel(), dtype=torch.float64), unit)
    assert of.each_p(p)[0].isnan().any(0).tolist() == [False] * 8 + [True]
    bad, good = of.each_p(unit)
    assert not bad.isfinite().any()
    assert good.isfinite().all()


@pytest.mark.parametrize("odd", [False, True])
def test_sums_of_columns(odd: bool) -> None:
    """Sums in float64 in another order; counts are exact."""
    columns = (70, 0, 1, 1, 11, 410)
    expected = sums.parts(batch(odd=odd), columns)
    with on_gpu():
        found = sums.parts(batch(odd=odd), columns)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0, equal_nan=True)
    assert torch.equal(found[2], expected[2])
    long = [torch.randn(3000 * 5), torch.randn(2**17 + 2100)]
    expected = sums.parts(Batch(("rows", "vector"), long), (5, 1))
    with on_gpu():
        found = sums.parts(Batch(("rows", "vector"), long), (5, 1))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casts(dtype: torch.dtype) -> None:
    def run() -> list[Tensor]:
        source = batch()
        source.tensors[3][10:20] = 3e38
        source.tensors[3][20:40] *= 1e-6
        half = torch.zeros(sum(SIZES), dtype=dtype)
        narrow.narrow(source, half)
        x, y = batch(3, odd=False), batch(3, odd=False)
        narrow.widen(half, x, 0.3, accumulate=False, saturate=True)
        narrow.widen(half, y, -1.0, accumulate=True)
        return [half, *x.tensors, *y.tensors]

    both(run)


CODED = (
    700,
    0,
    1,
    1100,
    33,
    70,
)  # values that are quantized: the interpreter takes a while for each row


def layouts(bits: int, block: int | None) -> CodeLayouts:
    return CodeLayouts([CodeLayout(n, block or 512, bits, block is not None) for n in CODED])


def first_values(x: Batch) -> Batch:
    return x.slices((0,) * len(CODED), CODED)


def parts(layout: CodeLayouts, buffer: Tensor) -> list[Tensor]:
    return [part for i in range(len(SIZES)) for part in layout.views(buffer, i)]


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(
    ("bits", "block"),
    [
        (2, 512),
        (3, None),
        (3, 500),
        (4, 100),
        (6, None),
        (7, 330),
        (8, 2048),
        (9, 512),
        (12, None),
        (16, 99),
    ],
)
def test_quantize_and_dequantize(bits: int, block: int | None, odd: bool) -> None:
    layout = layouts(bits, block)
    keys = np.arange(len(SIZES), dtype=np.int32) * -77777777
    rounding = (codes.NEAREST, codes.TOWARD_ZERO, codes.STOCHASTIC)[bits % 3]
    rule = codes.TWO_NORM if bits % 2 and block else codes.LARGEST

    def run() -> list[Tensor]:
        buffers = [torch.zeros(layout.size, dtype=torch.uint8) for _ in range(2)]
        for seed, buffer in enumerate(buffers):
            codes.quantize(
                first_values(batch(seed, odd=odd)), layout, buffer, rounding, keys, rule=rule
            )
        x, y = first_values(batch(3, odd=False)), first_values(batch(3, odd=False))
        layout.decode(x, buffers, 0.3, accumulate=False)
        layout.decode(y, buffers[:1], -1.0, accumulate=True)
        found = [part for buffer in buffers for part in parts(layout, buffer)]
        return [*found, *x.tensors, *y.tensors]

    both(run)


@pytest.mark.parametrize("rounding", [codes.NEAREST, codes.TOWARD_ZERO, codes.STOCHASTIC])
@pytest.mark.parametrize("rule", [codes.LARGEST, codes.TWO_NORM, codes.GIVEN])
def test_every_rounding_with_every_scale(rounding: int, rule: int) -> None:
    """Few levels; values at the ends of what a float32 holds."""
    block = None if rule == codes.GIVEN else 256
    layout = layouts(4, block)
    keys = np.arange(len(SIZES), dtype=np.int32)

    def run() -> list[Tensor]:
        buffer = torch.zeros(layout.size, dtype=torch.uint8)
        for i in range(len(SIZES)):
            layout.views(buffer, i)[0].fill_((0.01, 1e-41, 0.0)[i % 3])
        x = first_values(batch(odd=False))
        x.tensors[3].mul_(3e37 / float(x.tensors[3].abs().max()))
        codes.quantize(x, layout, buffer, rounding, keys, levels=1, rule=rule)
        decoded = first_values(batch(odd=False))
        layout.decode(decoded, [buffer], 1.0, accumulate=False)
        return [*parts(layout, buffer), *decoded.tensors]

    both(run)


@pytest.mark.parametrize("levels", [0, 1, 2, 6, 1400])
def test_signs(levels: int) -> None:
    counts = tuple(levels if n else 0 for n in SIZES)
    layout = SignLayout(SIZES, counts)

    def run() -> list[Tensor]:
        buffers = [torch.zeros(layout.size, dtype=torch.uint8) for _ in range(4)]
        for seed, buffer in enumerate(buffers):
            source = torch.Generator().manual_seed(seed)
            if levels:
                layout.put(buffer, torch.randn(sum(counts), generator=source))
            signs.pack(batch(seed), layout, buffer, zero_too=seed % 2 == 1)
        x, y, votes = batch(3, odd=False), batch(3, odd=False), batch(odd=False)
        layout.decode(x, buffers, 0.3, accumulate=False)
        layout.decode(y, buffers[:1], -1.0, accumulate=True)
        signs.vote(votes, layout, buffers)
        return [*buffers, *x.tensors, *y.tensors, *votes.tensors]

    both(run)


def test_powers() -> None:
    layout = PowerLayout(SIZES)
    keys = np.arange(len(SIZES), dtype=np.int32) * 99999999

    def run() -> list[Tensor]:
        buffers = [torch.zeros(layout.size, dtype=torch.uint8) for _ in range(2)]
        for seed, buffer in enumerate(buffers):
            powers.pack(batch(seed), keys, layout, buffer)
        x, y = batch(3, odd=False), batch(3, odd=False)
        layout.decode(x, buffers, 0.3, accumulate=False)
        layout.decode(y, buffers[:1], -1.0, accumulate=True)
        return [*buffers, *x.tensors, *y.tensors]

    both(run)


def scratch(label: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return Workspace().scratch((label,), size, dtype, device).zero_()


@pytest.mark.parametrize("odd", [False, True])
def test_topk(odd: bool) -> None:
    ks = [(690, 5, 3, 2000, 20, 4099), (150, 0, 1, 40, 19, 60), (7, 0, 0, 40, 1, 1)]

    def run() -> list[Tensor]:
        found = chosen.topk(batch(odd=odd), ks, scratch)
        return [part for one in found for every in one for part in (every.values, every.indices)]

    both(run)


def test_topk_of_ties_takes_the_lower_index() -> None:
    def run() -> list[Tensor]:
        x = Batch(("ones", "few"), [torch.ones(5000), torch.tensor([1.0, -1.0, 1.0])])
        found = chosen.topk(x, [(4500, 2)], scratch)[0]
        return [found.indices, found.values]

    indices, _ = both(run)
    assert indices.tolist() == [*range(4500), 0, 1]


@pytest.mark.parametrize("odd", [False, True])
def test_what_reaches_a_limit(odd: bool) -> None:
    limits = np.array([0.5, 0.0, 9.0, 1.0, 1e-39, 0.0], dtype=np.float32).view(np.int32)
    for most in (0, 150, 10**6):

        def run(most: int = most) -> list[Tensor]:
            x = batch(odd=odd)
            found = chosen.reaching(x, limits, np.full(len(x), most), scratch)
            again = found.values_of(x)
            some = chosen.reaching(again, limits + 9, again.counts, scratch, through=found)
            return [part for one in (*found, *some) for part in (one.values, one.indices)]

        both(run)


METHODS = [
    Threshold(0.1),
    Threshold(threshold=0.7),
    DGCSampled(0.1),
    RedSync(0.05, search_from=0),
    RedSync(0.3, search_from=2000),
    RedSync(0.05, search_from=0, quantized=True),
    *(SIDCo(d, fit=f, stages=n) for f in FITS for d, n in ((0.05, None), (0.3, 2), (0.01, 1))),
]


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_threshold_methods(method: Any, odd: bool) -> None:
    """SIDCo's thresholds are equal to C's to 2^-40 before they are rounded to float32, so that selections
    differ once in a great many cases: not here."""

    def run() -> list[Tensor]:
        x = batch(odd=odd)
        x.tensors[4].mul_(1e38)
        found = select_all(method, x, context(int(odd)))
        return [part for one in found for part in (one.values, one.indices)]

    both(run)


@pytest.mark.parametrize("step", [0, 1])
def test_redsync_quantized_takes_the_other_sign_where_there_is_one_alone(step: int) -> None:
    method = RedSync(0.05, search_from=300, quantized=True)
    few = torch.zeros(400)
    few[[3, 7]] = torch.tensor([-2.0, 1e-40])  # fewer than k of either sign

    def run() -> list[Tensor]:
        rows = [heavy_tailed(500, seed, 1.0) for seed in range(2)]
        given = [
            rows[0].abs(),
            -rows[0].abs(),
            few.clone(),
            torch.zeros(40),
            rows[1].abs()[:90] * -1,
        ]
        found = select_all(method, Batch(tuple("abcde"), given), context(step))
        return [part for one in found for part in (one.values, one.indices)]

    found = both(run)
    signs = [float(values.sign().unique()) for values in found[::2]]
    assert signs == [1, -1, 1 if step == 0 else -1, 0, -1]
    assert len(found[4]) == 1


@pytest.mark.parametrize("own", ["path", "result"])
def test_gtopk(own: str) -> None:
    """Of three workers; the second one also meets a listener."""
    method = GTopK(TopK(0.05), own=own)
    names = tuple(map(str, SIZES))

    def run() -> list[Tensor]:
        link = Link(SimulatedWire(3), Ledger(), Clock(torch.device("cpu")))
        like = dict(zip(names, tensors(odd=False), strict=True))
        exchange = GradientExchange(method, like, link)
        for worker in range(3):
            exchange.open(
                worker, dict(zip(names, tensors(worker, odd=False), strict=True)), Plan(0)
            )
        return list(exchange.finish().values())

    both(run)


@pytest.mark.parametrize("method", {type(one): one for one in METHODS}.values(), ids=str)
def test_a_step_of_one_worker_reads_its_sizes_with_the_signals(method: Compressor) -> None:
    """The payload is made after `settle` has read how many entries there are: means and residuals are C's."""
    names = tuple(map(str, SIZES))

    def run() -> list[Tensor]:
        link = Link(SimulatedWire(1), Ledger(), Clock(torch.device("cpu")))
        parameters = {name: nn.Parameter(x) for name, x in zip(names, tensors(), strict=True)}
        exchange = GradientExchange(ErrorFeedback(method), parameters, link)
        junction = AfterBackward(exchange, parameters)
        for seed in range(2):
            for name, gradient in zip(names, tensors(seed, odd=False), strict=True):
                parameters[name].grad = gradient
            junction.begin(Plan(0))
            assert junction.open(0) is None
            assert settle(link, exchange, junction, [], Plan(0), finite=True)[0]
        residuals = [exchange.states[0][name]["residual"] for name in names]
        return [*(p.grad for p in parameters.values()), *residuals]  # type: ignore[list-item]

    before = Launches.reads
    both(run)
    assert Launches.reads == before


def test_thresholds_of_larger_tensors() -> None:
    """Several chunks of each sum: an odd number of them, and a power of two."""

    def run() -> list[Tensor]:
        x = Batch(("odd", "even"), [heavy_tailed(20_000, 1, 1.0), heavy_tailed(16_384, 2, 1.0)])
        selections = [select_all(method, x, context()) for method in METHODS]
        return [
            part for one in selections for every in one for part in (every.values, every.indices)
        ]

    both(run)


@pytest.mark.parametrize(("density", "seed"), [(0.05, 3), (0.1, 31)])
def test_dgc_lowers_a_threshold_that_too_few_pass(density: float, seed: int) -> None:
    """With these seeds 0.71 k entries pass the sampled threshold."""
    method = DGCSampled(density)

    def run() -> list[Tensor]:
        x = Batch(("w",), [heavy_tailed(20_000, seed)])
        found = select_all(method, x, context(seed))
        return [found.values, found.indices]

    values, _ = both(run)
    assert 0.8 <= values.numel() / (20_000 * density) <= 1


@pytest.mark.parametrize("values", ["fp32", "fp16", "int8", "shared"])
@pytest.mark.parametrize("indices", ["auto", "int32", "delta16", "bitmap"])
def test_sparse_payload(indices: str, values: str) -> None:
    ks = [(90, 0, 1, 2000, 20, 60), (1, 0, 1, 3, 33, 2500)]
    names = tuple(map(str, SIZES))
    kind = "fp32" if values == "shared" else values

    def run() -> list[Tensor]:
        sent = []
        for seed, k in enumerate(ks):
            one = chosen.topk(batch(seed, odd=False), [k], scratch)[0]
            sent.append(Sparse.of(names, one, indices, kind, scratch, shared=values == "shared"))
        sent[1] = sent[0].announced(sent[1].lengths).like(sent[1].parts)
        x, y, zeros = batch(3, odd=False), batch(3, odd=False), batch(3, odd=False)
        sent[0].add_sum_to_(sent[1:], x, 0.3, accumulate=False)
        sent[1].add_sum_to_((), y, -1.0, accumulate=True)
        sent[1].zero_at_(zeros)
        listed = [
            part for s in sent for one in s.selections() for part in (one.values, one.indices)
        ]
        return [*(s.buffer for s in sent), *x.tensors, *y.tensors, *zeros.tensors, *listed]

    both(run)


@pytest.mark.parametrize(("values", "travels"), [("fp32", False), ("fp16", True), ("int8", True)])
def test_keyed_payload(values: str, travels: bool) -> None:
    names = tuple(map(str, SIZES))
    layout = KeyedLayout(SIZES, (2, 0, 1, 2100, 20, 60), values, travels)
    keys = [torch.arange(len(SIZES), dtype=torch.int32) * seed for seed in (12345678, -7)]

    def run() -> list[Tensor]:
        buffers = [torch.zeros(layout.size, dtype=torch.uint8) for _ in keys]
        sent = [
            Keyed.of(batch(i, odd=False), layout, keys[i], buffers[i], scaled=i == 1)
            for i in range(2)
        ]
        x, y, zeros = batch(3, odd=False), batch(3, odd=False), batch(3, odd=False)
        sent[0].add_sum_to_(sent[1:], x, 0.3, accumulate=False)
        sent[1].add_sum_to_((), y, -1.0, accumulate=True)
        sent[1].zero_at_(zeros)
        assert sent[0].names == names
        return [*buffers, *x.tensors, *y.tensors, *zeros.tensors]

    both(run)


def test_gaps_longer_than_a_code() -> None:
    """DELTA16 writes escapes, several in a row, in front of the entries of a later tile too."""
    n = 600_000
    x = torch.zeros(n)
    x[torch.arange(2200)] = 1.0
    x[[70_000, 400_000, 599_999]] = torch.tensor([2.0, -3.0, 4.0])

    def run() -> list[Tensor]:
        batch = Batch(("few", "none"), [x.clone(), torch.zeros(200_000)])
        found = chosen.Selections(
            (n, 200_000), (2203, 1), torch.cat([x[x != 0], torch.ones(1)]),
            torch.cat([x.nonzero().view(-1), torch.tensor([199_999])]).int(),
        )  # fmt: skip
        sent = Sparse.of(batch.names, found, "delta16", "fp32", scratch)
        to = batch.like([torch.empty(n), torch.empty(200_000)])
        sent.copy_to_(to, 1.0)
        return [sent.buffer, *to.tensors]

    assert torch.equal(both(run)[1], x)


def test_a_broken_payload_writes_nothing_outside_its_tensors() -> None:
    names = tuple(map(str, SIZES))
    one = chosen.topk(batch(odd=False), [(90, 0, 1, 2000, 20, 60)], scratch)[0]
    for indices in ("int32", "delta16", "bitmap"):
        sent = Sparse.of(names, one, indices, "fp32", scratch)
        fences = torch.zeros(len(SIZES), 6000)
        inside = [row[500 : 500 + n] for row, n in zip(fences, SIZES, strict=True)]
        for damage in range(4):
            broken = sent.buffer.clone()
            source = torch.Generator().manual_seed(damage)
            for i in range(len(SIZES)):
                words = sent.layout.view(broken, i, 1)
                words.random_(-(2**31), 2**31 - 1, generator=source)
            with on_gpu():
                sent.like([broken.view(torch.int64)]).add_to_(Batch(names, inside), 1.0)
        for row, n in zip(fences, SIZES, strict=True):
            assert not row[:500].any()
            assert not row[500 + n :].any()
