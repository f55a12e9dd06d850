"""A model that replays: backward hands out recorded gradients at once, so that only the exchange
is left to time.

DDP sees a real backward: one autograd node a layer, the last layer first, each giving every
parameter its gradient through the parameter's own accumulation hook; buckets fill and fire in their
usual order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dgc_repro.model.resnet18 import ResNet18

NUM_CLASSES = 10


class _Layer(torch.autograd.Function):
    """Passes a number through; backward returns the recorded gradients of one layer."""

    @staticmethod
    def forward(
        ctx: Any, through: Tensor, recorded: Sequence[Tensor], *parameters: Tensor
    ) -> Tensor:
        ctx.recorded = recorded
        return through.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Aliases: autograd takes a tensor nobody else holds as it is, as it takes a fresh gradient
        # of a real backward; one that is held elsewhere it would copy.
        return (gradients[0], None, *(recorded.detach() for recorded in ctx.recorded))


class Replay(nn.Module):
    """Parameters of the given shapes, their gradients recorded beforehand (heavy-tailed noise)."""

    def __init__(self, shapes: Mapping[str, torch.Size], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self._layers: dict[str, list[str]] = {}
        self._recorded: dict[str, list[Tensor]] = {}
        for name, shape in shapes.items():
            flat = name.replace(".", "_")  # a parameter's name may hold no dot
            self.register_parameter(flat, nn.Parameter(torch.zeros(shape)))
            layer = name.rpartition(".")[0]
            self._layers.setdefault(layer, []).append(flat)
            noise = torch.randn(shape, generator=generator)
            noise.mul_(torch.randn(shape, generator=generator).exp_())
            self._recorded.setdefault(layer, []).append(noise)

    def forward(self, start: Tensor) -> Tensor:
        """``start`` as it is: f32[]."""
        through = start
        for layer, names in self._layers.items():
            parameters = [self.get_parameter(name) for name in names]
            through = _Layer.apply(through, self._recorded[layer], *parameters)  # type: ignore[no-untyped-call]
        return through


def resnet18_shapes(width: int) -> dict[str, torch.Size]:
    """The parameters of a ResNet18 with the CIFAR stem, by name, in order of registration."""
    with torch.device("meta"):
        model = ResNet18(width=width).build(NUM_CLASSES)
    return {name: parameter.shape for name, parameter in model.named_parameters()}
