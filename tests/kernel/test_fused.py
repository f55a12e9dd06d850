"""Compiled equals eager, bit for bit; without a compiler the eager kernels serve, said once.

All compiler runs but one are slow tests: each starts a C++ compiler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dgc_repro.kernel import codes, fused
from dgc_repro.kernel.codes import NEAREST, STOCHASTIC


@pytest.fixture(autouse=True)
def compiles_small_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fused, "MIN_FUSED_ELEMENTS", 1)
    monkeypatch.setattr(fused, "FUSED_ON", ("cpu",))
    monkeypatch.setattr(fused.Compiler, "enabled", True)
    yield
    torch._dynamo.reset()


def quantizer(bits: int, rounding: int, own_scale: bool) -> fused.Fused:
    """A kernel nobody else has compiled, or will find compiled."""
    made = codes.quantizer.__wrapped__(bits, rounding, own_scale)
    assert isinstance(made, fused.Fused)
    return made


def dequantizer(bits: int, accumulate: bool) -> fused.Fused:
    made = codes.dequantizer.__wrapped__(bits, accumulate)
    assert isinstance(made, fused.Fused)
    return made


def arguments(bits: int, own_scale: bool, rows: int, length: int) -> tuple[list[Any], list[Tensor]]:
    """(x, scales, key, first index) and empty planes; one row of zeros, one of denormals."""
    num_codes, num_bytes = codes.group(bits)
    source = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, num_codes, length, generator=source)
    x = x * torch.exp(2 * torch.randn(rows, num_codes, length, generator=source))
    if rows > 2:
        x[1] = 0.0
        x[2] *= 1e-42
    scales = torch.zeros(rows) if own_scale else x.abs().max().view(1) / (2 ** (bits - 1) - 1)
    key = torch.tensor(-123456789, dtype=torch.int32)
    first = torch.tensor(7, dtype=torch.int32)
    # One behind the other in one buffer, as in a payload, and not where a word begins.
    packed = torch.zeros(1 + num_bytes * rows * length, dtype=torch.uint8)[1:]
    planes = [plane.view(rows, length) for plane in packed.split(rows * length)]
    return [x, scales, key, first], planes


SHAPES = [(5, 301), (3, 64), (1, 500)]


@pytest.mark.parametrize(
    ("bits", "rounding", "own_scale"),
    [
        (8, NEAREST, True),
        pytest.param(4, STOCHASTIC, True, marks=pytest.mark.slow),
        pytest.param(6, STOCHASTIC, False, marks=pytest.mark.slow),
    ],
)
def test_compiled_quantization_equals_eager_bit_for_bit(
    bits: int, rounding: int, own_scale: bool
) -> None:
    kernel = quantizer(bits, rounding, own_scale)
    for rows, length in SHAPES:
        ours, planes = arguments(bits, own_scale, rows, length)
        theirs, eager_planes = arguments(bits, own_scale, rows, length)
        kernel(*ours, *planes)
        kernel.eager(*theirs, *eager_planes)
        assert kernel.compiled is not None, "the compiler gave up, see the log"
        assert torch.equal(ours[1], theirs[1])
        for plane, eager_plane in zip(planes, eager_planes, strict=True):
            assert torch.equal(plane, eager_plane)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "accumulate", "own_scale"),
    [(8, True, True), (4, False, False), (6, True, False)],
)
def test_compiled_decoding_equals_eager_bit_for_bit(
    bits: int, accumulate: bool, own_scale: bool
) -> None:
    kernel, weight = dequantizer(bits, accumulate), torch.tensor(1 / 3)
    for rows, length in SHAPES:
        (x, scales, key, first), planes = arguments(bits, own_scale, rows, length)
        quantizer(bits, NEAREST, own_scale).eager(x, scales, key, first, *planes)
        ours, theirs = x.clone(), x.clone()
        kernel(ours, scales, weight, *planes)
        kernel.eager(theirs, scales, weight, *planes)
        assert kernel.compiled is not None, "the compiler gave up, see the log"
        assert torch.equal(ours, theirs)


def test_small_tensors_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "MIN_FUSED_ELEMENTS", 10**6)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled a small tensor"))
    inputs, planes = arguments(8, True, 3, 64)
    quantizer(8, NEAREST, True)(*inputs, *planes)


def test_on_the_cpu_nothing_is_compiled_where_the_c_kernels_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled on the CPU"))
    inputs, planes = arguments(8, True, 400, 512)
    quantizer(8, NEAREST, True)(*inputs, *planes)


@pytest.mark.parametrize("when", ["asked", "called"])
def test_without_a_compiler_the_values_are_equal_and_one_line_says_so(
    when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("InvalidCxxCompiler: no working C++ compiler found\n(a long story)")

    asked = missing if when == "asked" else lambda *_, **__: missing
    monkeypatch.setattr(torch, "compile", asked)
    caplog.set_level(logging.WARNING)
    for bits in (4, 8):
        inputs, planes = arguments(bits, True, 3, 64)
        expected, eager_planes = arguments(bits, True, 3, 64)
        kernel = quantizer(bits, NEAREST, True)
        kernel(*inputs, *planes)
        kernel.eager(*expected, *eager_planes)
        assert torch.equal(inputs[1], expected[1])
        assert all(map(torch.equal, planes, eager_planes))
    (record,) = caplog.records
    assert record.getMessage() == (
        "kernels run eagerly, slower but with equal values: "
        "InvalidCxxCompiler: no working C++ compiler found"
    )
    assert not fused.Compiler.enabled


@pytest.mark.slow
def test_a_kernel_met_in_many_shapes_is_not_compiled_for_each() -> None:
    """Dynamo gives up, with an error, at the eighth recompilation of one function."""
    kernel = dequantizer(8, True)
    weight = torch.tensor(0.5)
    for rows, length in [(1, 1), (1, 7), (7, 1), (2, 2), *((3 + i, 16 + 5 * i) for i in range(12))]:
        x, scales = torch.zeros(rows, 1, length), torch.ones(rows)
        kernel(x, scales, weight, torch.full((rows, length), 130, dtype=torch.uint8))
        assert bool((x == (130 - 127) / 2).all())
