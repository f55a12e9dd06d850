"""A policy that decides in every step: all ranks agree, it is written down, and can be played again."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from replayed import replayed
from tiny_run import PLAIN, SETTINGS, built, state_of, tiny
from torch import Tensor

from dgc_repro.launch.run import run_config
from dgc_repro.launch.settings import build_policy
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import State
from dgc_repro.train import checkpoint
from dgc_repro.train.loop import decision, steps_left, train
from dgc_repro.train.run import Run
from dgc_repro.train.step import train_step

GRAVAC = SETTINGS["gravac"]


@pytest.mark.slow
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
    with (folder / "policy.csv").open(encoding="utf-8") as file:
        windows = list(csv.DictReader(file))
    assert [int(window["step"]) for window in windows] == [2, 4, 6, 8, 10]  # told a step later each
    for before, after in itertools.pairwise(windows):
        assert after["label"] == before["next_label"]
        assert set(json.loads(before["throughputs"])) <= set(json.loads(after["throughputs"]))


@pytest.mark.parametrize(
    "compressor",
    [
        ("compressor=topk",),
        ("compressor=redsync", "compressor.search_from=100"),
        ("compressor=randomk", "policy.gain=norm"),
    ],
    ids=lambda given: str(given[0]),
)
@pytest.mark.parametrize("decide", ["now", "last"])
def test_what_was_not_sent_leaves_no_trace(
    compressor: tuple[str, ...], decide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the next step depends on is what theta_min has left, whatever was tried beside it."""
    choose = GraVAC.choose

    def strict(self: GraVAC, state: State, energies: Tensor) -> tuple[int, State]:
        seen = energies.clone()
        if state["candidate"] != state["theta_min"]:
            seen[2::3] = 0
        return choose(self, state, seen)

    monkeypatch.setattr(GraVAC, "choose", strict)
    states = []
    for theta_max in (2, 50):  # one factor; and a candidate of 4 that is never good enough
        run = built(
            *(*GRAVAC, *PLAIN, *compressor, f"policy.theta_max={theta_max}", "policy.eps=1e-6"),
            *("policy.window=1", f"policy.decide={decide}", "policy.omega=0"),
        )
        for _, batches in zip(range(3), steps_left(run), strict=False):
            train_step(run, batches)
        decided = decision(run.progress.policy)
        assert decided["decision/branch"] == "theta_min"
        assert decided["decision/candidate"] == min(theta_max, 4)
        states.append(state_of(run))
    for name, tensors in states[0].items():
        for one, other in zip(tensors, states[1][name], strict=True):
            assert torch.equal(one, other), name


def record(run: Run, until: int | None = None) -> list[dict[str, Any]]:
    """Train (to the end of step ``until``); the lines of decisions.jsonl."""
    lines: list[dict[str, Any]] = []

    def on_step(metrics: Mapping[str, Any]) -> None:
        decided = {key: value for key, value in metrics.items() if key.startswith("decision/")}
        if decided:
            lines.append({"decision": metrics["step"], **decided})
        run.stop_requested = until is not None and run.progress.step >= until - 1

    train(run, on_step, lambda epoch: None, lambda: None)
    return lines


CHANGING = (*GRAVAC, "policy.smoothing=0.5", "policy.eps=0.6", "train.epochs=3")


@pytest.mark.parametrize("decide", ["now", "last"])
@pytest.mark.parametrize("stop_after", [4, 7])
def test_a_record_replays_after_a_resume(decide: str, stop_after: int, tmp_path: Path) -> None:
    given = (*CHANGING, *PLAIN, f"policy.decide={decide}")
    whole = built(*given)
    uninterrupted = record(whole)
    first, second = built(*given), built(*given)
    lines = record(first, until=stop_after)
    checkpoint.save(first, tmp_path, "a config")
    checkpoint.load(second, tmp_path, "a config")
    lines += record(second)
    assert lines == uninterrupted
    branches = [line["decision/branch"] for line in lines]
    assert len(set(branches)) > 1
    assert isinstance(second.policy, GraVAC)
    assert replayed(second.policy, lines) == branches


@pytest.mark.parametrize("decide", ["now", "last"])
def test_a_skipped_step_is_no_decision_and_the_record_replays(decide: str) -> None:
    poisoned = ("~model", "+model={_target_:odd_models.Plain,poisoned_steps:[3],poisoned_rank:1}")
    run = built(
        *(*CHANGING, *poisoned, "train.on_nonfinite=skip", f"policy.decide={decide}"),
        "policy.window=1",
    )
    lines = record(run)
    assert [line["decision"] for line in lines] == [1, 2, 3, *range(5, 13)]
    assert isinstance(run.policy, GraVAC)
    assert replayed(run.policy, lines) == [line["decision/branch"] for line in lines]


def test_a_probed_run_takes_the_steps_of_a_fixed_one_and_writes_each_down() -> None:
    ladder = ("compressor=topk", "policy.field=factor", "wrap=[error_feedback]", *PLAIN)
    probed = built(*ladder, *PLAIN, "policy=probed", "policy.value=10", "policy.spread=true")
    fixed = built(*ladder, *PLAIN, "policy=fixed", "policy.values=[10]")
    lines = record(probed)
    record(fixed)
    for one, other in zip(state_of(probed)["model"], state_of(fixed)["model"], strict=True):
        assert torch.equal(one, other)
    assert [line["decision"] for line in lines] == list(range(1, 9))
    for line in lines[1:]:
        whole, kept, _, raw_norms, sent_norms, _ = line["decision/energies"]
        assert line["decision/gain"] == pytest.approx(kept / whole)
        assert sent_norms > 0
        assert raw_norms > 0
        assert line["decision/timed_step"] == line["decision"] - 2
        assert line["decision/timed_own_square"] > 0
        assert line["decision/timed_mean_square"] > 0
