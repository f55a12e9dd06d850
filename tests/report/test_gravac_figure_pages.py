"""GraVAC's figures as published folders: files, rebuilding, and a terminal's width."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from made_up_decisions import decisions, stretches, write_run
from rich.console import Console

from dgc_repro.errors import UserError
from dgc_repro.report.__main__ import main
from dgc_repro.report.publish import ARTIFACTS, publish, show

FIGURES = ("fig1b", *(f"fig{number}" for number in range(4, 12)))
WITH_REGRET = {"fig7", "fig8", "fig9", "fig10"}
MODELS = {"resnet101": "accuracy", "vgg16": "top5", "lstm": "perplexity"}
FALLS = [0.1] * 10 + [0.01] * 10


def write_pool(runs: Path, seeds: int) -> list[Path]:
    """Every row that these figures show."""
    climbing = stretches((200, 10), (100, 20), (100, 40), (100, 160), (500, 1000))
    geometric = stretches(*((80, 10 * 2**n) for n in range(8)), (360, 2000))
    random = stretches((100, 1.5), (300, 3), (600, 12))
    rows = {
        "dense": (None, 1.0),
        "dense_variance": ([1.0] * 1000, 1.0),
        "dgc10": (None, 0.1),
        "dgc1000": (None, 0.001),
        "dgc10_gains": ([10.0] * 1000, 0.1),
        "dgc1000_gains": ([1000.0] * 1000, 0.001),
        "gravac07": (climbing, 1 / 163),
        "gravac09": (stretches((300, 1), (400, 10), (300, 1000)), 1 / 19),
        "gravac07_norm": (climbing, 1 / 163),
        "gravac09_norm": (climbing, 1 / 100),
    }
    only_resnet = {
        "gravac07_bucket": (climbing, 1 / 160),
        "gravac_geometric": (geometric, 1 / 76),
        "gravac_geometric_norm": (geometric, 1 / 76),
        "randomk_gravac_fed": ([1.0] * 1000, 1.0),
        "randomk_gravac_norm": (random, 1 / 6),
        "randomk_accordion": (None, 1 / 500),
    }
    folders = []
    for model, metric in MODELS.items():
        own = {**rows, **(only_resnet if model == "resnet101" else {})}
        for row, (factors, floats) in own.items():
            for seed in range(seeds):
                wobble = np.random.default_rng(seed)
                decided = None
                if factors is not None:
                    decided = decisions(
                        factors,
                        theta_min=1.5 if "randomk" in row else 10.0,
                        gain=lambda s, w=wobble: np.clip(0.8 + 0.1 * w.normal(size=s.size), 0, 1),
                        norm=lambda s, w=wobble: 0.2 + 0.8 * w.random(s.size),
                        variance=lambda s, w=wobble: 9 * np.exp(-s / 200) + w.random(s.size),
                    )
                folders.append(
                    write_run(
                        runs, f"{model}.{row}", seed=seed, metric=metric, floats=floats,
                        final=90.0 - 5 * floats, decided=decided,
                        lr=FALLS if model == "resnet101" else None,
                    )
                )  # fmt: skip
    return folders


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_pool(tmp_path_factory.mktemp("pool"), seeds=2)


def shown_by(name: str, pool: list[Path]) -> list[Path]:
    """The records of the figure's model; of figure 1b one row of each."""
    if name == "fig1b":
        return [folder for folder in pool if "dense_variance" in folder.name]
    model = {"fig5": "vgg16", "fig8": "vgg16", "fig6": "lstm", "fig9": "lstm"}.get(
        name, "resnet101"
    )
    others = {"fig4": "randomk", "fig7": "randomk", "fig10": "randomk", "fig11": "gains"}
    hidden = others.get(name, "variance")
    return [f for f in pool if f"-{model}." in f.name and hidden not in f.name]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_published_rebuilt_to_the_same_bytes_and_fits_a_terminal(
    name: str, pool: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = publish(shown_by(name, pool), "gravac", name, "small", tmp_path / "results")
    text = (folder / "table.md").read_text()
    assert ("## Regret" in text) == (name in WITH_REGRET)
    figures = [name, *(["regret"] if name in WITH_REGRET else [])]
    assert {path.name for path in folder.iterdir()} == {
        *("records", "table.md", "table.csv", "verdicts.json"),
        *(f"{figure}.{kind}" for figure in figures for kind in ("svg", "png")),
    }
    before = contents(folder)
    assert main([str(folder)]) == 0  # rebuilds it, then prints it
    assert contents(folder) == before
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "…" not in printed
    assert "nan" not in text
    assert "reduced scale: small" in text
    with (folder / "table.csv").open(newline="") as file:
        numbers = list(csv.DictReader(file))
    assert numbers
    assert {number["scale"] for number in numbers} == {"small"}
    assert {v["verdict"] for v in json.loads((folder / "verdicts.json").read_text())} <= {
        *("indicative", "cannot follow", "not run"),
    }


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_one_run_has_dashes_and_no_crash(name: str, tmp_path: Path) -> None:
    record = write_run(tmp_path / "runs", "resnet101.dense")
    folder = publish([record], "gravac", name, "small", tmp_path / "results")
    assert {v["verdict"] for v in json.loads((folder / "verdicts.json").read_text())} <= {
        *("not run", "cannot follow"),
    }
    out = io.StringIO()
    show(folder, Console(width=100, file=out))
    printed = out.getvalue()
    assert "…" not in printed
    assert "nan" not in printed


def test_runs_of_another_artifact_are_not_taken_for_the_pool_s(tmp_path: Path) -> None:
    own = {"experiment": {"paper": "gravac", "artifact": "lab", "row": "resnet101.dense"}}
    record = write_run(tmp_path / "runs", "resnet101.dense", settings=own)
    with pytest.raises(UserError, match="runs of gravac/training/small, got gravac/lab/small"):
        publish([record], "gravac", "fig7", "small", tmp_path / "results")


def test_every_figure_of_the_paper_that_runs_make_is_an_artifact_of_the_pool() -> None:
    for name in FIGURES:
        assert ARTIFACTS["gravac", name].pool == ("gravac", "training")
