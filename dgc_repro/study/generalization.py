"""The measures of a trained network, as a component: ``generalization=measured``; ``none`` for nothing."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgc_repro.checked import Count, checked, within
from dgc_repro.study import norms
from dgc_repro.study.sharpness import Perturbation, bound, largest_scale


@checked
class Nothing:
    """Measures nothing."""

    def measure(
        self, module: nn.Module, initial: nn.Module, inputs: Tensor, labels: Tensor, seed: int
    ) -> dict[str, float]:
        """No number."""
        return {}


@checked
class Measured:
    """images: the first so many training images, on which perturbed networks are judged. samples: of noise at
    each scale tried. ascent_steps: of the search for the worst perturbation. bisections: of each scale. drop:
    of training accuracy that defines a scale, as a share.

    Raises ValueError for a value out of range.
    """

    images: Count = 200
    samples: Count = 5
    ascent_steps: Count = 5
    bisections: Annotated[int, within(4, 30)] = 9
    drop: Annotated[float, within(above=0, below=1), "0.1 is the paper's"] = 0.1

    def measure(
        self, module: nn.Module, initial: nn.Module, inputs: Tensor, labels: Tensor, seed: int
    ) -> dict[str, float]:
        """All measures by name. ``initial``: the network before training. inputs f32[m,...] and labels
        i64[m]: all training images, not augmented. Parameters are perturbed and restored; ``seed`` is that
        of the noise. Where eps alone is too much, a magnitude-aware scale is 2^-14."""
        for parameter, start in zip(module.parameters(), initial.parameters(), strict=True):
            start.requires_grad_(parameter.requires_grad)  # so that both give the same weights
        was_training = module.training
        module.eval()
        try:
            return {
                **self._of_weights(module, initial, inputs, labels),
                **self._of_perturbations(module, initial, inputs, labels, seed),
            }
        finally:
            module.train(was_training)

    def _of_weights(
        self, module: nn.Module, initial: nn.Module, inputs: Tensor, labels: Tensor
    ) -> dict[str, float]:
        with torch.no_grad():
            logits = torch.cat([module(part) for part in inputs.split(250)])
        gamma = norms.margin(logits, labels)
        weights = norms.matrices(module)
        moved = [w - w0 for w, w0 in zip(weights, norms.matrices(initial), strict=True)]
        first = slice(self.images)
        return {
            "accuracy_percent": 100 * norms.accuracy(logits, labels),
            "cross_entropy": float(F.cross_entropy(logits, labels)),
            "entropy": norms.entropy(logits),
            "margin": gamma,
            "inverse_margin": 1 / gamma if gamma > 0 else math.inf,
            "vc_dimension": norms.vc_dimension(module),
            "parameters": float(norms.vector(module).numel()),
            "frobenius_distance": norms.square(moved),
            "parameter_norm": norms.square(weights),
            "spectral_product": norms.over_margin(
                norms.log_product(norms.spectral(weights)), gamma
            ),
            "spectral_sum": norms.sum_of_spectral(weights, gamma),
            "spectral_distance": sum(norm**2 for norm in norms.spectral(moved)),
            "spectral_init": norms.spectral_complexity(weights, moved, gamma),
            "spectral_orig": norms.spectral_complexity(weights, weights, gamma),
            "path_norm": norms.path_norm(module, inputs.shape[1:]),
            "fisher_rao": norms.fisher_rao(module, inputs[first], labels[first]),
        }

    def _of_perturbations(
        self, module: nn.Module, initial: nn.Module, inputs: Tensor, labels: Tensor, seed: int
    ) -> dict[str, float]:
        w, first = norms.vector(module), slice(self.images)
        from_init = w - norms.vector(initial)
        found: dict[str, float] = {}
        for suffix, magnitude in (("", False), ("_mag", True)):
            around = Perturbation(module, inputs[first], labels[first], magnitude=magnitude)
            for name, scale in self._scales(around, seed).items():
                for start, v in (("init", from_init), ("orig", w)):
                    found[f"{name}{suffix}_{start}"] = bound(
                        float(v.double().square().sum()),
                        from_init,
                        scale,
                        len(labels),
                        worst=name == "sharpness",
                        magnitude=magnitude,
                    )
                found[f"{name}{suffix}_flatness"] = 1 / scale**2
        return found

    def _scales(self, around: Perturbation, seed: int) -> dict[str, float]:
        """sigma of PAC-Bayes and alpha of sharpness."""
        allowed = around.accuracy() - self.drop
        return {
            "pac_bayes": largest_scale(
                lambda s: around.noisy_accuracy(s, self.samples, seed) <= allowed, self.bisections
            ),
            "sharpness": largest_scale(
                lambda a: around.worst_accuracy(a, self.ascent_steps, allowed) <= allowed,
                self.bisections,
            ),
        }
