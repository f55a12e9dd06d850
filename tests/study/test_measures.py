"""Measures of generalization against closed forms on tiny networks and against numpy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_run import TEXT, tiny
from torch import Tensor, nn

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.rules import validate
from dgc_repro.launch.run import run_config
from dgc_repro.model.cnn import CNN
from dgc_repro.study import norms, sharpness
from dgc_repro.study.generalization import Measured

LOGITS = torch.tensor([[4.0, 1.0, 0.0], [0.0, 2.0, 1.5], [1.0, 0.0, 3.0], [0.0, 1.0, 0.5]])
LABELS = torch.tensor([0, 1, 2, 2])


def linear(*weights: list[list[float]]) -> nn.Sequential:
    """Linear layers with these matrices and zero biases."""
    layers = []
    for weight in weights:
        matrix = torch.tensor(weight)
        layer = nn.Linear(matrix.shape[1], matrix.shape[0])
        layer.weight.data, layer.bias.data = matrix, torch.zeros(matrix.shape[0])
        layers.append(layer)
    return nn.Sequential(*layers)


def small_cnn(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return CNN(width=2, hidden=6).build(4)


def images(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, 32, 32, generator=generator)
    return inputs, torch.randint(0, 4, (count,), generator=generator)


def test_the_margin_is_a_percentile_of_the_distance_to_the_next_class() -> None:
    margins = [3.0, 0.5, 2.0, -0.5]
    assert norms.margin(LOGITS, LABELS) == pytest.approx(np.quantile(margins, 0.1), abs=1e-6)


def test_entropy_and_accuracy_are_numpys() -> None:
    p = np.exp(LOGITS.numpy())
    p /= p.sum(1, keepdims=True)
    assert norms.entropy(LOGITS) == pytest.approx(-(p * np.log(p)).sum(1).mean(), rel=1e-5)
    assert norms.accuracy(LOGITS, LABELS) == 0.75


def test_the_path_norm_of_a_linear_network_is_the_sum_of_the_product_of_squares() -> None:
    first, second = [[1.0, -2.0], [3.0, 0.5], [0.0, 1.0]], [[2.0, -1.0, 4.0]]
    squares = np.square(second) @ np.square(first)
    assert norms.path_norm(linear(first, second), [2]) == pytest.approx(squares.sum())


def test_rescaling_two_layers_of_relu_keeps_the_path_norm_and_the_fisher_rao_norm() -> None:
    module, (inputs, labels) = small_cnn(0), images()
    before = norms.path_norm(module, [3, 32, 32]), norms.fisher_rao(module, inputs, labels)
    parts = dict(module.named_parameters())
    with torch.no_grad():
        parts["hidden.weight"].mul_(5), parts["hidden.bias"].mul_(5)
        parts["output.weight"].div_(5)
    after = norms.path_norm(module, [3, 32, 32]), norms.fisher_rao(module, inputs, labels)
    assert after == (pytest.approx(before[0]), pytest.approx(before[1], rel=1e-4))


def test_the_fisher_rao_norm_is_that_of_each_images_own_gradient() -> None:
    module, (inputs, labels) = small_cnn(0), images()
    squares = []
    for image, label in zip(inputs, labels, strict=True):
        module.zero_grad()
        F.cross_entropy(module(image[None]), label[None]).backward()
        squares.append(sum(float((p.grad * p.detach()).sum()) for p in module.parameters()) ** 2)
    expected = (4 + 1) ** 2 * np.mean(squares)
    assert norms.fisher_rao(module, inputs, labels) == pytest.approx(expected, rel=1e-4)


def test_the_fisher_rao_norm_without_biases_follows_from_the_outputs() -> None:
    """Liang et al., theorem 3.1: <w, grad loss> = d <f, p - y> for d layers without biases."""
    module = linear([[1.0, -2.0], [3.0, 0.5]], [[2.0, -1.0], [0.5, 1.0]])
    inputs, labels = torch.tensor([[1.0, 0.3], [-0.2, 0.7]]), torch.tensor([0, 1])
    f = module(inputs).detach()
    products = 2 * (f * (f.softmax(1) - F.one_hot(labels, 2))).sum(1)
    expected = 3**2 * float(products.square().mean())
    assert norms.fisher_rao(module, inputs, labels) == pytest.approx(expected, rel=1e-5)


def test_norms_of_layers_are_numpys() -> None:
    module, initial = small_cnn(0), small_cnn(1)
    weights = [p.detach().numpy().reshape(len(p), -1) for p in module.parameters() if p.ndim > 1]
    starts = [p.detach().numpy().reshape(len(p), -1) for p in initial.parameters() if p.ndim > 1]
    sizes = [np.linalg.norm(w, 2) for w in weights]
    gamma = 0.3
    found = norms.matrices(module)
    moved = [w - w0 for w, w0 in zip(found, norms.matrices(initial), strict=True)]
    assert norms.spectral(found) == pytest.approx(sizes, rel=1e-5)
    assert norms.square(found) == pytest.approx(sum((w**2).sum() for w in weights), rel=1e-5)
    ratio = sum(
        ((w - w0) ** 2).sum() / s**2 for w, w0, s in zip(weights, starts, sizes, strict=True)
    )
    product = np.prod(np.square(sizes))
    assert norms.spectral_complexity(found, moved, gamma) == pytest.approx(
        np.log(product * ratio / gamma**2), rel=1e-5
    )
    assert norms.sum_of_spectral(found, gamma) == pytest.approx(
        4 * (product / gamma**2) ** (1 / 4), rel=1e-5
    )
    assert norms.over_margin(1.0, -0.1) == math.inf


def test_a_layer_without_weights_and_weights_that_have_not_moved_have_infinite_logarithms() -> None:
    module = linear([[1.0, -2.0], [3.0, 0.5]], [[0.0, 0.0]])
    weights = norms.matrices(module)
    assert norms.log_product(norms.spectral(weights)) == -math.inf
    assert norms.sum_of_spectral(weights, 0.3) == 0
    assert norms.spectral_complexity(weights, weights, 0.3) == -math.inf
    assert norms.spectral_complexity(weights, weights, -0.1) == math.inf
    still = [torch.zeros_like(weight) for weight in weights]
    assert norms.spectral_complexity(weights[:1], still[:1], 0.3) == -math.inf


def test_a_frozen_parameter_is_in_no_measure() -> None:
    module, initial, (inputs, labels) = small_cnn(0), small_cnn(1), images()
    module.hidden.weight.requires_grad_(False)
    assert len(norms.matrices(module)) == 3
    before = module.hidden.weight.clone()
    few = Measured(images=8, samples=1, ascent_steps=1, bisections=4)
    found = few.measure(module, initial, inputs, labels, 0)
    assert module.hidden.weight.equal(before)
    assert found["parameters"] == sum(p.numel() for p in module.parameters()) - before.numel()


def one_image_each() -> tuple[nn.Module, Tensor, Tensor]:
    """A linear classifier with logits (+-1, 0) a class: the margin is 1 before a perturbation."""
    return linear([[1.0], [0.0]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])


def test_the_worst_case_of_a_linear_classifier_has_a_closed_form() -> None:
    """Logit difference of an image x = +-1: (1 + u1 - u2) x + u3 - u4; the worst |u_i| <= alpha of the
    first image gives 1 - 4 alpha, so that accuracy falls at alpha = 1/4."""
    module, inputs, labels = one_image_each()
    around = sharpness.Perturbation(module, inputs[:1], labels[:1], magnitude=False)
    assert around.worst_accuracy(0.2499, 4, 0.0) == 1
    assert around.worst_accuracy(0.2501, 4, 0.0) == 0
    alpha = sharpness.largest_scale(lambda a: around.worst_accuracy(a, 4, 0.5) <= 0.5, 20)
    assert alpha == pytest.approx(0.25, rel=1e-3)
    # with magnitude only the one entry that is not 0 moves by alpha; each moves by eps beside
    aware = sharpness.Perturbation(module, inputs[:1], labels[:1], magnitude=True)
    alpha = sharpness.largest_scale(lambda a: aware.worst_accuracy(a, 4, 0.5) <= 0.5, 20)
    assert alpha == pytest.approx(1 - 4 * sharpness.EPSILON, rel=1e-3)


def test_the_accuracy_under_noise_is_that_of_a_normal_distribution() -> None:
    """The logit difference is normal with mean 1 and variance 4 sigma^2."""
    module, inputs, labels = one_image_each()
    around = sharpness.Perturbation(module, inputs, labels, magnitude=False)
    expected = 0.5 * (1 + math.erf(1 / (2 * 0.5) / math.sqrt(2)))
    assert around.noisy_accuracy(0.5, 4000, 0) == pytest.approx(expected, abs=0.02)
    assert around.noisy_accuracy(1e-4, 5, 0) == 1
    assert around.deviation(torch.tensor([2.0]), 0.5).item() == 0.5
    aware = sharpness.Perturbation(module, inputs, labels, magnitude=True)
    assert aware.deviation(torch.tensor([2.0]), 0.5).item() == pytest.approx(1, abs=1e-5)


def test_the_bounds_are_their_formulas() -> None:
    def bound(distance: float, v: Tensor, **how: bool) -> float:
        return sharpness.bound(distance, v, 0.5, 100, **how) - math.log(200) - 10

    plain = torch.zeros(50)
    assert bound(8.0, plain, worst=False, magnitude=False) == pytest.approx(8)
    assert bound(8.0, plain, worst=True, magnitude=False) == pytest.approx(8 * math.log(100))
    v = torch.tensor([0.0, 1.0, -2.0])
    below = 1e-6 + 0.25 * np.square(v.numpy())
    for worst, factor in ((False, 1.25), (True, 0.25 + 4 * math.log(6))):
        expected = np.log((1e-6 + factor * 5 / 3) / below).sum() / 4
        assert bound(5.0, v, worst=worst, magnitude=True) == pytest.approx(expected)


def test_measuring_is_repeatable_and_leaves_the_network_as_it_was() -> None:
    module, initial, (inputs, labels) = small_cnn(0), small_cnn(0), images()
    module.train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01)
    before = [p.detach().clone() for p in module.parameters()]
    measures = Measured(images=8, samples=2, ascent_steps=2, bisections=4)
    first = measures.measure(module, initial, inputs, labels, 3)
    assert first == measures.measure(module, initial, inputs, labels, 3)
    assert all(p.equal(old) for p, old in zip(module.parameters(), before, strict=True))
    assert module.training
    weights = sum(p.numel() for p in module.parameters() if p.ndim > 1)
    assert first["frobenius_distance"] == pytest.approx(1e-4 * weights, rel=1e-3)
    with torch.no_grad():
        expected = F.cross_entropy(module.eval()(inputs), labels)
    assert first["cross_entropy"] == pytest.approx(float(expected))


# A run measures at its end, from the trained network and from the one that its seed had built.

MEASURED = ("model=cnn", "model.hidden=8", "generalization=measured", "generalization.images=8")


def test_a_run_that_measures_nothing_is_the_run_that_it_was_before() -> None:
    config = tiny()
    before = {key: value for key, value in config.items() if key != "generalization"}
    assert config_hash(config) == config_hash(before)
    assert config_hash(tiny("generalization=measured")) != config_hash(before)


def test_texts_have_no_measures() -> None:
    with pytest.raises(UserError, match="^generalization: measured is for images.* use none"):
        validate(tiny(*TEXT, "generalization=measured"))


@pytest.mark.slow
def test_the_summary_has_the_measures_of_the_trained_network(tmp_path: Path) -> None:
    few = [f"generalization.{one}" for one in ("samples=1", "ascent_steps=1", "bisections=4")]
    stops = ("stopping.metric=train_cross_entropy", "stopping.target=9", "stopping.stop=true")
    rate = "optimizer.lr=1e-9"  # nothing moves, so that the distance from the start is 0
    folder = run_config(tiny(*MEASURED, *few, *stops, rate, f"paths.runs={tmp_path}"))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["generalization/frobenius_distance"] == pytest.approx(0, abs=1e-9)
    assert summary["generalization/parameter_norm"] > 0.1
    assert summary["generalization/cross_entropy"] == pytest.approx(summary["train/cross_entropy"])
    assert summary["stopping"]["reached"]
