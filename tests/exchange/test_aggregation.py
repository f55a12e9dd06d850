"""All-to-all, and the ways of combining payloads: what they move, and what `exchange.aggregation` makes of
a method. (Real processes: test_processes.py.)"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from numeric import by_owner, dense, dense_bytes
from samples import Letters, letter
from test_requests import link_of, run_once
from tiny_run import built, play
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.gtopk import GTopK
from dgc_repro.compressor.interface import Compressor, State
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.sharded import Sharded, Shards
from dgc_repro.compressor.sidco import SIDCo
from dgc_repro.compressor.terngrad import TernGrad
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.errors import UserError
from dgc_repro.exchange.aggregation import (
    AUTO,
    GATHER,
    GTOPK,
    SAMPLE,
    SHARDED,
    aggregated,
    choose,
    wire_bytes,
)
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import RanksDisagree, Sizes
from dgc_repro.payload import num_bytes
from dgc_repro.policy.interface import Plan

# All-to-all.


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_every_worker_gets_the_letters_that_were_written_to_it(workers: int, ragged: bool) -> None:
    outcomes, link = run_once(Letters(ragged), workers)
    for worker, by_name in enumerate(outcomes):
        for outcome in by_name.values():
            for source in range(workers):
                written = letter(source, worker, workers)
                came, flags = outcome.mean[:, source].tolist()
                if written is None:
                    assert (came, flags) == (-1.0, 0)
                else:
                    assert came == pytest.approx(float(written.values.double().sum()))
                    assert flags == worker
    # Worker 0's letters to others, three tensors in a buffer for each worker, in two rounds.
    expected = 0
    for to in range(1, workers):
        if (own := letter(0, to, workers)) is not None:
            end = 0
            for _ in range(3):
                for part in own.parts:
                    end = math.ceil(end / part.itemsize) * part.itemsize + part.nbytes
            expected += 2 * (math.ceil(end / 8) * 8 + (72 if ragged else 0))
    assert link.ledger.payload_by_collective == {"alltoall": expected}
    assert link.ledger.metrics()["comm/wire_bytes"] == expected  # each byte goes to one worker


def test_simulated_workers_that_expect_what_is_not_sent_are_told() -> None:
    flats = [torch.zeros(8, dtype=torch.uint8)] * 2
    sizes = [Sizes([0, 8], [0, 8]), Sizes([8, 0], [16, 0])]
    with pytest.raises(RanksDisagree, match="worker 1 waits for 16 bytes from worker 0"):
        SimulatedWire(2).collect(flats, "slot", sizes)


# What moves fewer bytes.


def step_bytes(compressor: Compressor, sizes: dict[str, int], workers: int) -> float:
    """Wire bytes of a step over tensors of so many values, by the ledger."""
    link = link_of(workers)
    like = {name: torch.empty(n) for name, n in sizes.items()}
    exchange = GradientExchange(compressor, like, link)
    for worker in range(workers):
        exchange.open(worker, {name: normal(n) for name, n in sizes.items()}, Plan(0))
    exchange.finish()
    return link.ledger.metrics()["comm/wire_bytes"]


def normal(n: int) -> Tensor:
    """The values that stand for a gradient in exchange/aggregation.py."""
    return torch.randn(n, generator=torch.Generator().manual_seed(0))


METHODS = (Uniform(8, block=2048), Uniform(4, block=512), Uniform(6), TopK(0.01), TopK(0.001))


def ways_of(method: Any) -> dict[str, Compressor]:
    """Every way in which a method's payloads can be combined, written down here anew."""
    ways: dict[str, Compressor] = {GATHER: method}
    if not isinstance(method, Dense) and getattr(method, "values", "fp32") == "fp32":
        ways[SHARDED] = Sharded(method)
        if isinstance(method, TopK):
            ways[GTOPK] = GTopK(method)
    return ways


LAYERS = {
    "one": 1,
    "bias": 7,
    "none": 0,
    "rows": 8192,
    "odd": 4097,
    "head": 9000,
    **{f"layer{index}.weight": 3000 for index in range(4)},
    **{f"layer{index}.bias": 64 for index in range(4)},
}
"""Headers, least entries, alignment within a buffer, rows filled up to the longest."""


