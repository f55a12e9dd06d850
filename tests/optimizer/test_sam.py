"""SAM against its paper's algorithm in float64 numpy, in real steps, and what it sends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_run import PLAIN, TEXT, built, play
from torch import nn
from torch.func import functional_call

from dgc_repro.optimizer.sam import perturbed
from dgc_repro.train.loop import steps_left
from dgc_repro.train.step import train_step
from dgc_repro.train.task import Batch

TOPK = ("compressor=topk", "wrap=[error_feedback]")


def test_one_step_on_a_quadratic_is_the_papers() -> None:
    """Loss 0.5 w A w: both gradients are products with A."""
    drawn = np.random.default_rng(0)
    half = drawn.normal(size=(4, 4))
    a, w, rho, rate = half @ half.T, drawn.normal(size=4), 0.3, 0.1
    first = a @ w
    expected = w - rate * (a @ (w + rho * first / np.linalg.norm(first)))

    module = nn.ParameterDict({"w": nn.Parameter(torch.from_numpy(w))})
    matrix = torch.from_numpy(a)

    def backward() -> None:
        module.zero_grad(set_to_none=True)
        (0.5 * module["w"] @ matrix @ module["w"]).backward()

    backward()
    with perturbed(module, rho):
        backward()
    torch.optim.SGD(module.parameters(), lr=rate).step()
    np.testing.assert_allclose(module["w"].detach().numpy(), expected, rtol=1e-13)


def test_weights_and_statistics_have_their_bits_afterwards() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    inputs = torch.randn(8, 3)
    module(inputs).square().sum().backward()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with perturbed(module, 0.5):
        assert not torch.equal(module[0].weight, before["0.weight"])
        module(inputs)
        assert not torch.equal(module[1].running_mean, before["1.running_mean"])
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("more", [(*PLAIN, *TOPK), (*TEXT, *TOPK)], ids=["images", "text"])
def test_a_vanishing_perturbation_is_sgd(more: tuple[str, ...]) -> None:
    """Dropout of the text model included: both passes draw the same numbers."""
    given = [one for one in more if not one.startswith("optimizer.")]
    sgd = play(built(*given, "optimizer=sgd"))
    sam = play(built(*given, "optimizer=sam", "optimizer.rho=1e-30"))
    assert sam.losses == sgd.losses
    assert sam.records[-1]["comm/payload_bytes"] == sgd.records[-1]["comm/payload_bytes"]
    far = play(built(*given, "optimizer=sam", "optimizer.rho=0.5"))
    assert far.losses[0] == sgd.losses[0]  # the loss is the first pass's
    assert far.losses[1:] != sgd.losses[1:]


def test_of_four_workers_the_gradients_at_their_own_perturbed_weights_are_compressed() -> None:
    """One step of SGD: every worker sends a part of its gradient and keeps the rest as its residual."""
    run = built(
        *("model=cnn", "model.hidden=8", "dataset.augment=none", *TOPK, "compressor.density=0.1"),
        *("optimizer=sam", "optimizer.rho=0.5", "optimizer.momentum=0", "optimizer.weight_decay=0"),
        *("launch.workers=4", "schedule=constant", "train.channels_last=false"),
    )
    batches = next(iter(steps_left(run)))
    batches = [replace(one, micro_batches=list(one.micro_batches)) for one in batches]
    before = {name: p.detach().clone() for name, p in run.module.named_parameters()}

    def gradient(batch: Batch, at: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        (micro,) = batch.micro_batches
        weights = {name: value.clone().requires_grad_() for name, value in at.items()}
        output, _ = run.task.answer(
            lambda x: functional_call(run.module, weights, x), micro[0], None
        )
        loss = torch.nn.functional.cross_entropy(output, micro[1])
        return dict(zip(at, torch.autograd.grad(loss, list(weights.values())), strict=True))

    own = []
    for batch in batches:
        first = gradient(batch, before)
        length = torch.stack([g.square().sum() for g in first.values()]).sum().sqrt()
        own.append(gradient(batch, {n: w + 0.5 * first[n] / length for n, w in before.items()}))

    train_step(run, batches)
    kept = [run.exchange.states(i) for i in range(4)]
    rate = run.base_lr
    for name, weight in run.module.named_parameters():
        residuals = [states["residual"][name] for states in kept]
        sent = torch.stack([g[name] - r for g, r in zip(own, residuals, strict=True)])
        torch.testing.assert_close(before[name] - weight, rate * sent.mean(0), atol=2e-6, rtol=1e-4)
        assert all(0 < r.count_nonzero() < r.numel() for r in residuals if r.numel() > 20), name


def test_compressing_the_first_gradient_sends_the_second_uncompressed() -> None:
    dense = play(built(*PLAIN, "compressor=dense", "wrap=[]", "optimizer=sgd"))
    by_own = play(built(*PLAIN, *TOPK, "optimizer=sam"))
    by_mean = play(built(*PLAIN, *TOPK, "optimizer=sam", "optimizer.compressed=first"))
    sent = [told.records[-1]["comm/payload_bytes"] for told in (by_own, dense, by_mean)]
    assert sent[2] == sent[0] + sent[1]
    assert by_mean.losses[1:] != by_own.losses[1:]
