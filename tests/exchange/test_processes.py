"""Real processes give what the simulated world gives, as exactly as docs/architecture.md states."""

from __future__ import annotations

from typing import Any

import jobs
import pytest
from jobs import Script, disagree, exchange_here, exchanged, train
from laws import same
from processes import JobFailed, World
from samples import AllKinds, LowRank, Threshold, gradient

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.simulated import SimulatedWire

SHAPES = {"conv.weight": (6, 3, 3, 3), "conv.bias": (6,), "fc.weight": (50, 90), "none": (0,)}
GATHERED: list[tuple[Compressor, int]] = [
    (Uniform(4), 0),
    (Uniform(6, "stochastic", 100), 0),
    (ErrorFeedback(Uniform(12, "toward_zero", 7)), 0),
    (ErrorFeedback(Ladder((Dense(), Uniform(8), Uniform(3, "stochastic")))), 2),
    (ErrorFeedback(Threshold(0.5)), 0),
    (Threshold(100.0), 0),  # nobody sends anything
]


def leaf(compressor: Compressor) -> Compressor:
    return leaf(compressor.inner) if isinstance(compressor, ErrorFeedback) else compressor


def worlds(
    world: World, compressor: Compressor, rung: int, shapes: Any = SHAPES
) -> tuple[Any, Any]:
    """(every rank's result, the simulated world's)."""
    real = world(exchange_here, compressor, shapes, 3, rung)
    return real, exchanged(SimulatedWire(world.size), compressor, shapes, 3, rung)


@pytest.mark.parametrize(("compressor", "rung"), GATHERED, ids=str)
@pytest.mark.parametrize("size", ["two_workers", "three_workers"])
def test_gathered_payloads_give_the_same_bits_in_every_world(
    size: str, compressor: Compressor, rung: int, request: pytest.FixtureRequest
) -> None:
    real, simulated = worlds(request.getfixturevalue(size), compressor, rung)
    for rank, one in enumerate(real):
        assert same(one["means"], simulated["means"])
        assert same(one["states"][0], simulated["states"][rank])
        if rank == 0 or not isinstance(leaf(compressor), Threshold):
            assert one["ledger"] == simulated["ledger"]  # of worker 0; ragged floats are one's own


@pytest.mark.parametrize(
    "compressor", [Dense(), ErrorFeedback(PerLayer(Dense())), LowRank(), AllKinds()], ids=str
)
def test_means_are_the_same_bits_with_two_workers(
    two_workers: World, compressor: Compressor
) -> None:
    shapes = {"a": (7, 3), "b": (5,)}
    real, simulated = worlds(two_workers, compressor, 0, shapes)
    for one in real:
        assert same(one["means"], simulated["means"])
        assert one["ledger"] == simulated["ledger"]


def test_means_of_three_workers_agree_and_differ_from_the_simulated_by_roundings(
    three_workers: World,
) -> None:
    real, simulated = worlds(three_workers, Dense(), 0)
    for one in real:
        assert same(one["means"], real[0]["means"])
    for step, means in enumerate(simulated["means"]):
        for name, mean in means.items():
            total = sum(gradient(name, SHAPES[name], w, step).abs() for w in range(3))
            assert bool(((real[0]["means"][step][name] - mean).abs() <= 1e-6 * total).all())


def test_two_rounds_of_three_workers_agree(three_workers: World) -> None:
    real, simulated = worlds(three_workers, LowRank(), 0, {"a": (7, 3), "b": (5,)})
    for one in real:
        assert same(one["means"], real[0]["means"])
        assert same(one["states"], real[0]["states"])
        assert one["ledger"] == simulated["ledger"]


def test_checking_changes_nothing_but_its_own_bytes(two_workers: World) -> None:
    plain = two_workers(exchange_here, Uniform(4), SHAPES, 2, 0, False)
    checked = two_workers(exchange_here, Uniform(4), SHAPES, 2, 0, True)
    for one, other in zip(plain, checked, strict=True):
        assert same(one["means"], other["means"])
        for column in ("wire_bytes", "calls", "moved"):
            assert other["ledger"][column].pop("check")
        assert one["ledger"] == other["ledger"]


@pytest.mark.parametrize("size", ["two_workers", "three_workers"])
@pytest.mark.parametrize(
    ("mine", "theirs", "words", "unsaid"),
    [
        # One rank lacks a tensor, has another kind of request, another shape, another setting.
        ((Dense(), {"conv": (3,), "head": (2,)}), (Dense(), {"conv": (3,)}), ["head"], []),
        ((Dense(), {"conv": (3,)}), (Uniform(8), {"conv": (3,)}), ["gather", "sum", "conv"], []),
        ((Dense(), {"conv": (3,)}), (Dense(), {"conv": (4,)}), ["conv"], []),
        (
            (Dense(), {"conv": (3,), "head": (2,)}),
            (Dense(), {"conv": (4,), "head": (2,)}),
            ["conv"],
            ["head"],
        ),
        (
            (Uniform(8), {"conv": (9,), "head": (1,)}),
            (Uniform(4), {"conv": (9,), "head": (1,)}),
            ["conv"],
            ["head"],
        ),
        ((Threshold(0), {"conv": (9,)}), (Threshold(0), {"head": (9,)}), ["conv", "head"], []),
    ],
)
def test_ranks_that_disagree_get_a_sentence_with_rank_and_tensor(
    size: str,
    mine: Any,
    theirs: Any,
    words: list[str],
    unsaid: list[str],
    request: pytest.FixtureRequest,
) -> None:
    world: World = request.getfixturevalue(size)
    said = world(disagree, [mine, theirs] + [mine] * (world.size - 2))
    assert len(set(said)) == 1, "every rank says the same"
    assert said[0].startswith("RanksDisagree: rank 1 is about to ask for: ")
    assert "; rank 0 for: " in said[0]
    assert all(word in said[0] for word in words), said[0]
    assert not any(word in said[0] for word in unsaid), said[0]


def test_a_job_that_raises_on_a_rank_is_reported_and_the_world_goes_on(two_workers: World) -> None:
    with pytest.raises(JobFailed, match="rank 0:(?s:.)*rank 1:(?s:.)*unit: one of layer, model"):
        two_workers(train, Script(Dense(), unit="tensor"))
    assert two_workers(disagree, [(Dense(), {"a": (3,)})] * 2) == ["nothing", "nothing"]


@pytest.mark.parametrize("extra", [0, 17])
def test_a_gather_in_pieces_brings_every_rank_what_each_sent(
    three_workers: World, extra: int
) -> None:
    assert three_workers(jobs.gather_in_pieces, extra) == [[True] * 3] * 3