@pytest.mark.parametrize(
    "method",
    [
        *METHODS,
        Natural(),
        EFSignSGD(),
        TernGrad(),
        TopK(0.01, indices="bitmap"),
        TopK(0.1, indices="delta16", values="fp16"),
        Threshold(threshold=1.0),
        SIDCo(0.05, values="int8"),
    ],
    ids=str,
)
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_the_formulas_are_what_the_ledger_counts(method: Any, workers: int) -> None:
    alone = [{"x": n} for n in (0, 5, 1000, 100_000) if method in METHODS]
    for sizes in (*alone, *([LAYERS] if workers in (2, 8) else []), {"x": 5003}):
        expected, ways = wire_bytes(method, sizes, workers), ways_of(method)
        assert expected.keys() == (ways.keys() if len(ways) > 1 else set())
        for way, moved in expected.items():
            if way == SHARDED and getattr(method, "ragged", False):
                continue  # how many entries of an average pass depends on the values
            counted = step_bytes(ways[way], sizes, workers)
            assert counted == pytest.approx(moved, rel=1e-12), (way, sizes)
        dense = sum(dense_bytes(n, workers) for n in sizes.values())
        assert step_bytes(Dense(), sizes, workers) == pytest.approx(dense, rel=1e-12)


def test_auto_takes_no_way_that_is_refused() -> None:
    method = TopK(1e-5, values="fp16")
    assert aggregated(method, AUTO, {"x": 300_000}, 8) == method
    assert choose(method, {"x": 300_000}, 8).wire_bytes == {}
    with pytest.raises(
        UserError,
        match=r"^exchange.aggregation: sharded: values: sums are sent on.*\(exchange.aggregation=gather\)$",
    ):
        aggregated(method, SHARDED, {"x": 300_000}, 8)


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_the_ledger_shows_which_way_moves_fewer_bytes(workers: int) -> None:
    """Of P bytes a worker: gathering moves (N - 1) P, shards 2 (N - 1) / N P, pairs log2(N) P."""
    n = 1 << 20
    for method in (Uniform(8, block=2048), Uniform(4, block=2048)):
        gather, scatter = (step_bytes(c, {"x": n}, workers) for c in (method, Sharded(method)))
        size = gather / (workers - 1)
        assert gather / size == workers - 1
        # 512 rows, a multiple of N: nothing is filled up but the headers' few bytes.
        assert scatter / size == pytest.approx(2 * (workers - 1) / workers, rel=1e-3)
        assert (scatter < gather) == (workers > 2)
    sparse = TopK(0.01)
    gather, tree = (step_bytes(c, {"x": n}, workers) for c in (sparse, GTopK(sparse)))
    assert tree / gather == pytest.approx(math.log2(workers) / (workers - 1), rel=1e-12)
    # Pitfalls: gathering 1 % (8 bytes an entry) costs more than dense from N = 100 on; 10 % from 10.
    dense = step_bytes(Dense(), {"x": n}, workers)
    assert (step_bytes(TopK(0.1), {"x": n}, workers) > dense) == (workers > 10)


SMALL = {f"layer{index}": 3000 for index in range(40)}


@pytest.mark.parametrize(
    ("method", "sizes", "ways"),
    [
        (Uniform(8, block=2048), {"x": 300_000}, {2: GATHER, 3: SHARDED, 8: SHARDED}),
        (TopK(0.01), {"x": 300_000}, {1: GATHER, 2: GATHER, 3: SHARDED, 8: SHARDED}),
        (TopK(0.01), SMALL, {8: GTOPK}),  # in one vector of as many values: shards
        (TopK(1e-5), {"x": 300_000}, {2: GATHER, 4: GTOPK, 8: GTOPK}),  # headers outweigh entries
        (Dense(), {"x": 300_000}, {2: GATHER, 8: GATHER}),
    ],
)
def test_auto_takes_the_way_of_the_fewest_bytes(
    method: Any, sizes: dict[str, int], ways: dict[int, str]
) -> None:
    for workers, way in ways.items():
        choice = choose(method, sizes, workers)
        assert choice.way == way, str(choice)
        moved = {key: step_bytes(c, sizes, workers) for key, c in ways_of(method).items()}
        assert moved[way] == min(moved.values())
        if len(moved) > 1:
            assert choice.wire_bytes == pytest.approx(moved, rel=1e-12)


@pytest.mark.parametrize("workers", [2, 4, 32])
def test_auto_leaves_no_owner_a_residual_that_grows(workers: int) -> None:
    sizes = {"x": 300_000}
    assert aggregated(QSGD(7), AUTO, sizes, workers) == QSGD(7)
    assert choose(QSGD(7, norm="max"), sizes, workers).way == (GATHER, SHARDED)[workers > 2]


