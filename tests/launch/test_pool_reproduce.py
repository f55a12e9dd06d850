"""`reproduce` of artifacts that share their runs: none is trained twice, published records count."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dgc_repro.checksums import sealed_summary
from dgc_repro.errors import UserError
from dgc_repro.launch import reproduce as reproducing
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.reproduce import OPTIONAL_RUNS, _pool, reproduce, runs_of
from dgc_repro.launch.worker import read_config
from dgc_repro.paper import pool
from dgc_repro.paper.frame import lines
from dgc_repro.paper.gravac import fig7_11, table4
from dgc_repro.paper.page import Page
from dgc_repro.paper.records import Run

pytestmark = pytest.mark.slow

TINY = (
    *("sink=none", "model.width=2", "model.blocks=[1,1,1,1]", "dataset.train_size=128"),
    *("dataset.validation=40", "dataset.test_size=40", "train.epochs=2", "launch.device=cpu"),
)  # two steps an epoch of 14 layers


@pytest.fixture
def rows(trained: list[Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The rows trained since the last call; pages only list their rows."""

    def listed(runs: Sequence[Run], scale: str) -> Page:
        """A page that only lists its rows."""
        return Page(" ".join(run.row for run in runs), scale, runs, (), (), (), lines([]))

    for module in (fig7_11.ARTIFACTS["fig10"], fig7_11.ARTIFACTS["fig11"], table4):
        monkeypatch.setattr(module, "page", listed)
    _pool.cache_clear()

    def since() -> list[str]:
        found = [read_config(folder)["experiment"]["row"] for folder in trained]
        trained.clear()
        return found

    return since


FIG10 = ["resnet101.dense", "resnet101.gravac07", "resnet101.gravac_geometric"]
FIG10 += ["resnet101.gravac07_norm", "resnet101.gravac_geometric_norm"]
FIG11 = ["resnet101.randomk_gravac_fed", "resnet101.randomk_gravac_norm"]
FIG11 += ["resnet101.randomk_accordion"]


def titled(folder: Path) -> list[str]:
    """The rows that a listed page names, each once for each run."""
    return sorted(pool.records(folder.parent)[folder.name]["title"].split())


@pytest.mark.timeout(900)
def test_a_run_is_trained_once_for_all_artifacts(
    rows: Callable[[], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(["gravac/fig10", *TINY, "publish=true"])
    assert rows() == FIG10
    assert not (tmp_path / "reproduced").exists()
    published = tmp_path / "results" / "gravac" / "custom"
    assert titled(published / "fig10") == sorted(FIG10)
    runs = {run.method: run for run in pool.read(published)}
    assert len(runs["gravac07"].decisions)
    assert runs["dense"].decisions.empty

    # The runs are gone, as on another machine: the published record is as good.
    shutil.rmtree(tmp_path / "runs")
    reproduce(["gravac/fig11", *TINY, "published=true", "publish=true"])
    assert rows() == FIG11
    assert "already published: gravac-training-resnet101.dense" in capsys.readouterr().out
    assert titled(published / "fig11") == sorted(["resnet101.dense", *FIG11])

    # An artifact made again of its own records is what it was.
    page = published / "fig10" / "table.md"
    before = page.read_bytes()
    _pool.cache_clear()
    made = tmp_path / "reproduced" / "gravac" / "custom" / "fig10"
    reproduce(["gravac/fig10", *TINY, "published=true"])
    assert rows() == []
    assert (made / "table.md").read_bytes() == before

    # Unless it is asked for, what is printed was measured here.
    reproduce(["gravac/fig10", *TINY])
    assert rows() == FIG10

    # Finished optional runs are used, and never trained.
    listed = [config for config, _ in runs_of("gravac/fig10", TINY, OPTIONAL_RUNS)]
    optional_runs = {config["experiment"]["row"].partition(".")[2]: config for config in listed}
    assert optional_runs["dense"]["scale"]["seeds"] == [0, 1, 2]
    for method, seed in (("dense", 2), ("dgc10", 0), ("dgc10", 2)):
        other = {**optional_runs[method], "seed": seed}
        copy = tmp_path / run_folder(other)
        shutil.copytree(tmp_path / run_folder(optional_runs["dense"]), copy)
        (copy / "config.yaml").write_text(yaml.safe_dump(other))
        summary = copy / "summary.json"
        summary.write_bytes(sealed_summary(summary, json.loads(summary.read_bytes())))
    reproduce(["gravac/fig10", *TINY])
    assert rows() == []
    others = ["resnet101.dense", "resnet101.dgc10"]  # of dgc10 the artifact's own seed alone
    assert titled(made) == sorted([*FIG10, *others])
    assert page.read_bytes() == before  # nothing was published since


def test_machines_share_the_runs_of_an_artifact(
    rows: Callable[[], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="^publish: a share has no page to publish"):
        reproduce(["gravac/fig11", *TINY, "share=2/2", "publish=true"])
    assert rows() == []
    reproduce(["gravac/fig11", *TINY, "share=2/2"])
    assert capsys.readouterr().out.endswith(
        "share 2 of 2 is finished; run the same command without share to make the page\n"
    )
    assert rows() == FIG11[::2]
    assert not (tmp_path / "reproduced" / "gravac" / "custom").exists()
    reproduce(["gravac/fig11", *TINY, "share=1/2"])
    assert rows() == ["resnet101.dense", FIG11[1]]
    reproduce(["gravac/fig11", *TINY])
    assert rows() == []
    for wrong in ("3/2", "0/2", "half", "1/9"):
        with pytest.raises(UserError, match="share: a"):
            reproduce(["gravac/fig11", *TINY, f"share={wrong}"])


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
