"""The gain of every compressor that can be measured is finite and at most 1 without a residual."""

from __future__ import annotations

import math

import pytest
import torch
from quantizing import heavy_tailed
from test_explained import METHODS, context
from torch import Tensor

from dgc_repro.compressor.interface import Compressor, Measurable
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.kernel import select
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.probed import Probed

TENSORS: dict[str, Tensor] = {
    "heavy-tailed": heavy_tailed(size=3001),
    "zeros": torch.zeros(100),
    "one value": torch.tensor([3.0]),
    "constant": torch.full((64,), 0.5),
    "one entry": torch.eye(1, 200).view(-1),
    "tiny": 1e-20 * torch.randn(100, generator=torch.Generator().manual_seed(1)),
    "large": 1e15 * torch.randn(100, generator=torch.Generator().manual_seed(2)),
    "signs": torch.randn(500, generator=torch.Generator().manual_seed(3)).sign(),
}


SPARSIFIERS = [
    method
    for method in METHODS
    if isinstance(method, Sparsifier)
    and not (getattr(method, "unbiased", False) or getattr(method, "quantized", False))
]
"""Those that send what they select, as it is or rounded."""


def energies(method: Measurable, tensor: Tensor) -> Tensor:
    """What `Choose` would report of a ladder of this one rung, norms included, without a residual."""
    whole, kept = select.energy(tensor), method.energy(tensor, context(()))
    norm = kept.clamp(min=0).sqrt()
    return torch.stack([whole, kept, kept, whole.sqrt(), norm, norm])


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_gain_is_at_most_1(method: Compressor, name: str) -> None:
    assert isinstance(method, Measurable)
    found = energies(method, TENSORS[name])
    assert bool(found.isfinite().all())
    for state in (
        GraVAC(theta_max=10).choose(GraVAC().init(), found)[1],
        GraVAC(theta_max=10, gain="norm").choose(GraVAC().init(), found)[1],
        Probed("factor", 10).choose(Probed("factor", 10).init(), found)[1],
    ):
        last = state["last"]
        gains = [last[k] for k in ("gain", "gain_theta_min", "gain_candidate")]
        assert all(math.isfinite(gain) and gain <= 1 + 1e-6 for gain in gains)
        if method in SPARSIFIERS:
            assert min(gains) >= 0


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("method", SPARSIFIERS, ids=str)
def test_what_a_selection_explains_is_a_share_without_being_cut(
    method: Compressor, name: str
) -> None:
    """The ratio of the paper: no clipping makes it one."""
    assert isinstance(method, Measurable)
    whole, kept, *_ = energies(method, TENSORS[name]).tolist()
    assert 0 <= kept <= whole * (1 + 1e-12)
