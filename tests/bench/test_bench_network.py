"""`make bench-network` at a tiny size on loopback, and its verdicts on made-up points. No speed is
asserted."""

from __future__ import annotations

import contextlib
import csv
import io
import re
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
    *("--override", "dataset=digits", "--override", "model.width=4"),
)
EXCHANGES = {
    *("plain DDP", "plain DDP, again", "torch's fp16 hook"),
    *(
        f"{name}, {at}"
        for name in ("dense", "top-k 1 %")
        for at in ("per_bucket", "after_backward")
    ),
}


def run(folder: Path) -> str:
    """What the tiny bench prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        bench.main([*TINY, "--runs", str(folder / "runs"), "--output", str(folder / "out")])
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
        assert (row["n"], row["does_not_run"], row["limit_verdict"]) == ("2", "", "")
    assert float(rows["torch's fp16 hook", "none"]["payload_mb"]) == float(plain["payload_mb"]) / 2
    sparse = float(rows["top-k 1 %, per_bucket", "none"]["payload_mb"])
    assert 0 < sparse < float(plain["payload_mb"]) / 10
    assert "allgather" in rows["top-k 1 %, per_bucket", "5ms"]["collectives"]


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
    kept = next((measured[1] / "runs").rglob("points.jsonl"))
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
        (("--workers", "1"), "--workers: from 2 to 4, got 1"),
        (("--workers", "two"), "--workers: whole numbers, got 'two'"),
        (("--repeats", "0"), "--repeats: a whole number from 1, got 0"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: tuple[str, str],
    said: str,
) -> None:
    with pytest.raises(UserError, match=rf"^{re.escape(said)}[^\n]*$"):
        bench.parsed(arguments)


def point(method: str, junction: str, seconds: float, **more: Any) -> dict[str, Any]:
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
        "junction": junction,
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
    places = {(tables._key(p), p["method"], p["junction"]): p for p in measured}
    rows = [tables._row(places, place) for place in places]
    return {(row["method"], row["compute"]): row for row in rows}


def test_a_step_is_judged_by_compute_and_its_bytes_with_headers() -> None:
    wire = 1e6 * 8 / 1e8 * 1514 / 1448
    rows = judged(
        point("plain", "torch", 0.4),
        point("uniform4", "after_backward", 1.1 * wire),
        point("topk1", "after_backward", 1.2 * wire),
        point("dense", "after_backward", 0.5),
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
        point("plain", "torch", 0.4),
        {**point("topk1", "per_bucket", 0.1), "seconds": [0.1, 0.2], "beside_seconds": [0.3, 0.4]},
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
        point("topk1", "per_bucket", 0.15),
        point("topk1", "per_bucket", step, **GPU),
    )
    # 0.15 alone and 0.15 of compute, of which 0.1 are backward and could hide as much.
    assert rows["topk1", "gpu"]["hidden"] == pytest.approx(hidden)
    assert rows["topk1", "gpu"]["hidden_verdict"] == verdict


def test_processor_work_behind_the_sleep_is_no_hidden_communication() -> None:
    # 90 ms alone, 16.7 of them the link's: hiding 63 of 90 was 378 % of those 16.7.
    few = {"total_wire_bytes": 2e5}
    rows = judged(
        point("topk1", "per_bucket", 0.09, **few),
        point("topk1", "per_bucket", 0.177, **few, **GPU),
    )
    assert rows["topk1", "gpu"]["hidden"] == pytest.approx(0.7)
    assert rows["topk1", "gpu"]["hidden_verdict"] == "missed"


def test_hidden_has_the_spread_of_both_steps() -> None:
    rows = judged(
        {**point("topk1", "per_bucket", 0.15), "seconds": [0.11, 0.15, 0.19]},
        point("topk1", "per_bucket", 0.22, **GPU),
    )
    row = rows["topk1", "gpu"]
    assert row["hidden_q1"] < row["hidden"] < row["hidden_q3"]
    assert row["hidden_verdict"] == "unclear"


def test_a_step_per_bucket_with_compute_is_judged_by_the_overlapped_limit() -> None:
    wire = 1e6 * 8 / 1e8 * 1514 / 1448
    rows = judged(
        point("topk1", "per_bucket", 0.2, **GPU),
        point("dense", "after_backward", 0.2, **GPU),
        point("fp16", "per_bucket", 1.1 * wire),
    )
    overlapped = rows["topk1", "gpu"]
    assert overlapped["limit_x"] == pytest.approx(0.2 / (0.15 + wire))
    assert overlapped["overlap_limit_x"] == overlapped["judged_x"] == pytest.approx(0.2 / 0.15)
    assert overlapped["limit_verdict"] == "missed"
    after = rows["dense", "gpu"]
    assert (after["overlap_limit_x"], after["limit_verdict"]) == (None, "met")
    alone = rows["fp16", "none"]
    assert (alone["overlap_limit_x"], alone["limit_verdict"]) == (None, "met")


def test_fewer_than_three_steps_are_indicative() -> None:
    rows = judged(
        {**point("dense", "after_backward", 0.5), "seconds": [0.5, 0.5]},
        {**point("topk1", "after_backward", 0.09), "seconds": [0.09], "communicate_ms": [87.0]},
        point("fp16", "after_backward", 0.09, plain_seconds=[0.4]),
    )
    assert rows["dense", "none"]["slower_verdict"] == "indicative, missed"
    assert rows["topk1", "none"]["limit_verdict"] == "indicative, met"
    assert rows["topk1", "none"]["communicate_verdict"] == "indicative, missed"
    assert rows["fp16", "none"]["slower_verdict"] == "indicative, met"
    assert rows["fp16", "none"]["limit_verdict"] == "met"
    text = tables._targets(list(rows.values()), [])
    judged_by_limit = next(line for line in text.splitlines() if "x limit" in line)
    cells = [cell.strip() for cell in judged_by_limit.strip("|").split("|")]
    assert cells[1:] == ["1", "0", "0", "1", "1", "0"]


def test_steps_of_two_sessions_are_indicative() -> None:
    rows = judged(
        point("dense", "after_backward", 0.5),
        point("uniform4", "after_backward", 0.05, session="another day"),
    )
    assert rows["uniform4", "none"]["communicate_verdict"] == "indicative, met"


def test_the_head_is_of_the_points_and_not_of_now(tmp_path: Path) -> None:
    now = tables.Machine("A CPU", 2, "3", "2026-11-21", 0.0)
    early = {"time": "2026-11-01T10:00:00Z", "torch": "2.1", "busy_cores": 0.9}
    late = {"time": "2026-11-02T10:00:00Z", "torch": "2.1"}
    known = [
        point("plain", "torch", 0.4, **early),
        point("topk1", "per_bucket", 0.1, **late),
    ]
    missing = {"too long": ["lstm, 4 workers, 100mbit, compute none: dense, per_bucket"]}
    text = tables.write(known, {}, now, tmp_path, missing)
    assert "torch 2.1; 2026-11-01T10:00:00Z to 2026-11-02T10:00:00Z" in text
    assert "WARNING: other work was running (0.90 cores)" in text
    assert "cores did other work: 1 of 2" in text
    assert "## Not measured\n\n- too long:\n  - lstm, 4 workers, 100mbit" in text
    with (tmp_path / "network.csv").open(newline="") as file:
        kept = [(row["torch_version"], row["busy_cores"]) for row in csv.DictReader(file)]
    assert kept == [("2.1", "0.9"), ("2.1", "0.0")]


def test_a_case_that_does_not_run_says_why() -> None:
    gone = point("torch-powersgd", "torch", 1.0, reason="rank 1 died: what(): mismatch")
    (row,) = judged(gone).values()
    assert row["does_not_run"] == "rank 1 died: what(): mismatch"
    assert row["speedup"] is None


def test_a_plan_spends_the_minutes_that_it_is_given() -> None:
    recorded = bench.Recorded(Path("x"), "resnet18", 4, 11_173_962, 62, 32, "noise", {"fc": 1.0})
    store = bench.Store(Path("nowhere"), "code", "2")
    few = bench.parsed(["--model", "resnet18", "--rates", "1gbit", "--minutes", "20"])
    worlds = bench.plan(few, {"resnet18": recorded}, store, 2)
    assert [world.workers for world in worlds] == [2, 4]
    allowance = bench.allowed(worlds, few, 2)
    assert bench.duration(worlds, allowance, few, 2) <= 20 * 60
    more = [bench.repeats_of(task, allowance, few) for w in worlds for task in w.tasks]
    least = [points.least_repeats(t.expected, w.workers) for w in worlds for t in w.tasks]
    assert all(m >= n for m, n in zip(more, least, strict=True))
    assert sum(more) > sum(least)
    # What is known with this code and these gradients is not planned again.
    known = worlds[0].tasks[0]
    store.rows[known.point.key] = row_of(known)
    left = bench.plan(few, {"resnet18": recorded}, store, 2)[0].tasks
    assert known.point not in [task.point for task in left]
    assert len(left) == len(worlds[0].tasks) - 1


def row_of(task: Any) -> dict[str, Any]:
    """A task as it is kept, without its numbers."""
    return {
        "method": task.point.method,
        "compute": task.point.compute,
        "code": "code",
        "torch": "2",
        "gradients": "x",
        "compressor": repr(task.point.about.compressor),
        "forward_seconds": task.compute.forward_seconds,
        "backward_seconds": task.compute.backward_seconds,
    }


def planned(*arguments: str, rows: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """Options, what is recorded, an own store and the worlds."""
    recorded = {
        name: bench.Recorded(Path("x"), name, 4, values, 62, 32, "noise", {"fc": 2e11})
        for name, values in (("resnet18", 11_173_962), ("lstm", 66_034_000))
    }
    options = bench.parsed(["--model", "resnet18,lstm", *arguments])
    store = bench.Store(Path("nowhere"), "code", "2", rows or {})
    return options, recorded, store, bench.plan(options, recorded, store, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"torch": "1"},
        {"compressor": "Uniform(bits=4, block=256)"},
        {"forward_seconds": 1.0},
        {"gradients": "y"},
        {"compute": "0ms"},
    ],
)
def test_a_point_measured_otherwise_than_now_does_not_count(change: dict[str, Any]) -> None:
    _, recorded, store, worlds = planned("--methods", "uniform4", "--rates", "1gbit")
    task = worlds[0].tasks[0]
    assert store.counts(row_of(task), recorded["resnet18"])
    assert not store.counts({**row_of(task), **change}, recorded["resnet18"])


def test_plain_ddp_is_measured_again_beside_what_is_new_and_not_paired() -> None:
    arguments = ("--methods", "dense", "--workers", "2", "--rates", "100mbit")
    worlds = planned(*arguments)[3]
    tasks = [task for world in worlds for task in world.tasks]
    assert {task.beside > 0 for task in tasks if task.expected > 1.0} == {False}
    known = {t.point.key: row_of(t) for w in worlds for t in (*w.tasks, *w.plain)}
    assert planned(*arguments, rows=known)[3] == []
    new = next(task for task in tasks if not task.beside)
    del known[new.point.key]
    (world,) = planned(*arguments, rows=known)[3]
    assert [task.place for task in world.plain] == [new.place]


def test_the_gpu_is_the_one_of_figure_1a(repository: Path) -> None:
    text = (repository / "conf" / "artifact" / "gravac" / "fig1a.yaml").read_text()
    (line,) = (line for line in text.splitlines() if "table3_resnet101" in line)
    milliseconds = float(line.rpartition("compute_ms=")[2])
    assert points.GPU_SECONDS["resnet101"] == milliseconds / 1e3


def test_what_is_left_out_is_listed_with_the_reason() -> None:
    options, recorded, store, worlds = planned()
    missing = bench.not_measured(options, recorded, store, 2)
    said = [line for reason, lines in missing.items() if "too long" in reason for line in lines]
    lstm = [line for line in said if line.startswith("lstm, 4 workers, 100mbit, compute none")]
    assert any("dense, after_backward" in line for line in lstm)
    # Everything asked for is in the plan or in the list.
    listed = [place for lines in missing.values() for place in lines]
    for world in worlds:
        for task in world.tasks:
            store.rows[task.point.key] = row_of(task)
    left = bench.not_measured(options, recorded, store, 2)
    assert "not measured yet" in missing
    assert "not measured yet" not in left
    assert len(listed) > sum(map(len, left.values())) > 0


def test_the_list_is_of_everything_whatever_the_last_command_asked_for() -> None:
    _, recorded, store, _ = planned()
    models = ",".join(recorded)
    narrow = bench.parsed(
        ["--model", models, "--workers", "2", "--rates", "1gbit", "--compute", "100ms"]
    )
    known = [{"workers": 2, "rate": "1gbit", "compute": "100ms"}]
    found = bench.of_everything(narrow, known)
    assert found.workers == [2, 4]
    assert found.rates == ["100mbit", "1gbit", "loopback"]
    assert found.computes == ["none", "gpu", "100ms"]
    missing = bench.not_measured(found, recorded, store, 2)
    (reason,) = [reason for reason in missing if reason.startswith("compute is looked at")]
    assert any("4 workers, 1gbit, compute gpu" in place for place in missing[reason])
    assert any("4 workers, 1gbit, compute 100ms" in place for place in missing[reason])


class FailingRanks:
    """Ranks that fail in the second case's steps."""

    error: Exception

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> FailingRanks:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def load(self, recorded: Any) -> None:
        pass

    open = close_case = load

    def steps(self, case: Any, *_: Any, **__: Any) -> Any:
        if case.name == "fp16":
            raise self.error
        from dgc_repro.bench.replay import Measured

        return Measured([0.1], [], [0.1], [0.1], [1.0], [1.0], [1.0], 1.0, 1.0, 1.0, None, {})


@pytest.mark.parametrize("late", [True, False])
def test_a_case_that_is_late_is_not_kept_and_one_that_fails_is_in_the_place_of_old_numbers(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--methods", "dense,fp16", "--junctions", "per_bucket", "--again")
    arguments += ("--workers", "2", "--rates", "loopback", "--compute", "none")
    options, _, store, worlds = planned(*arguments)
    store.path = tmp_path / "points.jsonl"
    old = {
        t.point.key: {**row_of(t), "key": t.point.key, "seconds": [9.0]} for t in worlds[0].tasks
    }
    store.rows = dict(old)
    FailingRanks.error = (bench.RanksLate if late else bench.RanksFailed)("rank 0 did not")
    monkeypatch.setattr(bench, "Ranks", FailingRanks)
    machine = bench.Machine("A CPU", 2, "2", "today", 0.0)
    bench.measure(worlds[0], 1.0, options, store, machine)
    failed = {key for key in old if "/fp16/" in key}
    for key in old:
        if key in failed and late:
            assert store.rows[key] == old[key]
        elif key in failed:
            assert store.rows[key]["reason"] == "rank 0 did not"
        else:
            assert store.rows[key]["seconds"] == [0.1]
