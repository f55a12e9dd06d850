"""The notebooks run, on synthetic runs and without changing themselves."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from synthetic import write_table1

from dgc_repro.paper.publish import publish
from dgc_repro.paper.records import read_runs

NOTEBOOKS = ("results.ipynb", "my_sweep.ipynb")
# jupyter_client and its event loop complain about themselves; the notebook is what is tested.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]


def execute(notebook: Path) -> nbformat.NotebookNode:
    """Run every cell in the notebook's own folder; an error in a cell is an exception here."""
    node = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        node,
        timeout=100,
        kernel_name="python3",
        resources={"metadata": {"path": str(notebook.parent)}},
    )
    return client.execute()


def count_images(node: nbformat.NotebookNode) -> int:
    outputs = [output for cell in node.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A root with one published pool."""
    folders = write_table1(tmp_path / "runs", range(1))
    for (
        folder
    ) in folders:  # a summary ends with the metrics of the last epoch, as the trainer's does
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | last))
    runs, _ = read_runs(folders)
    publish(runs, "dynamic", "table1", "quick", tmp_path / "results")
    return tmp_path / "results"


def test_the_results_notebook_shows_pages_and_figures_of_a_pool(
    results: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DGC_REPRO_RESULTS", str(results))
    node = execute(repository / "notebooks" / "results.ipynb")
    assert count_images(node) == 2  # figures 1 to 3, the policy's trace
    shown = str(node.cells)
    assert "92.96" in shown  # a printed number
    assert "dynamic/quick/table1" in shown


def test_the_results_notebook_says_what_to_do_without_results(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DGC_REPRO_RESULTS", str(tmp_path))
    assert "make reproduce-table1" in str(execute(repository / "notebooks" / "results.ipynb").cells)


def test_the_sweep_notebook_compares_own_runs(
    results: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DGC_REPRO_RUNS", str(results.parent / "runs"))
    node = execute(repository / "notebooks" / "my_sweep.ipynb")
    assert count_images(node) == 2  # the figure of compare, and the own plot
    assert "5 finished runs" in str(node.cells)


def test_the_sweep_notebook_shows_published_runs_while_there_are_no_own_ones(
    results: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DGC_REPRO_RUNS", str(results.parent / "nothing"))
    monkeypatch.setenv("DGC_REPRO_RESULTS", str(results))
    node = execute(repository / "notebooks" / "my_sweep.ipynb")
    assert count_images(node) == 2
    assert "published runs of dynamic/quick" in str(node.cells)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs_and_needs_no_torch(
    repository: Path, name: str
) -> None:
    node = nbformat.read(repository / "notebooks" / name, as_version=4)
    for cell in node.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert "torch" not in cell.source or cell.cell_type == "markdown"
