"""Adam with decoupled weight decay, and with a variance that may stop changing.

Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015 (arXiv:1412.6980); Loshchilov and
Hutter, "Decoupled weight decay regularization", ICLR 2019 (arXiv:1711.05101). ``freeze_steps``: Tang et al.,
"1-bit Adam", ICML 2021 (arXiv:2102.02888): the warm-up after which the variance stays as it is
(compressor/onebit_adam.py has the other half). A weight whose gradient was 0 in the whole warm-up has no
variance to divide by. It gets no update from then on, as with the masks of DeepSpeed's 1-bit Adam.

    m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2, in the first ``freeze_steps`` steps
    w = w - eta (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^T)) + eps) + lambda w)

t = steps so far, T = those among them that changed v. It is LAMB with a ratio of 1 for every tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from torch import nn

from dgc_repro.checked import Count, Positive, Rate, WeightDecay, checked
from dgc_repro.optimizer.lamb import Decay, LAMBOptimizer
from dgc_repro.optimizer.lars import adapted_and_exempt
from dgc_repro.optimizer.sgd import Optimizer


@checked
class Adam(Optimizer):
    """``beta1``, ``beta2``, ``eps``: of the moments. ``freeze_steps``: steps that change the variance.
    ``exempt_1d``: no weight decay for tensors with at most one dimension, biases and normalization."""

    lr: Rate = 0.001
    weight_decay: WeightDecay = 0.01
    reference_batch: Count | None = None
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    eps: Positive = 1e-8
    freeze_steps: Annotated[Count | None, "null for all"] = None
    exempt_1d: bool = False

    def of(self, parameters: Iterable[nn.Parameter], lr: float) -> LAMBOptimizer:
        groups = adapted_and_exempt(parameters, self.weight_decay, self.exempt_1d)
        groups = [group | {"adapts": False} for group in groups if group["params"]]
        betas = (self.beta1, self.beta2)
        return LAMBOptimizer(groups, lr, betas, self.eps, freeze_steps=self.freeze_steps)
