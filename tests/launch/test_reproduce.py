"""`reproduce` from end to end on small runs that the trainer itself has written: none is trained twice."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_run import TINY

from dgc_repro.checksums import sealed_summary
from dgc_repro.errors import UserError
from dgc_repro.launch import reproduce as reproducing
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.new_paper import files
from dgc_repro.launch.paths import _ADDED
from dgc_repro.launch.reproduce import reproduce
from dgc_repro.launch.reproduction import OPTIONAL_RUNS, runs_of
from dgc_repro.launch.run import finished
from dgc_repro.launch.worker import read_config
from dgc_repro.paper import pool
from dgc_repro.paper.frame import lines
from dgc_repro.paper.page import Page
from dgc_repro.paper.publish import artifact_of
from dgc_repro.paper.records import Run

ROWS = ("none", "static8", "dynamic", "static8_ef", "dynamic_ef")


def test_trained_runs_become_a_table_and_are_not_trained_again(
    trained: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["dynamic/table1", *TINY, "train.epochs=4", "seed=3"]
    reproduce(command)
    assert len(trained) == len(ROWS)
    # Neither the quick scale nor any other: too small to be called by its name.
    published = Path("reproduced/dynamic/custom/table1")
    printed = capsys.readouterr().out
    assert "claims:" in printed
    assert "[1/5] dynamic/table1 none, seed 3\n" in printed
    assert re.search(r"\[4/5\] dynamic/table1 static8_ef, seed 3, about \d+ s left\n", printed)
    assert str(published) in printed

    with (published.parent / "numbers.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["quantity"] == "test accuracy"]
    assert [line["row"] for line in lines] == list(ROWS)
    for line, folder in zip(lines, trained, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        assert float(line["mean"]) == pytest.approx(summary["test/accuracy_percent"], rel=1e-9)
        assert (line["n"], line["scale"]) == ("1", "custom")
    record = json.loads((published.parent / "verdicts.json").read_text())["table1"]
    assert record["runs"] == [folder.name for folder in trained]
    words = {"indicative (+)", "indicative (-)", "not tested", "cannot follow"}
    assert {v["verdict"] for v in record["verdicts"]} <= words
    assert (published / "table1.png").stat().st_size > 0

    reproduce(command)
    assert len(trained) == len(ROWS)
    assert " left\n" not in capsys.readouterr().out


def test_a_pool_without_checksums_is_said_before_anything_is_trained(trained: list[Path]) -> None:
    place = Path("reproduced/dynamic/custom")
    place.mkdir(parents=True)
    (place / "runs.parquet").write_bytes(b"of an older version")
    with pytest.raises(UserError, match="no SHA256SUMS"):
        reproduce(["dynamic/table1", *TINY, "train.epochs=4", "seed=3"])
    assert trained == []


def test_a_page_keeps_the_seeds_that_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgc_repro.launch.run.read_run", lambda folder: folder)
    (job, *_), others = runs_of("dynamic/table1", TINY), [12, 1]
    config, optimizer = job.config, {**job.config["optimizer"], "lr": 0.2}
    known = {}
    for seed, status, more in (
        *((seed, "finished", {}) for seed in (config["seed"], *others)),
        (13, "stopped", {}),
        (14, "finished", {"optimizer": optimizer}),
    ):
        known[seed] = run_folder({**config, "seed": seed, **more})
        known[seed].mkdir(parents=True)
        summary = {"status": status, "results_version": 1}
        (known[seed] / "summary.json").write_text(json.dumps(summary))
    wanted = {known[seed] for seed in (config["seed"], *others)}
    assert {*finished([job], [], False)} == wanted  # type: ignore[comparison-overlap]
    stated = job._replace(given=[*job.given, "scale.seeds=[0]"])
    assert len(finished([stated], [], False)) == 1


RUNS = "conf/paper/{paper}.yaml"


@pytest.mark.parametrize(
    ("file", "right", "wrong", "message"),
    [
        (
            "table1.py",
            'Check("test accuracy"',
            'Check("test acc"',
            "claim 1: no quantity 'test acc'",
        ),
        (
            "table1.py",
            "dense   92.96",
            "dense 92.96,",
            "rows: '92.96,' in 'dense 92.96,' is no number",
        ),
        ("table1.py", "margin=1.0", 'margin="1.0"', r"table1: margin: a number, got '1\.0'"),
        ("table1.py", "above=10.0", "abov=10.0", "table1: .*abov"),
        ("table1.py", "page = ", "pages = ", "table1: it has no page; write it"),
        ("table1.py", "page = ", "page = = ", r"table1: SyntaxError: .*table1\.py, line \d+"),
        ("table1.py", "page = ", "page = Artefact\n", r"table1, line \d+: NameError: .*'Artefact'"),
        (
            "table1.py",
            "import Check",
            "import Cheque",
            r"table1, line \d+: ImportError: .*'Cheque'",
        ),
        (
            "table1.py",
            "page = ",
            "import no_such\npage = ",
            r"line \d+: ModuleNotFoundError: .*no_such",
        ),
        (
            RUNS,
            "row: topk",
            "row: random",
            "experiment.row: no row in ROWS 'random'; there are: dense, topk",
        ),
        (RUNS, "artifact: table1, row", "artefact: table1, row", "experiment: .*/table1"),
        (RUNS, "sweeps:", "sweep:", "table1.sweep: no such key; did you mean"),
        (RUNS, "sweeps:\n", "optional_runs:\n", "table1: it has no runs"),
    ],
)
def test_a_mistake_in_a_paper_is_said_before_anything_is_trained(
    file: str, right: str, wrong: str, message: str, trained: list[Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("dgc_repro.launch.paths._ADDED", list(_ADDED))
    paper = f"slip{abs(hash((file, wrong)))}"  # a module of its own
    for name, text in files(paper, "table1").items():
        place = tmp_path / paper / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name == file.format(paper=paper):
            assert right in text
            text = text.replace(right, wrong)
        place.write_text(text)
    with pytest.raises(UserError, match=message):
        reproduce([f"{paper}/table1", *TINY, "train.epochs=1"])
    assert trained == []


# Artifacts that share their runs.

BLOCKS = (
    *("sink=none", "model.width=2", "model.blocks=[1,1,1,1]", "dataset.train_size=128"),
    *("dataset.validation=40", "dataset.test_size=40", "train.epochs=2", "launch.device=cpu"),
)  # two steps an epoch of 14 layers


@pytest.fixture
def rows(trained: list[Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The rows trained since the last call; pages only list their rows."""

    def listed(runs: Sequence[Run], scale: str) -> Page:
        """A page that only lists its rows."""
        return Page(" ".join(run.row for run in runs), scale, runs, (), (), (), lines([]))

    for name in ("fig2", "fig10", "fig11", "table4"):
        monkeypatch.setattr(artifact_of("gravac", name), "page", listed)

    def since() -> list[str]:
        found = [read_config(folder)["experiment"]["row"] for folder in trained]
        trained.clear()
        return found

    return since


