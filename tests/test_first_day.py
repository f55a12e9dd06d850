"""docs/getting-started.md, run from the installed wheel in an empty folder; its end on a real Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from test_docs import blocks
from test_wheel import built, pip

sys.path.insert(0, str(Path(__file__).parent / "launch" / "slurm"))
from cluster import cluster, missing

TIMEOUT_S = 400
WHY_NOT = (
    missing() if os.environ.get("DGC_REPRO_SLURM") else "make test-slurm starts Slurm's daemons"
)


@pytest.fixture(scope="module")
def page(repository: Path) -> Path:
    return repository / "docs" / "getting-started.md"


@pytest.fixture(scope="module")
def folder(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the files that the page has its reader save."""
    place = tmp_path_factory.mktemp("first_day")
    for name, text in re.findall(
        r"Save (?:it|this) as `(\S+)`:\n\n```\w+\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def environment(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The wheel and its commands before everything else."""
    wheels, site = (tmp_path_factory.mktemp(name) for name in ("wheel", "site"))
    wheel = built(repository, wheels)
    pip("install", "--no-deps", "--no-index", "--target", str(site), str(wheel), cwd=site)
    path = f"{site / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PYTHONPATH": str(site), "PATH": path, "OMP_NUM_THREADS": "1"}


def shell(script: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ("bash", "-e", "-c", script),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3 * TIMEOUT_S)
def test_the_first_day(page: Path, folder: Path, environment: dict[str, str]) -> None:
    where = "import dgc_repro; print(dgc_repro.__file__)"
    assert "/site" in shell(f'python -c "{where}"', folder, environment)
    table, sweep, dashboard, cluster_run = blocks(page, "bash")
    assert "launch=slurm" in cluster_run

    said = shell(table, folder, environment)
    assert "page: reproduced/dynamic/custom/table1/table.md" in said
    assert (folder / "reproduced/dynamic/custom/table1/table1.png").is_file()

    said = shell(sweep, folder, environment)
    finished = list(folder.glob("runs/strided-*/summary.json"))
    assert len(finished) == 4
    assert "failed" not in said
    assert (folder / "runs" / "compare.png").is_file()

    assert shell(dashboard, folder, environment).count("offline-run-") >= 8

    (cell,) = blocks(page, "py")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbformat.write(notebook, folder / "first_day.ipynb")
    shell("jupyter-execute first_day.ipynb", folder, environment)
    assert (folder / "first_day.png").is_file()


@pytest.mark.slow
@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")
def test_the_run_through_slurm(
    page: Path, folder: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    with cluster(tmp_path / "cluster") as place:
        path = f"{environment['PATH']}:{place['PATH']}"  # the wheel's commands first, then Slurm's
        said = shell(blocks(page, "bash")[-1], folder, environment | place | {"PATH": path})
    assert "submitted job" in said
    assert "run folder: runs/strided-" in said
