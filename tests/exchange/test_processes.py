"""Real processes give what the simulated world gives, as exactly as docs/architecture.md states."""

from __future__ import annotations

import pickle
from typing import Any

import jobs
import numpy as np
import pytest
import torch
from everyday import everyday
from jobs import Shapes, exchange_here, exchanged, letter, raised, same
from processes import World as Ranks
from processes import _message
from samples import AllKinds, AtLeast, OneLess, damages, gradient

import dgc_repro as D
from dgc_repro.compressor.interface import nested
from dgc_repro.exchange.world import World
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings import low_rank, quantizers, sparse
from dgc_repro.selfcheck.law_settings.base import EPS, Setting

SHAPES: Shapes = {
    "matrix": (33, 13), "vector": (5,), "one": (1,), "none": (0,), "large": (40, 130),
    "conv.weight": (6, 3, 3, 3),
}  # fmt: skip
STEPS = 2
SUMMED = ("fp16", "bf16", "-shared", "ef-randomk", "per-layer-onebit")
"""Settings whose answers are sums: three workers' are added in an order of their own."""
FAMILIES = (*quantizers.SETTINGS, *sparse.SETTINGS, *low_rank.SETTINGS)
GATHERED: dict[str, Any] = {
    **{s.name: s.compressor for s in FAMILIES if s.plan == Plan(0) and s.cancelled == 0.0},
    "nearest": D.Uniform(4),
    "stochastic": D.Uniform(6, "stochastic", 100),
    "toward zero": D.ErrorFeedback(D.Uniform(12, "toward_zero", 7)),
    "a ladder of quantizers": D.ErrorFeedback(
        D.Ladder((D.Dense(), D.Uniform(8), D.Uniform(3, "stochastic")))
    ),
    "cosines": D.ErrorFeedback(D.DeMo(4), decay=0.999),
    "gaps": D.ErrorFeedback(D.TopK(factor=30)),
    "bitmap": D.ErrorFeedback(D.TopK(0.3)),
    "a ladder of sparsifiers": D.ErrorFeedback(D.Ladder((D.Dense(), D.TopK(0.5), D.TopK(0.05)))),
    "ragged": D.ErrorFeedback(AtLeast(0.5)),
    "ragged, nobody sends anything": AtLeast(100.0),
}
SHARDS = D.Ladder((D.Dense(), D.Sharded(D.Uniform(8)), D.Sharded(D.Uniform(3, block=7))))
COMBINED: dict[str, Any] = {
    "shards": D.Sharded(D.Uniform(8, block=512)),
    "stochastic shards": D.ErrorFeedback(D.Sharded(D.Uniform(4, "stochastic", 100))),
    "a ladder of shards": D.ErrorFeedback(SHARDS),
    "shards of codes": D.ErrorFeedback(D.Sharded(D.QSGD(7, 64, "max"))),
    "shards of entries": D.ErrorFeedback(D.Sharded(D.TopK(0.05))),
    "ragged shards": D.ErrorFeedback(D.Sharded(D.Threshold(0.05))),
}
SUMS: dict[str, Any] = {
    "dense": D.Dense(),
    "exempt": D.ErrorFeedback(D.PerLayer(D.Dense())),
    "two rounds": D.PowerSGD(1),
    "all kinds": AllKinds(),
    "directions": D.ErrorFeedback(D.Dion(0.2)),
}
FED = [name for name in GATHERED if " " in name or name.startswith("ef-")]
CASES = [
    *(("two_workers", name) for name in (GATHERED | COMBINED)),
    *everyday((("three_workers", name) for name in (*FED, *COMBINED)), ("three_workers", "shards")),
    *(("four_workers", name) for name in COMBINED),
    *(("two_workers", name) for name in SUMS),
]


def compare(
    ranks: Ranks, compressor: Any, rung: int, shapes: Shapes, *, exactly: bool, apart: bool = False
) -> tuple[list[Any], Any]:
    """Each rank's result and the simulated world's. Ranks, states and bytes are always alike; means
    where ``exactly``. ``apart``: each rank is sent bytes of its own."""
    real = ranks(exchange_here, compressor, shapes, STEPS, rung)
    simulated = exchanged(World(ranks.size), compressor, shapes, STEPS, rung)
    for rank, one in enumerate(real):
        assert same(one["means"], real[0]["means"])
        if exactly:
            assert same(one["means"], simulated["means"])
            assert same(one["states"][0], simulated["states"][rank])
        counted, expected = dict(one["ledger"]), dict(simulated["ledger"])
        if rank:  # how many values a ragged payload has is each worker's own affair
            assert (counted.pop("floats") > 0) == (expected.pop("floats") > 0)
        assert (rank and apart) or counted == expected
    return real, simulated


