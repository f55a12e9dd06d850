"""GTopK against a numpy reference of gTop-k, its account of what was sent, and the merge kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_sharded import played, random_steps
from torch import Tensor

from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.gtopk import GTopK, turns
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.kernel import native
from dgc_repro.kernel.merge import contained, merge
from dgc_repro.kernel.select import Selection

Vector = NDArray[np.float64]


def topk(x: Vector, k: int) -> Vector:
    """The k entries of largest magnitude, ties to the lower index."""
    out = np.zeros_like(x)
    kept = np.argsort(-np.abs(x), kind="stable")[:k]
    out[kept] = x[kept]
    return out


def gtopk(vectors: list[Vector], k: int) -> tuple[Vector, list[Vector]]:
    """gTop-k of sparse vectors: the result, and which entries of each survived on their way.

    Algorithm 2 of the paper, G~ = top_k(G~_a + G~_b) pair by pair, in the tree of its figure (first
    neighbours, then neighbours of pairs); who is beyond the largest power of two is added first."""
    workers = len(vectors)
    power = 2 ** int(math.log2(workers))
    groups = []
    for low in range(power):
        members = [low, low + power] if low + power < workers else [low]
        total = sum((vectors[m] for m in members), np.zeros_like(vectors[0]))
        groups.append((members, topk(total, k) if len(members) > 1 else total))
    alive = [np.ones(len(v), dtype=bool) for v in vectors]

    def note(members: list[int], merged: Vector) -> None:
        for member in members:
            alive[member] &= merged != 0

    for members, merged in groups:
        note(members, merged)
    while len(groups) > 1:
        paired = []
        for (a, x), (b, y) in zip(groups[::2], groups[1::2], strict=True):
            merged = topk(x + y, k)  # G~_{i,j} = top_k(G~_i + G~_j)
            note(a + b, merged)
            paired.append((a + b, merged))
        groups = paired
    return groups[0][1], [v * mask for v, mask in zip(vectors, alive, strict=True)]


def gtopk_sgd(gradients: list[list[Vector]], k: int, own: str) -> tuple[list[Vector], list[Vector]]:
    """Algorithm 3: residuals; ``own``: the paper's gMask is the result's places."""
    residuals = [np.zeros_like(g) for g in gradients[0]]
    means = []
    for step in gradients:
        fed = [g + e for g, e in zip(step, residuals, strict=True)]
        chosen = [topk(x, k) for x in fed]
        result, survived = gtopk(chosen, k)
        if own == "result":  # the residual keeps what is not in the result (gMask)
            survived = [c * (result != 0) for c in chosen]
        residuals = [x - s for x, s in zip(fed, survived, strict=True)]
        means.append(result / len(step))
    return means, residuals


@pytest.mark.parametrize("own", ["path", "result"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 7, 8])
def test_four_steps_equal_the_papers_algorithm(workers: int, own: str) -> None:
    """float32 and float64 choose alike unless two magnitudes are closer than roundings: none are,
    with this seed. Values are sums of a dozen terms up to 5, rounded each time: 1e-5."""
    gradients = random_steps(2000, workers, 4)
    means, states = played(ErrorFeedback(GTopK(TopK(0.05), own)), gradients)
    expected, residuals = gtopk_sgd(gradients, 100, own)
    for ours, theirs in zip(means, expected, strict=True):
        np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=0, atol=1e-5)
        assert np.count_nonzero(theirs) == 100
    for state, theirs in zip(states, residuals, strict=True):
        ours = state["x"]["residual"].double().numpy()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def owed(own: str, workers: int, steps: int) -> float:
    """How much of the gradients is neither in the means nor in a residual, relative."""
    gradients = random_steps(500, workers, steps)
    means, states = played(ErrorFeedback(GTopK(TopK(0.05), own)), gradients)
    given = np.mean(gradients, axis=1).sum(axis=0)
    arrived = torch.stack(means).double().sum(0).numpy()
    kept = np.mean([s["x"]["residual"].double().numpy() for s in states], axis=0)
    return float(np.abs(given - arrived - kept).max() / np.abs(given).max())


def test_the_papers_account_loses_gradient_and_ours_does_not() -> None:
    """A place that one branch dropped and another brought into the result counts as sent for both,
    in the paper; in two workers there is one merge and no such place."""
    assert owed("path", 8, 10) < 1e-6  # a few float32 roundings a step
    assert owed("result", 2, 10) < 1e-6
    assert owed("result", 8, 10) > 0.01


@pytest.mark.parametrize("workers", range(1, 18))
def test_whoever_sends_is_waited_for_and_everybody_hears_of_everybody(workers: int) -> None:
    rounds = [turns(rank, workers) for rank in range(workers)]
    assert len({len(own) for own in rounds}) == 1
    power = 2 ** int(math.log2(workers))
    assert len(rounds[0]) == int(math.log2(power)) + (workers > power)
    known = [{rank} for rank in range(workers)]
    for number in range(len(rounds[0])):
        before = [set(one) for one in known]
        for rank in range(workers):
            turn = rounds[rank][number]
            senders = [s for s in range(workers) if rank in rounds[s][number].to]
            assert senders == ([] if turn.source is None else [turn.source])
            if turn.source is not None:
                assert not before[rank] & before[turn.source], "nothing is added twice"
                known[rank] = before[rank] | before[turn.source]
    assert all(one == set(range(workers)) for one in known)


def selection(indices: list[int], values: list[float], n: int, wide: bool) -> Selection:
    kind = torch.int64 if wide else torch.int32
    return Selection(torch.tensor(values), torch.tensor(indices, dtype=kind), n)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("a", [0, 1, 7, 300])
@pytest.mark.parametrize("b", [0, 1, 8, 300])
def test_merging_adds_in_order_and_ascends(
    a: int, b: int, wide: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "usable", lambda tensor: False)
    source, n = torch.Generator().manual_seed(a + 1000 * b), 500
    first, second = (
        Selection(
            torch.randn(k, generator=source),
            torch.randperm(n, generator=source)[:k]
            .sort()
            .values.to(torch.int64 if wide else torch.int32),
            n,
        )
        for k in (a, b)
    )
    merged = merge(first, second)
    dense, touched = torch.zeros(n), torch.zeros(n, dtype=torch.bool)
    for one in (first, second):
        dense[one.indices.long()] += one.values
        touched[one.indices.long()] = True
    assert torch.equal(merged.indices.long(), torch.nonzero(touched).view(-1))
    assert torch.equal(merged.values, dense[touched])
    assert merged.indices.dtype == (torch.int64 if wide else torch.int32)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_sum_that_is_not_a_number_stays_none(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "usable", lambda tensor: False)
    bits = torch.tensor([0x7FC00001, 0x7FC00002], dtype=torch.int32).view(torch.float32)
    first, second = (
        Selection(bits[i : i + 1].clone(), torch.zeros(1, dtype=torch.int32), 3) for i in (0, 1)
    )
    assert bool(merge(first, second).values.isnan().all())


def test_what_is_contained_is_found_at_both_ends() -> None:
    def those(places: list[int], among: list[int]) -> list[bool]:
        found: Tensor = contained(torch.tensor(places), torch.tensor(among, dtype=torch.int64))
        return found.tolist()  # type: ignore[no-any-return]

    assert those([0, 3, 9], [0, 4, 9]) == [True, False, True]
    assert those([10], [0, 9]) == [False]
    assert those([1, 2], []) == [False, False]
    assert those([], [1]) == []


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_ends_in_no_crash(bad: float) -> None:
    gradients = random_steps(1000, 5, 1)
    gradients[0][1][77] = bad
    played(ErrorFeedback(GTopK(TopK(0.1))), gradients)


def test_an_entry_that_two_bring_counts_for_both_and_ties_go_to_the_lower_index() -> None:
    """Worker 0 sends places 0 and 1, worker 1 places 1 and 2; place 1 adds up, and 0 ties with 2."""
    gradients = [[np.array([2.0, 3.0, 0.0, 1.0]), np.array([0.0, 2.5, 2.0, 1.0])]]
    means, states = played(ErrorFeedback(GTopK(TopK(0.5))), gradients)
    assert means[0].tolist() == [1.0, 2.75, 0.0, 0.0]
    assert states[0]["x"]["residual"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert states[1]["x"]["residual"].tolist() == [0.0, 0.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: GTopK(Uniform(8)), "method: a sparsifier that selects a fixed number of entries"),
        (lambda: GTopK(TopK(), own="mask"), "own: one of path, result, got 'mask'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(build: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()
