"""The ways of combining payloads: what they move, and what `exchange.aggregation` makes of
a method. (Real processes: test_processes.py.)"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from numeric import by_owner, gaussian

from dgc_repro import QSGD, Dense, OneBit, Sharded, TernGrad, TopK, Uniform, UserError
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.sharded import Shards
from dgc_repro.exchange.aggregation import SHARDED, aggregated
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import numbers_of


def step_bytes(compressor: Compressor, sizes: dict[str, int], workers: int) -> float:
    """Wire bytes of a step over tensors of so many values, by the ledger."""
    world = World(workers)
    exchange = Exchange(compressor, {name: torch.empty(n) for name, n in sizes.items()}, world)
    exchange.average([{name: gaussian(n) for name, n in sizes.items()} for _ in range(workers)])
    return world.ledger.metrics()["comm/wire_bytes"]


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_the_ledger_shows_which_way_moves_fewer_bytes(workers: int) -> None:
    """Of P bytes a worker: gathering moves (N - 1) P, shards 2 (N - 1) / N P."""
    n = 1 << 20
    for method in (Uniform(8, block=2048), Uniform(4, block=2048)):
        gather, scatter = (step_bytes(c, {"x": n}, workers) for c in (method, Sharded(method)))
        size = gather / (workers - 1)
        assert gather / size == workers - 1
        # 512 rows, a multiple of N: nothing is filled up but the headers' few bytes.
        assert scatter / size == pytest.approx(2 * (workers - 1) / workers, rel=1e-3)
        assert (scatter < gather) == (workers > 2)
    # Pitfalls: gathering 1 % (8 bytes an entry) costs more than dense from N = 100 on; 10 % from 10.
    dense = step_bytes(Dense(), {"x": n}, workers)
    assert (step_bytes(TopK(0.1), {"x": n}, workers) > dense) == (workers > 10)


def test_ternary_codes_are_parted_where_each_worker_has_a_scale() -> None:
    assert aggregated(TernGrad(), SHARDED) == Sharded(TernGrad())


class Remembers(Uniform):
    """A quantizer with a state."""

    def setup(self, like: Batch, world: World) -> None:
        self.keep("seen", [numbers_of(like.names)] * world.local)


@pytest.mark.parametrize(
    ("method", "way", "words"),
    [
        (Dense(), SHARDED, "a method that encodes or selects, and keeps no state; Dense"),
        (TernGrad(shared_scale=True), SHARDED, "TernGrad, as it is set, goes no other way"),
        (OneBit(), SHARDED, "OneBit, as it is set, goes no other way than its own"),
        (QSGD(7), SHARDED, "what QSGD loses, as it is set, is more than it is given"),
        (Remembers(8), SHARDED, "keeps no state; Remembers"),
        (Uniform(8), "ring", "one of gather, sharded, got 'ring'"),
        (Uniform(8), None, "one of gather, sharded, got None"),
    ],
)
def test_what_cannot_be_combined_so_is_refused_in_a_line(method: Any, way: Any, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        aggregated(method, way)
    assert str(refusal.value).startswith("exchange.aggregation: ")
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("n", [0, 1, 99, 100, 101, 750, 10_000])
def test_shards_are_whole_rows_and_cover_the_tensor_in_order(n: int, workers: int) -> None:
    shards = Shards.of(Uniform(8, block=100), n, "some.weight", workers)
    bounds = [shards.bounds(shard) for shard in range(workers)]
    ends = [0, *(end for _, end in bounds)]
    assert [start for start, _ in bounds] == ends[:-1]
    assert ends[-1] == n
    assert all(start % 100 == 0 or start == n for start, _ in bounds)
    assert sorted(by_owner(shards)) == sorted(bounds)
    longest = max(end - start for start, end in bounds)
    assert longest <= 100 * math.ceil(math.ceil(n / 100) / workers)


def test_small_tensors_belong_to_different_workers() -> None:
    owners = set()
    for index in range(40):
        stretches = by_owner(Shards.of(Uniform(8), 10, f"layer{index}.weight", 4))
        owners.add(next(rank for rank, (start, end) in enumerate(stretches) if end > start))
    assert owners == {0, 1, 2, 3}
