"""The committed results: few files, one pool a paper and scale, every record with a known commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dgc_repro.paper import pool
from dgc_repro.paper.index import entries
from dgc_repro.paper.publish import artifact_of, run_ids

RESULTS = Path(__file__).resolve().parent.parent / "results"
POOLS = sorted(path.parent for path in RESULTS.glob(f"*/*/{pool.RUNS_FILE}"))


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(RESULTS), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_results_are_few_and_small() -> None:
    files = [RESULTS.parent / name for name in git("ls-files", "--full-name").stdout.splitlines()]
    there = [path for path in files if path.is_file()]
    assert len(there) <= 200
    assert sum(path.stat().st_size for path in there) < 16e6


@pytest.mark.parametrize("folder", POOLS, ids=lambda p: "/".join(p.parts[-2:]))
def test_every_run_is_named_by_an_artifact_and_every_artifact_has_a_module(folder: Path) -> None:
    runs = {run.id for run in pool.read(folder)}
    named = set()
    for entry in entries(RESULTS):
        if entry.folder.parent == folder:
            named |= set(run_ids(entry.folder))
            assert callable(artifact_of(entry.paper, entry.artifact).page)
    assert named == runs


@pytest.mark.parametrize("folder", POOLS, ids=lambda p: "/".join(p.parts[-2:]))
def test_every_record_names_a_commit_of_this_history_or_says_that_it_does_not(folder: Path) -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no whole git history here")
    commits = set()
    for run in pool.read(folder):
        for stretch in (run.environment, *run.environment.get("before", ())):
            if stretch.get("commit_in_history", True):
                commits.add(stretch["commit"])
    assert commits <= set(git("rev-list", "HEAD").stdout.split())
