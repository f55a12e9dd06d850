"""signSGD with majority vote: one bit a value, and the sign that most workers sent.

Paper: Bernstein et al., "signSGD: compressed optimisation for non-convex problems", ICML 2018
(arXiv:1802.04434), signSGD with majority vote; Bernstein et al., "signSGD with majority vote is
communication efficient and fault tolerant", ICLR 2019 (arXiv:1810.05291), algorithm 1 without momentum.
Asks: to gather one bit a value: 4 ceil(n / 32) bytes.
Differs: no parameter server; everybody gathers everybody's bits and counts the votes. The papers leave
sign(0) open, and one bit has no room for it. An exact 0 is sent as + or as -, by turns from worker to
worker and from step to step, so that a value that is 0 on all workers comes out as 0 with an even
number of them, and cancels over two steps with an odd one; always + would push unused
weights one way for ever. (Wherever it is not cancelled the answer is +1 or -1.) Momentum
is no part of the method. In the second paper's algorithm (Signum) each worker sends the sign of its momentum.
That is wrap=[momentum_correction] with optimizer.momentum=0; the factor 1 - momentum changes no sign. The
optimizer's own momentum is another method: it averages the votes of past steps.

    sent: sign(g);  answer: sign(sum over workers of sent), and 0 at a tie

The answer has the size of a sign, not of a gradient: the learning rate must be so much smaller, and
`averaging` is no law of a vote. Letters: n = values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dgc_repro.checked import checked
from dgc_repro.compressor.encoding import Quantizer, signs_of
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Signs, vote


@checked
class SignSGD(Quantizer):
    """Send signs, receive the majority's. Nothing to set, nothing to keep."""

    expands = True  # signs have no magnitude
    gather_only = True  # a residual added to votes would be another method

    def combine(self, payloads: Sequence[Any], out: Batch) -> None:
        vote(payloads, out)

    def encode_batch(self, batch: Batch, context: Context) -> Signs:
        """Pack the signs."""
        zero_too = (context.rank + context.step) % 2 == 1
        return signs_of(batch, context, (0,) * len(batch), zero_too=zero_too)