@pytest.mark.parametrize(("size", "name"), CASES)
def test_real_ranks_equal_simulated(size: str, name: str, request: pytest.FixtureRequest) -> None:
    ranks: Ranks = request.getfixturevalue(size)
    if name in SUMS:
        compare(ranks, SUMS[name], 0, {"a": (7, 3), "b": (5,)}, exactly=True)
        return
    compressor, rung = (GATHERED | COMBINED)[name], 2 if name.startswith("a ladder") else 0
    summed = ranks.size > 2 and name.endswith(SUMMED)
    compare(ranks, compressor, rung, SHAPES, exactly=not summed, apart=name in COMBINED)


@pytest.mark.parametrize("size", ["two_workers", "three_workers", "four_workers"])
def test_a_swap_brings_every_rank_its_letters(size: str, request: pytest.FixtureRequest) -> None:
    ranks: Ranks = request.getfixturevalue(size)
    written = [[letter(source, to) for source in range(ranks.size)] for to in range(ranks.size)]
    assert ranks(jobs.swapped) == written


def test_every_family_of_methods_is_among_them() -> None:
    methods = {type(part).__name__ for one in GATHERED.values() for part in nested(one)}
    wanted = "Threshold DGCSampled RedSync SIDCo RandomK QSGD Natural TernGrad OneBit"
    assert methods >= {*wanted.split(), "SignSGD", "EFSignSGD", "FP16", "BF16"}


NARROW = [s for s in quantizers.SETTINGS if s.plan == Plan(0) and s.name.endswith(SUMMED[:2])]


@pytest.mark.parametrize("setting", [Setting("dense", D.Dense()), *NARROW], ids=str)
def test_sums_of_three_differ_by_roundings_alone(setting: Setting, three_workers: Ranks) -> None:
    real, simulated = compare(three_workers, setting.compressor, 0, SHAPES, exactly=False)
    # The allreduce adds three in an order of its own: two sums, each rounded by eps, on both sides.
    within = 4 * max(setting.eps, EPS)
    for name, mean in simulated["means"][0].items():
        total = sum(gradient(name, SHAPES[name], worker, 0).abs() for worker in range(3))
        off = (real[0]["means"][0][name] - mean).abs()
        assert bool((off <= within * total + 4 * setting.smallest).all())


@pytest.mark.parametrize(
    ("what", "ragged"),
    # Of payloads of one size this worker's own sizes cut what arrives: no length can be wrong there.
    [(what, ragged) for what in ("header", "places", "count") for ragged in (False, True)]
    + [("length", True)],
)
def test_a_broken_payload_is_one_error_on_all(two_workers: Ranks, what: str, ragged: bool) -> None:
    first, second = two_workers(broken_here, what, ragged)
    assert first == second
    assert first.startswith("ValueError: sparse payload: "), first


def test_rows_of_unlike_sizes_are_the_same_sentence_on_both_ranks(two_workers: Ranks) -> None:
    first, second = two_workers(unlike_here)
    assert first == second
    assert first.startswith(
        "ValueError: compress: it has returned 72 float32 for a at one worker and 71 "
    )


def unlike_here() -> str:
    return raised(lambda: exchange_here(OneLess(), {"a": (8, 9), "b": (300,)}, 1, 0))


def broken_here(what: str, ragged: bool) -> str:
    compressor = damages(what, ragged, on_rank=1)
    return raised(lambda: exchange_here(compressor, {"a": (8, 9), "b": (300,)}, 1, 0))


@pytest.mark.parametrize("extra", [0, 17])
def test_a_gather_in_pieces_brings_all_that_was_sent(three_workers: Ranks, extra: int) -> None:
    assert three_workers(jobs.gather_in_pieces, extra) == [[True] * 3] * 3


def test_tensors_of_every_kind_arrive_as_they_were_and_share_their_storage() -> None:
    whole, values = torch.zeros(6), np.arange(6.0)
    given = [
        *(whole, whole.view(2, 3).t(), whole[4:]),
        *(torch.from_numpy(values[:2]), torch.from_numpy(values)),  # one place, two lengths
        *(torch.empty(0, 3, dtype=torch.int64), torch.tensor(7, dtype=torch.bfloat16)),
        *(torch.tensor([True, False]), torch.zeros(4).expand(3, 4), torch.tensor([1 + 2j]).conj()),
        *(torch.nn.Parameter(torch.ones(2)), torch.empty(2, 3, device="meta")),
    ]
    found = pickle.loads(_message(given))
    for ours, theirs in zip(found, given, strict=True):
        assert type(ours) is type(theirs)
        assert ours.requires_grad == theirs.requires_grad
        assert (ours.device, ours.dtype, ours.shape) == (theirs.device, theirs.dtype, theirs.shape)
        assert ours.stride() == theirs.stride()
        assert ours.is_meta or torch.equal(ours, theirs)
    found[0].fill_(1)
    assert found[1].eq(1).all()
    assert found[2].eq(1).all()
    assert whole.eq(0).all()
