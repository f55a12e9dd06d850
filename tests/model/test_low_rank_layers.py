"""Pufferfish's layers against numpy's decomposition in float64, and which layers they take the place of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgc_repro.model.low_rank import LowRank, ThinLSTM, factors
from dgc_repro.model.lstm import LSTM
from dgc_repro.model.resnet18 import ResNet18


def truncated(weight: torch.Tensor, rank: int) -> np.ndarray:
    """The best approximation of a rank, f64[m,n]."""
    u, s, v = np.linalg.svd(weight.detach().double().numpy(), full_matrices=False)
    return np.asarray((u[:, :rank] * s[:rank]) @ v[:rank])


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (9, 9)])
def test_the_factors_are_the_truncated_decomposition_shared_evenly(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, v = factors(weight, 3)
    assert (u.shape, v.shape) == ((shape[0], 3), (3, shape[1]))
    # Products of float32 factors: an ulp each, of 3 products below 8.
    np.testing.assert_allclose((u.double() @ v.double()).numpy(), truncated(weight, 3), atol=4e-6)
    singular = np.linalg.svd(weight.double().numpy(), compute_uv=False)[:3]
    for gram in (u.T @ u, v @ v.T):  # U S^1/2 and S^1/2 V^T: S on both diagonals
        np.testing.assert_allclose(gram.numpy(), np.diag(singular), atol=2e-5)


def test_a_thin_convolution_computes_with_the_truncated_matrix() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 16, 3, stride=2, padding=1)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), layer, nn.Linear(4, 4))
    thin = LowRank(0).factorized(model)[1]
    images = torch.randn(2, 6, 8, 8)
    weight = torch.from_numpy(truncated(layer.weight.flatten(1), 4)).view_as(layer.weight)
    expected = F.conv2d(images.double(), weight, layer.bias.double(), stride=2, padding=1)
    assert parameters(thin) == 4 * (16 + 6 * 9) + 16
    torch.testing.assert_close(thin(images).double(), expected, atol=1e-5, rtol=1e-5)


def test_a_thin_linear_layer_and_its_weight_are_the_truncated_matrix() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(20, 12)
    thin = LowRank(0, keep_first=0).factorized(nn.Sequential(layer, nn.Linear(12, 2)))[0]
    expected = torch.from_numpy(truncated(layer.weight, 3))
    torch.testing.assert_close(thin.weight.double(), expected, atol=1e-6, rtol=1e-5)
    inputs = torch.randn(5, 20)
    torch.testing.assert_close(thin(inputs), F.linear(inputs, thin.weight, layer.bias))
    assert torch.equal(thin.bias, layer.bias)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_thin_lstm_computes_with_the_truncated_matrices_of_its_gates(layers: int) -> None:
    torch.manual_seed(0)
    whole = nn.LSTM(12, 8, layers, batch_first=True)
    thin = ThinLSTM(whole, LowRank(0))
    reference = nn.LSTM(12, 8, layers, batch_first=True).double()
    with torch.no_grad():
        for name, weight in whole.named_parameters():
            given = weight.double()
            if weight.dim() > 1:
                given = torch.cat([torch.from_numpy(truncated(g, 2)) for g in weight.chunk(4)])
            getattr(reference, name).copy_(given)
    inputs = torch.randn(3, 5, 12)
    state = tuple(torch.randn(layers, 3, 8) for _ in range(2))
    for given in (None, state):
        wide = None if given is None else tuple(part.double() for part in given)
        outputs, (h, c) = thin(inputs, given)
        expected, (wide_h, wide_c) = reference(inputs.double(), wide)
        for one, two in ((outputs, expected), (h, wide_h), (c, wide_c)):
            torch.testing.assert_close(one.double(), two, atol=1e-5, rtol=1e-5)


def test_resnet18_has_the_parameters_of_the_authors_choice_of_layers() -> None:
    """Their code keeps the stem, the first block, the shortcuts and the classifier. dgc_repro/paper/lecture/
    pufferfish.md prints both numbers."""
    with torch.device("meta"):
        whole = ResNet18().build(10)
        thin = LowRank(0, keep_first=3).factorized(whole)
    assert (parameters(whole), parameters(thin)) == (11_173_962, 3_336_266)


def test_nothing_is_shared_with_the_model_and_nothing_is_drawn() -> None:
    torch.manual_seed(0)
    model = LSTM(width=12).build(30)
    before = torch.get_rng_state()
    thin = LowRank(0, keep_first=0).factorized(model)
    assert torch.equal(torch.get_rng_state(), before)
    ours = {p.data_ptr() for p in model.parameters()}
    assert ours.isdisjoint(p.data_ptr() for p in thin.parameters())
    again = LowRank(0, keep_first=0).factorized(model)
    for one, two in zip(thin.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)
