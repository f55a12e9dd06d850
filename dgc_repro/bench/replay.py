"""A training step replayed: recorded gradients through a real DDP backward, compute as a stated sleep.

What is left to time is the exchange, on whatever links the ranks stand. DDP sees a real backward:
one autograd node a layer, the last layer first, each giving every parameter its gradient through the
parameter's own accumulation hook; buckets fill and fire in their usual order.

Compute is modelled. A layer's gradients come at a stated instant, counted from the begin of backward
as on a GPU that works on while the CPU does something else: ``backward_seconds`` times the share of
the layers behind it and its own. The shares are those of the layers' multiply-adds, which the
recording has counted; without them a parameter counts by its size.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dgc_repro.checked import checked, one_of, within
from dgc_repro.compressor.interface import Compressor

SPANS = ("compress", "communicate", "decompress")
TORCH_HOOKS = ("allreduce", "fp16", "powersgd")
"""torch's own ways: DDP as it ships, and two of its communication hooks."""


@checked
class Compute:
    """What a step computes beside the exchange, as sleeps: forward, then backward."""

    name: str = "none"
    forward_seconds: Annotated[float, within(0)] = 0.0
    backward_seconds: Annotated[float, within(0)] = 0.0

    @classmethod
    def of(cls, name: str, seconds: float) -> Compute:
        """A step's compute: a third forward, the rest backward, which multiplies twice as much."""
        return cls(name, seconds / 3, 2 * seconds / 3)

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds


NO_COMPUTE = Compute()


@checked
class Case:
    """A way to average gradients: ``compressor`` with or without ``overlap``, or, without one, torch's own
    ``hook``."""

    name: str
    compressor: Compressor | None = None
    overlap: bool | None = None
    hook: Annotated[str, one_of(TORCH_HOOKS)] = "allreduce"

    def __post_init__(self) -> None:
        if (self.compressor is None) != (self.overlap is None):
            raise ValueError(f"overlap: goes with a compressor, got {self.overlap!r}")

    @property
    def key(self) -> str:
        """Its name in a record."""
        return self.name + overlap_text(self.overlap)


def overlap_text(overlap: bool | None) -> str:
    """What follows a method's name; empty for torch's own."""
    return "" if overlap is None else f", overlap={str(overlap).lower()}"


class _Pace:
    """When a step's backward has begun, and how long it shall take."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.backward_seconds = 0.0

    def wait(self, until: float) -> None:
        """Sleep until this share of backward is over; it begins with the first call."""
        if self.began is None:
            self.began = time.perf_counter()
        pause(self.began + until * self.backward_seconds - time.perf_counter())


class _Layer(torch.autograd.Function):
    """Passes a number through; backward returns the recorded gradients of one layer."""

    @staticmethod
    def forward(
        ctx: Any,
        through: Tensor,
        recorded: Sequence[Tensor],
        pace: _Pace,
        until: float,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.recorded, ctx.pace, ctx.until = recorded, pace, until
        return through.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.pace.wait(ctx.until)
        # Aliases: autograd takes a tensor nobody else holds as it is, as it takes a fresh gradient
        # of a real backward; one that is held elsewhere it would copy.
        recorded = (gradient.detach() for gradient in ctx.recorded)
        return (gradients[0], None, None, None, *recorded)


class Replay(nn.Module):
    """Parameters shaped and laid out as the gradients, which were recorded beforehand.

    ``gradients``: f32, by parameter name, in order of registration; a DDP model with
    ``gradient_as_bucket_view=False`` writes their mean into them, so hand it copies. ``shares``: of
    backward's time, by layer (the name without its last part); they are made to add up to 1.
    """

    def __init__(
        self, gradients: Mapping[str, Tensor], shares: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        self.compute = NO_COMPUTE
        self._pace = _Pace()
        self._layers: dict[str, list[str]] = {}
        self._recorded: dict[str, list[Tensor]] = {}
        for name, gradient in gradients.items():
            flat = name.replace(".", "_")  # a parameter's name may hold no dot
            self.register_parameter(flat, nn.Parameter(torch.zeros_like(gradient)))
            layer = layer_of(name)
            self._layers.setdefault(layer, []).append(flat)
            self._recorded.setdefault(layer, []).append(gradient)
        if not shares:
            shares = {
                layer: float(sum(gradient.numel() for gradient in recorded))
                for layer, recorded in self._recorded.items()
            }
        self._instants = _instants([shares.get(layer, 0.0) for layer in self._layers])

    def forward(self, start: Tensor) -> Tensor:
        """``start`` as it is: f32[]."""
        pause(self.compute.forward_seconds)
        self._pace.began, self._pace.backward_seconds = None, self.compute.backward_seconds
        through = start
        for (layer, names), until in zip(self._layers.items(), self._instants, strict=True):
            parameters = [self.get_parameter(name) for name in names]
            through = _Layer.apply(through, self._recorded[layer], self._pace, until, *parameters)
        return through


def layer_of(parameter: str) -> str:
    """The module that a parameter belongs to, by name."""
    return parameter.rpartition(".")[0]


def _instants(shares: Sequence[float]) -> list[float]:
    """For each layer, what share of backward is over when its gradients are there; the last is first."""
    total = sum(shares) or 1.0
    over = [float(share) for share in itertools.accumulate(reversed(shares))]
    return [share / total for share in reversed(over)]


def pause(seconds: float) -> None:
    """Sleep, unless there is nothing to wait for."""
    if seconds > 0:
        time.sleep(seconds)


def multiply_adds(module: nn.Module, output: Any) -> float:
    """What a layer's forward pass multiplies and adds, from its output: weights are used once for
    each place of the output (a pixel, a word). 0 for what is no product of matrices."""
    first = output[0] if isinstance(output, tuple) else output
    match module:
        case nn.Conv2d():
            return float(first.numel() * module.weight[0].numel())
        case nn.Linear():
            return float(first.numel() * module.in_features)
        case nn.LSTM():
            places = first.numel() / module.hidden_size
            return float(places * sum(w.numel() for w in module.parameters() if w.dim() > 1))
    return 0.0
