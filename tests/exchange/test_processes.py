"""Real processes give what the simulated world gives, as exactly as docs/architecture.md states."""

from __future__ import annotations

from typing import Any

import jobs
import pytest
from everyday import everyday
from jobs import Shapes, disagree, exchange_here, exchanged, raised
from laws import same
from processes import JobFailed, World
from samples import AllKinds, Letters, LowRank, SendsBroken, Threshold, gradient, letter

from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import nested
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.threshold import Threshold as SentThreshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings import low_rank, quantizers, sparse
from dgc_repro.selfcheck.law_settings.base import EPS, Setting

SHAPES: Shapes = {
    "matrix": (33, 13),
    "vector": (5,),
    "one": (1,),
    "none": (0,),
    "large": (40, 130),
    "conv.weight": (6, 3, 3, 3),
}
STEPS = 2
SUMMED = ("fp16", "bf16", "-shared", "ef-randomk", "per-layer-onebit")
"""Settings whose answers are sums: three workers' are added in an order of their own."""
FAMILIES = (*quantizers.SETTINGS, *sparse.SETTINGS, *low_rank.SETTINGS)
GATHERED: dict[str, tuple[Any, int]] = {
    **{s.name: (s.compressor, 0) for s in FAMILIES if s.plan == Plan(0) and s.cancelled == 0.0},
    "nearest": (Uniform(4), 0),
    "stochastic": (Uniform(6, "stochastic", 100), 0),
    "toward zero": (ErrorFeedback(Uniform(12, "toward_zero", 7)), 0),
    "a ladder of quantizers": (
        ErrorFeedback(Ladder((Dense(), Uniform(8), Uniform(3, "stochastic")))),
        2,
    ),
    "cosines": (ErrorFeedback(DeMo(4), decay=0.999), 0),
    "bitmap": (ErrorFeedback(TopK(factor=30, indices="bitmap", values="fp16")), 0),
    "int8": (ErrorFeedback(TopK(0.3, values="int8")), 0),
    "a ladder of sparsifiers": (
        ErrorFeedback(Ladder((Dense(), TopK(0.5), TopK(0.05, indices="delta16")))),
        2,
    ),
    "ragged": (ErrorFeedback(Threshold(0.5)), 0),
    "ragged, nobody sends anything": (Threshold(100.0), 0),
}
COMBINED: dict[str, tuple[Any, int]] = {
    "shards": (Sharded(Uniform(8, block=512)), 0),
    "stochastic shards": (ErrorFeedback(Sharded(Uniform(4, "stochastic", 100))), 0),
    "a ladder of shards": (
        ErrorFeedback(Ladder((Dense(), Sharded(Uniform(8)), Sharded(Uniform(3, block=7))))),
        2,
    ),
    "shards of codes": (ErrorFeedback(Sharded(QSGD(7, 64, "max"))), 0),
    "shards of entries": (ErrorFeedback(Sharded(TopK(0.05))), 0),
    "ragged shards": (ErrorFeedback(Sharded(SentThreshold(0.05))), 0),
}
SUMS: dict[str, Any] = {
    "dense": Dense(),
    "exempt": ErrorFeedback(PerLayer(Dense())),
    "two rounds": LowRank(),
    "all kinds": AllKinds(),
    "directions": ErrorFeedback(Dion(0.2)),
}
FED = [name for name in GATHERED if " " in name or name.startswith("ef-")]
CASES = [
    *(("two_workers", name) for name in (GATHERED | COMBINED)),
    *everyday((("three_workers", name) for name in (*FED, *COMBINED)), ("three_workers", "shards")),
    *(("four_workers", name) for name in COMBINED),
    *(("two_workers", name) for name in SUMS),
]


def compare(
    world: World, compressor: Any, rung: int, shapes: Shapes, *, exactly: bool, apart: bool = False
) -> tuple[list[Any], Any]:
    """Each rank's result and the simulated world's. Ranks, states and bytes are always alike; means
    where ``exactly``. Three workers check each other, which changes nothing. ``apart``: each rank is
    sent bytes of its own."""
    check = world.size > 2
    real = world(exchange_here, compressor, shapes, STEPS, rung, check)
    simulated = exchanged(SimulatedWire(world.size), compressor, shapes, STEPS, rung)
    for rank, one in enumerate(real):
        assert same(one["means"], real[0]["means"])
        if exactly:
            assert same(one["means"], simulated["means"])
            assert same(one["states"][0], simulated["states"][rank])
        counted, expected = dict(one["ledger"]), dict(simulated["ledger"])
        for column in ("wire_bytes", "calls", "moved") if check else ():
            assert counted[column].pop("check")
        if rank:  # how many values a ragged payload has is each worker's own affair
            assert (counted.pop("floats") > 0) == (expected.pop("floats") > 0)
        assert (rank and apart) or counted == expected
    return real, simulated


@pytest.mark.parametrize(("size", "name"), CASES)
def test_real_processes_give_the_bits_of_the_simulated_world(
    size: str, name: str, request: pytest.FixtureRequest
) -> None:
    world: World = request.getfixturevalue(size)
    if name in SUMS:
        compare(world, SUMS[name], 0, {"a": (7, 3), "b": (5,)}, exactly=True)
        return
    compressor, rung = (GATHERED | COMBINED)[name]
    summed = world.size > 2 and name.endswith(SUMMED)
    compare(world, compressor, rung, SHAPES, exactly=not summed, apart=name in COMBINED)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("size", ["two_workers", "three_workers", "four_workers"])
