"""The networks behind a whitening convolution: what is fitted, what is frozen, how they begin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_run import RECIPE, assert_continues, built, play
from torch import Tensor, nn

from dgc_repro.model.whitened import WHITENING_EPSILON, Air, Low, Whitening
from dgc_repro.train.task import Prepared


def images(count: int = 40) -> Tensor:
    """f32[count,3,32,32] whose neighbours and channels go together, as those of photographs do."""
    noise = torch.randn(count, 3, 34, 34, generator=torch.Generator().manual_seed(0))
    smooth = nn.functional.avg_pool2d(noise, 3, 1)
    return smooth + 0.5 * smooth.mean(1, keepdim=True)


def patches_of(batch: Tensor, side: int) -> Tensor:
    """f64[n,3*side*side]: every patch of every image, by a plain loop."""
    places = range(batch.shape[2] - side + 1)
    found = [
        batch[:, :, row : row + side, column : column + side].flatten(1)
        for row in places
        for column in places
    ]
    return torch.cat(found).double()


def fitted(channels: int, side: int) -> Whitening:
    layer = Whitening(channels, side, 1)
    layer.fit(images())
    return layer


def test_whitened_patches_have_the_identity_as_their_second_moments() -> None:
    """All 12 eigenvectors of 2x2 patches: second moments are variance / (variance + epsilon) on the
    diagonal, which is 1 up to epsilon, and nothing off it."""
    side, half = 2, 12
    layer, patches = fitted(2 * half, side), patches_of(images(), side)
    outputs = patches @ layer.weight[:half].double().flatten(1).T
    moments = outputs.T @ outputs / len(outputs)
    variances = torch.linalg.eigvalsh(patches.T @ patches / len(patches)).flip(0)
    assert variances.min() > 10 * WHITENING_EPSILON
    # 1e-5: filters are rounded to float32 once.
    torch.testing.assert_close(
        moments, torch.diag(variances / (variances + WHITENING_EPSILON)), atol=1e-5, rtol=0
    )


def test_the_filters_of_most_variance_come_first_and_then_their_negatives() -> None:
    side, half = 4, 10
    layer, patches = fitted(2 * half, side), patches_of(images(), side)
    filters = layer.weight.double().flatten(1)
    assert torch.equal(filters[half:], -filters[:half])
    directions = nn.functional.normalize(filters[:half])
    variances = (patches @ directions.T).square().mean(0)
    largest = torch.linalg.eigvalsh(patches.T @ patches / len(patches)).flip(0)[:half]
    torch.testing.assert_close(variances, largest, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        (
            Low(),
            48 * 48 + 48  # whitening
            + 9 * (48 * 48 + 48 * 96 + 96 * 96 + 96 * 192 + 192 * 192)
            + 2 * (48 + 96 + 96 + 192 + 192) + 192 * 10,
        ),
        (
            Air(),
            24 * 12 + 24
            + 9 * (24 * 24 + 24 * 24 + 24 * 96 + 96 * 96 + 96 * 128 + 128 * 128)
            + 2 * (24 + 24 + 96 + 96 + 128 + 128) + 128 * 10,
        ),
    ],
)  # fmt: skip
def test_a_network_has_the_sizes_of_its_recipe_and_reads_images(
    settings: Low | Air, weights: int
) -> None:
    network = settings.build(10)
    assert sum(p.numel() for p in network.parameters()) == weights
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert isinstance(network, Prepared)


@pytest.mark.parametrize(
    ("settings", "sides"), [(Low(), [16, 8, 8, 4, 4]), (Air(), [31, 15, 15, 7, 7, 3])]
)
def test_convolutions_see_the_maps_of_the_recipe(settings: Low | Air, sides: list[int]) -> None:
    """`low` pools after its first convolution and after its first skip, `air` after the first convolution of
    each stage."""
    network, seen = settings.build(10), []
    for layer in network.stages.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[2]))
    network(torch.randn(1, 3, 32, 32))
    assert seen == sides


@pytest.mark.parametrize("settings", [Low(), Air()])
def test_convolutions_begin_as_partial_identities(settings: Low | Air) -> None:
    convolutions = [
        layer for layer in settings.build(10).stages.modules() if isinstance(layer, nn.Conv2d)
    ]
    assert len(convolutions) == (5 if isinstance(settings, Low) else 6)
    for layer in convolutions:
        hidden = torch.randn(2, layer.in_channels, 6, 6)
        passed = layer(hidden)[:, : layer.in_channels]
        torch.testing.assert_close(passed, hidden, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "width"), [(Low, 47), (Low, 98), (Air, 26)], ids=["odd", "low", "air"]
)
def test_a_width_without_eigenvectors_is_refused(make: type[Low] | type[Air], width: int) -> None:
    most = 96 if make is Low else 24
    with pytest.raises(ValueError, match=rf"^width: an even number up to {most} .*got {width}$"):
        make(width=width)


def test_a_stopped_run_continues_bit_for_bit(tmp_path: Path) -> None:
    overrides = (*RECIPE, "compressor=topk")
    whole = built(*overrides)
    assert_continues(overrides, 6, tmp_path, whole, play(whole))


def test_training_leaves_the_whitening_as_it_was_fitted_and_moves_its_bias() -> None:
    run = built(*RECIPE)
    layer = run.module.whitening
    fitted = layer.weight.clone()
    expected = Whitening(4, 4, 2)
    expected.fit(run.task.training_images(5000))
    assert torch.equal(fitted, expected.weight)
    assert "whitening.weight" not in run.parameters
    told = play(run)
    assert told.finished
    assert torch.equal(layer.weight, fitted)
    assert layer.bias.abs().max() > 0
    assert all((n.weight == 1).all() for n in run.module.modules() if isinstance(n, nn.BatchNorm2d))
