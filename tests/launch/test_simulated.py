"""Simulated runs of one command take place in its process: the numbers, and the process, are as if each was
the only one."""

from __future__ import annotations

import functools
import json
import signal
from pathlib import Path

import pytest
import torch
from commands import PATIENCE_SECONDS, Command, wait_for
from tiny_run import TINY, tiny

from dgc_repro.launch.local import STOP_SIGNALS, RunFailed, execute
from dgc_repro.launch.single import run_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_SECONDS)]
SWEEP = (
    *("--multirun", *TINY, "launch=simulated", "launch.device=cpu", "seed=0,1"),
    *("sink.every_steps=1", "dataset.train_size=640", "train.epochs=8"),
)


def run(folder: Path, *settings: str, apart: bool = False) -> list[float]:
    """The training losses of a run; ``apart``: in a process of its own."""
    config = tiny(f"paths.runs={folder}", "train.epochs=2", *settings)
    apart_from_here = functools.partial(execute, apart=True) if apart else None
    made = run_config(config, train=apart_from_here)
    lines = map(json.loads, (made / "metrics.jsonl").read_text().splitlines())
    return [line["train/loss"] for line in lines if line["kind"] == "epoch"]


def test_a_run_after_others_has_the_numbers_of_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dgc_repro.launch.single.check_launch", lambda config: None)
    before = (torch.get_num_threads(), *map(signal.getsignal, STOP_SIGNALS))
    alone = run(tmp_path / "alone", apart=True)
    assert run(tmp_path / "other", "seed=1", "launch.threads=2") != alone
    with pytest.raises(RunFailed, match=r"KeyError: 'RANK'; .*tracebacks: .*launch\.log"):
        run(tmp_path / "failed", "~model", "+model={_target_:odd_models.Raising,at_step:3}")
    assert run(tmp_path / "after", "launch.threads=1") == alone
    assert (torch.get_num_threads(), *map(signal.getsignal, STOP_SIGNALS)) == before


def test_a_sweep_that_is_stopped_in_its_second_run_continues(tmp_path: Path) -> None:
    command = Command(tmp_path, *SWEEP)
    command.start()
    wait_for(lambda: len(list(command.runs.glob("*-s1-*/steps.jsonl"))) == 1, "the second run")
    for _ in range(2):  # the second signal changes nothing
        command.process.send_signal(signal.SIGINT)
    assert command.end()[0] == 128 + signal.SIGINT
    assert "a third signal ends the run at once" in command.printed()
    command.start()
    assert command.end() == (0, [])
    summaries = [json.loads(path.read_text()) for path in command.runs.glob("*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["finished", "finished"]
    second = next(command.runs.glob("*-s1-*/metrics.jsonl")).read_text()
    assert second.count("continuing at step") == 1
