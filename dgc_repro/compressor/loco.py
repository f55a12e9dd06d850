"""LoCo's error feedback: a moving average of past errors, kept in eight bits, forgotten now and then.

Paper: Xie, Lin, Toh, Zhou, "LoCo: Low-bit communication adaptor for large-scale model training", 2024
(arXiv:2407.04480); numbers are those of its implementation in DeepSpeed (ZeRO++, `zeropp_loco_param`):
``beta`` 0.8, a reset every 1024 steps, 8-bit errors, around 4-bit values.
Asks: what the wrapped compressor asks. Keeps n + 4 ceil(n / 2048) bytes a tensor, where `ErrorFeedback`
keeps 4 n.
Differs: the error is quantized symmetrically with a scale for each 2048 values; DeepSpeed has one for each
row of a matrix. The paper averages shards without another loss; that is exchange.aggregation=gather, and
exchange.aggregation=sharded compresses the average once more, whose loss stays with the shard's owner in
float32 (compressor/sharded.py) where DeepSpeed keeps a second average of errors in 8 bits. The paper's own
repository holds no code; the recursion was checked against DeepSpeed's kernel. A reset comes at the end of
every ``reset_steps``-th exchange of a tensor, on all workers. A skipped step (train.on_nonfinite=skip) does
not count.

    p = g + e;  own = C(p);  e' = Q8(beta e + (1 - beta) (p - own)), and 0 after ``reset_steps`` exchanges

Unlike `ErrorFeedback` this does not owe what was not sent: it estimates the next error by the average of past
ones.

Letters: n = values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch

from dgc_repro.checked import Count, checked, within
from dgc_repro.compressor.encoding import layouts_of
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import (
    EXCHANGES,
    Compressor,
    Context,
    Step,
    Wrapper,
    nested,
)
from dgc_repro.compressor.residual import check_residual
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel import codes
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments, numbers_of
from dgc_repro.payload import Codes

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World

BITS, BLOCK = 8, 2048  # of the error, and of values that share a scale


@checked
class LoCo(Wrapper):
    """Wraps any compressor; its error is its own, so no `ErrorFeedback` belongs in the nest. ``beta``: weight
    of the past errors. ``reset_steps``: the errors are forgotten after so many steps; null: never. State:
    ``error`` (u8: scales and codes of the tensor), ``exchanges`` (their number),
    ``inner``."""

    inner: Compressor
    beta: Annotated[float, within(0, below=1)] = 0.8
    reset_steps: Annotated[Count | None, "null for no reset"] = 1024

    def __post_init__(self) -> None:
        if any(isinstance(part, ErrorFeedback | LoCo) for part in nested(self.inner)):
            raise ValueError("inner: loco keeps an error of its own; leave the other one out")
        check_residual(self.inner, "inner", "leave loco out")

    def setup(self, like: Batch, world: World) -> None:
        sizes = [layouts_of((n,), BITS, BLOCK).tensor_bytes for n in like.sizes]
        shapes, each = [(int(size[0]),) for size in sizes], range(world.local)
        u8, device = torch.uint8, like.device
        self.keep("error", [Segments.zeros(like.names, shapes, device, u8) for _ in each])
        self.keep(EXCHANGES, [numbers_of(like.names) for _ in each])
        super().setup(like, world)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        layout, fed, errors = layouts_of(out.sizes, BITS, BLOCK), [], []
        places = list(zip(layout.starts[0].tolist(), layout.tensor_bytes.tolist(), strict=True))
        kept = [list(state.tensors) for state in self.kept("error", out.names)]
        for worker, x in enumerate(xs):
            here = context.at(worker)
            buffer = here.scratch("error", layout.size, torch.uint8, x.device)
            torch._foreach_copy_([buffer[a : a + n] for a, n in places], kept[worker])
            error = Codes(x.names, layout, buffer)
            to = Batch(x.names, here.buffers("fed", x))
            error.copy_to_(to, 1.0)
            errors.append(error)
            fed.append(kernels.add(x, to.tensors, to.tensors, measured=context.measures))
        sent = yield from self.inner.step(fed, out, world, context.within("loco"))
        counts = [list(state.tensors) for state in self.kept(EXCHANGES, out.names)]
        for worker, (left, own) in enumerate(zip(fed, sent, strict=True)):
            own.subtract_from_(left)
            left = Batch(left.names, left.tensors)
            kernels.scale(left, 1 - self.beta, left)
            errors[worker].add_to_(left, self.beta)
            buffer = errors[worker].buffer
            codes.quantize(left, layout, buffer, codes.NEAREST)
            torch._foreach_copy_(kept[worker], [buffer[a : a + n] for a, n in places])
            torch._foreach_add_(counts[worker], 1.0)
            for state, count in zip(kept[worker], counts[worker], strict=True):
                if self.reset_steps and int(count) % self.reset_steps == 0:
                    state.zero_()
        return sent
