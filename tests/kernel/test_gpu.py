"""GPU kernels without a GPU.

They are run by Triton's interpreter, compiled for four architectures, and counted on fake CUDA tensors."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import dgc_repro as D
from dgc_repro.bench.counting import CUDA, Counting
from dgc_repro.compressor.interface import Compressor, nested
from dgc_repro.compressor.residual import expands
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.exchange.ahead import variants
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.fsdp import PerUnit
from dgc_repro.exchange.junction import AfterBackward
from dgc_repro.exchange.world import World
from dgc_repro.kernel import native
from dgc_repro.kernel.batch import Batch, on_gpu
from dgc_repro.kernel.cached import forget
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.compiling import resources_of, summary
from dgc_repro.selfcheck.kernels import checks as kernel_checks
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.rows import Skip
from dgc_repro.selfcheck.values import context

triton = pytest.importorskip("triton", reason="the GPU kernels need Triton")

from triton.backends.compiler import GPUTarget  # noqa: E402

from dgc_repro.kernel.gpu import chosen, thresholds  # noqa: E402
from dgc_repro.kernel.gpu.compiling import Resources, compiled, resources  # noqa: E402
from dgc_repro.kernel.gpu.launch import Launches  # noqa: E402

HERE = Path(__file__).parent
LONGEST_SECONDS = 1100
"""Less than faulthandler_timeout, at which pytest ends all tests."""
SPARSE = "test_a_sparse_kernel"
ARCHITECTURES = (70, 75, 80, 90)  # V100, T4, A100, H100


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_SECONDS)
@pytest.mark.parametrize("cases", [SPARSE, f"not {SPARSE}"])
@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="the interpreter of older Tritons cannot loop to a number that a kernel has read",
)
def test_every_kernel_gives_the_bits_of_the_c_kernel(cases: str) -> None:
    """In processes of their own: Triton reads the variable when it is imported. Two of them, because the
    interpreter needs ten minutes for all cases on a slow machine."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(HERE / "gpu_interpreted.py"), "-k", cases],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


FUSED = ("_add", "_times", "_transposed_times", "_outer")
BLOCKS = (None, 512, 2048)
"""Of quantizers: the law settings have odd ones too, each with kernels of its own."""
SPILLED = 16
"""Bytes at most that a thread of a kernel stores for lack of registers. ptxas does so with a value or two,
which it reads once, where one register less lets another program run at the same time."""

IN_FOURS = {
    "dense._add": "ld st", "dense._scale": "ld st", "dense._zero": "st", "dense._narrow": "ld",
    "dense._widen": "st", "dense._parts": "ld", "chosen._histogram": "ld", "chosen._count": "ld",
    "chosen._write": "ld", "thresholds._keep_sign": "ld st", "bits._pack_signs": "ld",
    "bits._decode_signs": "st", "bits._vote": "st", "bits._pack_powers": "ld",
    "bits._decode_powers": "st", "codes._quantize": "ld", "codes._dequantize": "st",
}  # fmt: skip
"""What kernels do with four float32 values at once (`in_fours`): load, store. Rows of codes are left out that
are shorter than a warp's loads."""


@functools.cache
def launched(*, of_each_type: bool = False) -> list[Any]:
    """What steps of all methods launch, and so what is compiled for them; ``of_each_type``: of few settings,
    each with another outer or inner type."""
    every: set[Any] = set()
    by_type = {}
    for one in SETTINGS:
        types = [*map(type, nested(one.compressor))]
        keys = (
            types[0],
            types[-1],
            f"quantized {'quantized' in one.name}",
            f"chooses {bool(one.choose)}",
        )
        by_type |= dict.fromkeys(keys, one)
    for setting in (
        {id(one): one for one in by_type.values()}.values() if of_each_type else SETTINGS
    ):
        leaf = [*nested(setting.compressor)][-1]
        if getattr(leaf, "block", None) in BLOCKS:
            every |= variants(
                setting.compressor, PARAMETERS, D.GraVAC() if setting.choose else None
            )
    for rank in (32, 64):
        every |= variants(D.PowerSGD(rank), PARAMETERS)
    for widths in (chosen.SMALL, chosen.LARGE):  # of older Tritons, of newer ones
        with patch.object(chosen, "WIDTHS", widths):
            for compressor in (D.TopK(0.1), D.DGCSampled(0.1)):
                every |= variants(compressor, PARAMETERS)
    return sorted(every, key=str)


