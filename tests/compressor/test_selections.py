"""How many entries sparsifiers send, choosing among survivors, and thresholds from a sample."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from laws import play, simulation
from numeric import Array, both_kernels, context, gaussian, heavy_tailed, largest, sampled_places
from torch import Tensor

from dgc_repro import Dense, DGCSampled, Ladder, RandomK, RedSync, SIDCo, Threshold, TopK
from dgc_repro.compressor.sidco import FITS
from dgc_repro.compressor.sparsifier import num_kept, refine_all, select_all
from dgc_repro.kernel import permute, select
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.select import Selection
from dgc_repro.kernel.thresholds import sample_size
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import Setting


def odd_tensors() -> dict[str, Tensor]:
    """Every kind of tensor that has broken a threshold, each of 3,000 values or fewer."""
    size = 3000
    with_nan, with_infinity = gaussian(size, 1), gaussian(size, 2)
    with_nan[7], with_infinity[8] = torch.nan, -torch.inf
    few = torch.zeros(size)
    few[-3:] = torch.tensor([1.0, -2.0, 3.0])
    return {
        "empty": torch.zeros(0),
        "one": torch.tensor([0.5]),
        "one zero": torch.zeros(1),
        "zeros": torch.zeros(size),
        "constant": torch.full((size,), -0.1),
        "nearly constant": 1 + 1e-6 * gaussian(size, 3),
        "two values": gaussian(size, 4).sign(),
        "few not zero": few,
        "denormal": gaussian(size, 5) * 1e-41,
        "huge": gaussian(size, 6).clamp(-1, 1) * 3e38,
        "nan": with_nan,
        "infinity": with_infinity,
        "all nan": torch.full((size,), torch.nan),
        "all infinite": torch.full((size,), torch.inf),
    }


def check_sound(found: Selection, x: Tensor) -> None:
    """Ascending places inside the tensor, each with its value."""
    places = found.indices.long()
    assert bool((places[1:] > places[:-1]).all())
    assert found.n == x.numel()
    assert found.values.numel() == places.numel()
    torch.testing.assert_close(found.values, x[places], rtol=0, atol=0, equal_nan=True)


EVERY = tuple(odd_tensors())
EQUAL = ("constant", "zeros", "all infinite")
SENT = [  # how many times k at least and at most (0: one entry, None: not all), and where exactly k
    (Threshold, {}, 0, 1.5, (*EQUAL, "two values", "few not zero")),
    (DGCSampled, {}, 0, 1.0, EQUAL),
    (TopK, {}, 1, 1.0, EVERY),
    (RedSync, {"search_from": 0}, 1, 2.0, ()),
    # Of those that are quantized, fewer than k may have the sign of the step.
    (RedSync, {"search_from": 0, "quantized": True}, 0, 2.0, ()),
    *((SIDCo, {"fit": fit, "stages": stages}, 0, None, (*EQUAL, "two values", "all nan"))
      for fit in FITS for stages in (None, 1, 2)),
]  # fmt: skip


@both_kernels
@pytest.mark.parametrize(("kind", "settings", "least", "most", "exact"), SENT, ids=str)
def test_odd_tensors_send_something_and_not_everything(
    kind: Any, settings: dict[str, Any], least: float, most: float | None, exact: tuple[str, ...]
) -> None:
    for (name, x), density in itertools.product(odd_tensors().items(), (1.0, 0.6, 0.3, 0.1, 0.001)):
        k = num_kept(x.numel(), density)
        for step in (0, 1):
            found = kind(density, **settings).select(x, context(step))
            if "quantized" not in settings:
                check_sound(found, x)
            count, case = found.values.numel(), (name, density, step)
            assert count >= max(least * k, min(k, 1)), case
            assert most is None or count <= most * k, case
            assert count < x.numel() or most is not None or k == x.numel(), case
            assert name not in exact or count == k, case
            if kind is SIDCo and name in ("few not zero", "infinity"):
                assert count <= 2 * k, case


@pytest.mark.parametrize(
    ("kind", "settings", "least", "most"),
    [
        (TopK, {}, 300, 300),
        (Threshold, {}, 150, 450),
        (DGCSampled, {}, 240, 300),
        (RedSync, {"search_from": 0}, 300, 600),
        *((SIDCo, {"fit": fit}, 1, 3000) for fit in FITS),
    ],
)
def test_a_stronger_setting_refines_the_survivors_with_k_of_the_original(
    kind: Any, settings: dict[str, Any], least: int, most: int
) -> None:
    x = heavy_tailed(300_000, spread=1.0)
    weak = kind(factor=10, **settings).select(x, context())
    strong = kind(factor=1000, **settings).refine(weak, context())
    assert least <= strong.values.numel() <= most
    check_sound(strong, x)
    assert set(strong.indices.tolist()) <= set(weak.indices.tolist())
    if most == 300:
        np.testing.assert_array_equal(strong.indices, largest(x.numpy(), 300))


@both_kernels
@pytest.mark.parametrize("method", [DGCSampled(factor=11), Threshold(factor=11)], ids=str)
def test_fewer_survivors_than_are_wanted_are_all_sent(method: Any) -> None:
    survivors = select.topk(gaussian(900_000), 60_000)
    assert method.refine(survivors, context()).values.numel() == 60_000


@pytest.mark.parametrize(
    "rungs",
    [tuple(RedSync(factor=f, quantized=True) for f in (10, 100)), tuple(SIDCo(factor=f) for f in (10, 100))],
    ids=["quantized", "sidco"],
)  # fmt: skip
def test_what_cannot_refine_is_chosen_from_the_whole_tensor(rungs: Any) -> None:
    x, ladder = gaussian(10_000), Ladder((Dense(), *rungs))
    probing = Setting("", ladder, Plan(None, candidates=(1, 2)), lambda energies: 2)
    planned = Setting("", ladder, Plan(2))
    means = [
        play(simulation(setting, 1, {"x": x}), setting, [{"x": x}])["x"]
        for setting in (probing, planned)
    ]
    assert torch.equal(*means)


def test_a_batch_is_refined_with_k_of_its_whole_tensors() -> None:
    batch = Batch(("a", "b"), [gaussian(1000), gaussian(300, 1)])
    survivors = select_all(TopK(0.1), batch, context())
    found = refine_all(TopK(0.01), survivors, batch, context())
    assert [one.values.numel() for one in found] == [10, 3]


def test_random_k_chooses_those_first_in_its_permutation_of_its_own_and_others_survivors() -> None:
    x, method = gaussian(1003, 1), RandomK(factor=100)
    where = context(path=("ladder", "rung2"))
    survivors = RandomK(factor=10).select(x, context(path=("ladder", "rung1")))
    refined, direct = method.refine(survivors, where), method.select(x, where)
    assert set(direct.indices.tolist()) < set(survivors.indices.tolist())
    assert torch.equal(refined.indices, direct.indices)
    assert torch.equal(refined.values, direct.values)
    survivors = TopK(factor=10).select(x, context())
    refined = method.refine(survivors, where)
    ranks = permute.ranks(survivors.indices, 1003, method.key(where))
    assert torch.equal(refined.indices, survivors.indices[ranks.argsort()[:10].sort().values])
    check_sound(refined, x)


# Gradient dropping and DGC's selection against their papers in numpy.


def sampled_threshold(x: Array, k: int, share: float, key: int) -> float:
    """The ceil(m k / n)-th largest magnitude of the sample of m that the key draws."""
    n, m = x.size, sample_size(x.size, k, share)
    assert m < n, "the test is about sampling"
    return float(np.sort(np.abs(x[sampled_places(n, m, key)]))[::-1][-(-m * k // n) - 1])


def gradient_dropping(x: Array, k: int, key: int) -> Array:
    """The places that are sent. x: f64[n]."""
    threshold = sampled_threshold(x, k, 0.001, key)
    passing = int((np.abs(x) >= threshold).sum())
    larger = int((np.abs(x) > threshold).sum())
    if passing - larger == 1 or passing <= k:
        return np.flatnonzero(np.abs(x) >= threshold)
    return largest(x, max(k, larger))  # equal ones as far as they fill k


def deep_gradient_compression(x: Array, k: int, key: int) -> Array:
    threshold = sampled_threshold(x, k, 0.01, key)
    passing = np.abs(x) >= threshold
    for _ in range(10):
        if passing.sum() >= 0.8 * k:
            break
        threshold *= 0.8  # too few: lower it, as the authors' code does
        passing = np.abs(x) >= np.float32(threshold)
    places = np.flatnonzero(passing)
    return places[largest(x[places], k)]  # too many: an exact top-k of those that passed


@both_kernels
@pytest.mark.parametrize("density", [0.2, 0.03, 0.01])
@pytest.mark.parametrize(
    ("kind", "reference"),
    [(Threshold, gradient_dropping), (DGCSampled, deep_gradient_compression)],
    ids=["threshold", "dgc_sampled"],
)
def test_what_is_sent_equals_the_paper_in_f64(kind: Any, reference: Any, density: float) -> None:
    for seed in (*range(6), 15, 33):  # of the last two DGC's sampled thresholds pass too few
        x = heavy_tailed(60_000, seed)
        # Many equal magnitudes, too, where the paper's ">= threshold" would send more than k.
        for given in (x, (4 * x).round() / 4) if kind is Threshold else (x,):
            found = kind(density).select(given, context(seed)).indices
            key = context(seed).key(shared=False)
            expected = reference(given.double().numpy(), num_kept(60_000, density), key)
            np.testing.assert_array_equal(found, expected, err_msg=f"seed {seed}")


@both_kernels
def test_a_fixed_threshold_sends_what_passes_it_and_nothing_else() -> None:
    x = torch.tensor([0.5, -0.5, 0.49999, 3.0, -torch.inf, torch.nan, 0.0])
    survivors = Threshold(threshold=0.5).select(x, context())
    assert survivors.indices.tolist() == [0, 1, 3, 4, 5]
    assert Threshold(threshold=0.5).select(x[:1] / 2, context()).indices.tolist() == []
    assert Threshold(threshold=1.0).refine(survivors, context()).indices.tolist() == [3, 4, 5]
