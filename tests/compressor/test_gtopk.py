"""GTopK against a numpy reference of gTop-k, its account of what was sent, and the merge kernel."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from laws import played
from numeric import Array, both_kernels, gaussian, random_steps, topk

from dgc_repro import ErrorFeedback, TopK
from dgc_repro.compressor.gtopk import GTopK, turns
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.merge import contained, merge
from dgc_repro.kernel.select import Selection


def gtopk(vectors: list[Array], k: int) -> tuple[Array, list[Array]]:
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

    def note(members: list[int], merged: Array) -> None:
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


def gtopk_sgd(gradients: list[list[Array]], k: int, own: str) -> tuple[list[Array], list[Array]]:
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
    exact = [[g.double().numpy() for g in step] for step in gradients]
    expected, residuals = gtopk_sgd(exact, 100, own)
    for ours, theirs in zip(means, expected, strict=True):
        np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=0, atol=1e-5)
        assert np.count_nonzero(theirs) == 100
    for state, theirs in zip(states, residuals, strict=True):
        ours = state["residual"].double().numpy()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def owed(own: str, workers: int, steps: int) -> float:
    """How much of the gradients is neither in the means nor in a residual, relative."""
    gradients = random_steps(500, workers, steps)
    means, states = played(ErrorFeedback(GTopK(TopK(0.05), own)), gradients)
    given = torch.stack([torch.stack(step).double().mean(0) for step in gradients]).sum(0).numpy()
    arrived = torch.stack(means).double().sum(0).numpy()
    kept = np.mean([s["residual"].double().numpy() for s in states], axis=0)
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


@both_kernels
@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
def test_merging_adds_in_order_and_ascends(kind: torch.dtype) -> None:
    n = 500
    for a, b in itertools.product((0, 1, 7, 300), (0, 1, 8, 300)):
        source = torch.Generator().manual_seed(a + 1000 * b)
        drawn = [torch.randperm(n, generator=source)[:k].sort().values for k in (a, b)]
        first, second = (Selection(gaussian(len(p), len(p)), p.to(kind), n) for p in drawn)
        twice = merge(Selections.of([first, first]), Selections.of([second, first]))
        assert torch.equal(twice[1].values, 2 * first.values)
        assert torch.equal(twice[1].indices, first.indices.int())
        merged = twice[0]
        dense, touched = torch.zeros(n), torch.zeros(n, dtype=torch.bool)
        for one in (first, second):
            dense[one.indices.long()] += one.values
            touched[one.indices.long()] = True
        assert torch.equal(merged.indices, torch.nonzero(touched).view(-1).int()), (a, b)
        assert torch.equal(merged.values, dense[touched]), (a, b)
    bits = torch.tensor([0x7FC00001, 0x7FC00002], dtype=torch.int32).view(torch.float32)
    broken = [Selection(bits[i : i + 1].clone(), torch.zeros(1, dtype=kind), 3) for i in (0, 1)]
    assert bool(merge(*(Selections.of([one]) for one in broken)).values.isnan().all())


def test_what_is_contained_is_found_at_both_ends() -> None:
    for places, among, expected in (
        ([0, 3, 9], [0, 4, 9], [True, False, True]),
        ([10], [0, 9], [False]),
        ([1, 2], [], [False, False]),
        ([], [1], []),
    ):
        found = contained(torch.tensor(places), torch.tensor(among, dtype=torch.int64))
        assert found.tolist() == expected


def test_an_entry_that_two_bring_counts_for_both_and_ties_go_to_the_lower_index() -> None:
    """Worker 0 sends places 0 and 1, worker 1 places 1 and 2; place 1 adds up, and 0 ties with 2."""
    gradients = [[torch.tensor([2.0, 3.0, 0.0, 1.0]), torch.tensor([0.0, 2.5, 2.0, 1.0])]]
    means, states = played(ErrorFeedback(GTopK(TopK(0.5))), gradients)
    assert means[0].tolist() == [1.0, 2.75, 0.0, 0.0]
    assert states[0]["residual"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert states[1]["residual"].tolist() == [0.0, 0.0, 2.0, 1.0]