def test_triton_switched_off_for_a_while_may_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for off in (True, False):
        monkeypatch.setenv("DGC_REPRO_COMPILE", "0" if off else "1")
        assert on_gpu(()) != off


def fakes() -> int:
    gc.collect()
    return sum(type(one) is FakeTensor for one in gc.get_objects())


def test_lists_of_all_methods_leave_no_trace() -> None:
    """No fake tensor stays in a cache, where real steps would find it, and random numbers stay."""
    launched.cache_clear()
    forget()
    before, random = (fakes(), Launches.count, Launches.reads), torch.get_rng_state()
    assert launched(of_each_type=True)
    assert variants(D.ErrorFeedback(D.EDEN()), PARAMETERS)  # its blocks are not in BLOCKS
    assert Launches.record is None
    assert before == (fakes(), Launches.count, Launches.reads)
    assert torch.equal(random, torch.get_rng_state())


def is_kernel(function: Any) -> bool:
    """Declared with `kernel` of kernel/gpu/launch.py."""
    return isinstance(function, triton.JITFunction) and bool(function.do_not_specialize)


def test_steps_of_all_methods_launch_every_kernel() -> None:
    from dgc_repro.kernel import gpu

    names = [one.name for one in pkgutil.iter_modules(gpu.__path__)]
    modules = [importlib.import_module(f"dgc_repro.kernel.gpu.{name}") for name in names]
    every = {f.fn for module in modules for f in vars(module).values() if is_kernel(f)}
    assert every == {one.kernel.fn for one in launched(of_each_type=True)}


def test_no_number_and_no_address_is_compiled_in() -> None:
    """Triton would compile again for a number that is 1 or a multiple of 16, and for an odd address."""
    for one in launched(of_each_type=True):
        for parameter, kind in zip(one.kernel.params, one.types, strict=True):
            if kind != "constexpr":
                assert parameter.do_not_specialize, (one, parameter.name)
                assert parameter.do_not_specialize_on_alignment, (one, parameter.name)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_SECONDS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_rounds_as_c_does(architecture: int) -> None:
    """No sum of a product is fused but in `add` and matrix products, and no number is flushed to zero.
    (Logarithm and cosine are functions of f64, rounded to f32 afterwards.) No kernel lacks registers. Those
    that pass over whole tensors do so in fours."""
    for variant, built in compiled(launched(), GPUTarget("cuda", architecture, 32)):
        name, needs = variant.kernel.fn.__name__, resources(built)
        assert needs.shared_bytes <= 48 * 1024, (variant, needs)
        assert needs.spilled_bytes <= SPILLED, (variant, needs)
        # Cosines of large numbers keep an array there.
        assert needs.stack_bytes <= SPILLED or name == "_directions", (variant, needs)
        text = built.asm["ptx"]
        own = f"{variant.kernel.fn.__module__.split('.')[-1]}.{name}"
        if variant.num_warps > 1:
            for access in IN_FOURS.get(own, "").split():
                assert f"{access}.global.v4.b32" in text, (variant, access)
        if ("ACCUMULATE", False) in variant.constants:
            # Payloads of other workers begin at multiples of 8 bytes in the buffer that receives them.
            assert "ld.global.v4" not in text, variant
        rounded = set(re.findall(r"\b(?:fma|\w+\.approx|\w+\.full|\w+\.ftz)[\w.]*", text))
        # floor of a negative denormal number is then 0 and not -1, and stochastic rounding makes 0 of both
        rounded -= {name for name in rounded if name.startswith("rmi.ftz")}
        # The library's float64 logarithm and exponential, whose last bits are the device's.
        library = {"fma.rn.f64", "rcp.approx.ftz.f64", "abs.ftz.f32"}
        allowed = {"fma.rn.f32"} if name in FUSED else library if name == "_fit" else set()
        if name == "_directions":
            rounded = {one for one in rounded if not one.endswith("f64")}
        assert rounded <= allowed, (variant, rounded)


