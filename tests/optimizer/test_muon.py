"""Muon and Dion against their algorithms in float64, and in the trainer. MuLoCo: test_local_steps.py."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dion_reference import directions
from laws import play as exchanged
from laws import simulation
from muon_reference import Reference, in_float32
from numeric import first_q
from tiny_run import PLAIN, RECIPE, SETTINGS, TEXT, assert_continues, built, play
from torch import nn

from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.launch.paths import option
from dgc_repro.model.gpt import GPT
from dgc_repro.model.lstm import LSTM
from dgc_repro.model.resnet18 import ResNet18
from dgc_repro.optimizer import muon
from dgc_repro.optimizer.dion import Dion as DionSettings
from dgc_repro.optimizer.muon import Muon, matrices
from dgc_repro.optimizer.sgd import set_learning_rate
from dgc_repro.selfcheck.law_settings.base import Setting

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


def others_of(module: nn.Module) -> set[str]:
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
    assert others_of(GPT(width=8, layers=1).build(20)) == embeddings
    assert others_of(LSTM(width=8).build(20)) == {"embedding.weight", "decoder.weight"}
    assert others_of(ResNet18(width=4).build(10)) == {"fc.weight"}
    assert others_of(nn.Sequential(nn.Linear(4, 2))) == {"0.weight"}
    factors = built(*TEXT, "model.low_rank.from_epoch=1", "model.low_rank.keep_first=0")
    assert factors.low_rank is not None
    thin = others_of(factors.low_rank.factorized(factors.module))
    assert {name.partition(".")[0] for name in thin} == {"embedding", "decoder", "lstm"}


TRAINED = (
    *("dgc", "demo", "accordion by own gradients", "adaqs", "scheduled", "gravac", "scadles"),
    *("gravac a step later", "shards", "one vector", "fragments"),
)


@pytest.mark.parametrize("name", TRAINED)
def test_it_trains_with_compressors_and_policies(name: str) -> None:
    without = ("optimizer.momentum=0", "optimizer.beta1=0") if name in ("dgc", "demo") else ()
    told = play(built(*PLAIN, *SETTINGS[name], MUON, *without, "train.epochs=1"))
    assert told.finished
    assert np.isfinite(told.records[-1]["train/loss"])


# Dion. Its exchange: compressor/test_dion.py.

WORKERS = 3
DION = "compressor=dion"
WORDS = (*TEXT[:-2], DION)  # without the settings of SGD and of clipping


def dion_network() -> nn.Module:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(4, 24, 3),
        nn.Flatten(),
        nn.Linear(24, 50),
        nn.Linear(50, 20),
        nn.Linear(20, 9),
    )
    return nn.Sequential(*layers)


def test_steps_of_three_workers_are_those_of_the_algorithm() -> None:
    """Matrices to 1e-4 of the distance that they have moved (compressor/test_dion.py), and a rounding a
    step."""
    module, of, method = dion_network(), DionSettings(weight_decay=0.3), Dion(0.2)
    others = muon.names_of_others(module)
    assert others == ("4.weight",)
    nest = PerLayer(ErrorFeedback(method), ("vectors", *others))
    named = dict(module.named_parameters())
    setting, known = Setting("", nest), matrices(module)
    exchange = simulation(setting, WORKERS, {n: p.detach() for n, p in named.items()})
    source = torch.Generator().manual_seed(1)
    gradients = [
        [
            {n: torch.randn(p.shape, generator=source) for n, p in named.items()}
            for _ in range(WORKERS)
        ]
        for _ in range(STEPS)
    ]
    expected, start = {}, {n: p.detach().double().numpy() for n, p in named.items()}
    rates = [of.lr / (1 + step) for step in range(STEPS)]
    for name, p in named.items():
        given = [[own[name].double().numpy() for own in of_step] for of_step in gradients]
        if p in known:
            flat = [[g.reshape(len(g), -1) for g in of_step] for of_step in given]
            rows, cols = flat[0][0].shape
            rank = int(np.ceil(method.rank_fraction * min(rows, cols)))
            found, _ = directions(
                flat,
                first_q(rank, min(rows, cols), "per_layer", "error_feedback", name=name),
                method.momentum,
            )
            weight = start[name]
            for rate, direction in zip(rates, found, strict=True):
                step = (rows / cols) ** 0.5 * direction.reshape(weight.shape)
                weight = weight - rate * of.weight_decay * weight - rate * step
        else:
            settings: Any = of
            adam = Reference(settings, start[name], is_matrix=False)
            for rate, of_step in zip(rates, given, strict=True):
                adam.step(np.mean(of_step, axis=0), rate)
            weight = adam.weight
        expected[name] = weight
    optimizer = of.build(module, 64)
    for rate, of_step in zip(rates, gradients, strict=True):
        set_learning_rate(optimizer, rate)
        means = exchanged(exchange, setting, of_step)
        for name, p in named.items():
            p.grad = means[name].clone()
        optimizer.step()
    for name, p in named.items():
        moved = np.abs(expected[name] - start[name]).max()
        bound = 1e-4 * moved + STEPS * 2.0**-24
        found = p.detach().double().numpy()
        np.testing.assert_allclose(found, expected[name], rtol=0, atol=bound, err_msg=name)


def test_with_dion_embeddings_and_the_head_travel_uncompressed() -> None:
    run = built(*WORDS)
    exempt, rest = run.exchange.groups
    assert {"embedding.weight", "decoder.weight"} <= {*exempt.names}
    assert not any(run.parameters[name].dim() < 2 for name in rest.names)
    nest: Any = rest.method
    assert isinstance(run.optimizer, torch.optim.Optimizer)
    play(run, until=1)
    known = matrices(run.module)
    sent = 0
    for p in run.module.parameters():
        kind = nest.inner.inner.kind(p.shape) if p in known else None
        is_thin = kind is not None and not kind.is_whole
        sent += kind.rank * (len(p) + p.numel() // len(p)) if is_thin else p.numel()
    assert run.world.ledger.payload_bytes == 4 * sent


# Both in the trainer.


@pytest.mark.parametrize(
    ("given", "stop_after"),
    [
        ((*PLAIN, DION), 3),
        ((*WORDS, "model.low_rank.from_epoch=1", "model.low_rank.keep_first=0"), 6),
        ((*PLAIN, "compressor=topk", MUON, "train.local_steps=3"), 4),
        (("compressor=uniform", "model=resnet18", "model.width=4", MUON), 3),
    ],
    ids=["Dion", "Dion, text, low rank", "MuLoCo", "Muon, kernels"],
)
def test_a_stopped_run_continues_bit_for_bit(
    given: tuple[str, ...], stop_after: int, tmp_path: Path
) -> None:
    whole = built(*given)
    assert_continues(given, stop_after, tmp_path, whole, play(whole))


@pytest.mark.parametrize("method", [MUON, DION])
def test_it_learns_the_digits_with_a_frozen_first_layer(method: str) -> None:
    told = play(built(*RECIPE, method))
    assert told.records[-1]["train/loss"] < told.records[0]["train/loss"]
