"""All tensors of a model in one vector (``exchange.unit=model``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from dgc_repro.compressor.interface import Compressor, Context, Step, Wrapper
from dgc_repro.errors import UserError
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World

MODEL = "model"  # the name of the vector


@dataclass(frozen=True)
class Joined(Wrapper):
    """A method that sees one vector: the tensors one after another, in the order of registration, and of the
    widest type."""

    inner: Compressor

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return bool(self.inner.exact)

    def setup(self, like: Batch, world: World) -> None:
        vars(self)["names"] = like.names
        self.inner.setup(Batch((MODEL,), [torch.zeros(sum(like.sizes), device=like.device)]), world)

    def states(self, worker: int) -> dict[str, Segments]:
        return self.inner.states(worker)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        if out.names != vars(self)["names"]:
            raise absent_of_model(min({*vars(self)["names"]} - {*out.names}))
        size, device = sum(out.sizes), out.device
        dtype = functools.reduce(torch.promote_types, {tensor.dtype for tensor in out.tensors})
        whole: list[Batch] = []
        for worker, x in enumerate(xs):
            flat = context.at(worker).scratch("model", size, dtype, device)
            parts = [tensor.reshape(-1) for tensor in x.tensors]
            whole.append(Batch((MODEL,), [torch.cat(parts, out=flat)]))
        if context.raw:
            context = replace(context, raw=[kernels.energies(x) for x in whole])
        mean = context.scratch("model mean", size, dtype, device)
        sent = yield from self.inner.step(whole, Batch((MODEL,), [mean]), world, context)
        pieces = zip(mean.split(out.sizes), out.tensors, strict=True)
        torch._foreach_copy_(list(out.tensors), [piece.view(t.shape) for piece, t in pieces])
        return sent


def absent_of_model(name: str) -> UserError:
    """The error of a step in which a parameter has no gradient."""
    return UserError(
        f"exchange.unit: model joins all gradients into one vector, and {name} has received none on any "
        "rank; use exchange.unit=layer"
    )
