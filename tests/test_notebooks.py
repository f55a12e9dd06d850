"""The notebooks run, and are stored as a fresh kernel has left them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NAMES = ("01_load_runs", "02_paper_tables", "03_own_compressor", "04_network")
SHOWS = {
    "01_load_runs": ("compare ../runs/notebook-01", "RandomK"),
    "02_paper_tables": ("92.96", "not tested"),
    "03_own_compressor": (" passed", "BlockTop"),
    "04_network": ("written: ../runs/notebook-04", "at most"),
}
ABSOLUTE = r"(?<![\w.:/])/(?:home|root|tmp|work|usr|opt|var)/\S+|file://"
MOST_BYTES = 500_000
CELL_TIMEOUT_S = 200  # for 20 on an idle machine


def stored(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def execute(name: str, folder: Path) -> nbformat.NotebookNode:
    """Run every cell of a copy in another folder; an error in a cell is an exception here."""
    folder.mkdir()
    shutil.copy(FOLDER / f"{name}.ipynb", folder)
    node = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        node, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=resources
    )
    return client.execute()


def outputs(node: nbformat.NotebookNode) -> list[Any]:
    return [output for cell in node.cells for output in cell.get("outputs", [])]


def kinds(node: nbformat.NotebookNode) -> list[list[str]]:
    """What each code cell shows: kinds of output, without the parts in which streams arrive."""
    return [
        sorted({"text" if "text" in out else max(out["data"]) for out in cell.outputs})
        for cell in node.cells
        if cell.cell_type == "code"
    ]


def text_of(node: nbformat.NotebookNode) -> str:
    """All that the cells have printed or shown, pictures aside."""
    found = []
    for out in outputs(node):
        data = out.get("data", {})
        found += [out.get("text", ""), *(v for k, v in data.items() if k.startswith("text/"))]
    return "\n".join(found)


def test_each_notebook_is_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_as_a_fresh_kernel_has_left_it(name: str) -> None:
    node = stored(name)
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [out for out in outputs(node) if out["output_type"] == "error"] == []
    assert [out for out in outputs(node) if out.get("name") == "stderr"] == []
    assert any("image/png" in out.get("data", {}) for out in outputs(node))
    assert re.findall(ABSOLUTE, text_of(node)) == []
    assert (FOLDER / f"{name}.ipynb").stat().st_size < MOST_BYTES
    for word in SHOWS[name]:
        assert word in text_of(node)


# jupyter_client and its event loop complain about themselves; the notebook is what is tested.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(4 * CELL_TIMEOUT_S)
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_it_is_stored_with(name: str, tmp_path: Path) -> None:
    node = execute(name, tmp_path / "notebooks")
    assert kinds(node) == kinds(stored(name))
    for word in SHOWS[name]:
        assert word in text_of(node)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(2 * CELL_TIMEOUT_S)
def test_the_notebook_of_tables_says_what_to_do_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DGC_REPRO_RESULTS", str(tmp_path))
    assert "make reproduce-table1" in text_of(execute("02_paper_tables", tmp_path / "notebooks"))
