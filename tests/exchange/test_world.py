"""What workers of a simulated world ask for and get, and what the ledger counts. (Real: test_processes.py)"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jobs import exchanged, letter, same, swap
from samples import AllKinds, AtLeast, damages, gradient
from torch import Tensor

from dgc_repro import FP16, Dense, Ladder, PowerSGD, TopK, Uniform
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.world import BROADCAST, SUM, TOLD_BYTES, World
from dgc_repro.policy.interface import Plan

SHAPES = {"weight": (4, 3), "bias": (5,), "none": (0,)}


def run_once(
    compressor: Compressor, workers: int, shapes: dict[str, tuple[int, ...]] = SHAPES
) -> tuple[dict[str, Tensor], World]:
    """The means of a step, and the world afterwards."""
    world = World(workers)
    return exchanged(world, compressor, shapes, 1, 0)["means"][0], world


def stacked(name: str, shape: tuple[int, ...], workers: int) -> Tensor:
    return torch.stack([gradient(name, shape, worker, 0) for worker in range(workers)])


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_every_collective_answers_what_it_says(workers: int) -> None:
    means, _ = run_once(AllKinds(), workers)
    for name, shape in SHAPES.items():
        everybody = stacked(name, shape, workers)
        mean = everybody.double().mean(0)
        # bfloat16 rounds each term (2^-9), its share and each sum: N + 2 roundings in all.
        bound = (workers + 2) * 2.0**-9 * everybody.abs().double().mean(0) + 1e-6
        assert bool(((means[name] - everybody.amax(0) - 2 * mean).abs() <= bound).all())


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("threshold", [0.0, 0.7, 100.0])
def test_ragged_payloads_arrive_whole_even_when_empty(workers: int, threshold: float) -> None:
    means, _ = run_once(AtLeast(threshold), workers)
    for name, shape in SHAPES.items():
        everybody = stacked(name, shape, workers)
        kept = torch.where(everybody.abs() >= threshold, everybody, 0.0)
        # A product and a sum a worker, N + 1 roundings of the mean of |x|.
        bound = (workers + 1) * 2.0**-24 * kept.abs().double().mean(0)
        assert bool(((means[name].double() - kept.double().mean(0)).abs() <= bound).all())


@pytest.mark.parametrize("compressor", [Dense(), FP16(), PowerSGD(1), TopK(0.5)], ids=repr)
def test_a_worker_that_stands_for_several_equal_ones_has_their_mean(compressor: Compressor) -> None:
    shapes = {"matrix": (4, 3), "bias": (5,)}
    alone, several = (
        exchanged(World(1, size=size), compressor, shapes, 1, 0)["means"][0] for size in (1, 4)
    )
    for name in shapes:
        torch.testing.assert_close(several[name], alone[name], rtol=1e-3, atol=1e-6)  # float16


def test_two_rounds_of_all_tensors_are_two_collectives() -> None:
    _, world = run_once(PowerSGD(1), 2, {"matrix": (4, 3), "bias": (5,), "other": (2, 2)})
    assert world.ledger.calls_by_collective() == {"allreduce": 2}
    # Round one: p of both matrices and the bias; round two: q of both.
    assert world.ledger.payload_by_collective == {"allreduce": 4 * (4 + 2 + 5) + 4 * (3 + 2)}
    assert world.ledger.floats == 11 + 5


def test_a_policy_gets_one_energy_for_all_tensors_and_workers() -> None:
    given: list[list[float]] = []

    def choose(energies: Tensor) -> int:
        given.append(energies.tolist())
        return 2

    ladder = Ladder((Dense(), TopK(factor=2), TopK(factor=4)))
    like = {"a": torch.zeros(4), "b": torch.zeros(4)}
    world = World(3)
    exchange = Exchange(ladder, like, world, choose=choose)
    every = [
        {n: torch.tensor([4.0, 2.0, 0.0, 0.0]) * (worker + 1) for n in like} for worker in range(3)
    ]
    exchange.average(every, Plan(None, candidates=(1, 2)))
    squares = 2 * (1 + 4 + 9) / 3  # of two tensors, averaged over the workers
    assert given == [pytest.approx([20 * squares, 20 * squares, 16 * squares])]
    assert world.ledger.payload_by_collective["allreduce"] == 24
    assert every[0]["a"].tolist() == [8.0, 0.0, 0.0, 0.0]


PER_BYTE = {
    "allreduce": {1: 0.0, 2: 1.0, 3: 4 / 3, 8: 1.75},
    "allgather": {1: 0.0, 2: 1.0, 3: 2.0, 8: 7.0},
}


ONES, HALVES = torch.ones(10), torch.ones(10, dtype=torch.bfloat16)
BYTES, TRIPLE = torch.zeros(40, dtype=torch.uint8), torch.ones(3, dtype=torch.float64)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("kind", "payload", "collective"),
    [
        (lambda world, n: world.mean([ONES] * n, ONES.clone()), 40, "allreduce"),
        (lambda world, n: world.mean([HALVES] * n, HALVES.clone()), 20, "allreduce"),
        (lambda world, n: world.largest([ONES.clone()] * n), 40, "allreduce"),
        (lambda world, n: world.total([TRIPLE.clone()] * n), 24, "allreduce"),
        (lambda world, n: world.gather([BYTES] * n, "x"), 40, "allgather"),
    ],
)
def test_the_ledger_counts_bytes(kind: Any, payload: int, collective: str, workers: int) -> None:
    world = World(workers)
    kind(world, workers)()
    metrics = world.ledger.metrics()
    moved = payload * PER_BYTE[collective][workers]
    assert metrics["comm/payload_bytes"] == payload
    assert metrics["comm/wire_bytes"] == pytest.approx(moved, rel=1e-12)
    assert metrics["comm/total_wire_bytes"] == metrics["comm/wire_bytes"]
    assert world.ledger.payload_by_collective == {collective: payload}


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_a_swap_brings_every_worker_its_letters_and_counts_each_byte_once(workers: int) -> None:
    world = World(workers)
    for to, rows in enumerate(swap(world)):
        assert [row.tolist() for row in rows] == [letter(source, to) for source in range(workers)]
    sent = sum(len(letter(0, to)) for to in range(workers))
    assert world.ledger.payload_by_collective == {"alltoall": sent}
    assert world.ledger.metrics()["comm/wire_bytes"] == sent


def test_what_is_asked_for_together_travels_together() -> None:
    world = World(2)
    waits = [
        world.mean([first := torch.ones(2), torch.full((2,), float(n))], first) for n in range(3)
    ]
    for wait in waits:
        wait()
    assert world.ledger.calls_by_collective() == {"allreduce": 1}


def test_signals_are_counted_under_their_own_name_and_survive_a_checkpoint() -> None:
    world = World(2)
    world.reduce_(SUM, torch.zeros(3, dtype=torch.float64), "signal")
    world.reduce_(BROADCAST, torch.zeros(10), "buffer")
    world.reduce_(SUM, torch.zeros(5), "gradient")
    ledger = Ledger()
    ledger.load_state_dict(world.ledger.state_dict())
    for metrics in (world.ledger.metrics(), ledger.metrics()):
        assert metrics["comm/signal_bytes"] == 24
        assert metrics["comm/buffer_bytes"] == 20
        assert metrics["comm/wire_bytes"] == metrics["comm/payload_bytes"] == 20
        assert metrics["comm/total_wire_bytes"] == 64
    for counted in (world.ledger, ledger):
        assert counted.calls == {
            "signal": {"allreduce": 1},
            "buffer": {"broadcast": 1},
            "gradient": {"allreduce": 1},
        }
        assert counted.calls_by_collective() == {"allreduce": 2, "broadcast": 1}
        assert counted.calls_by_collective("buffer") == {"broadcast": 1}
        assert counted.moved_by_collective() == {"allreduce": 44, "broadcast": 20}
    ledger.clear()
    assert ledger == Ledger()


def test_floats_are_values_in_the_papers_unit() -> None:
    shapes = {"w": (100, 3), "b": (7,)}
    assert run_once(Dense(), 2, shapes)[1].ledger.floats == 307
    assert run_once(Uniform(4), 2, shapes)[1].ledger.floats == 307 / 8
    assert run_once(Uniform(8, block=5), 2, shapes)[1].ledger.floats == 307 / 4


def test_long_messages_travel_in_pieces() -> None:
    world = World(2)
    for data in (b"", b"abc", bytes(range(256)) * (TOLD_BYTES // 256) + b"end"):
        assert world.tell_bytes(data, None) == [data] * 2
    assert world.tell("Größe") == ["Größe"] * 2


def test_a_payload_of_one_size_and_a_ragged_one_have_one_mean() -> None:
    shapes = {"a": (8, 9), "b": (300,), "c": (1,)}
    one, other = (
        exchanged(World(3), method, shapes, 3, 0)["means"]
        for method in (damages("", ragged=True, on_rank=-1), TopK(0.2))
    )
    assert same(one, other)