def test_ternary_codes_are_parted_where_each_worker_has_a_scale() -> None:
    assert aggregated(TernGrad(), SHARDED, {"x": 100_000}, 2) == Sharded(TernGrad())
    assert choose(TernGrad(shared_scale=True), {"x": 100_000}, 8).way == GATHER


def test_auto_says_once_what_it_took_and_why() -> None:
    notes: list[str] = []
    for _ in range(2):
        assert aggregated(Uniform(8), AUTO, {"model": 10**6}, 8, notes) == Sharded(Uniform(8))
    assert aggregated(Dense(), AUTO, {"model": 10**6}, 8, notes) == Dense()
    assert len(notes) == 2
    assert notes[0].startswith("exchange.aggregation=auto: Uniform(bits=8")
    assert "sharded (gather 7 MB, sharded 1.778 MB a" in notes[0]
    assert notes[1].endswith("left as it is, it goes no other way")


def test_what_auto_says_of_a_run_is_what_its_ledger_counts() -> None:
    """What `per_layer` sends dense goes no way but its own, and is not in the line."""
    given = (
        *("compressor=topk", "compressor.density=0.01", "exchange.aggregation=auto"),
        "launch.workers=4",
    )
    run = built(*given, "wrap=[per_layer,error_feedback]")
    sizes = {name: p.numel() for name, p in run.module.named_parameters() if p.dim() > 1}
    vectors = sum(p.numel() for p in run.module.parameters() if p.dim() == 1)
    choice = choose(TopK(0.01), sizes, 4)
    assert choice.way == GTOPK, "of shards the bytes depend on where entries lie"
    assert run.notes == [f"exchange.aggregation=auto: {TopK(0.01)}: {choice}"]
    play(run, until=1)
    moved = run.link.ledger.moved_by_collective("gradient")
    assert moved == {"alltoall": choice.wire_bytes[GTOPK], "allreduce": dense_bytes(vectors, 4)}

    whole = built(*given, "wrap=[error_feedback]", "exchange.unit=model")
    n = sum(p.numel() for p in whole.module.parameters())
    choice = choose(TopK(0.01), {"model": n}, 4)  # one vector, where that is exchanged
    assert whole.notes == [f"exchange.aggregation=auto: {TopK(0.01)}: {choice}"]
    assert built("compressor=uniform", "exchange.aggregation=sharded").notes == []


def test_a_large_tensor_is_estimated_from_a_sample_in_proportion() -> None:
    method = Uniform(4, block=2048)
    small, large = (wire_bytes(method, {"x": n}, 4) for n in (SAMPLE, 100 * SAMPLE))
    assert large == {way: 100 * size for way, size in small.items()}


class Remembers(Uniform):
    """A quantizer with a state."""

    def init(self, tensor: Tensor) -> State:
        return {"seen": torch.zeros(1)}


@pytest.mark.parametrize(
    ("method", "way", "words"),
    [
        (
            Dense(),
            SHARDED,
            "sharded needs a method that encodes or selects, and keeps no state; Dense",
        ),
        (Dense(), GTOPK, "Dense is no such method"),
        (
            TernGrad(shared_scale=True),
            SHARDED,
            "TernGrad, as it is set, goes no other way than its",
        ),
        (OneBit(), SHARDED, "OneBit, as it is set, goes no other way than its own"),
        (QSGD(7), SHARDED, "what QSGD loses, as it is set, is more than it is given"),
        (QSGD(7), GTOPK, "QSGD goes by gather; use"),
        (
            Uniform(8),
            GTOPK,
            "gtopk needs a sparsifier that sends a fixed number of entries; Uniform",
        ),
        (Remembers(8), SHARDED, "keeps no state; Remembers"),
        (Threshold(threshold=1.0), GTOPK, "Threshold goes by gather, sharded"),
        (Uniform(8), "ring", "one of gather, sharded, gtopk, auto, got 'ring'"),
        (Uniform(8), None, "one of gather, sharded, gtopk, auto, got None"),
    ],
)
def test_what_cannot_be_combined_so_is_refused_in_a_line(method: Any, way: Any, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        aggregated(method, way, {"x": 100}, 2)
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


def test_a_payload_in_pieces_is_its_pieces() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    outcomes, _ = run_once(Sharded(Uniform(8, block=100)), 3, {"x": (1000,)})
    own = outcomes[0]["x"].own
    again = own.like([part.clone() for part in own.parts])
    sent = dense(own, 1000)
    assert torch.equal(dense(again, 1000), sent)
    assert num_bytes(own) == 1000 + 4 * 10
    buffer = x.clone()
    own.subtract_from_(buffer)
    assert torch.equal(buffer, x - sent)