def test_an_all_to_all_brings_every_rank_what_was_written_to_it(
    size: str, ragged: bool, request: pytest.FixtureRequest
) -> None:
    world: World = request.getfixturevalue(size)
    for worker, came in enumerate(world(letters_here, ragged)):
        for source, (total, flags) in enumerate(came):
            written = letter(source, worker, world.size)
            if written is None:
                assert (total, flags) == (-1.0, 0)
            else:
                assert total == pytest.approx(float(written.values.double().sum()))
                assert flags == worker


def letters_here(ragged: bool) -> Any:
    """A rank's part: what came, by source."""
    means = exchange_here(Letters(ragged), {"a": (2,), "b": (0,)}, 1, 0, True)["means"][0]
    assert same(means["a"], means["b"])
    return means["a"].t().tolist()


def test_every_family_of_methods_is_among_them() -> None:
    methods = {type(part).__name__ for one, _ in GATHERED.values() for part in nested(one)}
    wanted = "Threshold DGCSampled RedSync SIDCo RandomK QSGD Natural TernGrad OneBit"
    assert methods >= {*wanted.split(), "SignSGD", "EFSignSGD", "FP16", "BF16"}


NARROW = [s for s in quantizers.SETTINGS if s.plan == Plan(0) and s.name.endswith(SUMMED[:2])]


@pytest.mark.parametrize("setting", [Setting("dense", Dense()), *NARROW], ids=str)
def test_sums_of_three_workers_agree_and_differ_from_the_simulated_by_roundings(
    setting: Setting, three_workers: World
) -> None:
    real, simulated = compare(three_workers, setting.compressor, 0, SHAPES, exactly=False)
    # The allreduce adds three in an order of its own: two sums, each rounded by eps, on both sides.
    within = 4 * max(setting.eps, EPS)
    for name, mean in simulated["means"][0].items():
        total = sum(gradient(name, SHAPES[name], worker, 0).abs() for worker in range(3))
        off = (real[0]["means"][0][name] - mean).abs()
        assert bool((off <= within * total + 4 * setting.smallest).all())


def test_two_rounds_of_three_workers_agree(three_workers: World) -> None:
    real, _ = compare(three_workers, LowRank(), 0, {"a": (7, 3), "b": (5,)}, exactly=False)
    for one in real:
        assert same(one["states"], real[0]["states"])


CONV, BOTH, LONG = {"conv": (3,)}, {"conv": (3,), "head": (2,)}, {"conv": (90,)}
CODED = {"conv": (9,), "head": (1,)}  # the codes of `head` fill one byte in either setting


@pytest.mark.parametrize("size", ["two_workers", "three_workers"])
@pytest.mark.parametrize(
    ("mine", "theirs", "words", "unsaid"),
    [
        # One rank lacks a tensor, has another kind of request, another shape, another setting.
        ((Dense(), BOTH), (Dense(), CONV), ["head"], []),
        ((Dense(), CONV), (Uniform(8), CONV), ["gather", "sum", "conv"], []),
        ((Dense(), CONV), (Dense(), {"conv": (4,)}), ["conv"], []),
        ((Dense(), BOTH), (Dense(), {"conv": (4,), "head": (2,)}), ["conv"], ["head"]),
        ((Uniform(8), CODED), (Uniform(4), CODED), ["conv"], ["head"]),
        ((Threshold(0), CONV), (Threshold(0), {"head": (3,)}), ["conv", "head"], []),
        # Another way of combining, or of another size.
        ((Sharded(Uniform(8)), LONG), (Uniform(8), LONG), ["alltoall", "gather", "conv"], []),
        (
            (Sharded(TopK(0.5)), LONG),
            (Sharded(Uniform(8)), LONG),
            ["alltoall", "sizes", "conv"],
            [],
        ),
        (
            (Sharded(Uniform(8)), LONG),
            (Sharded(Uniform(4)), LONG),
            ["waits for", "which sends it", "conv"],
            [],
        ),
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
    assert said[0].startswith("RanksDisagree: rank ")
    if "waits for" not in words:
        assert said[0].startswith("RanksDisagree: rank 1 is about to ask for: ")
        assert "; rank 0 for: " in said[0]
    assert all(word in said[0] for word in words), said[0]
    assert not any(word in said[0] for word in unsaid), said[0]


@pytest.mark.parametrize(
    ("what", "ragged"),
    # `Gather` cuts what arrives by this worker's own sizes: no length can be wrong there.
    [(what, ragged) for what in ("header", "places", "count") for ragged in (False, True)]
    + [("length", True)],
)
def test_a_broken_sparse_payload_is_the_same_sentence_on_both_ranks(
    two_workers: World, what: str, ragged: bool
) -> None:
    first, second = two_workers(sends_broken, SendsBroken(what, ragged, on_rank=1))
    assert first == second
    assert first.startswith("ValueError: sparse payload: "), first


def sends_broken(compressor: SendsBroken) -> str:
    return raised(lambda: exchange_here(compressor, {"a": (8, 9), "b": (300,)}, 1, 0))


def test_a_job_that_raises_on_a_rank_is_reported_and_the_world_goes_on(two_workers: World) -> None:
    with pytest.raises(JobFailed, match="rank 0:(?s:.)*rank 1:(?s:.)*Dense.*no attribute 'nothing"):
        two_workers(getattr, Dense(), "nothing")
    assert two_workers(disagree, [(Dense(), {"a": (3,)})] * 2) == ["nothing", "nothing"]


@pytest.mark.parametrize("extra", [0, 17])
def test_a_gather_in_pieces_brings_every_rank_what_each_sent(
    three_workers: World, extra: int
) -> None:
    assert three_workers(jobs.gather_in_pieces, extra) == [[True] * 3] * 3
