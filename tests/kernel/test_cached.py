"""Layouts of many buckets are made once, and those of sizes that never come again are not kept."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from everyday import everyday

from dgc_repro.bench.counting import CUDA, Counting, fake_workers
from dgc_repro.bench.launches import methods
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.kernel import cached, floats, layout
from dgc_repro.kernel.gpu.launch import Tables
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.settings import build_compressor, build_policy
from dgc_repro.policy.interface import Plan

BUCKETS = 80
RAGGED = ("threshold", "dgc", "dgc_sampled", "redsync", "sidco")
"""The layouts of their payloads differ in every step."""
EVEN = [name for name in methods() if name not in RAGGED]
DAILY = (("uniform", "cpu"), ("topk", "cpu"), ("powersgd", "cpu"), ("topk", "gpu"))
FEWER = 5
"""On fake CUDA tensors, where some methods take a minute for eighty buckets: every fifth of them."""


def test_eighty_layouts_in_turn_are_made_twice_and_then_found() -> None:
    calls: list[int] = []

    @cached.cached()
    def layout(number: int) -> list[int]:
        calls.append(number)
        return [number]

    for _ in range(4):
        assert [layout(i) for i in range(BUCKETS)] == [[i] for i in range(BUCKETS)]
    assert calls == [*range(BUCKETS)] * 2
    cached.forget(layout)
    layout(3)
    assert calls[2 * BUCKETS :] == [3]


def test_layouts_that_never_come_again_are_not_kept() -> None:
    layout = cached.cached()(lambda number: [number])
    for i in range(3 * cached.MOST_SEEN):
        layout(i)
        layout(-1)  # comes again in every step
    maker = layout.__wrapped__
    assert maker.made == 3 * cached.MOST_SEEN + 1
    assert not maker._kept
    assert len(maker._seen) <= cached.MOST_SEEN


def test_a_new_object_at_the_address_of_a_freed_one_has_not_been_seen() -> None:
    class Layout: ...

    table = cached.cached()(lambda layout: [1])
    for _ in range(300):
        table(Layout())
        table.cache_clear()
    assert not table.__wrapped__._kept
    kept = Layout()
    for _ in range(3):
        table(kept)
        table.cache_clear()
    assert [*table.__wrapped__._kept] == [(kept,)]


def test_an_object_with_caches_of_its_own_is_freed() -> None:
    tables = Tables(torch.device("cpu"))
    tables.given((1, 2))
    freed = weakref.ref(tables)
    del tables
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize("result", [floats._places, floats._tensor_of_blocks, layout._elements])
def test_results_as_large_as_tensors_are_few_and_forgotten(result: Any) -> None:
    assert result.cache_info().maxsize == 8
    assert not isinstance(result.__wrapped__, cached._Maker)
    assert result in cached._caches


@pytest.mark.parametrize(("method", "on"), everyday(product(EVEN, ("cpu", "gpu")), *DAILY))
def test_a_step_of_many_buckets_makes_no_layout_again(method: str, on: str) -> None:
    """A bucket is a part of a step, as with overlap=True."""
    device = CUDA if on == "gpu" else torch.device("cpu")
    config = composed([*methods()[method], "policy=fixed"])
    compressor = build_compressor(config, build_policy(config))
    source = torch.Generator().manual_seed(0)
    every = FEWER if on == "gpu" and (method, on) not in DAILY else 1
    shapes = [(2 + i // 8, 3 + i % 8) for i in range(BUCKETS)][every - 1 :: every]
    buckets = [
        {f"{i}.weight": torch.randn(shape, generator=source), f"{i}.bias": torch.randn(5 + i)}
        for i, shape in enumerate(shapes)
    ]
    with fake_workers(2), Counting() if device == CUDA else nullcontext():
        given = [{name: x.to(device) for name, x in bucket.items()} for bucket in buckets]
        like = {name: x for bucket in given for name, x in bucket.items()}
        exchange = Exchange(compressor, like, World(device=device))
        for _ in range(4):
            before = cached.made()
            for i, bucket in enumerate(given):
                exchange.run([bucket], Plan(0), part=i).finish()
            exchange.step += 1
        assert cached.made() == before
