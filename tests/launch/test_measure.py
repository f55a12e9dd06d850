"""`reproduce gravac/table3` from end to end, small; its settings, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dgc_repro.dataset.cifar10 import Cifar10
from dgc_repro.errors import UserError
from dgc_repro.launch import measure
from dgc_repro.launch.measure import measure_config
from dgc_repro.launch.reproduce import measured_runs_of, reproduce
from dgc_repro.paper import pool

pytestmark = pytest.mark.slow

TABLE3 = "gravac/table3"
TINY = (
    *("scale=quick", "launch.threads=1", "model.width=2", "dataset.train_size=null"),
    *("measure.repeats=3", "measure.steps=1"),
)


def by_row(*given: str) -> dict[str, dict[str, Any]]:
    return {c["experiment"]["row"]: c for c, _ in measured_runs_of(TABLE3, given)}


def test_a_measurement_becomes_a_table_and_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    reproduce([TABLE3, *TINY])
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    published = tmp_path / "reproduced" / "gravac" / "custom" / "table3"
    assert str(published.relative_to(tmp_path)) in printed
    record = json.loads((published.parent / "verdicts.json").read_text())["table3"]
    verdicts = {v["claim"]: v for v in record["verdicts"]}
    for model in ("resnet101", "vgg16", "lstm"):
        for method in ("topk", "dgc", "redsync", "randomk"):
            judged = verdicts[f"{model}.{method}.faster"]
            assert (judged["verdict"] in ("agrees", "differs", "inconclusive"), judged["n"]) == (
                True,
                3,
            )
    with (published.parent / "numbers.csv").open(newline="") as file:
        rows = {(r["row"], r["quantity"]): r["mean"] for r in csv.DictReader(file)}
    assert float(rows["lstm.topk.direct", "compression time"]) > 0
    # Exact top-k chooses the same entries in every way, whatever the machine does.
    chosen = [entry for run in pool.read(published.parent) for entry in run.summary["chosen"]]
    exact = [entry for entry in chosen if entry["method"] == "topk"]
    assert len(exact) == 6
    assert {entry["multilevel_apart"] for entry in exact} == {0}
    assert {entry["single_pass_apart"] for entry in exact} == {0}
    capsys.readouterr()
    reproduce([TABLE3, *TINY])
    assert capsys.readouterr().out.count("already done: ") == 3


@pytest.mark.parametrize(
    ("scale", "widths"),
    [("quick", (8, 8, 64)), ("small", (64, 64, 1500)), ("paper", (64, 64, 1500))],
)
def test_the_models_have_the_papers_sizes_but_at_scale_quick(
    scale: str, widths: tuple[int, ...]
) -> None:
    found = by_row(f"scale={scale}")
    assert tuple(found[m]["model"]["width"] for m in ("resnet101", "vgg16", "lstm")) == widths
    for config in found.values():
        assert config["scale"]["name"] == scale
        assert config["measure"]["repeats"] >= 3
        assert config["optimizer"]["lr"] == 0.1
    if scale != "quick":
        meta = {row: measure.component(c["model"], "model") for row, c in found.items()}
        with torch.device("meta"):
            counts = {
                row: sum(p.numel() for p in model.build(10).parameters())
                for row, model in meta.items()
            }
        assert counts == {"resnet101": 44_549_160, "vgg16": 138_365_992, "lstm": 66_034_000}


def test_other_steps_or_repeats_depart_from_the_scale_and_are_another_run() -> None:
    stated, fewer = by_row("scale=small")["lstm"], by_row("scale=small", "measure.steps=2")["lstm"]
    assert fewer["scale"]["name"] == "custom"
    assert fewer["measure"]["steps"] == 2
    assert measure.run_folder(stated) != measure.run_folder(fewer)


def test_data_that_are_not_here_are_replaced_and_said_unless_a_folder_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_here(self: Cifar10) -> None:
        raise UserError("dataset.root: no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Cifar10, "load", not_here)
    (config,) = (
        c
        for c in by_row("scale=small", "model.width=2", "measure.steps=1").values()
        if c["experiment"]["row"] == "resnet101"
    )
    plain = {key: value for key, value in config.items() if key != "measure"}
    how = (1, config["measure"]["embedded"], torch.device("cpu"))
    gradient, facts = measure.joined_gradient(measure.trained(plain, *how)[0])
    assert (facts["data"], facts["steps"]) == ("digits", 1)
    assert "no cifar10 here, the embedded digits take its place" in capsys.readouterr().out
    assert sum(part.numel() for part in gradient.values()) == facts["parameters"]
    plain["dataset"]["root"] = "data/cifar10"
    with pytest.raises(UserError, match="no network"):
        measure.trained(plain, *how)


def test_a_model_that_does_not_fit_is_refused_with_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure.environment, "available_bytes", lambda: 10**9)
    config = by_row("scale=small")["vgg16"]
    with pytest.raises(UserError, match=r"^model\.width: 138 M parameters need about 4\.4 GB"):
        measure_config(config)
