"""bfloat16 and fp16: rounded to even, averaged in their own precision, never an infinity of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from laws import stepped
from numeric import Array, both_kernels, context, dense, heavy_tailed

from dgc_repro import BF16, FP16, ErrorFeedback
from dgc_repro.kernel.batch import Batch


def bf16(x: Array) -> Array:
    """To 8 significant bits, ties to even, in float64 (exponents as of float32: numpy has no bf16)."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2**8), exponent - 8)


def fp16(x: Array) -> Array:
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64)


def reference(workers: list[Array], rounded: Callable[[Array], Array]) -> Array:
    """own = rounded(x);  mean = sum of rounded(own / N), each sum rounded.

    The weight 1 / N is a float32, and so is the product before it is rounded."""
    total = np.zeros_like(workers[0])
    for x in workers:
        share = rounded(x).astype(np.float32) * np.float32(1 / len(workers))
        total = rounded(total + rounded(share.astype(np.float64)))
    return total


@both_kernels
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("method", "rounded"), [(BF16(), bf16), (FP16(), fp16)], ids=["bf16", "fp16"]
)
def test_the_mean_equals_the_reference_bit_for_bit(
    method: BF16 | FP16, rounded: Callable[[Array], Array], count: int
) -> None:
    gradients = [heavy_tailed(seed=worker) for worker in range(count)]
    mean = stepped(method, gradients)
    assert mean.dtype == torch.float32
    expected = reference([x.double().numpy() for x in gradients], rounded)
    np.testing.assert_array_equal(mean.double().numpy(), expected)


@both_kernels
@pytest.mark.parametrize("count", [2, 3, 5, 7])
@pytest.mark.parametrize(
    ("method", "most", "step"),
    [(BF16(), 3.3895313892515355e38, 2.0**-8), (FP16(), 65504, 2.0**-11)],
)
def test_equal_gradients_at_the_end_of_the_range_do_not_become_infinite(
    method: BF16 | FP16, most: float, step: float, count: int
) -> None:
    """65504 / 3 rounds up, and three of them are 65520: past the range but for the saturation."""
    x = torch.tensor([most, -most, 3.4028234e38, -3.4028234e38])
    sent = dense(method.cast(Batch(("x",), [x]), context()), 4)
    assert sent.tolist() == [most, -most, most, -most]
    mean = stepped(method, [x] * count)
    assert bool(mean.isfinite().all())
    # N + 1 roundings.
    assert bool(((mean.double().abs() - most).abs() <= most * (count + 1) * step).all())


@both_kernels
def test_error_feedback_sends_what_a_half_cannot_hold_alone() -> None:
    """Below half of 2^-24. (One worker: the share of two would vanish, as the docstring says.)"""
    tiny = torch.full((5,), 2.0**-27)
    assert not stepped(ErrorFeedback(FP16()), [tiny]).any()
    assert stepped(ErrorFeedback(FP16()), [tiny], steps=5).any()
