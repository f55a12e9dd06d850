"""Pufferfish in training: the model is factorized at an epoch's start, in every world alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import World
from tiny_run import (
    SETTINGS,
    STEPS_PER_EPOCH,
    TEXT,
    UNIFORM4_EF,
    assert_same_state,
    built,
    play,
    tiny,
    without_times,
)
from told import shared_part, told_by, told_here

from dgc_repro.train import checkpoint
from dgc_repro.train.run import Run

FROM_1 = ("model.low_rank.from_epoch=1", "train.epochs=3")
CNN = ("model=cnn", "model.hidden=32", "model.dropout=0.3", *FROM_1)
POWERSGD_EF = SETTINGS["powersgd"]
BY_METHOD = {
    "dense": SETTINGS["dense"],
    "powersgd": POWERSGD_EF,
    "accordion": SETTINGS["accordion"],
    "gravac": SETTINGS["gravac"],
    "sam": (*UNIFORM4_EF, "optimizer=sam", "optimizer.compressed=first"),
}
LOCAL = ("launch=local", "launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=60")
PER_BUCKET = "exchange.overlap=true"


def sizes(run: Run) -> int:
    return sum(p.numel() for p in run.module.parameters())


SLOW = [
    pytest.param(method, marks=pytest.mark.slow) for method in BY_METHOD if method != "powersgd"
]


@pytest.mark.parametrize("method", ["powersgd", *SLOW])
@pytest.mark.parametrize("stop", ["before", "after", "at"])
def test_a_run_continues_across_the_factorization_bit_for_bit(
    method: str, stop: str, tmp_path: Path
) -> None:
    overrides = (*CNN, *BY_METHOD[method])
    steps = {"before": -1, "at": 0, "after": 2}[stop] + STEPS_PER_EPOCH
    whole = built(*overrides)
    told = play(whole)
    first = built(*overrides)
    before = play(first, until=steps)
    assert first.progress.is_low_rank == (stop == "after")
    checkpoint.save(first, tmp_path, "a config")

    second = built(*overrides)
    checkpoint.load(second, tmp_path, "a config")
    assert_same_state(first, second)
    after = play(second)
    assert before.losses + after.losses == told.losses
    records = [without_times(r) for r in before.records + after.records]
    assert records == [without_times(r) for r in told.records]
    assert_same_state(whole, second)
    assert second.progress.is_low_rank


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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dense", "powersgd", "accordion", "sam"])
def test_real_processes_do_what_simulated_workers_do(
    method: str, two_workers: World, tmp_path: Path
) -> None:
    overrides = (*CNN, *BY_METHOD[method])
    real = two_workers(told_here, tiny(*overrides, *LOCAL), tmp_path)
    for rank, told in enumerate(real):
        simulated = told_by(built(*overrides), rank)
        assert shared_part(told) == shared_part(simulated)
        assert told["state"] == simulated["state"]
    if method == "dense":
        overlapped = two_workers(
            told_here, tiny(*overrides, *LOCAL, PER_BUCKET), tmp_path / "overlapped"
        )
        assert [shared_part(told) for told in overlapped] == [shared_part(told) for told in real]
