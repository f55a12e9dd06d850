"""Steps of Dion against the paper in float64, and in the trainer. Its exchange: compressor/test_dion.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dion_reference import directions
from laws import play as exchanged
from laws import simulation
from muon_reference import Reference
from numeric import context
from tiny_run import PLAIN, RECIPE, TEXT, assert_continues, built, play
from torch import nn

from dgc_repro.compressor.dion import Dion as Compressor
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.kernel import lowrank
from dgc_repro.optimizer.dion import Dion
from dgc_repro.optimizer.muon import matrices, names_of_others
from dgc_repro.optimizer.sgd import set_learning_rate
from dgc_repro.selfcheck.law_settings.base import Setting

STEPS, WORKERS = 5, 3
DION = "compressor=dion"
WORDS = (*TEXT[:-2], DION)  # without the settings of SGD and of clipping


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(4, 24, 3),
        nn.Flatten(),
        nn.Linear(24, 50),
        nn.Linear(50, 20),
        nn.Linear(20, 9),
    )
    return nn.Sequential(*layers)


def first_q(name: str, rank: int, shorter: int) -> Any:
    where = context(path=("per_layer", "error_feedback"), name=name, seed=7)
    drawn = lowrank.normals(rank * shorter, where.key(shared=True), torch.device("cpu"))
    return drawn.view(rank, shorter).double().numpy().T


def test_steps_of_three_workers_are_those_of_the_algorithm() -> None:
    """Matrices to 1e-4 of the distance that they have moved (compressor/test_dion.py), and a rounding a
    step."""
    module, of, method = network(), Dion(weight_decay=0.3), Compressor(0.2)
    others = names_of_others(module)
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
            found, _ = directions(flat, first_q(name, rank, min(rows, cols)), method.momentum)
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


def test_embeddings_and_the_head_travel_uncompressed() -> None:
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


@pytest.mark.parametrize(
    ("given", "stop_after"),
    [
        ((*PLAIN, DION), 3),
        (("model=resnet18", "model.width=4", DION), 3),
        (WORDS, 5),
        ((*WORDS, "model.low_rank.from_epoch=1", "model.low_rank.keep_first=0"), 6),
    ],
    ids=["matrices", "kernels", "text", "low rank"],
)
def test_a_stopped_run_continues_bit_for_bit(
    given: tuple[str, ...], stop_after: int, tmp_path: Path
) -> None:
    whole = built(*given)
    assert_continues(given, stop_after, tmp_path, whole, play(whole))


def test_it_learns_the_digits_with_a_frozen_first_layer() -> None:
    told = play(built(*RECIPE, DION))
    assert told.records[-1]["train/loss"] < told.records[0]["train/loss"]
