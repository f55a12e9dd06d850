"""Muon against its author's algorithm in float64, and in the trainer. MuLoCo: train/test_local_steps.py."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from muon_reference import Reference, in_float32
from tiny_run import PLAIN, RECIPE, SETTINGS, TEXT, assert_continues, built, play
from torch import nn

from dgc_repro import Dion, PerLayer
from dgc_repro.launch.paths import option
from dgc_repro.model.gpt import GPT
from dgc_repro.model.lstm import LSTM
from dgc_repro.model.resnet18 import ResNet18
from dgc_repro.optimizer import muon
from dgc_repro.optimizer.dion import Dion as DionSettings
from dgc_repro.optimizer.muon import Muon, matrices
from dgc_repro.optimizer.sgd import set_learning_rate

STEPS = 5
MUON = "optimizer=muon"


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(6, 20, bias=False), nn.Linear(20, 4))
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "of",
    [
        Muon(),
        Muon(nesterov=False, scale="spectral_unclamped", weight_decay=0.1),
        Muon(momentum=0, scale="match_rms_adamw", beta1=0, weight_decay=0),
    ],
)
@pytest.mark.parametrize(("float32", "tolerance"), [(True, 1e-5), (False, 0.1)])
def test_steps_are_those_of_the_algorithm(of: Muon, float32: bool, tolerance: float) -> None:
    """``tolerance``: of the distance that a tensor has moved; a bf16 has 8 digits in each of 5 iterations.
    Beyond it a step may round a weight, which is below 1."""
    module = network()
    known, before = matrices(module), [p.detach().clone() for p in module.parameters()]
    rows = [Reference(of, p.detach().double().numpy(), p in known) for p in module.parameters()]
    optimizer, source = of.build(module, 64), torch.Generator().manual_seed(1)
    for step in range(STEPS):
        set_learning_rate(optimizer, lr := of.lr / (1 + step))
        for p, row in zip(module.parameters(), rows, strict=True):
            p.grad = torch.randn(p.shape, generator=source)  # contiguous: kernels are not
            row.step(p.grad.double().numpy(), lr)
        with in_float32() if float32 else nullcontext():
            optimizer.step()
    for p, row, start in zip(module.parameters(), rows, before, strict=True):
        moved = np.abs(row.weight - start.double().numpy()).max()
        np.testing.assert_allclose(
            p.detach().double().numpy(),
            row.weight,
            rtol=0,
            atol=tolerance * moved + STEPS * 2.0**-24,
        )


@pytest.mark.parametrize("scale", ["original", "spectral_unclamped", "match_rms_adamw"])
def test_every_scale_works_with_the_oldest_torch(
    scale: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.11's Muon has two scales."""

    class Oldest(torch.optim.Muon):
        def __init__(self, params: Any, *, adjust_lr_fn: str, **more: Any) -> None:
            if adjust_lr_fn not in ("original", "match_rms_adamw"):
                raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
            super().__init__(params, adjust_lr_fn=adjust_lr_fn, **more)

    monkeypatch.setattr(torch.optim, "Muon", Oldest)
    module = network()
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    Muon(scale=scale).build(module, 64).step()


