"""What all quantizers owe alike: both kernels give the same bits, sizes, draws, and no hidden NaN."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from laws import same_bits
from numeric import (
    averaged,
    both_kernels,
    context,
    dense,
    encoded,
    finite_kinds,
    heavy_tailed,
    kinds,
    needs_c,
    run,
    same_but_for_nan,
    threads,
    without_c,
)
from torch import Tensor

import dgc_repro as D
from dgc_repro.compressor.blockfloat import FORMATS
from dgc_repro.compressor.uniform import ROUNDINGS
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import BatchPayload, Codes

SIZES = (1, 7, 513, 4096, 4097, 9001)
UNIFORM = [  # every width of codes with every rounding, and every rounding with every length of rows
    D.Uniform(bits, rounding, (None, 7, 512)[(bits + i) % 3])
    for bits in range(2, 17)
    for i, rounding in enumerate(ROUNDINGS)
]
CODED = [
    *(D.QSGD(levels, bucket, norm) for levels, bucket, norm in (
        (1, None, "two"), (1, 64, "max"), (3, 512, "two"), (4, None, "max"), (16, 64, "two"),
        (127, 64, "max"), (127, 512, "two"), (5000, None, "two"), (5000, 512, "max"))),
    D.TernGrad(), D.TernGrad(None),
    D.EDEN(1, 64), D.EDEN(2), D.EDEN(3, 256, "least_error", 2), D.EDEN(4, 1024),
]  # fmt: skip
SIGNED = [D.Natural(), D.OneBit(), D.SignSGD(), D.EFSignSGD()]
FLOATS = [D.BlockFloat(name, drawn) for name in FORMATS for drawn in ("nearest", "stochastic")]
FEW = [
    *FLOATS[2::4],
    FLOATS[-1],
    D.Uniform(4),
    D.Uniform(6, "stochastic", 512),
    *CODED[::4],
    *SIGNED,
]


def decoded(payload: Any, size: int) -> list[Tensor]:
    added, copied, left = (torch.linspace(-1, 1, size) for _ in range(3))
    payload.add_to_(added, 1 / 3)
    payload.copy_to_(copied, 1 / 3)
    payload.subtract_from_(left)
    return [added, copied, left, dense(payload)]


def parts(own: BatchPayload, tensor: int = 0) -> list[Tensor]:
    return own.layout.views(own.buffer, tensor)


def check_alike(method: Any, x: Tensor) -> None:
    ours = encoded(method, x)
    found = decoded(ours, x.numel())
    with without_c():
        theirs = encoded(method, x)
        expected = decoded(theirs, x.numel())
    for one, other in zip(parts(ours), parts(theirs), strict=True):
        if isinstance(method, D.OneBit):
            one, other = one.nan_to_num(), other.nan_to_num()  # any NaN will do
        assert same_bits(one, other), (method, x.shape, x.view(-1)[:5])
    assert all(map(same_but_for_nan, found, expected)), (method, x.shape, x.view(-1)[:5])


@needs_c
@pytest.mark.parametrize("method", [*UNIFORM, *CODED, *SIGNED, *FLOATS], ids=str)
def test_c_and_tensors_encode_alike(method: Any) -> None:
    """The code of a NaN is undefined, but for signs; that it is not hidden is tested below."""
    for size in SIZES:
        for x in kinds(size) if method in SIGNED else finite_kinds(size):
            check_alike(method, x)
    if isinstance(method, D.OneBit):
        for x in kinds(64 * 81):
            for shape in ((64, 81), (9, 576), (16, 4, 81)):
                check_alike(method, x.view(shape))


@pytest.mark.parametrize(
    "method", [*UNIFORM[::4], *SIGNED, D.EDEN(3, 64), D.BlockFloat("nvfp4")], ids=str
)
def test_a_mean_made_in_one_pass_has_the_bits_of_one_payload_after_another(method: Any) -> None:
    for count, size in itertools.product((1, 2, 5, 33), SIZES):
        payloads = [encoded(method, heavy_tailed(size, i), context(i)) for i in range(count)]
        together = averaged(payloads, torch.empty(size))
        one_by_one = torch.empty(size)
        for i, payload in enumerate(payloads):
            decode = payload.add_to_ if i else payload.copy_to_
            decode(one_by_one, 1.0 / count)
        assert same_bits(together, one_by_one), (count, size)


@pytest.mark.parametrize("method", FEW, ids=str)
def test_the_number_of_threads_changes_no_bit(method: Any) -> None:
    x = heavy_tailed(300_001)
    one, found = encoded(method, x), run(method, x).mean
    with threads(3):
        three = encoded(method, x)
        assert all(map(same_bits, parts(one), parts(three)))
        assert same_bits(dense(one), dense(three))
        assert same_bits(found, run(method, x).mean)


@pytest.mark.parametrize("method", FEW, ids=str)
def test_a_batch_has_the_bits_of_its_tensors_for_any_number_of_threads(method: Any) -> None:
    """Large tensors are handled by all threads, small ones side by side."""
    tensors = [heavy_tailed(size, size) for size in (1, 0, 70_000, 7, 513, 4097, 0, 100_001, 33, 9)]
    tensors.append(heavy_tailed(64 * 81).view(64, 81))
    names = tuple(f"w{i}" for i in range(len(tensors)))
    alone = [encoded(method, x, context(name=name)) for x, name in zip(tensors, names, strict=True)]

    def check() -> None:
        own = method.encode_batch(Batch(names, tensors), context())
        mean = averaged([own] * 3, Batch(names, [torch.empty_like(x) for x in tensors]))
        for i, expected in enumerate(alone):
            assert all(map(same_bits, parts(own, i), parts(expected))), names[i]
            together = averaged([expected] * 3, torch.empty(tensors[i].numel()))
            assert same_bits(mean.tensors[i].view(-1), together), names[i]

    check()
    with threads(3):
        check()
    with without_c():
        check()


@both_kernels
@pytest.mark.parametrize(
    ("method", "rows"),
    # The rows in which a broken value may break others: buckets, blocks, or the tensor.
    [(D.Uniform(8), 200), (D.Uniform(8, block=50), 50), (D.QSGD(7, None), 200), (D.QSGD(7, 50), 50),
     (D.TernGrad(), 200), (D.TernGrad(None), 200), (D.EDEN(2, 32), 32), (D.EDEN(1, shared=True), 200),
     (D.Natural(), 1), (D.EFSignSGD(), 200), (D.OneBit(), 200),
     *((one, 32 if one.format.startswith("mx") else 200) for one in FLOATS)],
    ids=str,
)  # fmt: skip
def test_what_is_not_finite_is_not_hidden_and_stays_in_its_row(method: Any, rows: int) -> None:
    for broken in (torch.nan, -torch.nan, torch.inf, -torch.inf):
        x = torch.linspace(-1, 1, 200)
        x[60] = broken
        found = dense(encoded(method, x))
        assert not bool(found[60].isfinite()), broken
        start = 60 // rows * rows
        assert bool(found[:start].isfinite().all()), broken
        assert bool(found[start + rows :].isfinite().all()), broken


@pytest.mark.parametrize(
    "method",
    [D.Uniform(4, "stochastic"), D.QSGD(7), D.TernGrad(), D.EDEN(1), D.Natural(),
     D.BlockFloat("mxfp4", "stochastic"), D.RandomK(0.1), D.RandomK(0.1, shared=False), D.Threshold(0.01)],
    ids=str,
)  # fmt: skip
def test_steps_workers_tensors_and_seeds_draw_apart_and_alike_when_repeated(method: Any) -> None:
    """Workers of a shared random-k draw the same places."""
    x = heavy_tailed(100_000)

    def sent(**where: Any) -> Tensor:
        return dense(run(method, x, context(**where)).own, len(x))

    first = sent()
    assert torch.equal(first, sent())
    for other in ({"step": 1}, {"name": "v"}, {"seed": 12}):
        assert not torch.equal(first, sent(**other)), other
    assert torch.equal(first, sent(rank=1)) == getattr(method, "shared", False)


@pytest.mark.parametrize(
    ("method", "shape", "size", "bits"),
    [
        (D.Uniform(4), (8192,), 4 + 4096, 4),  # half a byte a code, one scale
        (D.Uniform(12), (8192,), 4 + 12288, 12),  # 2 codes in 3 bytes
        (D.Uniform(2), (10,), 4 + 3, 2),  # 4 codes a byte, the third filled up
        (D.Uniform(4, block=2048), (8193,), 4 * 5 + 4097, 4),
        (D.Uniform(4, block=16), (0,), 0, 4),
        *((D.QSGD(levels, 512), (1024,), 2 * 4 + 128 * bits, bits) for levels, bits in (
            (1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (127, 8), (128, 9), (32767, 16))),
        (D.TernGrad(), (5003,), 4 + 1251, 2),
        (D.Natural(), (5003,), 5003 + 4 * 157, 9),
        (D.SignSGD(), (33,), 8, 1),
        (D.EFSignSGD(), (33,), 4 + 8, 1),
        (D.OneBit(), (), 8 + 4, 1),
        (D.OneBit(), (64, 27), 8 * 27 + 4 * 54, 1),
        (D.OneBit(), (3, 0), 0, 1),
        (D.BlockFloat("fp8_e4m3"), (33,), 4 + 33, 8),
        (D.BlockFloat("mxfp6"), (33,), 2 + 3 * 9, 6),
        (D.BlockFloat("mxfp4"), (33,), 2 + 17, 4),
        (D.BlockFloat("nvfp4"), (33,), 4 + 3 + 17, 4),
    ],
    ids=str,
)  # fmt: skip
def test_bytes_are_what_bits_say(method: Any, shape: tuple[int, ...], size: int, bits: int) -> None:
    own = encoded(method, torch.ones(shape))
    assert own.num_bytes == size
    assert own.num_floats == math.prod(shape) * bits / 32
    if isinstance(own, Codes):
        assert own.layout.tensors[0].num_bytes == size


@both_kernels
@pytest.mark.parametrize("method", [D.EDEN(3), D.RandomK(0.2, shared=False)], ids=str)
def test_a_payload_that_arrived_is_decoded_with_the_key_that_it_brought(method: Any) -> None:
    x = heavy_tailed(5000)
    mine, theirs = (run(method, x * (rank + 1), context(rank=rank)).own for rank in (0, 1))
    assert int(mine.keys[0]) != int(theirs.keys[0])
    arrived = mine.like(theirs.row.clone())
    assert torch.equal(arrived.keys, theirs.keys)
    assert torch.equal(dense(arrived), dense(theirs))


@pytest.mark.parametrize(
    "method", [D.Natural(), D.OneBit(), D.SignSGD(), D.RandomK(shared=False)], ids=str
)
def test_a_payload_of_another_size_is_refused(method: Any) -> None:
    own = run(method, torch.ones(100)).own
    for row in (own.row[:-8], torch.cat([own.row, own.row])):
        with pytest.raises(ValueError, match="bytes arrived, and this worker's has"):
            own.like(row)
