"""Cases of selections and of sparse payloads."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sidco import FITS, SIDCo
from dgc_repro.compressor.sparsifier import select_all
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.kernel import chosen
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.gpu import chosen as gpu_chosen
from dgc_repro.payload import Keyed, KeyedLayout, Sparse
from dgc_repro.selfcheck.kernel_cases.base import (
    NAMES,
    SIZES,
    batch,
    both,
    each,
    expect,
    listed,
    on_gpu,
    same,
    scratch,
)
from dgc_repro.selfcheck.values import context, heavy_tailed

SELECTIONS: tuple[Compressor, ...] = (
    Threshold(0.1),
    Threshold(threshold=0.7),
    DGCSampled(0.1),
    RedSync(0.05, search_from=0),
    RedSync(0.3, search_from=2000),
    RedSync(0.05, search_from=0, quantized=True),
    *(SIDCo(d, fit=f, stages=n) for f in FITS for d, n in ((0.05, None), (0.3, 2), (0.01, 1))),
)


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
