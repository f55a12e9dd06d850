"""GraVAC in the lab: stretches, the target, verdicts that follow the numbers, pages that fit."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from synthetic import write_run

from dgc_repro.errors import UserError
from dgc_repro.paper import gravac_lab as lab
from dgc_repro.report import gravac_lab
from dgc_repro.report.lab_runs import (
    factor,
    is_low,
    seconds_to,
    slowdown,
    step_ms,
    steps_of,
    stretches,
    target_of,
)
from dgc_repro.report.publish import publish, rebuild, show
from dgc_repro.report.records import Run, load_runs

EPOCHS, STEPS = 12, 10  # an epoch's
PARAMETERS = 1000
LINKS = {
    "rate": "1gbit",
    "schedule": [{"step": 40, "rate": "100mbit"}, {"step": 80, "rate": "1gbit"}],
}
Factors = Callable[[int], float]


def write(
    runs: Path,
    row: str,
    seed: int = 0,
    *,
    high_ms: float = 100.0,
    low_ms: float = 1000.0,
    factors: Factors = lambda step: 10.0,
    decides: bool = True,
    losses: Sequence[float] | None = None,
    **settings: Any,
) -> Path:
    """A made-up run of 120 steps; ``losses``: by epoch, else they fall from 2 to 1."""
    settings = {
        "experiment": {"paper": "gravac", "artifact": "lab", "row": row},
        "scale": {"name": "quick", "seeds": [0]},
        "network": LINKS,
        "launch": {"workers": 2, "kind": "netlab"},
        **settings,
    }
    numbers = (90.0, 1.0, 1.0, 1.0, 1.0)
    folder = write_run(
        runs, row, seed, artifact="lab", epochs=EPOCHS, numbers=numbers, settings=settings
    )
    (folder / "policy.csv").unlink()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[1:]]
    falling = np.linspace(2.0, 1.0, EPOCHS) + 0.001 * seed
    for line, loss in zip(lines, falling if losses is None else losses, strict=True):
        line["step"] = STEPS * line["epoch"]
        low = min(max(line["step"] - 40, 0), 40)
        line["time/train_seconds"] = (low * low_ms + (line["step"] - low) * high_ms) / 1e3
        line["train/loss"] = float(loss)
        sent = sum(PARAMETERS / factors(step) for step in range(1, line["step"] + 1))
        line["comm/floats"] = sent
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    summary = {"status": "finished", "results_version": 1, "parameters": PARAMETERS}
    counted = {"net/tx_bytes": 1.01e6, "net/expected_tx_bytes": 1e6, "comm/total_wire_bytes": 9e5}
    (folder / "summary.json").write_text(json.dumps(summary | counted))
    if decides:
        head = "step,branch,factor,theta_min,candidate,gain,seconds,samples,throughput"
        table = [
            f"{s},candidate,{factors(s)},10,1000,0.8,{low_ms if 40 < s <= 80 else high_ms},64,500"
            for s in range(1, EPOCHS * STEPS + 1)
        ]
        (folder / "decisions.csv").write_text("\n".join([head, *table]) + "\n")
    if row in (lab.GRAVAC, lab.THAWED, lab.BUCKET):
        (folder / "policy.csv").write_text(
            "step,rung,next_rung,theta_min,throughputs,reason,label,next_label\n"
            "8,1,2,10.0,{},,factor=10.0,factor=20.0\n"
            "16,2,2,10.0,{},20x is as fast as any,factor=20.0,factor=20.0\n"
        )
    return folder


def load(folders: Sequence[Path]) -> list[Run]:
    return load_runs(folders)[0]


def all_rows(runs: Path, seeds: range = range(1), **gravac: Any) -> list[Path]:
    """Every row; what is given is GraVAC's."""
    quick = {"high_ms": 50.0, "low_ms": 60.0}
    folders = []
    for seed in seeds:
        folders.append(write(runs, lab.DENSE, seed, factors=lambda step: 1.0, decides=False))
        folders.append(write(runs, lab.STATIC10, seed, high_ms=60.0, low_ms=200.0))
        folders.append(write(runs, lab.STATIC1000, seed, **quick, factors=lambda step: 1000.0))
        folders.append(write(runs, lab.ACCORDION, seed, **quick, decides=False))
        folders.append(write(runs, lab.GRAVAC, seed, **(quick | gravac)))
        folders.append(write(runs, lab.THAWED, seed, **quick))
        folders.append(write(runs, lab.BUCKET, seed, high_ms=45.0, low_ms=55.0))
    return folders


def verdicts(runs: Sequence[Run]) -> dict[str, str]:
    return {claim.id: found.word for claim, found in gravac_lab.page(runs, "quick").verdicts}


def test_stretches_are_those_of_the_schedule_and_times_those_between_their_ends(
    tmp_path: Path,
) -> None:
    (run,) = load([write(tmp_path, lab.GRAVAC, high_ms=100.0, low_ms=700.0)])
    parts = stretches(run)
    assert [(p.rate, p.first, p.last) for p in parts] == [
        ("1gbit", 1, 40),
        ("100mbit", 41, 80),
        ("1gbit", 81, 120),
    ]
    assert [is_low(part, parts) for part in parts] == [False, True, False]
    assert [step_ms(run, part) for part in parts] == pytest.approx([100.0, 700.0, 100.0])
    assert slowdown(run) == pytest.approx(7.0)


