"""The notebook runs: on the published results where there are any, and on synthetic records."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from made_up_decisions import decisions, write_run
from nbclient import NotebookClient
from synthetic import write_table1

from dgc_repro.report.publish import publish


def execute(notebook: Path) -> nbformat.NotebookNode:
    """Run every cell in the notebook's own folder; an error in a cell is an exception here."""
    node = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        node,
        timeout=90,
        kernel_name="python3",
        resources={"metadata": {"path": str(notebook.parent)}},
    )
    return client.execute()


def count_images(node: nbformat.NotebookNode) -> int:
    outputs = [output for cell in node.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


# jupyter_client and its event loop complain about themselves; the notebook is what is tested.
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_draws_table_and_figures_from_synthetic_records(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write_table1(tmp_path / "runs", range(1))
    publish(folders, "dynamic", "table1", "quick", tmp_path / "results")
    monkeypatch.setenv("DGC_REPRO_RESULTS", str(tmp_path / "results"))
    node = execute(repository / "notebooks" / "dynamic_table1.ipynb")
    assert count_images(node) == 6  # figures 1-3, the second block, two policy traces
    shown = str(node.cells)
    assert "92.96" in shown  # a printed number
    assert "scale quick: 5 runs" in shown


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_draws_the_published_results(repository: Path) -> None:
    published = repository / "results" / "dynamic" / "table1"
    if not any(published.glob("*/records")) or "DGC_REPRO_RESULTS" in os.environ:
        pytest.skip("no results/dynamic/table1 here yet: make reproduce-table1")
    assert count_images(execute(repository / "notebooks" / "dynamic_table1.ipynb")) >= 3


@pytest.mark.filterwarnings("ignore")
def test_gravacs_notebook_draws_what_there_is_and_names_what_there_is_not(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = decisions([10.0] * 100)
    records = [
        write_run(tmp_path / "runs", "lstm.dense", metric="perplexity", final=90.0),
        write_run(
            tmp_path / "runs", "lstm.gravac07", metric="perplexity", final=91.0, decided=decided
        ),
    ]
    publish(records, "gravac", "fig9", "small", tmp_path / "results")
    monkeypatch.setenv("DGC_REPRO_RESULTS", str(tmp_path / "results"))
    node = execute(repository / "notebooks" / "gravac.ipynb")
    assert count_images(node) == 2  # figure 9, and regret beside it
    shown = str(node.cells)
    assert "fig9, scale small: 2 records" in shown
    assert "fig10: no results yet" in shown
    assert "LSTM: mostly at 1000x for both." in shown


@pytest.mark.filterwarnings("ignore")
def test_gravacs_notebook_draws_the_published_results(repository: Path) -> None:
    published = repository / "results" / "gravac"
    if "DGC_REPRO_RESULTS" in os.environ:
        pytest.skip("DGC_REPRO_RESULTS names other results")
    made = {path.parent.parent.name for path in published.glob("*/*/records")}
    assert count_images(execute(repository / "notebooks" / "gravac.ipynb")) >= len(made)
