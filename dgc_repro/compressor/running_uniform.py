"""The uniform quantizer with a scale from the largest magnitude of all steps so far.

Paper: a reading of the quantizer in "Distributed Model Training With Dynamic Gradient Compression", which
does not say where the scale comes from; such observers are common for activations (Jacob et al.,
"Quantization and training of neural networks for efficient integer-arithmetic-only inference", CVPR 2018,
arXiv:1712.05877, section 3.1).
Asks: to gather n codes of b bits and one float32 scale a tensor, as `Uniform` without blocks.
Differs: `Uniform` takes the scale from the values of the step. Here it never falls, so that no value is
clipped and a gradient that shrinks uses fewer and fewer of the codes: values under half a step are sent as 0.
On a ladder only the state of the chosen rung moves. ``train.reshard=mean`` may lower the m of a worker.

    Q = 2^(b-1) - 1,  m = max(m, max|x|),  s = m / Q,  code = round(x / s) + Q,  decoded = (code - Q) s

No value is moved by more than a step. So an entry of an error feedback's residual stays below
max|g| / (Q - 1) over all steps. With 2 bits (Q = 1) nothing bounds it; they are refused.

Letters: n = values, b = bits, m = the state, one number a tensor and worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch

from dgc_repro.checked import checked, one_of, within
from dgc_repro.compressor.encoding import encode, layouts_of, of_filled
from dgc_repro.compressor.gathering import average, gathered
from dgc_repro.compressor.interface import Compressor, Context, Step
from dgc_repro.compressor.uniform import ROUNDINGS
from dgc_repro.kernel import sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class RunningUniform(Compressor):
    """``bits``: of a value that is sent. ``rounding``: to the grid. State: ``largest``, f32[]."""

    bits: Annotated[int, within(3, 16)] = 8
    rounding: Annotated[str, one_of(ROUNDINGS)] = "nearest"

    def setup(self, like: Batch, world: World) -> None:
        shapes = [()] * len(like)
        each = range(world.local)
        self.keep("largest", [Segments.zeros(like.names, shapes, like.device) for _ in each])

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        layout, sent = layouts_of(out.sizes, self.bits, None), []
        for worker, (x, last) in enumerate(zip(xs, self.kept("largest", out.names), strict=True)):
            largest = torch.maximum(torch.stack(list(last.tensors)), sums.peaks(x))
            torch._foreach_copy_(list(last.tensors), list(largest.unbind()))
            steps = of_filled(largest * (1 / (2 ** (self.bits - 1) - 1)), x.sizes)
            rounding = ROUNDINGS[self.rounding]
            sent.append(encode(x, context.at(worker), layout, rounding, scales=steps))
        average((yield from gathered(sent, world, context)), out)
        return sent
