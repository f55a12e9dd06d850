"""Pufferfish in training: the model is factorized at an epoch's start, in every world alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_run import SETTINGS, STEPS_PER_EPOCH, TEXT, UNIFORM4_EF, built, play

from dgc_repro.train import checkpoint
from dgc_repro.train.run import Run

FROM_1 = ("model.low_rank.from_epoch=1", "train.epochs=3")
CNN = ("model=cnn", "model.hidden=32", "model.dropout=0.3", *FROM_1)


def sizes(run: Run) -> int:
    return sum(p.numel() for p in run.module.parameters())


def test_the_factorization_begins_with_fresh_states_and_keeps_what_goes_on() -> None:
    run = built(*CNN, *UNIFORM4_EF)
    play(run, until=STEPS_PER_EPOCH)
    whole = sizes(run)
    before, step = run.world.ledger.payload_bytes, run.exchange.step
    run.factorize()
    assert sizes(run) < whole
    assert (run.world.ledger.payload_bytes, run.exchange.step) == (before, step)
    assert not run.optimizer.state_dict()["state"]
    assert set(run.exchange.names) == set(run.exchange.states(0)["residual"]) == set(run.parameters)
    held = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    assert (
        held == {id(p) for p in run.module.parameters()} == {id(p) for p in run.parameters.values()}
    )


def test_the_ledger_counts_the_whole_model_before_and_the_factors_after() -> None:
    run = built(*CNN, *SETTINGS["dense"])
    whole = sizes(run)
    payload = [record["comm/payload_bytes"] for record in play(run).records]
    first, second, third = payload[0], payload[1] - payload[0], payload[2] - payload[1]
    assert first == 4 * whole * STEPS_PER_EPOCH
    assert second == third == 4 * sizes(run) * STEPS_PER_EPOCH
    assert sizes(run) < whole


@pytest.mark.parametrize(
    "model",
    [
        ("model=resnet18",),
        ("model=vgg16_bn", "model.width=2"),
        (*TEXT, "model.low_rank.keep_first=0"),
        (*TEXT, "model=transformer", "model.width=8", "model.dropout=0.1"),
    ],
    ids=lambda model: model[-1],
)
def test_every_model_trains_on_its_factors(model: tuple[str, ...]) -> None:
    run = built(*model, *FROM_1)
    whole = sizes(run)
    told = play(run, until=STEPS_PER_EPOCH + 1)
    assert sizes(run) < whole
    assert torch.tensor(told.losses).isfinite().all()


def test_pretrained_weights_of_another_run_are_factorized(tmp_path: Path) -> None:
    whole, run = built(*CNN, "model.low_rank.from_epoch=null"), built(*CNN)
    play(whole, until=STEPS_PER_EPOCH + 2)
    checkpoint.save(whole, tmp_path, "another config")
    checkpoint.load(run, tmp_path, None)
    assert not run.progress.is_low_rank
    play(run)
    assert run.progress.is_low_rank
