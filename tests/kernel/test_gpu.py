"""GPU kernels without a GPU.

They are run by Triton's interpreter, compiled for four architectures, and counted on fake CUDA tensors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dgc_repro.compressor.bf16 import BF16
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Compressor, Context, exchange_all, nested
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sidco import SIDCo
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.terngrad import TernGrad
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.payload import Gathered
from dgc_repro.exchange.requests import Gather, GatherRagged, Mean
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.workspace import Workspace

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
    "above": "*fp64", "weight": "fp32", "limit": "fp32", "share": "fp32", "most": "fp32",
    "first_share": "fp32", "sources": "i32", "num": "i32", "num_tiles": "i32", "num_chunks": "i32",
    "stage": "i32", "total": "i32", "start": "i32",
}  # fmt: skip
PACKED = {
    2: (4, 1),
    3: (8, 3),
    6: (4, 3),
    8: (1, 1),
    16: (1, 2),
}  # bits: codes and bytes of a group


def kernels() -> list[tuple[Any, dict[str, Any]]]:
    """Every kernel, with its constants."""
    from dgc_repro.kernel.gpu import bits, chosen, codes, dense, keyed, launch, sparse, thresholds

    row = [
        {"BITS": b, "G": g, "B": size, "PER_ROW": b < 8, "CHUNK": 512 // g}
        for b, (g, size) in PACKED.items()
    ]
    return [
        (launch._scan, {"WIDTH": 1024}),
        *((dense._add, {"PLAIN": plain, "TILE": 2048}) for plain in (False, True)),
        (dense._scale, {"TILE": 2048}),
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
        (thresholds._search, {"HALVINGS": 32, "WIDTH": 1024}),
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
        (sparse._passed, {"WIDTH": 256}),
        *(
            (keyed._gather, {"KIND": kind, "TRAVELS": True, "SCALED": True, "TILE": 2048})
            for kind in range(3)
        ),
        *((keyed._scatter, {"KIND": k, "ZERO": k == 0, "TILE": 2048}) for k in range(3)),
        *((sparse._put, {"KIND": k, "ZERO": k == 0, "WIDTH": 256}) for k in range(4)),
    ]


def is_kernel(function: Any) -> bool:
    return isinstance(function, triton.JITFunction) and "owner" in function.arg_names


def test_the_list_has_every_kernel() -> None:
    from dgc_repro.kernel.gpu import bits, chosen, codes, dense, keyed, launch, sparse, thresholds

    modules = (bits, chosen, codes, dense, keyed, launch, sparse, thresholds)
    every = {f.fn for module in modules for f in vars(module).values() if is_kernel(f)}
    helpers = {launch.tile.fn, bits._row.fn}
    assert every - helpers == {kernel.fn for kernel, _ in kernels()}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_rounds_as_c_does(architecture: int) -> None:
    """No sum of a product is fused but that of `add`, and no number is flushed to zero."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, constants in kernels():
        names = kernel.arg_names
        types = {name: TYPES.get(name, "*i64") for name in names} | {"half": "*i16"}
        if kernel.fn.__name__ == "_narrow":
            types["to"] = "*i16"
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
        allowed = {"_add": {"fma.rn.f32"}, "_fit": library}.get(kernel.fn.__name__, set())
        assert rounded <= allowed, (kernel.fn.__name__, rounded)


SIZES = (*([64, 64 * 64 * 9, 64 * 256] * 100), 2048 * 1000, 1000)
FAKE = FakeTensorMode()  # one for all: cached tables belong to it
FREE = ("device", "empty", "new_empty", "lift_fresh", "view", "slice", "split", "detach", "expand")


class Operations(TorchDispatchMode):
    """Count operations that start a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if not name.startswith(FREE):
            self.names.append(name)
        return function(*given, **(named or {}))


def exchanged(compressor: Compressor, sizes: Sequence[int] = SIZES) -> tuple[int, list[str]]:
    """Kernels and operations of one exchange of fake CUDA tensors with another worker, who sends the same."""
    from dgc_repro.kernel.gpu.launch import Launches

    workspace = Workspace()
    with FAKE, Operations() as operations:
        tensors: list[Tensor] = [torch.empty(n, device="cuda") for n in sizes]
        names = tuple(f"p{i}" for i in range(len(sizes)))
        batch = Batch(names, tensors)
        assert batch.on_gpu
        context = Context(
            "batch", 0, 0, 0, 2, None, (0, 0), workspace, own_is_read=False, into=tensors
        )
        states = [compressor.init(tensor) for tensor in tensors]
        before = Launches.count
        operations.names.clear()
        exchange = exchange_all(compressor, batch, states, context)
        request = next(exchange)
        answer: Any
        if isinstance(request, Gather | GatherRagged):
            other = request.payload.like([part.clone() for part in request.payload.parts])
            operations.names.remove("clone")
            answer = Gathered([request.payload, other])
        else:
            assert isinstance(request, Mean)
            answer = request.tensor
        with pytest.raises(StopIteration) as ended:
            exchange.send(answer)
        outcome = ended.value.value
        assert all(mean.is_cuda for mean in outcome.mean)
        return Launches.count - before, list(operations.names)


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
        (ErrorFeedback(Threshold(threshold=0.1)), 16),
        (ErrorFeedback(DGCSampled(density=0.01)), 32),
        (ErrorFeedback(RedSync(density=0.01, search_from=100_000)), 24),
        (ErrorFeedback(SIDCo(density=0.01)), 32),
        (ErrorFeedback(SIDCo(density=0.01, fit="gamma")), 32),
        (ErrorFeedback(RandomK(density=0.01)), 5),
        (ErrorFeedback(RandomK(density=0.01, shared=False, values="int8")), 6),
        (ErrorFeedback(FP16()), 4),
        (ErrorFeedback(BF16()), 4),
        (QSGD(levels=7), 5),
        (ErrorFeedback(EFSignSGD()), 9),
        (ErrorFeedback(TernGrad()), 9),
    ],
)
def test_an_exchange_takes_few_launches_whatever_the_number_of_tensors(
    compressor: Compressor, most: int
) -> None:
    from dgc_repro.kernel.gpu.launch import Launches

    reads = Launches.reads
    launches, operations = exchanged(compressor)
    assert launches <= most
    assert len(operations) <= 12, operations
    ragged = any(getattr(part, "ragged", False) for part in nested(compressor))
    assert Launches.reads - reads == ragged, "the sizes of ragged payloads alone are read"
    assert exchanged(compressor, SIZES[:3])[0] <= launches
