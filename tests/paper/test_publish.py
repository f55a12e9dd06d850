"""Publishing and rebuilding: the pool, an artifact's folder, the overview; byte for byte."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from shell import program
from synthetic import ROWS, write_run

import dgc_repro
from dgc_repro.errors import UserError
from dgc_repro.names import git
from dgc_repro.paper import index, pool
from dgc_repro.paper import publish as publishing
from dgc_repro.paper.artifact import Artifact
from dgc_repro.paper.dynamic import table1 as table1_module
from dgc_repro.paper.frame import lines
from dgc_repro.paper.page import markdown
from dgc_repro.paper.publish import publish, rebuild, run_ids, with_history
from dgc_repro.paper.records import Run, read_run, read_runs
from dgc_repro.paper.report import main


def runs_in(root: Path, seeds: range, rows: tuple[str, ...] = tuple(ROWS)) -> list[Run]:
    return [read_run(write_run(root, row, seed)) for row in rows for seed in seeds]


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
    return publish(runs_in(root / "runs", range(2)), "dynamic", "table1", "quick", root / "results")


def test_a_pool_and_an_artifacts_folder_hold_few_files(table1: Path) -> None:
    assert table1.parts[-3:] == ("dynamic", "quick", "table1")
    assert set(contents(table1.parent)) == {
        *("runs.parquet", "epochs.parquet", "trace.parquet", "numbers.csv", "verdicts.json"),
        *("SHA256SUMS", "table1/table.md"),
        *("table1/table1.svg", "table1/table1.png"),
    }
    assert len(run_ids(table1)) == 2 * len(ROWS)


def test_an_artifact_takes_runs_of_another_one_that_it_names(tmp_path: Path) -> None:
    """The sensitivity study at scale medium uses two runs of Table I."""
    given = {"none": "table1", "static8": "table1", "bits8_again": "sensitivity"}
    how: dict[str, Any] = {"scale": "medium", "numbers": ROWS["none"]}
    runs = [
        read_run(write_run(tmp_path / "runs", row, 0, artifact=artifact, **how))
        for row, artifact in given.items()
    ]
    root = tmp_path / "results"
    study = publish(runs, "dynamic", "sensitivity", "medium", root)
    table = publish(runs[:2], "dynamic", "table1", "medium", root)
    assert (len(run_ids(study)), len(run_ids(table))) == (3, 2)
    assert len(pool.read(study.parent)) == 3
    with pytest.raises(UserError, match=r"takes runs of dynamic/table1/medium, got"):
        publish(runs, "dynamic", "table1", "medium", root)


def test_a_record_says_that_its_commit_is_not_in_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, run = git("rev-parse HEAD"), read_run(write_run(tmp_path, "none", 0))
    if not known or git("rev-parse --is-shallow-repository") != "false":
        pytest.skip("no whole git history here")
    lost = {"commit": "0" * 40, "before": [{"commit": known, "commit_in_history": False}]}
    here, unknown = {"commit": known, "commit_in_history": False}, {"commit": ""}
    runs = [replace(run, environment=e) for e in (lost, here, unknown)]
    assert [run.environment for run in with_history(runs)] == [
        {"commit": "0" * 40, "before": [{"commit": known}], "commit_in_history": False},
        {"commit": known},
        {"commit": ""},
    ]
    monkeypatch.setattr(publishing, "git", lambda command: "" if "rev-list" in command else "false")
    assert with_history(runs) == runs  # git has failed


def test_runs_read_from_a_pool_are_the_runs(table1: Path, tmp_path: Path) -> None:
    before = {run.id: run for run in runs_in(tmp_path, range(2))}
    after = {run.id: run for run in pool.read(table1.parent)}
    assert after.keys() == before.keys()
    for name, run in after.items():
        assert run.config["model"] == before[name].config["model"]
        assert run.summary == before[name].summary
        pd.testing.assert_frame_equal(run.epochs, before[name].epochs)
        assert run.setting("dataset.root") is None  # the user's folder


def test_a_rebuild_gives_the_same_bytes(table1: Path) -> None:
    before = contents(table1.parent)
    rebuild(table1)
    assert contents(table1.parent) == before
    publish(pool.read(table1.parent), "dynamic", "table1", "quick", table1.parents[2])
    assert contents(table1.parent) == before


def test_publishing_again_adds_runs_and_drops_those_that_no_page_names(tmp_path: Path) -> None:
    root = tmp_path / "results"
    first = runs_in(tmp_path / "a", range(1))
    folder = publish(first, "dynamic", "table1", "quick", root)
    (folder / "stale.txt").write_text("old")
    publish(first[:3], "dynamic", "table1", "quick", root)
    assert not (folder / "stale.txt").exists()
    assert {run.id for run in pool.read(folder.parent)} == {run.id for run in first[:3]}
    assert not list(folder.parent.glob(".*"))


def test_the_next_publication_repairs_one_that_was_killed_at_its_page(
    table1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root, before = tmp_path / "results", contents(table1.parent)
    folder = shutil.copytree(table1.parent, root / "dynamic" / "quick")
    replaces = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if target == folder / "table1":
            raise KeyboardInterrupt
        return replaces(path, target)

    runs = pool.read(folder)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            publish(runs, "dynamic", "table1", "quick", root)
    assert not (folder / "table1").exists()
    (folder / ".new" / "table1").mkdir(parents=True)  # a process that is killed removes nothing
    publish(runs, "dynamic", "table1", "quick", root)
    assert contents(folder) == before
    assert capfd.readouterr() == ("", "")


def test_a_failed_publication_leaves_everything_as_it_was(
    table1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(table1.parent)

    def fail(*_: object) -> None:
        raise UserError("broken")

    monkeypatch.setattr(table1_module, "page", fail)
    with pytest.raises(UserError, match="broken"):
        publish(pool.read(table1.parent)[:2], "dynamic", "table1", "quick", table1.parents[2])
    assert contents(table1.parent) == before


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("dynamic", "table1", "small"), "dynamic/table1/small, got dynamic/table1/quick"),
        (("dynamic", "tabel1", "quick"), "dynamic/tabel1: no module"),
        (("dynamo", "table1", "quick"), "dynamo/table1: no module"),
    ],
)
def test_runs_of_another_place_are_refused(
    tmp_path: Path, place: tuple[str, str, str], message: str
) -> None:
    run = read_run(write_run(tmp_path / "runs", "none", 0))
    with pytest.raises(UserError, match=message):
        publish([run], *place, tmp_path / "results")


def test_nothing_is_published_from_no_finished_run(tmp_path: Path) -> None:
    runs, skipped = read_runs([write_run(tmp_path / "runs", "none", 0, status="stopped")])
    assert "not finished" in skipped[0]
    with pytest.raises(UserError, match="at least one finished run"):
        publish(runs, "dynamic", "table1", "quick", tmp_path / "results")


def test_the_command_rebuilds_without_torch(table1: Path, tmp_path: Path) -> None:
    printed = program(
        f"""
        import sys
        from dgc_repro.paper.report import main
        code = main([{str(table1)!r}])
        assert 'torch' not in sys.modules
        sys.exit(code)
        """,
        tmp_path,
    )
    assert max(map(len, printed.splitlines())) <= 110
    made = tmp_path / "reproduced" / "published" / "dynamic" / "quick" / "table1" / "table.md"
    assert made.read_bytes() == (table1 / "table.md").read_bytes()


def test_one_broken_artifact_does_not_stop_the_others(
    table1: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for scale in ("another", "quick"):
        shutil.copytree(table1.parent, f"results/dynamic/{scale}")
    Path("results/dynamic/another/runs.parquet").write_text("{")
    assert main([]) == 2
    assert "results/dynamic/another" in capsys.readouterr().err
    assert Path("reproduced/published/dynamic/quick/table1/table.md").is_file()


def test_runs_and_results_load_in_one_line(table1: Path, tmp_path: Path) -> None:
    runs_in(tmp_path / "runs", range(1))
    own = dgc_repro.load_runs(tmp_path / "runs")
    assert set(own.runs["row"]) == set(ROWS)
    assert own.runs.set_index("row").loc["static8", "compressor"] == "Uniform"
    assert len(own.epochs) == own.runs["epochs"].sum()
    found = dgc_repro.load_results("dynamic/quick", root=table1.parents[2])
    assert len(found.runs) == 2 * len(ROWS)
    assert found.runs["train.epochs"].eq(9).all()
    with pytest.raises(UserError, match="there are dynamic/quick"):
        dgc_repro.load_results("dynamic/smal", root=table1.parents[2])
    with pytest.raises(UserError, match="no finished run"):
        dgc_repro.load_runs(tmp_path / "nothing")


def test_a_pool_keeps_columns_without_values_and_columns_of_two_types(tmp_path: Path) -> None:
    first, second = runs_in(tmp_path / "runs", range(1))[:2]
    first = replace(first, epochs=first.epochs.assign(**{"test/loss": float("nan")}))
    first = replace(first, trace=first.trace.assign(label=8))
    pool.write([first, second], tmp_path / "pool")
    after = {run.id: run for run in pool.read(tmp_path / "pool")}
    assert list(after[first.id].epochs) == list(first.epochs)
    assert list(after[first.id].trace["label"]) == ["8"] * len(first.trace)


MARKUP = ("<script>alert(1)</script>", "a | b", "[x](javascript:alert(1))", "`c`", "![i](http://x)")


def read_as_html(markdown_text: str) -> str:
    """What a reader of Markdown makes of it, raw HTML let through."""
    return str(MarkdownIt("commonmark").enable("table").render(markdown_text))


@pytest.mark.parametrize("text", MARKUP)
def test_titles_and_names_in_the_overview_are_text_and_no_markup(
    table1: Path, tmp_path: Path, text: str
) -> None:
    folder = tmp_path / "mine" / "quick"
    folder.mkdir(parents=True)
    verdict = dict.fromkeys(pool.records(table1.parent)["table1"]["verdicts"][0], text) | {
        "effects": []
    }
    odd = {"title": text, "tally": {text: 1}, "verdicts": [verdict]}
    (folder / "verdicts.json").write_text(json.dumps({text.replace("/", "-"): odd}))
    index.write(tmp_path)
    readme = read_as_html((tmp_path / "README.md").read_text())
    row = readme.rpartition("<tbody>")[2]
    assert re.sub(r"<a [^>]*>|</a>", "", row).count("<") == 2 * 4 + 2 + 2, "cells, row, table"
    assert row.count("<a ") == 1, "the link to the page"
    assert f"<td>{html.escape(text)}</td>" in row.replace("&#39;", "&#x27;")


@pytest.mark.parametrize("text", MARKUP)
def test_what_a_record_says_is_no_markup_of_a_page(tmp_path: Path, text: str) -> None:
    run = read_run(write_run(tmp_path, "none", 0))
    run = replace(run, environment=run.environment | {"hardware": text})
    template = tmp_path / "odd.md"
    template.write_text(f"# {text}\n\n## Traces\n\n{{traces}}\n", encoding="utf-8")
    own = Artifact(
        str(template.with_suffix(".py")), rows={}, numbers=lambda _: lines([]), alike=(),
        tables={"Rows": pd.DataFrame({text: [text]}), "Traces": ()}, said=lambda _: {"traces": text},
    )  # fmt: skip
    page = own([run], "quick")
    shown = read_as_html(markdown(page))
    assert f"<h1>{html.escape(text)} (" in shown
    for tag in ("<script", "<img", "<a "):
        assert tag not in shown
