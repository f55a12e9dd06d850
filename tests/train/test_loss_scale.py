"""fp16 autocast with a scaled loss: near float32, unscaled residuals, overflowing steps left out and counted.

Ranks and overlap are in test_worlds.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import PLAIN, SETTINGS, TEXT, UNIFORM4_EF, assert_continues, built, play, tiny

from dgc_repro.errors import UserError
from dgc_repro.launch import build, worker
from dgc_repro.launch.rank_process import work
from dgc_repro.launch.ranks import STOPPED, StopSignals, execute, held
from dgc_repro.launch.run import prepare
from dgc_repro.train import loss_scale
from dgc_repro.train.loop import train
from dgc_repro.train.loss_scale import FIRST_SCALE, GROWTH_STEPS, LossScale
from dgc_repro.train.run import Run

FP16 = "train.precision=fp16"
POISONED = (
    "~model",
    "+model={_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:1}",
    *UNIFORM4_EF,
)


def test_fp16_trains_near_fp32_with_residuals_in_unscaled_units() -> None:
    half, whole = built(*PLAIN, *UNIFORM4_EF, FP16), built(*PLAIN, *UNIFORM4_EF)
    told, fp32 = play(half), play(whole)
    assert told.finished
    assert told.losses != fp32.losses
    # fp16 keeps 11 bits: 2^-11 a product of a layer, two layers, 8 steps.
    assert told.losses == pytest.approx(fp32.losses, rel=8 * 2 * 2**-11)
    assert {p.dtype for p in half.module.parameters()} == {torch.float32}
    for name, ours in half.exchange.states(0)["residual"].items():
        theirs = whole.exchange.states(0)["residual"][name]
        # Rounding errors of other gradients: of one size, where the scale would be a factor of 65536.
        assert float(ours.norm()) == pytest.approx(float(theirs.norm()), rel=0.25)


def test_a_scale_that_overflows_is_lowered_and_its_steps_are_counted() -> None:
    run = built(*SETTINGS["topk"], FP16, "train.epochs=4")  # with batch normalization
    for scale in run.progress.loss_scales:
        scale.scale = 2.0**30
    before = [buffer.clone() for buffer in run.module.buffers()]
    play(run, until=1)
    assert run.progress.tally.skipped_steps == 1
    assert [scale.scale for scale in run.progress.loss_scales] == [2.0**29] * 2
    assert not any(residual.any() for residual in run.exchange.states(0)["residual"].values())
    for now, then in zip(run.module.buffers(), before, strict=True):
        assert torch.equal(now, then)
    told = play(run)
    skipped = sum(record["train/skipped_steps"] for record in told.records)
    scales = {scale.scale for scale in run.progress.loss_scales}
    assert scales == {2.0 ** (30 - skipped)}
    assert 1 < skipped < run.progress.step


def test_a_gradient_that_no_scale_makes_finite_ends_the_run() -> None:
    run = built(*POISONED, FP16)
    told = play(run)
    assert told.records[0]["train/skipped_steps"] == 1
    assert {scale.scale for scale in run.progress.loss_scales} == {FIRST_SCALE / 2}

    run = built(*POISONED, FP16)
    for scale in run.progress.loss_scales:
        scale.scale = 1.0
    with pytest.raises(
        UserError, match=r"^train\.on_nonfinite: the gradient is not finite at step 3 "
    ):
        play(run)


def test_each_worker_with_local_steps_has_its_own_scale() -> None:
    run = built(*POISONED, FP16, "train.local_steps=2")
    told = play(run)
    assert told.records[0]["train/skipped_steps"] == 1 / 2  # on one of two workers
    assert [scale.scale for scale in run.progress.loss_scales] == [FIRST_SCALE, FIRST_SCALE / 2]


def test_the_scale_grows_as_torchs_does() -> None:
    scale, theirs = LossScale(), torch.amp.GradScaler("cpu")
    theirs.scale(torch.zeros(()))  # torch makes its scale with the first loss
    assert scale.get_scale() == theirs.get_scale()
    numbers = FIRST_SCALE, loss_scale.GROWTH, loss_scale.BACKOFF, GROWTH_STEPS
    getters = (theirs.get_growth_factor, theirs.get_backoff_factor, theirs.get_growth_interval)
    assert numbers[1:] == tuple(get() for get in getters)
    for _ in range(GROWTH_STEPS - 1):
        scale.grow()
    assert scale.scale == FIRST_SCALE
    scale.grow()
    assert scale.scale == 2 * FIRST_SCALE
    assert scale.back_off()
    assert (scale.scale, scale.good_steps) == (FIRST_SCALE, 0)


def test_a_stopped_run_keeps_its_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)  # grows within the run
    overrides = (*PLAIN, *UNIFORM4_EF, FP16)
    whole = built(*overrides)
    told = play(whole)
    assert whole.progress.loss_scales[0].scale == 4 * FIRST_SCALE
    assert_continues(overrides, 5, tmp_path, whole, told)


def test_another_precision_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a T4 after an A100, say: one record cannot name both."""
    config, folder = tiny(*UNIFORM4_EF, "train.precision=half", "train.epochs=3"), tmp_path / "run"
    prepare(folder, config)
    stop = StopSignals()
    monkeypatch.setattr(worker, "train", lambda run, *rest: train(run, stopping(run, 5), *rest[1:]))
    with held(folder) as here:
        assert work(folder, here.log, stop=stop)[0] == STOPPED
    record = (folder / "environment.json").read_bytes()
    assert json.loads(record)["precision"] == "bf16"
    monkeypatch.undo()
    monkeypatch.setattr(build, "computed_precision", lambda precision, device: "fp16")
    with pytest.raises(
        UserError, match=r"^train\.precision: the steps so far were trained in bf16, "
    ):
        execute(config, folder)
    assert (folder / "environment.json").read_bytes() == record
    monkeypatch.undo()
    execute(config, folder)
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


def stopping(run: Run, at: int) -> Callable[[Mapping[str, Any]], None]:
    """What asks a run to stop before its step number ``at``."""

    def on_step(metrics: Mapping[str, Any]) -> None:
        run.stop_requested = metrics["step"] >= at - 1

    return on_step


def test_what_fp16_cannot_train_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^train\.precision: fp16 leaves out a step whose gradient ov"
    ):
        built("optimizer=sam", "optimizer.compressed=first", FP16)
    if not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        with pytest.raises(
            UserError, match=r"^train\.precision: this CPU has no fp16 kernel for an"
        ):
            built(*TEXT, FP16)