def test_a_run_without_a_change_has_one_stretch_and_no_slowdown(tmp_path: Path) -> None:
    links = {"network": {"rate": "1gbit", "schedule": None}}
    (run,) = load([write(tmp_path, lab.GRAVAC, **links)])
    assert [(part.first, part.last) for part in stretches(run)] == [(1, 120)]
    assert math.isnan(slowdown(run))


def test_factors_are_the_policys_by_step_or_what_an_epoch_has_sent(tmp_path: Path) -> None:
    grows: Factors = lambda step: 10.0 if step <= 40 else 1000.0  # noqa: E731
    told, silent = load(
        [
            write(tmp_path, lab.GRAVAC, factors=grows),
            write(tmp_path, lab.ACCORDION, factors=grows, decides=False),
        ]
    )[::-1]
    for run in (told, silent):
        assert len(steps_of(run)) == 120
        parts = stretches(run)
        assert [factor(run, part) for part in parts] == pytest.approx([10.0, 1000.0, 1000.0])


def test_the_target_is_denses_last_quarter_and_one_spread(tmp_path: Path) -> None:
    losses = [2.0] * 9 + [1.0, 1.1, 1.2]
    (one,) = load([write(tmp_path / "one", lab.DENSE, losses=losses, decides=False)])
    target = target_of([one])
    assert target is not None
    assert target.loss == pytest.approx(1.1 + 0.1)
    assert "last 3 epochs" in target.text
    assert seconds_to(one, target.loss) == one.epochs["time/train_seconds"].iloc[9]
    folders = [
        write(tmp_path / "more", lab.DENSE, seed, losses=[2.0] * 9 + [1.0 + seed] * 3)
        for seed in range(3)
    ]
    target = target_of(load(folders))
    assert target is not None
    assert target.loss == pytest.approx(2.0 + 1.0)
    assert math.isnan(seconds_to(one, 0.5))
    assert target_of(load([write(tmp_path / "none", lab.GRAVAC)])) is None


def test_verdicts_follow_the_numbers(tmp_path: Path) -> None:
    found = verdicts(load(all_rows(tmp_path / "a", range(3))))
    assert found["drop"] == found["gravac.slowdown"] == found["gravac.sooner.dense"] == "agrees"
    assert found["gravac.reacts"] == "differs"  # one factor throughout
    assert found["gravac_bucket.quicker"] == "agrees"
    faster = verdicts(load(all_rows(tmp_path / "c", range(3), high_ms=40.0, low_ms=50.0)))
    assert faster["gravac_bucket.quicker"] == "differs"
    reacting: Factors = lambda step: 1000.0 if 40 < step <= 80 else 10.0  # noqa: E731
    slow = {"high_ms": 400.0, "low_ms": 9000.0}
    found = verdicts(load(all_rows(tmp_path / "b", range(3), factors=reacting, **slow)))
    assert found["gravac.reacts"] == "agrees"
    assert found["gravac.slowdown"] == found["gravac.sooner.dense"] == "differs"


def test_a_row_that_never_meets_the_target_says_so_and_its_claims_do_not_hold(
    tmp_path: Path,
) -> None:
    runs = load(all_rows(tmp_path, range(3), losses=[2.0] * EPOCHS))
    page = gravac_lab.page(runs, "quick")
    (times,) = [block for block in page.blocks if block.title.startswith("Time to")]
    cells = {row[0]: row[2] for row in times.rows}
    assert cells["GraVAC"] == "not reached"
    assert cells["dense"] != "not reached"
    assert verdicts(runs)["gravac.sooner.dense"] == "differs"


def test_one_seed_is_indicative_and_missing_rows_are_not_run(tmp_path: Path) -> None:
    runs = load(all_rows(tmp_path))
    assert set(verdicts(runs).values()) == {"indicative"}
    alone = verdicts([run for run in runs if run.row == lab.GRAVAC])
    assert alone["gravac.sooner.dense"] == alone["drop"] == "not run"
    without = [run for run in runs if run.row != lab.GRAVAC]
    assert verdicts(without)["gravac.reacts"] == "not run"
    gravac_lab.figure(without, "quick")


def test_the_page_is_published_rebuilt_and_fits_a_terminal(tmp_path: Path) -> None:
    folders = all_rows(tmp_path / "runs", range(2))
    folder = publish(folders, "gravac", "lab", "quick", tmp_path / "results")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {"table.md", "table.csv", "verdicts.json", "lab.svg", "lab.png"} <= before.keys()
    text = before["table.md"].decode()
    for said in ("100mbit: steps 41-80", "20x is as fast as any", "by at most 1.00 %"):
        assert said in text
    assert rebuild(folder) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    console = Console(width=100, file=io.StringIO(), highlight=False)
    show(folder, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_runs_on_other_links_are_no_rows_of_one_page(tmp_path: Path) -> None:
    faster = {"network": {**LINKS, "rate": "10gbit"}}
    folders = [write(tmp_path, lab.DENSE), write(tmp_path, lab.GRAVAC, **faster)]
    with pytest.raises(UserError, match="network: the same in every run"):
        gravac_lab.page(load(folders), "quick")
