"""Narrow floating-point numbers: C has the bits of tensor operations."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from numeric import heavy_tailed, needs_c, three_threads, without_c
from torch import Tensor

from dgc_repro.compressor.blockfloat import FORMATS
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.floats import FloatLayout

SIZES = (0, 1, 15, 16, 17, 31, 33, 1003, 70_001)  # the last one is worked on by several threads


def special(values: list[float], n: int = 1003) -> Tensor:
    x = heavy_tailed(n, 1)
    places = torch.arange(len(values)) * 7
    x[places] = torch.tensor(values)
    return x


BATCHES = {
    "of all scales": [heavy_tailed(n, 7 + n, 3.0) for n in SIZES],
    "on ties": [(torch.arange(n) % 64 - 32) / 8.0 for n in SIZES],
    "zeros": [torch.zeros(64), -torch.zeros(33), torch.cat([torch.zeros(32), torch.ones(1)])],
    "below the normal numbers": [heavy_tailed(n, n, 1e-40) for n in SIZES],
    "near the largest": [heavy_tailed(n, n, 1e36) for n in SIZES],
    "not finite": [
        special([np.nan]), special([np.inf, -np.inf]), special([-np.nan, np.inf]), heavy_tailed(64, 3)
    ],
}  # fmt: skip


@needs_c
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("drawn", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("name", FORMATS)
def test_c_has_the_bits_of_tensor_operations(name: str, drawn: bool, threads: int) -> None:
    for what, tensors in BATCHES.items():
        names = tuple(map(str, range(len(tensors))))
        found = []
        for kernels in (nullcontext, without_c):
            with kernels(), three_threads() if threads > 1 else nullcontext():
                batch = Batch(names, tensors)
                layout = FloatLayout(batch.sizes, FORMATS[name])
                keys = (np.arange(len(names)) * 12345 - 3).astype(np.int32) if drawn else None
                buffer, work = (
                    torch.zeros(layout.size, dtype=torch.uint8),
                    torch.empty(layout.total),
                )
                layout.encode(batch, buffer, keys, work)
                means = [torch.ones_like(tensor) for tensor in tensors]
                layout.decode(Batch(names, means), [buffer] * 2, 0.3, accumulate=False)
                sums = [torch.ones_like(tensor) for tensor in tensors]
                layout.decode(Batch(names, sums), [buffer] * 3, 0.3, accumulate=True)
                found.append((buffer, torch.cat(means), torch.cat(sums)))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=what)
