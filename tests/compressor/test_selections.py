"""What sparsifiers owe alike: how many entries of which tensor, and choosing among survivors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from laws import play, simulation
from numeric import both_kernels, context, gaussian, heavy_tailed, largest
from torch import Tensor

from dgc_repro import Dense, DGCSampled, Ladder, RandomK, RedSync, SIDCo, Threshold, TopK
from dgc_repro.compressor.sidco import FITS
from dgc_repro.compressor.sparsifier import num_kept
from dgc_repro.kernel import permute, select
from dgc_repro.kernel.select import Selection
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
