"""What workers ask and get, in one process: every request, several rounds, the driver's order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from numeric import encoded
from samples import AllKinds, LowRank, Sparse, Threshold, gradient
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor, Context, State
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.drive import Chooser, Lockstep
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import BROADCAST, SUM, Link, RanksDisagree
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.payload import Wholes
from dgc_repro.payload.requests import (
    Choose,
    Exchange,
    Gather,
    Max,
    Mean,
    Outcome,
    together,
)

CPU = torch.device("cpu")
SHAPES = {"weight": (4, 3), "bias": (5,), "none": (0,)}


def drive(
    workers: list[Mapping[str, Exchange]], link: Link, choose: Chooser | None = None
) -> list[dict[str, Outcome]]:
    """Open all workers and finish: one step in one call, with fresh buffers."""
    lockstep = Lockstep(link, Workspace(), choose)
    for exchanges in workers:
        lockstep.open(together(exchanges))  # type: ignore[arg-type]
    return lockstep.finish()  # type: ignore[return-value]


def link_of(workers: int) -> Link:
    return Link(SimulatedWire(workers), Ledger(), Clock(CPU))


def context(name: str, worker: int, workers: int) -> Context:
    return Context(name, 0, 0, worker, workers, 0, (0, 0), Workspace())


def run_once(
    compressor: Compressor, workers: int, shapes: dict[str, tuple[int, ...]] = SHAPES
) -> tuple[list[dict[str, Outcome]], Link]:
    link = link_of(workers)
    exchanges = []
    for worker in range(workers):
        own = {name: gradient(name, shape, worker, 0) for name, shape in shapes.items()}
        exchanges.append(
            {
                name: compressor.exchange(g, compressor.init(g), context(name, worker, workers))
                for name, g in own.items()
            }
        )
    return drive(exchanges, link), link


def stacked(name: str, workers: int) -> Tensor:
    return torch.stack([gradient(name, SHAPES[name], worker, 0) for worker in range(workers)])


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_every_request_answers_what_it_says(workers: int) -> None:
    outcomes, _ = run_once(AllKinds(), workers)
    for name in SHAPES:
        everybody = stacked(name, workers)
        for worker in range(workers):
            largest, half, double = outcomes[worker][name].mean
            assert torch.equal(largest, everybody.amax(0).double())
            # bfloat16 rounds each term (2^-9), its share and each sum: N + 2 roundings in all.
            bound = (workers + 2) * 2.0**-9 * everybody.abs().double().mean(0)
            assert bool(((half - everybody.double().mean(0)).abs() <= bound).all())
            # double: N + 1 roundings of 2^-53.
            bound = (workers + 1) * 2.0**-53 * everybody.abs().double().mean(0)
            assert bool(((double - everybody.double().mean(0)).abs() <= bound).all())


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("threshold", [0.0, 0.7, 100.0])
def test_ragged_payloads_arrive_whole_even_when_empty(workers: int, threshold: float) -> None:
    outcomes, link = run_once(Threshold(threshold), workers)
    longest = 0
    for worker in range(workers):
        end = 0  # parts in the order of tensors, each at a multiple of its element size
        for name, shape in SHAPES.items():
            count = int((gradient(name, shape, worker, 0).abs() >= threshold).sum())
            end = -(-end // 4) * 4 + 8 * count + count % 3
        longest = max(longest, -(-end // 8) * 8)
    assert link.ledger.payload_bytes == 9 * 8 + longest  # 3 parts of 3 tensors, 8 bytes a length
    for name in SHAPES:
        everybody = stacked(name, workers)
        kept = torch.where(everybody.abs() >= threshold, everybody, 0.0)
        expected = torch.zeros(SHAPES[name])
        for own in kept:  # in rank order, as the payloads are added
            expected += own * (1.0 / workers)
        for worker in range(workers):
            mean = outcomes[worker][name].mean
            assert torch.equal(mean, outcomes[0][name].mean)
            # A product and a sum a worker, N + 1 roundings of the mean of |x|.
            bound = (workers + 1) * 2.0**-24 * kept.abs().double().mean(0)
            assert bool(((mean.double() - kept.double().mean(0)).abs() <= bound).all())


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_two_rounds_run_in_lockstep_with_tensors_that_take_one(workers: int) -> None:
    shapes = {"matrix": (4, 3), "bias": (5,), "other": (2, 2)}
    outcomes, link = run_once(LowRank(), workers, shapes)
    for name in ("matrix", "other"):
        mean = torch.stack([gradient(name, shapes[name], w, 0) for w in range(workers)]).mean(0)
        p = mean @ torch.ones(mean.shape[1])
        p = p / p.norm()
        expected = torch.outer(p, mean.T @ p)
        # The reference averages first; the products are linear, and a dozen roundings apart.
        torch.testing.assert_close(outcomes[0][name].mean, expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(outcomes[-1][name].state["q"], outcomes[0][name].state["q"])
    # Round one: p of both matrices and the bias in one allreduce; round two: q of both.
    assert link.ledger.payload_by_collective == {"allreduce": 4 * (4 + 2 + 5) + 4 * (3 + 2)}
    assert link.ledger.floats == 11 + 5


def test_simulated_workers_that_ask_differently_are_told_apart() -> None:
    x = torch.ones(3)
    exchanges = [
        {
            "a": Dense().exchange(x, {}, context("a", 0, 2)),
            "b": Dense().exchange(x, {}, context("b", 0, 2)),
        },
        {
            "a": Dense().exchange(x, {}, context("a", 1, 2)),
            "b": Uniform().exchange(x, {}, context("b", 1, 2)),
        },
    ]
    with pytest.raises(RanksDisagree, match="worker 1 asks otherwise than worker 0 about b"):
        drive(exchanges, link_of(2))


def test_integers_are_not_averaged() -> None:
    class Whole64:
        def init(self, tensor: Tensor) -> State:
            return {}

        def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
            mean = yield Mean(tensor.long())
            return Outcome(mean, Wholes.of(tensor), state)

    with pytest.raises(TypeError, match="Mean and Max take floating-point tensors, weight is"):
        run_once(Whole64(), 2)


def asks(request: Any) -> Exchange:
    answer = yield request
    return Outcome(answer, Wholes.of(torch.zeros(0)), {})


def test_one_choice_for_all_tensors_from_summed_and_averaged_energies() -> None:
    given: list[list[float]] = []

    def choose(energies: Tensor) -> int:
        given.append(energies.tolist())
        return 2

    chooser: Chooser = choose
    workers: list[dict[str, Exchange]] = [
        {
            name: asks(Choose(torch.tensor(e) * (worker + 1)))
            for name, e in (("a", [4.0, 2.0, 1.0]), ("b", [1.0, 0.0, 0.0]))
        }
        for worker in range(3)
    ]
    link = link_of(3)
    outcomes = drive(list(workers), link, chooser)
    assert given == [[10.0, 4.0, 2.0]]  # (5, 2, 1) times (1 + 2 + 3) / 3, once
    assert [outcomes[w][name].mean for w in range(3) for name in "ab"] == [2] * 6
    assert link.ledger.payload_bytes == 24


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "seen",
    [lambda x: x.t(), lambda x: x[:, 1], lambda x: x[0, :1].expand(9), lambda x: x.view(-1)[::2]],
)
def test_a_mean_of_values_that_lie_apart_is_theirs(seen: Any, in_place: bool, workers: int) -> None:
    own = [torch.arange(12.0).view(3, 4) * (worker + 1) for worker in range(workers)]
    expected = torch.stack([seen(x).clone() for x in own]).mean(0)
    outcomes = drive([{"x": asks(Mean(seen(x), in_place))} for x in own], link_of(workers))
    assert torch.allclose(torch.as_tensor(outcomes[0]["x"].mean), expected)


def test_codes_of_another_size_are_refused_and_not_misread() -> None:
    long, short = (encoded(Uniform(4), torch.ones(n), context("x", 0, 1)) for n in (9, 5))
    with pytest.raises(ValueError, match="of another size"):
        long.like(short.parts)


def test_a_mean_is_written_into_the_gradient_only_where_it_fits_and_nobody_reads_it() -> None:
    x = torch.ones(2, 3)
    inside = replace(context("x", 0, 1), into=x)
    assert inside.result(x).data_ptr() == x.data_ptr()
    assert inside.within("a").result(x).data_ptr() == x.data_ptr()
    for other in (
        inside.within("b", reads_gradient=True).result(x),
        inside.result(torch.ones(8)),
        replace(inside, into=x.t()).result(x),
        replace(inside, into=x.double()).result(x),
    ):
        assert other.data_ptr() != x.data_ptr()


def test_a_choice_without_a_chooser_says_so() -> None:
    with pytest.raises(RuntimeError, match="an exchange asks Choose, but its policy"):
        drive([{"a": asks(Choose(torch.ones(3)))}], link_of(1))


def sparse(entries: int, flags: int) -> Sparse:
    """A payload of 8 bytes an entry and one a flag."""
    places = torch.arange(entries, dtype=torch.int32)
    return Sparse(torch.ones(entries), places, torch.zeros(flags, dtype=torch.uint8))


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("request_of", "payload", "collective"),
    [
        (lambda: Mean(torch.ones(10)), 40, "allreduce"),
        (lambda: Mean(torch.ones(10, dtype=torch.bfloat16)), 20, "allreduce"),
        (lambda: Max(torch.ones(10)), 40, "allreduce"),
        (lambda: Gather(sparse(5, flags=0)), 40, "allgather"),
        (lambda: Gather(sparse(4, flags=3)), 40, "allgather"),  # filled up to 8
        (lambda: Choose(torch.ones(3)), 24, "allreduce"),
    ],
)
def test_the_ledger_agrees_with_a_count_by_hand(
    request_of: Any, payload: int, collective: str, workers: int
) -> None:
    link = link_of(workers)
    drive([{"x": asks(request_of())} for _ in range(workers)], link, lambda energies: 0)
    per_byte = {
        "allreduce": {1: 0.0, 2: 1.0, 3: 4 / 3, 8: 1.75},
        "allgather": {1: 0.0, 2: 1.0, 3: 2.0, 8: 7.0},
    }[collective][workers]
    metrics = link.ledger.metrics()
    assert metrics["comm/payload_bytes"] == payload
    assert metrics["comm/wire_bytes"] == pytest.approx(payload * per_byte, rel=1e-12)
    assert metrics["comm/total_wire_bytes"] == metrics["comm/wire_bytes"]
    assert link.ledger.payload_by_collective == {collective: payload}


def test_signals_are_counted_under_their_own_name_and_survive_a_checkpoint() -> None:
    link = link_of(2)
    link.combine_(SUM, torch.zeros(3, dtype=torch.float64), "signal")
    link.combine_(BROADCAST, torch.zeros(10), "buffer")
    link.combine_(SUM, torch.zeros(5), "gradient", ": w")
    ledger = Ledger()
    ledger.load_state_dict(link.ledger.state_dict())
    for metrics in (link.ledger.metrics(), ledger.metrics()):
        assert metrics["comm/signal_bytes"] == 24
        assert metrics["comm/buffer_bytes"] == 20
        assert metrics["comm/wire_bytes"] == metrics["comm/payload_bytes"] == 20
        assert metrics["comm/total_wire_bytes"] == 64
    for counted in (link.ledger, ledger):
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