QUICK = ("scale=quick", "sink=none")
FIG10 = ["resnet101.dense", "resnet101.gravac07", "resnet101.gravac_geometric"]
FIG10 += ["resnet101.gravac07_norm", "resnet101.gravac_geometric_norm"]
FIG11 = ["resnet101.randomk_gravac_fed", "resnet101.randomk_gravac_norm"]
FIG11 += ["resnet101.randomk_accordion"]


def titled(folder: Path) -> list[str]:
    """The rows that a listed page names, each once for each run."""
    return sorted(pool.records(folder.parent)[folder.name]["title"].split())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_is_trained_once_for_all_artifacts(
    rows: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(["gravac/fig10", *BLOCKS, "publish=true"])
    assert rows() == FIG10
    assert not Path("reproduced").exists()
    published = Path("results/gravac/custom")
    assert titled(published / "fig10") == sorted(FIG10)
    runs = {run.method: run for run in pool.read(published)}
    assert len(runs["gravac07"].decisions)
    assert runs["dense"].decisions.empty

    # The runs are gone, as on another machine: the published record is as good.
    shutil.rmtree("runs")
    reproduce(["gravac/fig11", *BLOCKS, "published=true", "publish=true"])
    assert rows() == FIG11
    assert "already published: gravac-training-resnet101.dense" in capsys.readouterr().out
    assert titled(published / "fig11") == sorted(["resnet101.dense", *FIG11])

    # An artifact made again of its own records is what it was.
    page = published / "fig10" / "table.md"
    before = page.read_bytes()
    made = Path("reproduced/gravac/custom/fig10")
    reproduce(["gravac/fig10", *BLOCKS, "published=true"])
    assert rows() == []
    assert (made / "table.md").read_bytes() == before

    # Unless it is asked for, what is printed was measured here.
    reproduce(["gravac/fig10", *BLOCKS])
    assert rows() == FIG10

    assert page.read_bytes() == before  # nothing was published since

    # Finished optional runs are used, and never trained: dense seeds of figure 2. Its runs are copies here.
    trained = run_folder(runs_of("gravac/fig10", BLOCKS)[0].config)
    own = [config for config, _ in runs_of("gravac/fig2", QUICK)]
    listed = [config for config, _ in runs_of("gravac/fig2", QUICK, OPTIONAL_RUNS)]
    (dense,) = (c for c in listed if c["experiment"]["row"] == "resnet101.dense")
    assert dense["scale"]["seeds"] == [0, 1, 2]
    for other in (*own, {**dense, "seed": 2}):
        copy = shutil.copytree(trained, run_folder(other))
        (copy / "config.yaml").write_text(yaml.safe_dump(other))
        summary = copy / "summary.json"
        summary.write_bytes(sealed_summary(summary, json.loads(summary.read_bytes())))
    reproduce(["gravac/fig2", *QUICK])
    assert rows() == []
    made = Path("reproduced/gravac/quick/fig2")
    assert titled(made) == sorted(["resnet101.dense", *(c["experiment"]["row"] for c in own)])


@pytest.mark.slow
def test_machines_share_the_runs_of_an_artifact(
    rows: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="^publish: a share has no page to publish"):
        reproduce(["gravac/fig11", *BLOCKS, "share=2/2", "publish=true"])
    assert rows() == []
    reproduce(["gravac/fig11", *BLOCKS, "share=2/2"])
    assert capsys.readouterr().out.endswith(
        "share 2 of 2 is finished; run the same command without share to make the page\n"
    )
    assert rows() == FIG11[::2]
    assert not Path("reproduced/gravac/custom").exists()
    reproduce(["gravac/fig11", *BLOCKS, "share=1/2"])
    assert rows() == ["resnet101.dense", FIG11[1]]
    reproduce(["gravac/fig11", *BLOCKS])
    assert rows() == []
    for wrong in ("3/2", "0/2", "half", "1/9"):
        with pytest.raises(UserError, match="share: a"):
            reproduce(["gravac/fig11", *BLOCKS, f"share={wrong}"])


@pytest.mark.slow
def test_each_data_set_lies_where_it_is_said_to(
    rows: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of other data sets are left as they are."""
    seen: dict[str, Any] = {}

    def look(config: dict[str, Any], given: Any) -> Path:
        seen[config["experiment"]["row"]] = config["dataset"].get("root")
        raise UserError("enough")

    monkeypatch.setattr(reproducing, "run_config", look)
    with pytest.raises(UserError, match="enough"):
        reproduce(["gravac/table4", "scale=small", "roots.cifar10=/there", "seed=0"])
    assert seen == {"resnet101.dense": "/there"}