def test_momentum_of_kernels_goes_on_in_another_memory_format() -> None:
    """A kernel lies in memory as [O, H, W, I], and without ``train.channels_last`` as [O, I, H, W]."""
    modules = [network(), network().to(memory_format=torch.contiguous_format)]
    optimizers = [Muon().build(module, 64) for module in modules]
    source = torch.Generator().manual_seed(1)

    def gradients() -> list[torch.Tensor]:
        return [torch.randn(p.shape, generator=source) for p in modules[0].parameters()]

    def step(which: int, given: list[torch.Tensor]) -> list[torch.Tensor]:
        parameters = list(modules[which].parameters())
        for p, gradient in zip(parameters, given, strict=True):
            p.grad = gradient.clone()
        with in_float32():
            optimizers[which].step()
        return [p.detach().clone() for p in parameters]

    step(0, gradients())
    modules[1].load_state_dict(modules[0].state_dict())
    optimizers[1].load_state_dict(deepcopy(optimizers[0].state_dict()))
    kernels = [next(module.parameters()).stride() for module in modules]
    assert kernels[0] != kernels[1]
    following = gradients()
    for one, two in zip(step(0, following), step(1, following), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


def test_its_file_has_the_defaults_of_its_class_which_are_the_authors() -> None:
    """The rates, momentum and betas of KellerJordan/Muon; its example has this weight decay."""
    assert {k: v for k, v in option("optimizer", "muon").items() if k != "_target_"} == asdict(
        Muon()
    )
    assert Muon() == Muon(
        lr=0.02, momentum=0.95, adam_lr=3e-4, beta1=0.9, beta2=0.95, eps=1e-10, weight_decay=0.01
    )


def names_of_others(module: nn.Module) -> set[str]:
    known = matrices(module)
    return {n for n, p in module.named_parameters() if p not in known and p.ndim > 1}


def test_a_name_that_looks_like_a_pattern_is_sent_uncompressed() -> None:
    module = nn.ModuleDict({"a[0]": nn.Embedding(4, 2), "b": nn.Linear(2, 3), "c": nn.Linear(3, 2)})
    nest = PerLayer(Dion(), dense=("vectors", *muon.names_of_others(module)))
    exempt = {n for n, p in module.named_parameters() if p.ndim > 1 and nest.exempt(p, n)}
    assert exempt == {"a[0].weight", "c.weight"}


def test_a_matrix_without_values_is_left_alone() -> None:
    module = nn.ParameterDict(
        {name: nn.Parameter(torch.ones(rows, 3)) for name, rows in (("empty", 0), ("whole", 3))}
    )
    for settings in (Muon(), DionSettings()):
        optimizer = settings.build(module, 1)
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        before = module["whole"].clone()
        optimizer.step()
        assert not torch.equal(module["whole"], before)


def test_embeddings_and_the_head_are_no_matrices() -> None:
    embeddings = {"embedding.weight", "positions.weight"}  # of which the first is the head too
    assert names_of_others(GPT(width=8, layers=1).build(20)) == embeddings
    assert names_of_others(LSTM(width=8).build(20)) == {"embedding.weight", "decoder.weight"}
    assert names_of_others(ResNet18(width=4).build(10)) == {"fc.weight"}
    assert names_of_others(nn.Sequential(nn.Linear(4, 2))) == {"0.weight"}
    factors = built(*TEXT, "model.low_rank.from_epoch=1", "model.low_rank.keep_first=0")
    assert factors.low_rank is not None
    thin = names_of_others(factors.low_rank.factorized(factors.module))
    assert {name.partition(".")[0] for name in thin} == {"embedding", "decoder", "lstm"}


@pytest.mark.parametrize(
    "name", ["dgc", "powersgd on a ladder", "gravac", "shards", "one vector", "fragments"]
)
def test_it_trains_with_compressors_and_policies(name: str) -> None:
    without = ("optimizer.momentum=0", "optimizer.beta1=0") if name == "dgc" else ()
    told = play(built(*PLAIN, *SETTINGS[name], MUON, *without, "train.epochs=1"))
    assert told.finished
    assert np.isfinite(told.records[-1]["train/loss"])


@pytest.mark.parametrize(
    ("more", "stop_after"),
    [
        (("compressor=topk", *PLAIN), 3),
        (("compressor=topk", *PLAIN, "train.local_steps=3"), 4),
        (("compressor=uniform", "model=resnet18", "model.width=4"), 3),
        ((*TEXT, "compressor=powersgd", "optimizer.momentum=0.95"), 3),
    ],
    ids=["matrices", "MuLoCo", "kernels", "text"],
)
def test_a_stopped_run_continues_bit_for_bit(
    more: tuple[str, ...], stop_after: int, tmp_path: Path
) -> None:
    given = (*more, MUON)
    whole = built(*given)
    assert_continues(given, stop_after, tmp_path, whole, play(whole))


def test_it_learns_the_digits_with_a_frozen_first_layer() -> None:
    told = play(built(*RECIPE, MUON))
    assert told.records[-1]["train/loss"] < told.records[0]["train/loss"]
