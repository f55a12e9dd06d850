"""Label smoothing: the formula in training, and an evaluation without it."""

from __future__ import annotations

import pytest
import torch
from tiny_run import PLAIN, built, play
from torch import Tensor

from dgc_repro.train.evaluate import evaluate
from dgc_repro.train.loop import steps_left
from dgc_repro.train.step import forward_backward

SHARE = 0.3


def log_shares(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(1)


@pytest.mark.parametrize("share", [0.0, SHARE])
def test_a_share_of_the_target_is_spread_over_all_classes(share: float) -> None:
    """Szegedy et al., section 7: q(k) = (1 - share) [k = y] + share / K."""
    run = built(*PLAIN, f"train.label_smoothing={share}")
    batch = next(iter(steps_left(run)))[0]
    ((inputs, targets),) = list(batch.micro_batches)
    logits = run.module(inputs)
    classes = logits.shape[1]
    wanted = torch.full(logits.shape, share / classes, dtype=torch.float64)
    wanted[torch.arange(len(targets)), targets] += 1 - share
    per_image = -(wanted * log_shares(logits)).sum(1)
    (gradient,) = torch.autograd.grad(per_image.mean(), run.module.head.weight)

    again = next(iter(steps_left(run)))[0]
    run.module.zero_grad()
    loss, _, _ = forward_backward(run, 0, again)
    assert loss == pytest.approx(per_image.sum().item(), rel=1e-5)
    torch.testing.assert_close(run.module.head.weight.grad, gradient, rtol=1e-4, atol=1e-6)


def test_evaluation_has_no_smoothing() -> None:
    run = built(*PLAIN, f"train.label_smoothing={SHARE}")
    play(run)
    part = run.splits.test
    batches = list(run.task.evaluation_batches(part, [0], 1))
    run.module.eval()
    with torch.no_grad():
        sums = [
            -log_shares(run.module(x))[torch.arange(len(y)), y].sum().item() for x, y in batches
        ]
    assert evaluate(run, part).mean_loss == pytest.approx(sum(sums) / len(part), rel=1e-5)
