"""Top-k against its definition, and ladders of sparsifiers against direct compression."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from laws import play, played, same_bits, simulation
from numeric import Array, context, dense, heavy_tailed, topk
from torch import Tensor

from dgc_repro import Dense, ErrorFeedback, Ladder, Threshold, TopK
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.kernel import chosen as chosen_of
from dgc_repro.kernel import select
from dgc_repro.kernel.select import Selection
from dgc_repro.payload import Sparse
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import Setting


def reference(x: Array, density: float) -> Array:
    """Definition 2.1 of Stich et al.: (top_k(x))_pi(i) = x_pi(i) for i <= k, 0 for i > k, where pi
    orders |x| from the largest on (ties: we take the lower index first); k = max(1, round(n density)).
    """
    return topk(x, max(1, round(len(x) * density)))


@pytest.mark.parametrize("density", [1e-5, 0.001, 0.01, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("size", [1, 7, 1000, 60_000])
def test_what_is_sent_is_the_definition(size: int, density: float) -> None:
    x = heavy_tailed(size)
    for setting in (TopK(density), TopK(factor=1 / density)):
        sent = dense(Sparse.one(setting.select(x, context())))
        np.testing.assert_array_equal(sent.double().numpy(), reference(x.double().numpy(), density))


# -- one vector for the model (compressor=magnitude) -----------------------------------------------


def model(worker: int) -> dict[str, Tensor]:
    """Tensors whose scales differ by orders of magnitude."""
    return {
        "small": 1e-3 * heavy_tailed(3_000, worker, 1.0).view(30, 100),
        "large": 10 * heavy_tailed(500, worker + 10, 1.0),
        "middle": heavy_tailed(1_500, worker + 20, 1.0).view(15, 100),
    }


def test_the_k_largest_of_the_whole_model_are_sent_and_averaged() -> None:
    setting = Setting("topk", TopK(0.02))
    exchange = Exchange(setting.compressor, model(0), World(2), seed=7, unit="model")
    means = play(exchange, setting, [model(0), model(1)])
    joined = [
        torch.cat([t.view(-1) for t in model(worker).values()]).double() for worker in range(2)
    ]
    expected = sum(topk(x.numpy(), 100) for x in joined) / 2  # k = 0.02 of 5,000
    found = torch.cat([means[name].view(-1) for name in model(0)])
    # Halves of float32 numbers are exact; their sum is rounded once.
    np.testing.assert_array_equal(found.numpy(), expected.astype(np.float32))
    assert not bool(means["small"].any()), "small tensors have no share of their own"
    assert exchange.world.ledger.payload_bytes == 8 + 2 * 100 + 4 * 100


# -- ladders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [0, 1, 2, 3])
@pytest.mark.parametrize("feedback", [False, True])
def test_a_chosen_rung_sends_what_it_would_have_sent_alone(chosen: int, feedback: bool) -> None:
    rungs = (Dense(), TopK(0.5), TopK(0.02), TopK(0.01))

    def nest(inner: Compressor) -> Compressor:
        return ErrorFeedback(inner) if feedback else inner

    probing = Setting("x", nest(Ladder(rungs)), Plan(None, candidates=(1, 2)), lambda _: chosen)
    alone = Setting("x", nest(rungs[chosen]), Plan(0))
    like = {"a": torch.empty(70, 90), "b": torch.empty(5)}
    ours, theirs = simulation(probing, 2, like), simulation(alone, 2, like)
    for step in range(3):
        means = []
        for exchange, setting in ((ours, probing), (theirs, alone)):
            drawn = [
                {n: heavy_tailed(t.numel(), 7 * step + w).view(t.shape) for n, t in like.items()}
                for w in range(2)
            ]
            means.append(play(exchange, setting, drawn))
        assert all(same_bits(means[0][name], means[1][name]) for name in like)
    extra = 3 * 24  # the energies of three steps
    assert ours.world.ledger.payload_bytes == theirs.world.ledger.payload_bytes + extra


def test_a_probe_passes_over_a_tensor_once() -> None:
    """And over survivors that C has not made not at all."""
    setting = Setting(
        "x",
        ErrorFeedback(Ladder((Dense(), TopK(0.1), TopK(0.01)))),
        Plan(None, candidates=(1, 2)),
        lambda _: 2,
    )
    x = heavy_tailed(5000)
    exchange = simulation(setting, 1, {"x": x})
    with patch.object(chosen_of, "topk", wraps=chosen_of.topk) as passes:
        play(exchange, setting, [{"x": x.clone()}])
    assert [call.args[0].sizes for call in passes.call_args_list] == [(5000,)]


class FirstOnes(Selecting):
    """A sparsifier that is not top-k: the first so many, and it notes what it has chosen from."""

    ragged = False

    def __init__(self, count: int, seen: list[int]) -> None:
        self.count, self.seen = count, seen

    def select(self, tensor: Tensor, given: Context) -> Selection:
        self.seen.append(tensor.numel())
        return select.at(tensor.view(-1), torch.arange(self.count))

    def refine(self, survivors: Selection, given: Context) -> Selection:
        self.seen.append(survivors.values.numel())
        return select.among(survivors, torch.arange(self.count))


def test_any_sparsifier_refines_the_weaker_ones_survivors() -> None:
    seen: list[int] = []
    ladder = Ladder((Dense(), FirstOnes(9, seen), FirstOnes(4, seen)))
    setting = Setting("x", ladder, Plan(None, candidates=(1, 2)), lambda _: 2)
    x = heavy_tailed(100)
    mean = play(simulation(setting, 1, {"x": x}), setting, [{"x": x.clone()}])["x"]
    assert torch.equal(mean[:4], x[:4])
    assert not mean[4:].any()
    assert seen == [100, 9]


def test_the_entry_at_place_0_survives_the_filling_of_ragged_payloads() -> None:
    few, many, none = torch.zeros(300), torch.zeros(300), torch.zeros(300)
    few[0], many[:90], many[299] = 3.0, 6.0, -6.0
    (mean,), _ = played(Threshold(threshold=1.0), [[few, many, none]])
    assert torch.equal(mean[:90], torch.tensor([3.0] + 89 * [2.0]))
    assert mean.nonzero().view(-1).tolist() == [*range(90), 299]
