"""Whatever a row does, the others have their results, the report is whole, and the exit code says it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dgc_repro.bench.launches import methods
from dgc_repro.errors import UserError
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.launch.main import answer
from dgc_repro.selfcheck import counts, process, rows
from dgc_repro.selfcheck.command import rows_of, selfcheck
from dgc_repro.selfcheck.rows import Mismatch, Row, Skip

HERE = Path(__file__).parent
Told = tuple[int, dict[str, Any], str]
Selfcheck = Callable[..., Told]
pytestmark = pytest.mark.slow


@pytest.fixture
def checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Selfcheck:
    """Run fake rows, each a list of cases. The exit code, the report, and what was printed."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parent.parent}")
    monkeypatch.chdir(tmp_path)

    def run(*cases: str, ranks: int = 1, timeout: float = 100.0, **given: str) -> Told:
        made = tuple(Row(one, "fake_rows", "", one, ranks) for one in cases)
        monkeypatch.setattr(rows, "ROWS", made)
        overrides = [f"{key}={value}" for key, value in given.items()]
        code = answer(lambda: selfcheck([f"timeout={timeout}", *overrides]))
        report = json.loads((tmp_path / given.get("report", "selfcheck.json")).read_text())
        assert report["state"] == "finished"
        assert report["environment"]["torch"]
        assert [row["row"] for row in report["rows"]] == list(cases)
        assert not list(tmp_path.glob("*.part"))
        output = capsys.readouterr()
        return code, report, output.out + output.err

    return run


def detail(report: dict[str, Any], row: str) -> str:
    found: str = next(one["detail"] for one in report["rows"] if one["row"] == row)
    return found


def test_rows_that_pass_or_cannot_run_end_with_0(checked: Selfcheck) -> None:
    code, report, printed = checked("good", "skips", "good,skips,good")
    assert code == 0
    assert [row["status"] for row in report["rows"]] == ["PASS", "SKIP", "PASS"]
    assert detail(report, "skips") == "not on this machine"
    assert detail(report, "good,skips,good") == "all of them; 1 skipped (not on this machine)"
    assert "2 passed, 0 failed, 1 skipped" in printed
    assert all("log" not in row for row in report["rows"])


def test_no_row_loses_the_others(checked: Selfcheck) -> None:
    bad = {
        "aborts": "aborts: the process was killed by SIGABRT",
        "faults": "faults: the process was killed by SIGSEGV",
        "raises": "raises: ValueError: a value",
        "differs": "differs: 3 of 9 values differ",
        "leaves": "leaves: the process ended with exit code 3",
        "floods": "floods: after three megabytes",
        "no_such_case": "KeyError: 'no_such_case'",  # the row's module fails
    }
    code, report, printed = checked(*bad, "good")
    assert code == 1
    assert [row["status"] for row in report["rows"]] == ["FAIL"] * len(bad) + ["PASS"]
    for name, why in bad.items():
        assert detail(report, name) == why
        assert why in printed
    logs = {row["row"]: row.get("log", "") for row in report["rows"]}
    assert "Fatal Python error: Segmentation fault" in logs["faults"]
    assert "in aborts" in logs["aborts"]
    assert "of two lines" in logs["raises"]
    assert "Mismatch: after three megabytes" in logs["floods"]
    assert len(logs["floods"]) < process.LOG_KEPT + 100
    assert f"error: {len(bad)} of {len(bad) + 1} rows failed: aborts, faults" in printed
    assert "selfcheck.json to an issue" in printed


def test_a_row_goes_on_after_a_case_that_failed_and_ends_after_many(checked: Selfcheck) -> None:
    code, report, _ = checked("good,aborts,differs,skips,good", ",".join(["differs"] * 9))
    assert code == 1
    mixed, many = report["rows"]
    assert [one["status"] for one in mixed["cases"]] == ["PASS", "FAIL", "FAIL", "SKIP", "PASS"]
    assert mixed["detail"] == "2 of 5 cases; aborts: the process was killed by SIGABRT"
    assert "a word of a case that passes" in mixed["log"]
    assert len(many["cases"]) == process.MOST_FAILURES
    assert many["detail"].endswith("(the row ended after 5 failures)")


