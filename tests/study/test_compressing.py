"""Compressing twice: what is counted, what is compared, and that the ways are what they say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.topk import TopK
from dgc_repro.kernel.select import Selection
from dgc_repro.study.compressing import BLOCKS, Method, joined, measure, topk_in_one_scan

FACTORS = (10.0, 1000.0)
TOPK = Method("topk", TopK(factor=10), TopK(factor=1000))


def gradient() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv": (16, 8, 3, 3), "norm": (7,), "fc": (50, 200)}
    return joined({name: torch.randn(s, generator=generator) for name, s in shapes.items()})


@dataclass(frozen=True)
class Last:
    """A sparsifier that is wrong on purpose: refined, it keeps one entry fewer, and negates one."""

    factor: float
    ragged = True

    def select(self, tensor: Tensor, context: Context) -> Selection:
        return TopK(factor=self.factor).select(tensor, context)

    def refine(self, survivors: Selection, context: Context) -> Selection:
        kept = TopK(factor=self.factor).refine(survivors, context)
        values = kept.values[1:].clone()
        values[:1] *= -1
        return Selection(values, kept.indices[1:], kept.n)


def test_every_method_is_measured_in_both_blocks_as_often_as_asked() -> None:
    repeats, _ = measure(gradient(), [TOPK], FACTORS, repeats=3)
    assert [(r["block"], r["repeat"]) for r in repeats] == [
        (block, number) for block in BLOCKS for number in range(3)
    ]
    for repeat in repeats:
        times = [repeat[f"{way}_ms"] for way in ("copy", "weak", "direct", "multilevel")]
        assert min(times) > 0
        assert repeat["single_pass_ms"] is None


def test_k_is_asked_from_each_tensors_own_size_and_topk_keeps_exactly_that() -> None:
    layerwise, one = measure(gradient(), [TOPK], FACTORS, repeats=1)[1]
    # 1,152, 7 and 10,000 values: round(n / factor), at least one
    assert (layerwise["tensors"], layerwise["values"]) == (3, 11_159)
    assert (layerwise["weak_asked"], layerwise["strong_asked"]) == (115 + 1 + 1000, 1 + 1 + 10)
    assert (one["weak_asked"], one["strong_asked"]) == (1116, 11)
    for chosen in (layerwise, one):
        assert chosen["weak_kept"] == chosen["weak_asked"]
        assert chosen["direct_kept"] == chosen["multilevel_kept"] == chosen["strong_asked"]
        assert chosen["multilevel_apart"] == 0


def test_entries_that_differ_in_place_or_value_are_counted() -> None:
    wrong = Method("wrong", Last(10), Last(1000))
    layerwise, one = measure(gradient(), [wrong], FACTORS, repeats=1)[1]
    # one vector: one entry missing, one negated; layerwise two tensors keep one entry and lose it
    assert (one["multilevel_kept"], one["multilevel_apart"]) == (10, 2)
    assert (layerwise["multilevel_kept"], layerwise["multilevel_apart"]) == (9, 2 + 2)


def test_a_single_pass_is_timed_and_compared_with_direct() -> None:
    both = topk_in_one_scan(1 / FACTORS[0], 1 / FACTORS[1])
    method = Method("topk", TopK(factor=10), TopK(factor=1000), both)
    repeats, counted = measure(gradient(), [method], FACTORS, repeats=2)
    assert all(r["single_pass_ms"] > 0 for r in repeats)
    for chosen in counted:
        assert (chosen["single_pass_kept"], chosen["single_pass_apart"]) == (
            chosen["strong_asked"],
            0,
        )


def test_a_channels_last_gradient_is_joined_in_the_order_of_its_memory() -> None:
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    bias = torch.randn(5)
    parts = joined({"weight": weight, "bias": bias})
    assert torch.equal(parts["weight"], weight.permute(0, 2, 3, 1).reshape(-1))
    assert torch.equal(parts["bias"], bias)
    assert parts["bias"].data_ptr() == parts["weight"].data_ptr() + parts["weight"].nbytes
