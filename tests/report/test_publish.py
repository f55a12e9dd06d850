"""Publishing and rebuilding: what lands in results/, byte for byte, and what never does."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from synthetic import ROWS, quantizer, write_run, write_sensitivity, write_table1

from dgc_repro.errors import UserError
from dgc_repro.paper import dynamic
from dgc_repro.report import publish as publishing
from dgc_repro.report.__main__ import main
from dgc_repro.report.publish import publish, rebuild, show


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its relative name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def table1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table1")
    folders = write_table1(root / "runs", range(2))
    return publish(folders, "dynamic", "table1", "quick", root / "results")


@pytest.fixture(scope="module")
def sensitivity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sensitivity")
    folders = write_sensitivity(root / "runs", range(1))
    return publish(folders, "dynamic", "sensitivity", "quick", root / "results")


def test_a_published_folder_has_table_figures_verdicts_and_records(table1: Path) -> None:
    names = {path.name for path in table1.iterdir()}
    stems = [*(f"figure{i}" for i in (1, 2, 3)), "figure4_second_block"]
    stems += ["policy_dynamic", "policy_dynamic_ef"]
    assert names == {
        "records",
        "table.md",
        "table.csv",
        "verdicts.json",
        *(f"{stem}.{kind}" for stem in stems for kind in ("svg", "png")),
    }
    assert table1.parts[-3:] == ("dynamic", "table1", "quick")
    assert sum(len(content) for content in contents(table1).values()) < 2_000_000


def test_a_record_holds_no_checkpoint_and_no_step_lines(table1: Path) -> None:
    record = table1 / "records" / "none-seed0"
    assert {path.name for path in record.iterdir()} == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "summary.json",
        "policy.csv",
    }
    lines = [json.loads(line) for line in (record / "metrics.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"epoch"}


@pytest.mark.parametrize("name", ["table1", "sensitivity"])
def test_two_rebuilds_give_the_same_bytes(request: pytest.FixtureRequest, name: str) -> None:
    folder: Path = request.getfixturevalue(name)
    published = contents(folder)
    assert contents(rebuild(folder)) == published
    assert contents(rebuild(folder)) == published


def test_the_table_has_the_papers_numbers_ours_and_their_difference(table1: Path) -> None:
    with (table1 / "table.csv").open(newline="") as file:
        rows = {(row["row"], row["column"]): row for row in csv.DictReader(file)}
    accuracy = rows["static8", "test_accuracy"]
    # Seeds 0 and 1 end at 86.0 and 86.1 (synthetic.py).
    assert float(accuracy["paper"]) == 85.97
    assert float(accuracy["ours"]) == pytest.approx(86.05, abs=1e-9)
    assert float(accuracy["difference"]) == pytest.approx(86.05 - 85.97, abs=1e-9)
    assert (accuracy["n"], accuracy["scale"]) == ("2", "quick")
    share = rows["static8", "data_share"]
    assert float(share["paper"]) == pytest.approx(100 * 1.82 / 2.31, abs=1e-6)
    assert float(share["ours"]) == pytest.approx(25.0, abs=1e-9)


def test_our_own_rows_have_no_paper_number(table1: Path) -> None:
    with (table1 / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    own = [row for row in rows if row["row"].endswith("_ef")]
    assert len(own) == 20
    assert all(row["paper"] == "" and row["difference"] == "" for row in own)
    assert all(row["ours"] for row in own)


def test_the_table_says_scale_hardware_world_data_n_and_code(table1: Path) -> None:
    text = (table1 / "table.md").read_text()
    for part in (
        "reduced scale: quick",
        "synthetic CPU, 2 cores",
        "2 local workers, gloo",
        "data: synthetic",
        "none 2",
        "0123456789ab",
    ):
        assert part in text
    assert "/somewhere" not in text  # the user's data folder


def test_contradictions_and_silent_choices_stand_beside_the_table(table1: Path) -> None:
    text = (table1 / "table.md").read_text()
    for contradiction in dynamic.CONTRADICTIONS:
        assert contradiction.arithmetic in text
    for choice in dynamic.SILENT_CHOICES:
        assert choice.silent in text
        assert f"`{choice.key}`" in text


def test_every_verdict_is_printed_with_its_scale(table1: Path) -> None:
    verdicts = json.loads((table1 / "verdicts.json").read_text())
    assert [v["claim"] for v in verdicts] == [claim.id for claim in dynamic.CLAIMS]
    text = (table1 / "table.md").read_text()
    for v in verdicts:
        assert v["printed"] == f"{v['verdict']} (reduced scale: quick)"
        assert v["printed"] in text


def test_the_terminal_table_fits_a_hundred_columns(
    table1: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(table1)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "\u2026" not in printed  # nothing was cut to fit
    for row in (*dynamic.TABLE_1.rows, *dynamic.SECOND_BLOCK):
        assert row.label in printed


def test_a_missing_row_stays_in_the_table_as_not_run(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "runs", row, 0) for row in ("none", "dynamic")]
    folder = publish(folders, "dynamic", "table1", "quick", tmp_path / "results")
    text = (folder / "table.md").read_text()
    assert "| static 8-bit | 0 | 70 | not run | 82.03 | not run | - |" in text
    words = {v["claim"]: v for v in json.loads((folder / "verdicts.json").read_text())}
    assert words["1"]["verdict"] == "not run"
    assert words["2"]["verdict"] == "indicative"
    assert not (folder / "figure4_second_block.svg").exists()


def test_stale_files_go_when_a_folder_is_published_again(tmp_path: Path) -> None:
    folders = write_table1(tmp_path / "runs", range(1))
    results = tmp_path / "results"
    folder = publish(folders, "dynamic", "table1", "quick", results)
    (folder / "stale.txt").write_text("old")
    publish(folders[:3], "dynamic", "table1", "quick", results)
    assert not (folder / "stale.txt").exists()
    assert len(list((folder / "records").iterdir())) == 3
    assert [path.name for path in folder.parent.iterdir()] == ["quick"]


def test_a_failed_publication_leaves_the_old_one_as_it_was(tmp_path: Path) -> None:
    folders = write_table1(tmp_path / "runs", range(1))
    results = tmp_path / "results"
    folder = publish(folders, "dynamic", "table1", "quick", results)
    before = contents(folder)
    (folders[0] / "metrics.jsonl").write_text('{"kind": "epo')
    with pytest.raises(UserError, match="line 1 is not JSON"):
        publish(folders, "dynamic", "table1", "quick", results)
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["quick"]


def test_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "LIMIT_BYTES", 1000)
    folder = write_run(tmp_path / "runs", "none", 0)
    with pytest.raises(UserError, match="^results: at most"):
        publish([folder], "dynamic", "table1", "quick", tmp_path / "results")
    assert not (tmp_path / "results" / "dynamic" / "table1" / "quick").exists()


def test_a_run_of_another_scale_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "none", 0, scale="small")
    with pytest.raises(UserError, match="dynamic/table1/quick, got dynamic/table1/small"):
        publish([folder], "dynamic", "table1", "quick", tmp_path / "results")


def test_unfinished_runs_are_logged_and_nothing_is_published_from_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_run(tmp_path / "runs", "none", 0, status="stopped")
    with pytest.raises(UserError, match="at least one finished run"):
        publish([folder], "dynamic", "table1", "quick", tmp_path / "results")
    assert "not finished, left out" in caplog.text


def test_the_head_names_all_machines_and_commits_of_a_run_that_was_continued(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "runs", "none", 0)
    path = folder / "environment.json"
    earlier = {"commit": "fedcba9876543210", "dirty": False, "hardware": "another CPU, 8 cores"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"before": [earlier]}))
    table = (publish([folder], "dynamic", "table1", "quick", tmp_path) / "table.md").read_text()
    assert "- hardware: another CPU, 8 cores; synthetic CPU, 2 cores" in table
    assert "- code: fedcba987654; 0123456789ab;" in table
    assert "1 of 1 runs were stopped and continued" in table


def test_an_unknown_artifact_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dynamic/sensitivity, .*got dynamic/tabel1"):
        publish([], "dynamic", "tabel1", "quick", tmp_path)


def test_a_folder_that_is_not_published_gives_one_line_and_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "results/dynamic/table1/quick" in error


def test_the_report_never_imports_torch(table1: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from dgc_repro.report.__main__ import main; "
        f"sys.exit(main([{str(table1)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Verdicts" in done.stdout


def test_the_sensitivity_study_has_a_line_a_setting(sensitivity: Path) -> None:
    with (sensitivity / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Dense, 7 widths, 4 variants at 8 bits, 12 at 4 bits of which the plain one is a width too.
    assert len(rows) == 1 + 7 + 4 + 12 - 1
    assert rows[0]["bits"] == "dense"
    fed = [row for row in rows if row["error_feedback"] == "true"]
    assert {(row["bits"], row["block"]) for row in fed} == {
        ("8", "tensor"),
        ("4", "tensor"),
        ("4", "2048"),
    }
    assert {path.name for path in sensitivity.iterdir()} == {
        "records",
        "table.md",
        "table.csv",
        "sensitivity.svg",
        "sensitivity.png",
    }


def test_the_sentence_names_the_plain_quantizers_far_under_dense(tmp_path: Path) -> None:
    def study(two_bit: float, fed: float, seeds: int = 1) -> str:
        root = tmp_path / f"{two_bit} {seeds}"
        folders = [
            write_run(
                root / "runs",
                row,
                seed,
                artifact="sensitivity",
                numbers=(accuracy, *ROWS["none"][1:]),
                settings=settings,
            )
            for seed in range(seeds)
            for row, accuracy, settings in (
                ("none", 90.0, quantizer(None)),
                ("bits2", two_bit, quantizer(2)),
                ("bits2_ef", fed, quantizer(2, fed=True)),
                ("bits8", 89.5, quantizer(8)),
            )
        ]
        folder = publish(folders, "dynamic", "sensitivity", "quick", root / "results")
        console = Console(record=True, width=400, file=(root / "shown.txt").open("w"))
        show(folder, console)
        console.file.close()
        return (folder / "table.md").read_text()

    low = study(two_bit=80.0, fed=70.0)
    assert "Indicative, with fewer than three seeds: Of 2 plain quantizers, 1 end more than" in low
    assert "Indicative" not in study(two_bit=80.0, fed=70.0, seeds=3)
    assert "2-bit, nearest, tensor: 10.0 points under." in low
    level = study(two_bit=89.0, fed=70.0)
    assert "None of the 2 plain quantizers ends more than 2 points" in level


def test_with_nothing_to_rebuild_the_report_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "reproduced/dynamic/table1/quick" in line
