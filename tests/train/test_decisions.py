"""A policy that decides in every step: all ranks agree, it is written down, and can be played again."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tiny_run import SETTINGS, built, tiny

from dgc_repro.launch.components import build_policy
from dgc_repro.launch.single import run_config
from dgc_repro.policy.gravac import replayed
from dgc_repro.train.loop import decision, steps_left
from dgc_repro.train.step import train_step

GRAVAC = SETTINGS["gravac"]


def test_every_decision_is_written_and_the_record_replays(tmp_path: Path) -> None:
    where = (f"paths.runs={tmp_path}", f"paths.results={tmp_path}")
    config = tiny(*GRAVAC, "policy.smoothing=0.5", "policy.eps=0.6", "train.epochs=3", *where)
    folder = run_config(config)
    lines = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    assert [line["decision"] for line in lines] == list(range(1, 13))
    branches = [line["decision/branch"] for line in lines]
    assert len(set(branches)) > 1
    assert replayed(build_policy(config), lines) == branches
    for line in lines[1:]:
        assert line["decision/timed_step"] == line["decision"] - 2
        assert line["decision/timed_seconds"] > 0.005  # compute as stated, and communication


def test_a_dense_step_clears_the_residual() -> None:
    run = built(*GRAVAC, "policy.eps=1.0")  # nothing but everything is enough
    for batches in steps_left(run):
        train_step(run, batches)
        assert decision(run.progress.policy)["decision/branch"] == "dense"
        for state in run.exchange.states[0].values():
            assert not torch.any(state["residual"])


def test_what_was_not_sent_leaves_no_trace() -> None:
    """After a step on theta_min the residual is what theta_min has left, whatever was tried beside it."""
    residuals = []
    for theta_max in (2, 50):  # one factor; and a candidate of 4 that is never good enough
        run = built(*GRAVAC, f"policy.theta_max={theta_max}", "policy.eps=0.9", "policy.window=1")
        for _, batches in zip(range(3), steps_left(run), strict=False):
            train_step(run, batches)
        decided = decision(run.progress.policy)
        assert decided["decision/branch"] == "theta_min"
        assert decided["decision/candidate"] == min(theta_max, 4)
        residuals.append([s["residual"].clone() for s in run.exchange.states[0].values()])
    for one, other in zip(*residuals, strict=True):
        assert torch.equal(one, other)