def test_selfcheck_skips_the_kernels_where_there_is_nothing_to_compare_them_with() -> None:
    with patch.object(native, "library", lambda: None), pytest.raises(Skip, match="no C compiler"):
        next(kernel_checks("cuda"))


def test_selfcheck_names_the_variants_that_spill_most() -> None:
    needs: dict[str, Any] = {}
    for one in variants(D.FP16(), {"w": torch.empty(9)}):
        said = resources_of(one, GPUTarget("cuda", 80, 32), needs, str(one))
        assert re.fullmatch(r"\d\d registers, 0 bytes of stack, 0 spilled, \d+ shared", said)
    assert summary(needs) == "0 spill registers, 0 use the stack"
    needs |= {"one": Resources(255, 40, 8, 0), "other": Resources(255, 16, 20, 0)}
    assert summary(needs) == (
        "2 spill registers (28 bytes a thread in all, most other: 20), "
        "2 use the stack (56 bytes a thread in all, most one: 40)"
    )


with torch.device("meta"):
    SHAPES = [p.shape for p in ResNet101().build(1000).parameters()]
SIZES = (*([64, 64 * 64 * 9, 64 * 256] * 100), 2048 * 1000, 1000)
PARAMETERS = {
    str(shape): torch.empty(shape, device="meta") for shape in ((64, 3, 7, 7), (64,), (1000, 512))
}


def exchanged(compressor: Compressor, shapes: Sequence[Sequence[int]] | None = None) -> Counting:
    """One exchange of fake CUDA tensors with another worker, who sends the same."""
    shapes = [(n,) for n in SIZES] if shapes is None else shapes
    with Counting() as counting:
        given: dict[str, Tensor] = {
            f"p{i}": torch.empty(*shape, device=CUDA) for i, shape in enumerate(shapes)
        }
        assert Batch(tuple(given), list(given.values())).on_gpu
        exchange = Exchange(compressor, given, World(1, size=2, device=CUDA))
        counting.clear()
        exchange.run([given], Plan(0)).finish()
        return counting


@pytest.mark.parametrize(
    ("compressor", "most"),
    [
        (D.ErrorFeedback(D.Uniform(bits=8)), 6),
        (D.ErrorFeedback(D.Uniform(bits=4, block=512, rounding="stochastic")), 4),
        (D.SignSGD(), 2),
        (D.Natural(), 2),
        (D.ErrorFeedback(D.TopK(density=0.01)), 24),
        (D.ErrorFeedback(D.TopK(density=0.1)), 24),
        (D.ErrorFeedback(D.Threshold(density=0.01)), 24),
        (D.ErrorFeedback(D.Threshold(threshold=0.1)), 18),
        (D.ErrorFeedback(D.DGCSampled(density=0.01)), 32),
        (D.ErrorFeedback(D.RedSync(density=0.01, search_from=100_000)), 26),
        (D.ErrorFeedback(D.RedSync(density=0.01, search_from=100_000, quantized=True)), 34),
        (D.ErrorFeedback(D.SIDCo(density=0.01)), 32),
        (D.ErrorFeedback(D.SIDCo(density=0.01, fit="gamma")), 32),
        (D.ErrorFeedback(D.RandomK(density=0.01)), 5),
        (D.ErrorFeedback(D.RandomK(density=0.01, shared=False)), 6),
        (D.ErrorFeedback(D.FP16()), 4),
        (D.ErrorFeedback(D.BF16()), 4),
        (D.QSGD(levels=7), 5),
        (D.ErrorFeedback(D.EFSignSGD()), 9),
        (D.ErrorFeedback(D.TernGrad()), 9),
        (D.ErrorFeedback(D.OneBit()), 6),
    ],
)
def test_few_launches_whatever_the_number_of_tensors(compressor: Compressor, most: int) -> None:
    with patch.object(chosen, "WIDTHS", chosen.LARGE):  # those of a new Triton, whatever is here
        counted = exchanged(compressor)
        launches = counted.triton
        # `zeros`: buffers of bytes, in the step that makes them.
        assert sum(name != "zeros" for name in counted.operations) <= 12, counted.operations
        assert exchanged(compressor, SHAPES[:3]).triton <= launches <= most
    searches = sum(isinstance(part, Selecting) for part in nested(compressor))
    with patch.object(
        chosen, "WIDTHS", chosen.SMALL
    ):  # a pass more, a launch to count and one to pick
        assert exchanged(compressor).triton <= launches + 4 * searches
    # Tables of a layout are kept from its second exchange on, and the sizes of ragged payloads alone are
    # read: one's own, and those of all workers.
    ragged = any(getattr(part, "ragged", False) for part in nested(compressor))
    again = exchanged(compressor)
    assert (again.waits, again.syncs) == ((["_to_copy"], 2) if ragged else ([], 0))