def test_a_hang_is_ended_and_its_log_has_the_line(
    checked: Selfcheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 1.0)
    code, report, _ = checked("good,hangs,good", timeout=40.0)
    assert code == 1
    (row,) = report["rows"]
    assert row["detail"] == "1 of 3 cases; hangs: hangs: no answer within 40 s"
    assert "about to hang" in row["log"]
    assert "in hangs" in row["log"]
    assert row["cases"][1]["seconds"] >= 40


def test_output_without_end_is_ended(checked: Selfcheck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 1 << 22)
    code, report, _ = checked("never_ends", "good")
    assert code == 1
    assert detail(report, "never_ends") == "never_ends: printed more than 4 MB"
    assert report["rows"][1]["status"] == "PASS"


def test_ranks_of_a_row_meet_and_the_loss_of_one_is_named(checked: Selfcheck) -> None:
    code, report, _ = checked("adds_up,one_rank_aborts,adds_up", ranks=2)
    assert code == 1
    first, lost, last = report["rows"][0]["cases"]
    assert first["detail"] == last["detail"] == "ranks [0, 1]"
    assert lost["status"] == "FAIL"
    assert "in one_rank_aborts" in report["rows"][0]["log"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_a_whole_report_and_no_process(number: int, tmp_path: Path) -> None:
    made = "Row('good', 'fake_rows', '', 'good'), Row('hangs', 'fake_rows', '', 'hangs')"
    program = f"""
import sys
from dgc_repro.selfcheck import rows
from dgc_repro.selfcheck.rows import Row
rows.ROWS = ({made}, Row('left', 'fake_rows', '', 'good'))
from dgc_repro.launch.main import main
sys.argv[1:] = ["selfcheck"]
main()
"""
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent.parent}"}
    command = [sys.executable, "-c", program]
    report = tmp_path / "selfcheck.json"
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as started:
        until = time.monotonic() + 200
        while not report.is_file() or '"good"' not in report.read_text():
            assert time.monotonic() < until
            time.sleep(0.1)
        time.sleep(1.0)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        started.send_signal(number)
        _, said = started.communicate(timeout=60)
    assert started.returncode == 128 + number
    assert said.strip().splitlines()[-1] == "error: stopped; selfcheck.json has the rows so far"
    told = json.loads(report.read_text())
    assert told["state"] == "stopped"
    assert [row["status"] for row in told["rows"]] == ["PASS", "not run", "not run"]
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_rows_are_chosen_by_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuple(Row(name, "", "") for name in ("machine", "a-cpu", "a-cuda", "b-cpu"))
    monkeypatch.setattr(rows, "ROWS", made)
    assert [row.name for row in rows_of("rows", "*-cpu,machine")] == ["machine", "a-cpu", "b-cpu"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("rows=kernel", "rows: no row is called 'kernel'; "),
        ("timeout=0", "timeout: a number above 0"),
        ("report=no/such/folder.json", "report: a file in a folder that exists"),
        ("row=machine", "row: no such key; did you mean rows?"),
        ("machine", "machine: settings are written key=value"),
    ],
)
def test_a_mistake_is_one_line(given: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        selfcheck([given])
    assert str(refused.value).startswith(says)


@pytest.mark.skipif(not on_gpu(()), reason="no Triton: the targets are of its kernels")
def test_every_method_is_within_the_targets_of_its_counts() -> None:
    found = {}
    for name, check in counts.checks(rows.CPU):
        try:
            found[name] = check()
        except (Mismatch, Skip) as error:
            found[name] = f"{type(error).__name__}: {error}"
    assert found.keys() == methods().keys()
    assert not {name: told for name, told in found.items() if "at most" not in told}
    assert not {name: told for name, told in found.items() if told.startswith(("Mis", "Skip"))}
