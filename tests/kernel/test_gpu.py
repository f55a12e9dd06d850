"""GPU kernels without a GPU.

They are run by Triton's interpreter, compiled for four architectures, and counted on fake CUDA tensors."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from dgc_repro.bench.counting import CUDA, Counting
from dgc_repro.compressor.bf16 import BF16
from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Compressor, Context, exchange_all, nested
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.residual import expands
from dgc_repro.compressor.sidco import SIDCo
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.terngrad import TernGrad
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.fsdp import PerUnit
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.settle import settle
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.payload import Gathered
from dgc_repro.payload.requests import Gather, Many, Mean
from dgc_repro.policy.interface import Plan

triton = pytest.importorskip("triton", reason="the GPU kernels need Triton")

HERE = Path(__file__).parent
ARCHITECTURES = (70, 75, 80, 90)  # V100, T4, A100, H100


@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="the interpreter of older Tritons cannot loop to a number that a kernel has read",
)
def test_every_kernel_gives_the_bits_of_the_c_kernel() -> None:
    """In a process of its own: Triton reads the variable when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(HERE / "gpu_interpreted.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


# What a kernel's arguments are, by their names; all others are tables of i64.
TYPES = {
    "owner": "*i32", "state": "*i32", "hists": "*i32", "found": "*i32", "indices": "*i32", "keys": "*i32",
    "largest": "*i32", "escapes_before": "*i32", "limits": "*i32", "whole": "*i32", "offsets": "*u64",
    "values": "*fp32", "peaks": "*fp32", "sums": "*fp64", "totals": "*fp64", "reals": "*fp64",
    "above": "*fp64", "signs": "*i32", "weight": "fp32", "limit": "fp32", "share": "fp32", "most": "fp32",
    "first_share": "fp32", "sources": "i32", "num": "i32", "num_tiles": "i32", "num_chunks": "i32",
    "stage": "i32", "total": "i32", "start": "i32", "num_sums": "i32", "num_columns": "i32", "p": "*fp32",
    "q": "*fp32", "out": "*fp32", "work": "*fp64", "r": "i32", "dependent": "fp32",
}  # fmt: skip
FUSED = ("_add", "_times", "_transposed_times", "_outer")
PACKED = {
    2: (4, 1),
    3: (8, 3),
    6: (4, 3),
    8: (1, 1),
    16: (1, 2),
}  # bits: codes and bytes of a group


def kernels() -> list[tuple[Any, dict[str, Any]]]:
    """Every kernel, with its constants."""
    from dgc_repro.kernel.gpu import (
        bits,
        chosen,
        codes,
        dense,
        keyed,
        launch,
        lowrank,
        sparse,
        thresholds,
    )

    columns = {"WIDTH": dense.COLUMNS, "STEP": dense.STEP}
    row = [
        {"BITS": b, "G": g, "B": size, "PER_ROW": b < 8, "CHUNK": 512 // g}
        for b, (g, size) in PACKED.items()
    ]
    return [
        (launch._scan, {"WIDTH": 1024}),
        *((dense._add, {"PLAIN": a, "MEASURED": a, "TILE": 2048}) for a in (False, True)),
        *((dense._scale, {"READ": read, "TILE": 2048}) for read in (False, True)),
        (dense._column_parts, {"HEIGHT": dense.HEIGHT, **columns}),
        (dense._fold_columns, columns),
        (dense._zero, {"TILE": 2048}),
        *((dense._narrow, {"HALF": half, "TILE": 2048}) for half in (False, True)),
        *((dense._widen, {"HALF": a, "ACCUMULATE": a, "TILE": 2048}) for a in (False, True)),
        *((dense._parts, {"KIND": kind, "TILE": 2048}) for kind in range(3)),
        *((dense._fold, {"KIND": kind, "WIDTH": 1024}) for kind in (0, 2)),
        *(
            (codes._quantize, {"ROUNDING": i % 3, "RULE": i % 3, **one})
            for i, one in enumerate(row)
        ),
        *((codes._dequantize, {"ACCUMULATE": i % 2 == 0, **one}) for i, one in enumerate(row)),
        (bits._pack_signs, {"ZERO_TOO": True}),
        *((bits._decode_signs, {"ACCUMULATE": a, "COLUMNS": a}) for a in (False, True)),
        (bits._vote, {}),
        (bits._pack_powers, {}),
        *((bits._decode_powers, {"ACCUMULATE": a}) for a in (False, True)),
        *(
            (
                chosen._histogram,
                {
                    "RANKS": 1 + shift // 20,
                    "SHIFT": shift,
                    "WIDTH": width,
                    "TILE": 2048,
                    "TILES": 8,
                },
            )
            for shift, width in chosen.PASSES
        ),
        *((chosen._pick, {"FIRST": first, "WIDTH": 10 + first}) for first in (False, True)),
        (chosen._count, {"TILE": 2048}),
        (chosen._fill, {"WIDTH": 1024}),
        (chosen._write, {"TILE": 2048}),
        (thresholds._sample, {"TILE": 1024}),
        (thresholds._lower, {"SHARE": 0.8, "ROUNDS": 10}),
        *((thresholds._search, {"HALVINGS": 32, "ZEROS": a, "WIDTH": 1024}) for a in (False, True)),
        (thresholds._keep_sign, {"TILE": 1024}),
        (thresholds._average, {"WIDTH": 1024}),
        *(
            (
                thresholds._moments,
                {"ABOVE": not logs, "SECOND": not logs, "LOGS": logs, "TILE": 4096},
            )
            for logs in (False, True)
        ),
        *(
            (thresholds._fit, {"FIRST": logs, "SECOND": not logs, "LOGS": logs, "WIDTH": 1024})
            for logs in (False, True)
        ),
        (thresholds._settle, {}),
        (sparse._begin, {"KIND": 3, "TILE": 2048}),
        (sparse._escapes, {"TILE": 2048}),
        *((sparse._write, {"KIND": kind, "TILE": 2048}) for kind in range(4)),
        (sparse._passed, {"WORDS_EACH": 256}),
        *(
            (keyed._gather, {"KIND": kind, "TRAVELS": True, "SCALED": True, "TILE": 2048})
            for kind in range(3)
        ),
        *((keyed._scatter, {"KIND": k, "ZERO": k == 0, "TILE": 2048}) for k in range(3)),
        *(
            (sparse._put, {"KIND": k, "ZERO": k == 0, "WORDS_EACH": 256, **dict.fromkeys(none)})
            for k in range(4)
            for none in (("x",), ("values", "indices", "starts"))
        ),
        (lowrank._directions, {"WIDTH": lowrank.WIDTH}),
        *((lowrank._orthonormal, {"R": r, "WIDTH": width}) for r, width in ((1, 512), (64, 32))),
        *(
            (kernel, {"R": r, "ROWS": lowrank.ROWS, "COLS": lowrank.COLS, **more})
            for r in (16, 64)
            for kernel, more in (
                (lowrank._times, {}),
                (lowrank._transposed_times, {}),
                (lowrank._outer, {"ACCUMULATE": r == 16}),
            )
        ),
    ]


def is_kernel(function: Any) -> bool:
    return isinstance(function, triton.JITFunction) and "owner" in function.arg_names


def test_the_list_has_every_kernel() -> None:
    from dgc_repro.kernel import gpu
    from dgc_repro.kernel.gpu import bits, launch

    names = [one.name for one in pkgutil.iter_modules(gpu.__path__)]
    modules = [importlib.import_module(f"dgc_repro.kernel.gpu.{name}") for name in names]
    every = {f.fn for module in modules for f in vars(module).values() if is_kernel(f)}
    helpers = {launch.tile.fn, bits._row.fn}
    assert every - helpers == {kernel.fn for kernel, _ in kernels()}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_rounds_as_c_does(architecture: int) -> None:
    """No sum of a product is fused but in `add` and matrix products, and no number is flushed to zero.
    (Logarithm and cosine are functions of f64, rounded to f32 afterwards.)"""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, constants in kernels():
        names = kernel.arg_names
        types = {name: TYPES.get(name, "*i64") for name in names} | {"half": "*i16"}
        name = kernel.fn.__name__
        if name == "_narrow":
            types["to"] = "*i16"
        if name == "_quantize" and constants["PER_ROW"]:
            types["peaks"] = "*i32"
        if name == "_scale" and constants["READ"]:
            types["weight"] = "*fp32"
        built = triton.compile(
            ASTSource(
                fn=kernel,
                signature={n: "constexpr" if n in constants else types[n] for n in names},
                constexprs={(names.index(name),): value for name, value in constants.items()},
            ),
            target=GPUTarget("cuda", architecture, 32),
            options={"num_warps": 4, "enable_fp_fusion": False},
        )
        assert built.asm["cubin"]
        assert built.metadata.shared <= 48 * 1024
        text = built.asm["ptx"]
        rounded = set(re.findall(r"\b(?:fma|\w+\.approx|\w+\.full|\w+\.ftz)[\w.]*", text))
        # floor of a negative denormal number is then 0 and not -1, and stochastic rounding makes 0 of both
        rounded -= {name for name in rounded if name.startswith("rmi.ftz")}
        # The library's float64 logarithm and exponential, whose last bits are the device's.
        library = {"fma.rn.f64", "rcp.approx.ftz.f64", "abs.ftz.f32"}
        allowed = {"fma.rn.f32"} if name in FUSED else library if name == "_fit" else set()
        if name == "_directions":
            rounded = {one for one in rounded if not one.endswith("f64")}
        assert rounded <= allowed, (name, rounded)


with torch.device("meta"):
    SHAPES = [p.shape for p in ResNet101().build(1000).parameters()]
SIZES = (*([64, 64 * 64 * 9, 64 * 256] * 100), 2048 * 1000, 1000)


def answered(request: Any, counting: Counting) -> Any:
    """What comes back where another worker sends the same."""
    if isinstance(request, Many):
        return {key: answered(asked, counting) for key, asked in request.asked.items()}
    if isinstance(request, Gather):
        payload = request.made().payload
        other = payload.like([part.clone() for part in payload.parts])
        counting.operations.remove("clone")
        return Gathered([payload, other])
    assert isinstance(request, Mean)
    return request.tensor.tensors if isinstance(request.tensor, Batch) else request.tensor


def exchanged(compressor: Compressor, shapes: Sequence[Sequence[int]] | None = None) -> Counting:
    """One exchange of fake CUDA tensors with another worker, who sends the same."""
    shapes = [(n,) for n in SIZES] if shapes is None else shapes
    workspace = Workspace()
    with Counting() as counting:
        tensors: list[Tensor] = [torch.empty(*shape, device=CUDA) for shape in shapes]
        names = tuple(f"p{i}" for i in range(len(shapes)))
        batch = Batch(names, tensors)
        assert batch.on_gpu
        context = Context(
            "batch", 0, 0, 0, 2, 0, (0, 0), workspace, own_is_read=False, into=tensors
        )
        states = [compressor.init(tensor) for tensor in tensors]
        counting.clear()
        exchange = exchange_all(compressor, batch, states, context)
        request = next(exchange)
        while True:
            try:
                request = exchange.send(answered(request, counting))
            except StopIteration as ended:
                outcome = ended.value
                break
        assert all(mean.is_cuda for mean in outcome.mean)
        return counting


@pytest.mark.parametrize(
    ("compressor", "most"),
    [
        (ErrorFeedback(Uniform(bits=8)), 6),
        (ErrorFeedback(Uniform(bits=4, block=512, rounding="stochastic")), 4),
        (SignSGD(), 2),
        (Natural(), 2),
        (ErrorFeedback(TopK(density=0.01)), 24),
        (ErrorFeedback(TopK(density=0.1, values="int8", indices="bitmap")), 24),
        (ErrorFeedback(Threshold(density=0.01)), 24),
        (ErrorFeedback(Threshold(threshold=0.1)), 18),
        (ErrorFeedback(DGCSampled(density=0.01)), 32),
        (ErrorFeedback(RedSync(density=0.01, search_from=100_000)), 26),
        (ErrorFeedback(RedSync(density=0.01, search_from=100_000, quantized=True)), 34),
        (ErrorFeedback(SIDCo(density=0.01)), 32),
        (ErrorFeedback(SIDCo(density=0.01, fit="gamma")), 32),
        (ErrorFeedback(RandomK(density=0.01)), 5),
        (ErrorFeedback(RandomK(density=0.01, shared=False, values="int8")), 6),
        (ErrorFeedback(FP16()), 4),
        (ErrorFeedback(BF16()), 4),
        (QSGD(levels=7), 5),
        (ErrorFeedback(EFSignSGD()), 9),
        (ErrorFeedback(TernGrad()), 9),
        (ErrorFeedback(OneBit()), 6),
    ],
)
def test_an_exchange_takes_few_launches_whatever_the_number_of_tensors(
    compressor: Compressor, most: int
) -> None:
    counted = exchanged(compressor)
    assert counted.triton <= most
    assert len(counted.operations) <= 12, counted.operations
    assert exchanged(compressor, SHAPES[:3]).triton <= counted.triton
    # Tables of a layout are sent once, and the sizes of ragged payloads alone are read.
    ragged = any(getattr(part, "ragged", False) for part in nested(compressor))
    again = exchanged(compressor)
    assert (again.waits, again.syncs) == ([], int(ragged))


@pytest.mark.parametrize("rank", [1, 4, 32])
def test_powersgd_starts_few_kernels_on_all_matrices_of_resnet101(rank: int) -> None:
    assert len(SHAPES) == 314
    counted = exchanged(ErrorFeedback(PowerSGD(rank)), SHAPES)
    assert counted.triton <= 9
    assert len(counted.operations) <= 3, counted.operations


class Outside:
    """A junction without a model: gradients are opened by hand."""

    missing: frozenset[str] = frozenset()

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange

    def serve(self) -> None:
        self._exchange.finish()

    def finish(self, absent: object) -> None:
        """Leave the means where they are."""


LADDER = Ladder((Dense(), TopK(0.1), TopK(0.01)))


@pytest.mark.parametrize(
    ("compressor", "plan"),
    [
        *(
            (method, Plan(0))
            for bare in (
                *(BF16(), EFSignSGD(), FP16(), Natural(), OneBit(), PowerSGD(), QSGD(7), SignSGD()),
                *(
                    RandomK(0.01),
                    RandomK(0.01, shared=False),
                    TernGrad(),
                    TernGrad(shared_scale=True),
                ),
                *(TopK(0.01), Uniform(8), Dense()),
            )
            for method in (bare, PerLayer(bare) if expands(bare) else ErrorFeedback(PerLayer(bare)))
        ),
        (MomentumCorrection(ErrorFeedback(TopK(0.01)), nesterov=True), Plan(0)),
        (BlockMomentum(EFSignSGD()), Plan(0)),
        (ClipLocal(ErrorFeedback(TopK(0.01))), Plan(0)),
        (ErrorFeedback(LADDER), Plan(1, candidates=(1, 2), measures=True, norms=True)),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_the_host_waits_for_the_gpu_once_a_step(compressor: Compressor, plan: Plan) -> None:
    """For the signals that ranks share, among which is whether all gradients are finite. The whole exchange
    is begun before; the times of a step are read in the next one."""
    shapes = [*SHAPES[:6], SHAPES[-2]]
    with Counting() as counting:
        link = Link(SimulatedWire(2, CUDA), Ledger(), Clock(CUDA))
        parameters = {f"p{i}": torch.empty(*one, device=CUDA) for i, one in enumerate(shapes)}
        exchange = GradientExchange(compressor, parameters, link)
        launched: list[int] = []
        wait = torch.cuda.Event.synchronize

        def waits(event: Any) -> None:
            if not event.query():
                launched.append(counting.launches)
            wait(event)

        with patch.object(torch.cuda.Event, "synchronize", waits):
            for step in range(3):
                counting.clear()
                for worker in range(2):
                    given = {name: torch.empty_like(one) for name, one in parameters.items()}
                    exchange.open(worker, given, plan)
                happened, *_ = settle(link, exchange, Outside(exchange), [1.0], plan, finite=True)
                assert happened
                link.clock.end_step(0.0)
                if step:  # tables are uploaded in the first
                    assert counting.waits == ["event"]
                    assert launched[-1] == counting.launches
        assert len(launched) >= 2
        assert link.clock.last["compress"] > 0


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_policy_that_chooses_waits_for_the_signals_before_anything_is_sent() -> None:
    plan, seen = Plan(None, candidates=(1, 2)), list[int]()
    with Counting() as counting:
        link = Link(SimulatedWire(1, CUDA), Ledger(), Clock(CUDA))
        parameters = {f"p{i}": torch.empty(*one, device=CUDA) for i, one in enumerate(SHAPES[:6])}

        def choose(energies: Tensor) -> int:
            seen.append(len(counting.waits))
            return int(energies[0] >= 0)

        exchange = GradientExchange(ErrorFeedback(LADDER), parameters, link, choose=choose)
        for _ in range(2):
            counting.clear()
            exchange.open(0, {n: torch.empty_like(p) for n, p in parameters.items()}, plan)
            assert settle(link, exchange, Outside(exchange), [], plan, finite=True)[0]
            assert counting.waits == ["event", "_to_copy"]
        assert seen == [2, 2]  # the energies are the second


RAGGED = (
    Threshold(0.01), Threshold(threshold=0.5), DGCSampled(0.01), SIDCo(0.01),
    RedSync(0.01), RedSync(0.01, quantized=True),
)  # fmt: skip


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("method", RAGGED, ids=repr)
def test_the_host_waits_for_the_gpu_twice_where_sizes_differ(
    method: Compressor, wrapped: bool
) -> None:
    """For the signals, with which it reads the sizes of its own payload, and for those of all workers."""
    compressor = PerLayer(ErrorFeedback(method)) if wrapped else ErrorFeedback(method)
    with Counting() as counting:
        link = Link(SimulatedWire(1, CUDA), Ledger(), Clock(CUDA))
        parameters = {f"p{i}": torch.empty(*one, device=CUDA) for i, one in enumerate(SHAPES[:6])}
        exchange = GradientExchange(compressor, parameters, link)
        for _ in range(3):
            counting.clear()
            exchange.open(0, {n: torch.empty_like(p) for n, p in parameters.items()}, Plan(0))
            assert counting.waits == []
            assert settle(link, exchange, Outside(exchange), [1.0], Plan(0), finite=True)[0]
            link.clock.end_step(0.0)
            assert (counting.waits, counting.syncs) == (["event", "_to_copy"], 2)


@pytest.mark.parametrize("method", RAGGED, ids=repr)
def test_kernels_that_count_with_32_bits_get_no_larger_tensor(method: Any) -> None:
    from dgc_repro.kernel.gpu import chosen, thresholds

    def launched(on: Tensor, kernel: Any, *given: Any, **options: Any) -> None:
        large = any(isinstance(one, Batch) and max(one.sizes) >= 2**31 for one in given)
        assert not large or kernel.fn.__name__ == "_sample"  # whose places have 64 bits

    patches = [patch.object(module, "launch", launched) for module in (chosen, thresholds)]
    with Counting(), patches[0], patches[1]:
        x = Batch(("large",), [torch.empty(2**31, device=CUDA)])
        assert x.on_gpu
        context = Context("x", 0, 0, 0, 2, 0, (0, 0), Workspace())
        with pytest.raises(RuntimeError):  # of tensor operations, which need values
            method.choose_all(x, x.sizes, context)


class OneUnit:
    """What a unit of FSDP's hands over, without the model."""

    def __init__(self, given: dict[str, Tensor]) -> None:
        self._given = given

    def parts(self, shard: Tensor) -> dict[str, Tensor]:
        return self._given


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("compressor", [ErrorFeedback(TopK(0.01)), SignSGD(), PowerSGD()], ids=repr)
def test_units_of_fsdp_wait_for_the_gpu_once_a_step_in_all(compressor: Compressor) -> None:
    with Counting() as counting, patch.object(Tensor, "record_stream"):
        link = Link(SimulatedWire(1, CUDA), Ledger(), Clock(CUDA))
        parameters = {f"p{i}": torch.empty(*one, device=CUDA) for i, one in enumerate(SHAPES[:6])}
        exchange = GradientExchange(compressor, parameters, link)
        names = list(parameters)
        units: Any = [OneUnit({n: parameters[n] for n in names[i : i + 2]}) for i in (0, 2, 4)]
        junction = PerUnit(exchange, units, {})
        for step in range(3):
            counting.clear()
            junction.begin(Plan(0))
            for i in range(3):
                junction.hand_over(i, torch.empty(1, device=CUDA))
            assert junction.open(0) is None
            assert settle(link, exchange, junction, [], Plan(0), finite=True)[0]
            link.clock.end_step(0.0)
            if step:
                assert counting.waits == ["event"]
