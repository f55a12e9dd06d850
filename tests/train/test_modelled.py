"""Modelled communication in a run's record, by hand from the sizes that travel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_run import PLAIN, STEPS_PER_EPOCH, built, play

from dgc_repro.compressor.sparsifier import num_kept
from dgc_repro.exchange.ledger import GRADIENT
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import Network
from dgc_repro.paper.gravac.fig1a import PER_STEP
from dgc_repro.payload.sparse import SparseLayout
from dgc_repro.policy.interface import Plan
from dgc_repro.study.given import Tensors
from dgc_repro.study.saturation import sync_seconds
from dgc_repro.study.scaling import Scaling
from dgc_repro.train.run import Run
from dgc_repro.train.step import seconds_of

SIGNALS = 8 * 5  # float64: loss, correct answers, count, not finite, stop
NETWORK = (*PLAIN, "network.rate=8mbit", "network.latency=10us", "network.efficiency=1")
"""1 us a byte."""
DENSE = ("compressor=dense", "wrap=[]")
MS = "time/modelled_communicate_ms"
TOTAL = "time/modelled_communicate_seconds"
SECONDS = "time/modelled_seconds"


def values_of(run: Run) -> int:
    return sum(p.numel() for p in run.module.parameters())


def test_a_dense_step_costs_one_ring_and_the_signals() -> None:
    run = built(*DENSE, *NETWORK)
    records = play(run).records
    expected_us = 2 * (10 + 4 * values_of(run) / 2) + 2 * (10 + SIGNALS / 2)
    for record in records:
        assert record[MS] == pytest.approx(expected_us / 1e3)
    assert records[-1][TOTAL] == pytest.approx(2 * STEPS_PER_EPOCH * expected_us / 1e6)


def test_a_gathered_payload_costs_an_allgather() -> None:
    run = built("compressor=uniform", "compressor.bits=4", "wrap=[]", "launch.workers=4", *NETWORK)
    record = play(run).records[0]
    steps = run.steps_per_epoch
    payload = record["comm/payload_bytes"] / steps
    expected_us = 3 * (10 + payload) + 6 * (10 + SIGNALS / 4)
    assert record[MS] == pytest.approx(expected_us / 1e3)


LINKS = Network("8mbit", "10us", efficiency=1.0)  # as NETWORK


def figure_1a(sizes: tuple[int, ...]) -> float:
    """Seconds of communication of a step in the series that figure 1a's claims are judged by."""
    rows = Scaling({"here": LINKS}, [2], 7.0, 25.0, []).run(0, Tensors("model", sizes))
    (row,) = (row for row in rows if row["series"] == PER_STEP)
    assert row["messages"] == 1
    return float(row["sync_ms"]) / 1e3


def figure_3(sizes: tuple[int, ...]) -> float:
    """Seconds of communication of a step at 10x in figure 3, which has 8 bytes an entry, without them and
    with the bytes that travel, 1 us a byte."""
    kept = tuple(num_kept(n, 0.1) for n in sizes)
    return sync_seconds(Costs(LINKS, 2), sizes, 10) + 1e-6 * (
        SparseLayout(sizes, kept).size - 8 * sum(kept)
    )


TOPK10 = ("compressor=topk", "compressor.factor=10")


@pytest.mark.parametrize(
    ("settings", "collective", "figure"),
    [(DENSE, "allreduce", figure_1a), ((*TOPK10, "wrap=[error_feedback]"), "allgather", figure_3)],
)
def test_a_run_and_gravacs_modelled_figures_send_one_collective_a_step(
    settings: tuple[str, ...], collective: str, figure: Callable[[tuple[int, ...]], float]
) -> None:
    run = built(*settings, *NETWORK)
    play(run)
    ledger, steps = run.world.ledger, run.progress.step
    assert ledger.calls[GRADIENT] == {collective: steps}
    sizes = tuple(p.numel() for p in run.module.parameters())
    assert len(sizes) > 1
    assert ledger.seconds[GRADIENT] / steps == pytest.approx(figure(sizes))


def test_a_schedule_is_followed() -> None:
    schedule = f"network.schedule=[{{step:{STEPS_PER_EPOCH},rate:800kbit}}]"
    run = built(*DENSE, *NETWORK, schedule)
    first, second = (record[MS] for record in play(run).records)
    latency_ms = 4 * 10e-3
    assert second - latency_ms == pytest.approx(10 * (first - latency_ms))


def test_all_of_a_step_is_modelled_where_its_compute_is_stated_or_else_measured() -> None:
    stated = ("train.step_time=modelled", "train.compute_ms=7")
    for record in play(built(*DENSE, *NETWORK, *stated)).records:
        assert record[SECONDS] == pytest.approx(record["step"] * 7e-3 + record[TOTAL])
    record = play(built(*DENSE, *NETWORK)).records[-1]
    assert record[TOTAL] < record[SECONDS] < record[TOTAL] + record["time/train_seconds"]
    without = play(built(*DENSE, *PLAIN)).records[-1]
    assert not [key for key in without if "modelled" in key]


def test_a_run_that_stands_for_a_longer_one_pays_for_it() -> None:
    given = (*DENSE, *NETWORK)
    plain = play(built(*given)).records[0]
    scaled = play(built(*given, "network.message_scale=3", "network.as_workers=4")).records[0]
    run = built(*given)
    size = 4 * values_of(run)
    expected_us = 6 * (10 + 3 * size / 4) + 6 * (10 + 3 * SIGNALS / 4)
    assert scaled[MS] == pytest.approx(expected_us / 1e3)
    assert scaled["comm/wire_bytes"] == plain["comm/wire_bytes"]  # what was sent is what was sent


@pytest.mark.parametrize(("rung", "expected"), [(0, 0.010 + 0.5), (2, 0.010 + 0.040 + 0.5)])
@pytest.mark.parametrize("decided", ["by the plan", "by the gradient"])
def test_a_dense_steps_time_excludes_compression(rung: int, expected: float, decided: str) -> None:
    """GraVAC records t_o + t_s for a dense step: compute 10 ms and communication 500 ms of two workers."""
    run = built("train.step_time=modelled", *NETWORK)
    run.world.clock._last = {"compute": 0.020, "compress": 0.080, "decompress": 0.0}
    run.progress.watched.chosen = rung
    run.plan = Plan(rung if decided == "by the plan" else None)
    assert seconds_of(run, wall=9.0, modelled=0.5) == pytest.approx(expected)
