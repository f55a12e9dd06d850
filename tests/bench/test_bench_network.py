"""`make bench-network` at a tiny size on loopback, and its verdicts on made-up points. No speed is
asserted."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dgc_repro.bench import network as bench
from dgc_repro.bench import network_points as points
from dgc_repro.bench import network_tables as tables
from dgc_repro.errors import UserError

pytestmark = pytest.mark.slow

TINY = (
    *("--model", "resnet18", "--rates", "loopback", "--workers", "2", "--compute", "none,5ms"),
    *("--methods", "torch-fp16,dense,topk1", "--repeats", "2"),
)
EXCHANGES = {
    *("plain DDP", "plain DDP, again", "torch's fp16 hook"),
    *(
        f"{name}, overlap={overlap}"
        for name in ("dense", "top-k 1 %")
        for overlap in ("true", "false")
    ),
}


def run(folder: Path) -> str:
    """What the tiny bench prints."""
    printed = io.StringIO()
    slim = partial(bench.record, given=("dataset=digits", "model.width=4"))
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
    ):
        patch.setattr(bench, "record", slim)
        patch.setattr(bench, "REPOSITORY", folder)
        bench.main([*TINY, "--output", str(folder / "out")])
    return printed.getvalue()


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path]:
    """What a tiny run prints, and the folder that holds its runs and its tables."""
    folder = tmp_path_factory.mktemp("bench")
    return run(folder), folder


def rows_of(folder: Path) -> list[dict[str, str]]:
    (machine,) = (folder / "out").iterdir()
    with (machine / "network.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_exchange_is_measured_beside_plain_ddp_and_its_bytes_are_counted(
    measured: tuple[str, Path],
) -> None:
    rows = {(row["exchange"], row["compute"]): row for row in rows_of(measured[1])}
    assert set(rows) == {(name, compute) for name in EXCHANGES for compute in ("none", "5ms")}
    plain = rows["plain DDP", "none"]
    for row in rows.values():
        assert float(row["speedup"]) > 0
        assert (row["n"], row["does_not_run"]) == ("2", "")
        assert "limit_verdict" not in row  # there is no link to judge by
    assert float(rows["torch's fp16 hook", "none"]["payload_mb"]) == float(plain["payload_mb"]) / 2
    sparse = float(rows["top-k 1 %, overlap=true", "none"]["payload_mb"])
    assert 0 < sparse < float(plain["payload_mb"]) / 10
    assert "allgather" in rows["top-k 1 %, overlap=true", "5ms"]["collectives"]


def test_tables_and_figure_lie_in_a_folder_named_after_the_machine(
    measured: tuple[str, Path],
) -> None:
    printed, folder = measured
    (machine,) = (folder / "out").iterdir()
    names = {"network.md", "network.csv", "network-2.svg", "network-2.png"}
    assert {path.name for path in machine.iterdir()} == names
    text = (machine / "network.md").read_text()
    assert "Speedup over plain DDP, 2 workers, compute none" in printed
    assert "resnet18, 2 workers, loopback, compute 5ms" in text
    assert "in 62 tensors, recorded on digits" in text


def test_what_is_measured_is_not_measured_again(
    measured: tuple[str, Path],
) -> None:
    kept = next((measured[1] / "runs").rglob("*-torch*.jsonl"))
    before = kept.read_text()
    assert "everything asked for is measured" in run(measured[1])
    assert kept.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rates", "100"), "--rates: a rate with its unit"),
        (("--rates", "5mbit"), "--rates: a lab has from 10mbit to 10gbit, got 5mbit"),
        (("--rates", "1gbit,20gbit"), "--rates: a lab has from 10mbit to 10gbit, got 20000mbit"),
        (("--compute", "0ms"), "--compute: a duration above 0, or none, got '0ms'"),
        (("--compute", "fast"), "--compute: a duration with its unit"),
        (("--methods", "topk2"), "--methods: no 'topk2'; did you mean topk1?"),
        (("--workers", "1"), "--workers: a whole number from 2 to 4, got '1'"),
        (("--workers", "two"), "--workers: a whole number from 2 to 4, got 'two'"),
        (("--repeats", "0"), "--repeats: a whole number from 1, got '0'"),
        (("--overlap", "yes"), "--overlap: no 'yes'; there are: false, true"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: tuple[str, str],
    said: str,
) -> None:
    with pytest.raises(UserError, match=rf"^{re.escape(said)}[^\n]*$"):
        bench.parsed(arguments)


def point(method: str, overlap: bool | None, seconds: float, **more: Any) -> dict[str, Any]:
    """A point of two workers at 100 Mbit/s that hands over a megabyte, or what ``more`` says."""
    spans = {
        "compress_ms": [1.0] * 3,
        "communicate_ms": [1e3 * seconds - 3.0] * 3,
        "decompress_ms": [2.0] * 3,
    }
    return {
        "model": "resnet18",
        "workers": 2,
        "rate": "100mbit",
        "compute": "none",
        "method": method,
        "overlap": overlap,
        "label": method,
        "time": "",
        "code": "c",
        "forward_seconds": 0.0,
        "backward_seconds": 0.0,
        "busy_cores": 0.0,
        "torch": "2",
        "session": "s",
        "seconds": [seconds] * 3,
        "beside_seconds": [],
        "plain_seconds": [0.4] * 3,
        "processor_seconds": [seconds],
        "exposed_seconds": [seconds],
        **spans,
        "counter_bytes": None,
        "calls": {},
        "payload_bytes": 1e6,
        "wire_bytes": 1e6,
        "total_wire_bytes": 1e6,
        **more,
    }


def judged(*measured: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["method"], row["compute"]): row for row in tables.rows_of(measured)}


def test_a_step_is_judged_by_compute_and_its_bytes_with_headers() -> None:
    wire = 1e6 * 8 / 1e8 * 1514 / 1448
    rows = judged(
        point("plain", None, 0.4),
        point("uniform4", False, 1.1 * wire),
        point("topk1", False, 1.2 * wire),
        point("dense", False, 0.5),
    )
    assert rows["uniform4", "none"]["limit_x"] == pytest.approx(1.1)
    assert rows["uniform4", "none"]["limit_verdict"] == "met"
    assert rows["topk1", "none"]["limit_verdict"] == "missed"
    assert rows["topk1", "none"]["speedup"] == pytest.approx(0.4 / 1.2 / wire)
    assert rows["topk1", "none"]["slower_verdict"] == "met"
    assert rows["dense", "none"]["slower_verdict"] == "missed"
    assert "bytes on the link 83.6" in rows["topk1", "none"]["where"]
    # 497 ms of dense's communication over theirs: 5.6 times, where 7 are asked for.
    assert rows["uniform4", "none"]["communicate_verdict"] == "missed"


def test_a_step_right_after_plain_ddps_is_compared_with_it() -> None:
    rows = judged(
        point("plain", None, 0.4),
        {**point("topk1", True, 0.1), "seconds": [0.1, 0.2], "beside_seconds": [0.3, 0.4]},
    )
    assert rows["topk1", "none"]["speedup"] == pytest.approx(2.5)


GPU = {"compute": "gpu", "forward_seconds": 0.05, "backward_seconds": 0.1}


@pytest.mark.parametrize(
    ("step", "hidden", "verdict"),
    [(0.21, 0.9, "met"), (0.26, 0.4, "missed"), (0.19, 1.0, "met"), (0.32, 0.0, "missed")],
)
def test_overlap_hides_the_shorter_of_backward_and_the_step_alone(
    step: float, hidden: float, verdict: str
) -> None:
    rows = judged(
        point("topk1", True, 0.15),
        point("topk1", True, step, **GPU),
    )
    # 0.15 alone and 0.15 of compute, of which 0.1 are backward and could hide as much.
    assert rows["topk1", "gpu"]["hidden"] == pytest.approx(hidden)
    assert rows["topk1", "gpu"]["hidden_verdict"] == verdict


def test_processor_work_behind_the_sleep_is_no_hidden_communication() -> None:
    # 90 ms alone, 16.7 of them the link's: hiding 63 of 90 was 378 % of those 16.7.
    few = {"total_wire_bytes": 2e5}
    rows = judged(
        point("topk1", True, 0.09, **few),
        point("topk1", True, 0.177, **few, **GPU),
    )
    assert rows["topk1", "gpu"]["hidden"] == pytest.approx(0.7)
    assert rows["topk1", "gpu"]["hidden_verdict"] == "missed"


def test_hidden_has_the_spread_of_both_steps() -> None:
    rows = judged(
        {**point("topk1", True, 0.15), "seconds": [0.11, 0.15, 0.19]},
        point("topk1", True, 0.22, **GPU),
    )
    row = rows["topk1", "gpu"]
    assert row["hidden_q1"] < row["hidden"] < row["hidden_q3"]
    assert row["hidden_verdict"] == "unclear"


def test_a_step_with_overlap_and_compute_is_judged_by_the_overlapped_limit() -> None:
    wire = 1e6 * 8 / 1e8 * 1514 / 1448
    rows = judged(
        point("topk1", True, 0.2, **GPU),
        point("dense", False, 0.2, **GPU),
        point("fp16", True, 1.1 * wire),
    )
    overlapped = rows["topk1", "gpu"]
    assert overlapped["limit_x"] == pytest.approx(0.2 / (0.15 + wire))
    assert overlapped["overlap_limit_x"] == overlapped["judged_x"] == pytest.approx(0.2 / 0.15)
    assert overlapped["limit_verdict"] == "missed"
    after = rows["dense", "gpu"]
    assert (after.get("overlap_limit_x"), after["limit_verdict"]) == (None, "met")
    alone = rows["fp16", "none"]
    assert (alone.get("overlap_limit_x"), alone["limit_verdict"]) == (None, "met")


def test_what_the_processor_alone_takes_too_long_for_is_counted() -> None:
    wire = 1e6 * 8 / 1e8 * 1514 / 1448
    rows = judged(
        {**point("topk1", False, 2 * wire), "processor_seconds": [1.2 * wire] * 3},
        {**point("dgc", False, 2 * wire), "processor_seconds": [1.1 * wire] * 3},
        {**point("dense", False, wire), "processor_seconds": [1.2 * wire] * 3},
    )
    text = tables.targets(list(rows.values()), "")
    assert "Of the 2 points beyond the link's limit, the processor binds 1:" in text


def test_fewer_than_three_steps_are_indicative() -> None:
    rows = judged(
        {**point("dense", False, 0.5), "seconds": [0.5, 0.5]},
        {**point("topk1", False, 0.09), "seconds": [0.09], "communicate_ms": [87.0]},
        point("fp16", False, 0.09, plain_seconds=[0.4]),
    )
    assert rows["dense", "none"]["slower_verdict"] == "indicative, missed"
    assert rows["topk1", "none"]["limit_verdict"] == "indicative, met"
    assert rows["topk1", "none"]["communicate_verdict"] == "indicative, missed"
    assert rows["fp16", "none"]["slower_verdict"] == "indicative, met"
    assert rows["fp16", "none"]["limit_verdict"] == "met"
    text = tables.targets(list(rows.values()), "")
    judged_by_limit = next(line for line in text.splitlines() if "x limit" in line)
    cells = [cell.strip() for cell in judged_by_limit.strip("|").split("|")]
    assert cells[1:] == ["1", "0", "0", "1", "1", "0"]


def test_steps_of_two_sessions_are_indicative() -> None:
    rows = judged(
        point("dense", False, 0.5),
        point("uniform4", False, 0.05, session="another day"),
    )
    assert rows["uniform4", "none"]["communicate_verdict"] == "indicative, met"


def test_the_head_is_of_the_points_and_not_of_now(tmp_path: Path) -> None:
    now = tables.Machine("A CPU", 2, "3", "2026-11-21", 0.0)
    early = {"time": "2026-11-01T10:00:00Z", "torch": "2.1", "busy_cores": 0.9}
    late = {"time": "2026-11-02T10:00:00Z", "torch": "2.1"}
    known = [
        point("plain", None, 0.4, **early),
        point("topk1", True, 0.1, **late),
    ]
    missing = {"too long": ["lstm, 4 workers, 100mbit, compute none: dense, overlap=true"]}
    text = tables.write(known, {}, now, tmp_path, missing)
    assert "torch 2.1; 2026-11-01T10:00:00Z to 2026-11-02T10:00:00Z" in text
    assert "WARNING: other work was running (0.90 cores)" in text
    assert "cores did other work: 1 of 2" in text
    assert "## Not measured\n\n- too long:\n  - lstm, 4 workers, 100mbit" in text
    with (tmp_path / "network.csv").open(newline="") as file:
        kept = [(row["torch_version"], row["busy_cores"]) for row in csv.DictReader(file)]
    assert kept == [("2.1", "0.9"), ("2.1", "0.0")]


def test_a_case_that_does_not_run_says_why() -> None:
    gone = point("torch-powersgd", None, 1.0, reason="rank 1 died: what(): mismatch")
    (row,) = judged(gone).values()
    assert row["does_not_run"] == "rank 1 died: what(): mismatch"
    assert "speedup" not in row


def row_of(task: Any) -> dict[str, Any]:
    """A task as it is kept, without its numbers."""
    return {**asdict(task.point), "gradients": "x", "session": "old"}


RECORDED = {
    name: bench.Recorded(Path("x"), name, 4, values, 62, 32, "noise", {"fc": 2e11})
    for name, values in (("resnet18", 11_173_962), ("lstm", 66_034_000))
}


def planned(*arguments: str, known: Iterable[Any] = ()) -> tuple[Any, bench.Store, list[Any]]:
    """What is asked for, a store that knows some tasks, and the worlds."""
    given = bench.parsed(arguments)
    store = bench.Store(Path("nowhere"))
    store.rows = {task.point: row_of(task) for task in known}
    own = {name: found for name, found in RECORDED.items() if name in given.model}
    return given, store, list(bench.plan(given, own, store, 2))


def test_a_point_of_other_gradients_does_not_count() -> None:
    _, store, worlds = planned("--methods", "uniform4", "--rates", "1gbit")
    task = worlds[0].tasks[-1]
    store.rows[task.point] = row_of(task)
    assert store.counts(task.point, RECORDED["resnet18"])
    store.rows[task.point] |= {"gradients": "y"}
    assert not store.counts(task.point, RECORDED["resnet18"])


def test_plain_ddp_is_measured_again_at_the_places_of_what_is_new() -> None:
    arguments = ("--model", "resnet18", "--methods", "dense", "--workers", "2")
    worlds = planned(*arguments)[2]
    tasks = [task for world in worlds for task in world.tasks]
    assert {task.paired for task in tasks if task.expected > 1.0} == {False}
    assert planned(*arguments, known=tasks)[2] == []
    new = tasks[-1]
    (world,) = planned(*arguments, known=tasks[:-1])[2]
    assert [task.point.method for task in world.tasks] == ["plain", new.point.method]
    assert {task.point.place for task in world.tasks} == {new.point.place}


def test_the_gpu_is_the_one_of_figure_1a(repository: Path) -> None:
    text = (repository / "conf" / "paper" / "gravac.yaml").read_text()
    (line,) = (
        line for line in text.splitlines() if "runs.resnet101} experiment.artifact=fig1a" in line
    )
    milliseconds = float(line.rpartition("compute_ms=")[2])
    assert points.GPU_SECONDS["resnet101"] == milliseconds / 1e3


def test_all_that_is_asked_for_is_planned_or_listed_with_the_reason() -> None:
    given, store, worlds = planned("--model", "resnet18,lstm")
    missing = bench.not_measured(given, RECORDED, store, 2)
    said = [line for reason, lines in missing.items() if "too long" in reason for line in lines]
    lstm = [line for line in said if line.startswith("lstm, 4 workers, 100mbit, compute none")]
    assert any("dense, overlap=false" in line for line in lstm)
    assert any(
        "4 workers, 1gbit, compute gpu" in p for p in missing["compute is measured with 2 workers"]
    )
    assert "not measured yet" in missing
    for world in worlds:
        for task in world.tasks:
            store.rows[task.point] = row_of(task)
    assert "not measured yet" not in bench.not_measured(given, RECORDED, store, 2)


@pytest.mark.parametrize("late", [True, False])
def test_a_case_that_is_late_is_not_kept_and_one_that_fails_is_in_the_place_of_old_numbers(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on with new ranks."""
    arguments = ("--model", "resnet18", "--methods", "dense,fp16,topk1", "--overlap", "true")
    arguments += ("--workers", "2", "--rates", "loopback", "--compute", "none")
    (world,) = planned(*arguments)[2]
    _, store, _ = planned(*arguments, known=world.tasks)
    store.path = tmp_path / "points.jsonl"
    starts = []

    def ranks(
        _: Any, recorded: Any, tasks: Any, repeats: Any, path: Path, stamp: Any, **__: Any
    ) -> None:
        starts.append([task.point.method for task in tasks])
        for task in tasks:
            if task.point.method == "fp16":
                raise (bench.RanksLate if late else bench.RanksFailed)("rank 0 did not")
            bench.keep(path, row_of(task) | stamp | {"seconds": [0.1]})

    monkeypatch.setattr(bench, "on_ranks", ranks)
    bench.measure(world, None, store, bench.Machine("A CPU", 2, "2", "today", 0.0))
    assert starts == [["plain", "plain-again", "dense", "fp16", "topk1"], ["plain", "topk1"]]
    for task in world.tasks:
        row = store.rows[task.point]
        if task.point.method != "fp16":
            assert row["seconds"] == [0.1]
        elif late:
            assert row == row_of(task)
        else:
            assert row["reason"] == "rank 0 did not"


def test_steps_that_are_all_too_long_are_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "record", lambda name, *_, **__: RECORDED[name])
    monkeypatch.setattr(bench, "REPOSITORY", tmp_path)
    slow = ("--model", "lstm", "--workers", "4", "--rates", "10mbit", "--methods", "dense")
    with pytest.raises(UserError, match=r"^--rates: every step that is asked for takes too long"):
        bench.main(slow)