@pytest.mark.parametrize("rank", [1, 32])
def test_powersgd_starts_few_kernels_on_all_matrices_of_resnet101(rank: int) -> None:
    assert len(SHAPES) == 314
    counted = exchanged(D.ErrorFeedback(D.PowerSGD(rank)), SHAPES)
    assert counted.triton <= 9
    assert len(counted.operations) <= 11, counted.operations


@contextmanager
def training(
    compressor: Compressor, choose: Any = None, size: int = 1
) -> Iterator[tuple[Counting, AfterBackward, World, Callable[[Plan], None]]]:
    """Parameters on a GPU that need not exist. The function begins a step in which backward is over."""
    with Counting() as counting:
        shapes = [*SHAPES[:6], SHAPES[-2]]
        parameters = {
            f"p{i}": nn.Parameter(torch.empty(*shape, device=CUDA))
            for i, shape in enumerate(shapes)
        }
        world = World(1, size=size, device=CUDA)
        exchange = Exchange(compressor, parameters, world, choose=choose)
        junction = AfterBackward(exchange, parameters)

        def begin(plan: Plan) -> None:
            counting.clear()
            for parameter in parameters.values():
                parameter.grad = torch.empty_like(parameter)
            junction.begin(plan)
            assert junction.open() is None

        yield counting, junction, world, begin


LADDER = D.Ladder((D.Dense(), D.TopK(0.1), D.TopK(0.01)))
RAGGED = (
    D.Threshold(0.01), D.Threshold(threshold=0.5), D.DGCSampled(0.01), D.SIDCo(0.01),
    D.RedSync(0.01), D.RedSync(0.01, quantized=True),
)  # fmt: skip
EVEN = (
    D.EDEN(), D.EDEN(1, shared=True), D.BlockFloat(), D.BlockFloat("nvfp4", "stochastic"), D.BF16(),
    D.EFSignSGD(), D.FP16(), D.Natural(), D.OneBit(), D.PowerSGD(), D.QSGD(7), D.SignSGD(), D.RandomK(0.01),
    D.RandomK(0.01, shared=False), D.TernGrad(), D.TernGrad(shared_scale=True), D.TopK(0.01), D.Uniform(8),
    D.Dense(),
)  # fmt: skip
"""Methods whose payloads have one size."""


def wrapped(method: Any) -> Any:
    return D.PerLayer(method) if expands(method) else D.ErrorFeedback(D.PerLayer(method))


@pytest.mark.parametrize(
    ("compressor", "plan"),
    [
        *(
            (method, Plan(0))
            for method in (*map(wrapped, EVEN), D.PowerSGD(), D.TopK(0.01), D.Uniform(8))
        ),
        (D.MomentumCorrection(D.ErrorFeedback(D.TopK(0.01)), nesterov=True), Plan(0)),
        (D.BlockMomentum(D.EFSignSGD()), Plan(0)),
        (D.ClipLocal(D.ErrorFeedback(D.TopK(0.01))), Plan(0)),
        (D.ErrorFeedback(LADDER), Plan(1, candidates=(1, 2), measures=True, norms=True)),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_the_host_waits_for_the_gpu_once_a_step(compressor: Compressor, plan: Plan) -> None:
    """For the signals that ranks share, among which is whether all gradients are finite. The whole exchange
    is begun before; the times of a step are read in the next one."""
    launched: list[int] = []
    with training(compressor, size=2) as (counting, junction, world, begin):
        wait = torch.cuda.Event.synchronize

        def waits(event: Any) -> None:
            if not event.query():
                launched.append(counting.launches)
            wait(event)

        with patch.object(torch.cuda.Event, "synchronize", waits):
            for step in range(3):
                begin(plan)
                assert junction.settle([1.0], finite=True)[0]
                world.clock.end_step(0.0)
                if step:  # tables are uploaded in the first
                    assert counting.waits == ["event"]
                    assert launched[-1] == counting.launches
        assert len(launched) >= 2
        assert world.clock.last["compress"] > 0


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_policy_that_chooses_waits_for_the_signals_before_anything_is_sent() -> None:
    seen = list[int]()

    def choose(energies: Tensor) -> int:
        seen.append(len(counting.waits))
        return int(energies[0] >= 0)

    with training(D.ErrorFeedback(LADDER), choose) as (counting, junction, _, begin):
        for _ in range(2):
            begin(Plan(None, candidates=(1, 2)))
            assert junction.settle([], finite=True)[0]
            assert counting.waits == ["event", "_to_copy"]
        assert seen == [2, 2]  # the energies are the second


@pytest.mark.parametrize("method", [D.ErrorFeedback(RAGGED[0]), *map(wrapped, RAGGED)], ids=repr)
def test_the_host_waits_for_the_gpu_twice_where_sizes_differ(method: Compressor) -> None:
    """For the sizes of its own payload, and for those of all workers. The signals have come by then."""
    with training(method) as (counting, junction, world, begin):
        for _ in range(3):
            begin(Plan(0))
            assert counting.waits == []
            assert junction.settle([1.0], finite=True)[0]
            world.clock.end_step(0.0)
            assert (counting.waits, counting.syncs) == (["_to_copy"], 2)


@pytest.mark.parametrize("method", RAGGED, ids=repr)
def test_kernels_that_count_with_32_bits_get_no_larger_tensor(method: Any) -> None:
    def launched(on: Tensor, kernel: Any, *given: Any, **options: Any) -> None:
        large = any(isinstance(one, Batch) and max(one.sizes) >= 2**31 for one in given)
        assert not large or kernel.fn.__name__ == "_sample"  # whose places have 64 bits

    patches = [patch.object(module, "launch", launched) for module in (chosen, thresholds)]
    with Counting(), patches[0], patches[1]:
        x = Batch(("large",), [torch.empty(2**31, device=CUDA)])
        assert x.on_gpu
        with pytest.raises(RuntimeError):  # of tensor operations, which need values
            method.choose_all(x, x.sizes, context())


class OneUnit:
    """What a unit of FSDP's hands over, without the model."""

    name = "unit"

    def __init__(self, given: dict[str, Tensor]) -> None:
        self._given = given

    def parts(self, shard: Tensor) -> dict[str, Tensor]:
        return self._given


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize(
    "compressor", [D.ErrorFeedback(D.TopK(0.01)), D.SignSGD(), D.PowerSGD()], ids=repr
)
def test_units_of_fsdp_wait_for_the_gpu_once_a_step_in_all(compressor: Compressor) -> None:
    with Counting() as counting, patch.object(Tensor, "record_stream"):
        world = World(1, device=CUDA)
        parameters = {f"p{i}": torch.empty(*one, device=CUDA) for i, one in enumerate(SHAPES[:6])}
        exchange = Exchange(compressor, parameters, world)
        names = list(parameters)
        units: Any = [OneUnit({n: parameters[n] for n in names[i : i + 2]}) for i in (0, 2, 4)]
        junction = PerUnit(exchange, {}, world, units, {})
        for step in range(3):
            counting.clear()
            junction.begin(Plan(0))
            for i in range(3):
                junction.hand_over(i, torch.empty(1, device=CUDA))
            assert junction.open() is None
            assert junction.settle([], finite=True)[0]
            world.clock.end_step(0.0)
            if step:
                assert counting.waits == ["event"]
