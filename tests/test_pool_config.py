"""conf/: GraVAC's pool of training runs: every model with every method, at every scale, and the artifacts
that are made of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import configured

from dgc_repro.dataset.batches import steps_per_epoch
from dgc_repro.dataset.text import text_steps_per_epoch
from dgc_repro.errors import UserError
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.paths import conf_dir
from dgc_repro.launch.reproduction import runs_of
from dgc_repro.launch.rules import validate
from dgc_repro.launch.settings import component
from dgc_repro.names import defaults_of_component
from dgc_repro.optimizer.sam import SAM
from dgc_repro.paper.facts import FULL_MODELS
from dgc_repro.paper.gravac import EPS_SWEEP
from dgc_repro.paper.gravac import MODELS as NAMES
from dgc_repro.paper.publish import pools_of, published
from dgc_repro.train.settings import SGD

pytestmark = pytest.mark.slow

PUBLISHED = conf_dir().parent / "results"
MODELS = ("resnet101", "vgg16", "lstm")
PARAMETERS = {model: FULL_MODELS[name][1] for model, name in NAMES.items()}
FACTORS = {"topk", "dgc", "redsync", "randomk"}
POOLED = {
    *("table2", "table4", "fig1b", "fig2", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9"),
    *("fig10", "fig11", "gains"),
}


def row_config(model: str, method: str, scale: str, *more: str) -> dict[str, Any]:
    return configured(
        f"experiment=gravac/{model}",
        f"method=gravac/{method.removeprefix('gravac/')}",
        f"scale=gravac/{model}/{scale}",
        *more,
    )


def parameters(config: dict[str, Any], classes: int) -> int:
    with torch.device("meta"):
        module = component(config["model"], "model").build(classes)
    return sum(p.numel() for p in module.parameters())


def test_the_papers_hyper_parameters_are_those_of_the_paper() -> None:
    found = {model: row_config(model, "gravac07", "paper") for model in MODELS}
    batches = {model: config["train"]["batch_size"] for model, config in found.items()}
    decays = {model: config["optimizer"]["weight_decay"] for model, config in found.items()}
    assert batches == {"resnet101": 32, "vgg16": 32, "lstm": 20}
    assert {config["optimizer"]["lr"] for config in found.values()} == {0.1}
    assert {config["optimizer"]["clip_norm"] for config in found.values()} == {None}
    assert decays == {"resnet101": 1e-4, "vgg16": 5e-4, "lstm": 1e-4}
    for model, config in found.items():
        assert parameters(config, 10) == PARAMETERS[model]
        assert config["launch"]["workers"] == 32
        policy = config["policy"]
        assert (policy["theta_min"], policy["theta_max"], policy["window"]) == (10, 1000, 500)
        assert (policy["eps"], policy["omega"], policy["smoothing"]) == (0.7, 0.01, None)
    assert found["vgg16"]["dataset"]["_target_"].endswith("Cifar100")
    geometric = row_config("resnet101", "gravac_geometric", "paper")["policy"]
    assert (geometric["theta_max"], geometric["window"], geometric["ratio"]) == (2000, 2000, 2)
    randomk = row_config("resnet101", "randomk_gravac_norm", "paper")["policy"]
    assert (randomk["theta_min"], randomk["theta_max"], randomk["gain"]) == (1.5, 1000, "norm")


def test_the_learning_rate_of_resnet_falls_at_the_papers_iterations() -> None:
    config = row_config("resnet101", "dense", "paper")
    schedule = component(config["schedule"], "schedule")
    steps = steps_per_epoch(45_000, 32, 32)
    factors = [schedule.factor(step / steps, 419) for step in (8_999, 9_000, 13_999, 14_000)]
    assert factors == pytest.approx([1.0, 0.1, 0.1, 0.01])
    for model in ("vgg16", "lstm"):
        constant = component(row_config(model, "dense", "paper")["schedule"], "schedule")
        assert constant.factor(400, 419) == 1.0


def steps_of(config: dict[str, Any]) -> tuple[int, int]:
    """(steps an epoch, epochs)."""
    data, batch, workers = config["dataset"], config["train"]["batch_size"], 4
    if "bptt" in data:
        each = text_steps_per_epoch(data["train_size"], data["bptt"], batch, workers)
    else:
        each = steps_per_epoch(data["train_size"], batch, workers)
    return each, config["train"]["epochs"]


@pytest.mark.parametrize("model", MODELS)
def test_small_is_a_thousand_steps_with_ten_evaluations_or_more_and_quick_is_sixty(
    model: str,
) -> None:
    config = row_config(model, "gravac07", "small")
    each, epochs = steps_of(config)
    assert 50 <= each <= 100
    assert epochs >= 10
    assert each * epochs == pytest.approx(1000, abs=10)
    assert (config["launch"]["workers"], config["launch"]["threads"]) == (4, 1)
    # The windows shrink more slowly than the steps: 36 windows of the paper would be 28 steps each.
    # The smoothing is that of the paper's 32 workers.
    assert (config["policy"]["window"], config["policy"]["smoothing"]) == (50, 0.32)
    each, epochs = steps_of(row_config(model, "dense", "quick"))
    assert each * epochs == 60


@pytest.mark.parametrize(
    ("model", "scale"),
    [
        *((model, scale) for model in ("resnet101", "vgg16") for scale in ("quick", "small")),
        ("lstm", "quick"),  # at small the vocabulary is the Penn Treebank's valid file's
    ],
)
def test_messages_of_a_slim_network_are_modelled_as_the_full_ones(model: str, scale: str) -> None:
    config = row_config(model, "dense", scale)
    # Words of the embedded text under Python 3.11; other versions have other docstrings.
    classes = 2114 if model == "lstm" else 10
    ratio = PARAMETERS[model] / parameters(config, classes)
    assert config["network"]["message_scale"] == pytest.approx(ratio, rel=0.005)


# -- artifacts -------------------------------------------------------------------------------------


@functools.cache
def listed(name: str, *given: str) -> list[dict[str, Any]]:
    """Configs of seed 0."""
    return [config for config, _ in runs_of(f"gravac/{name}", [*given, "seed=0"])]


def jobs(name: str, *given: str) -> dict[str, dict[str, Any]]:
    """The same by row."""
    return {config["experiment"]["row"]: config for config in listed(name, *given)}


def check_runs(artifact: str, scale: str, configs: Sequence[dict[str, Any]]) -> None:
    """The runs of an artifact are valid, have rows of their own and lie in its pool. A published row keeps
    its wrappers, whatever its compressor brings."""
    paper, name = artifact.split("/")
    known = {key.rpartition("-")[0]: run for key, run in published(PUBLISHED, paper, scale).items()}
    for config in configs:
        validate(config)
        place = (config["experiment"]["paper"], config["experiment"]["artifact"])
        assert place in [(paper, pool) for pool in pools_of(paper, name)]
        assert config["scale"]["name"] == scale
        run = known.get(run_folder(config).name.rpartition("-")[0])
        assert run is None or config["wrap"] == run.config["wrap"]
    assert len({config["experiment"]["row"] for config in configs}) == len(configs)


def test_a_row_is_the_same_run_in_every_artifact() -> None:
    seen: dict[str, Path] = {}
    for name in sorted(POOLED):
        check_runs(f"gravac/{name}", "small", listed(name, "scale=small"))
        for row, config in jobs(name, "scale=small").items():
            assert seen.setdefault(row, run_folder(config)) == run_folder(config), (name, row)
            assert config["network"]["as_workers"] == 32
            assert config["train"]["step_time"] == "modelled"
            assert config["optimizer"]["reference_batch"] is None
    static = {f"{m}{f}" for m in FACTORS for f in (10, 100, 1000)}
    of_all = {
        *static, "dense", "dense_variance", "gravac07", "gravac09", "accordion", "dgc10_gains",
        "dgc1000_gains", *EPS_SWEEP,
    }  # fmt: skip
    of_resnet = {
        "gravac_geometric", "gravac07_bucket", "randomk_gravac_fed", "randomk_gravac_norm",
        "randomk_accordion", "gravac_geometric_norm", "gravac07_short",
        *(f"topk{factor}_gains" for factor in (10, 100, 1000)),
    }  # fmt: skip
    wanted = {f"{model}.{method}" for model in MODELS for method in of_all}
    assert set(seen) == wanted | {f"resnet101.{method}" for method in of_resnet}
    assert len(set(seen.values())) == len(seen)


def test_table2_has_thirteen_rows_a_model_each_at_its_models_scale() -> None:
    found = jobs("table2", "scale=small")
    assert len(found) == 39
    for row, config in found.items():
        assert config["scale"]["family"] == f"gravac/{row.partition('.')[0]}"
    for config in jobs("fig10", "train.epochs=2").values():  # what is given goes to every line
        assert (config["train"]["epochs"], config["scale"]["name"]) == (2, "custom")
    with pytest.raises(UserError, match=r"^scale: its short name.*got scale=gravac/lstm/quick"):
        runs_of("gravac/table2", ["scale=gravac/lstm/quick"])


def test_scale_low_is_the_recipe_in_the_place_of_resnet101_and_keeps_the_papers_windows() -> None:
    recipe = configured("experiment=recipe/low", "scale=none")
    for name, rows in (("table2", 13), ("fig7", 11), ("gains", 4)):
        found = jobs(name, "scale=low")
        check_runs(f"gravac/{name}", "low", list(found.values()))
        assert len(found) == rows
        assert {row.partition(".")[0] for row in found} == {"resnet101"}
        for config in found.values():
            for group in ("model", "dataset", "optimizer", "schedule"):
                assert config[group] == recipe[group]
            assert config["scale"]["seeds"] == [0, 1, 2, 3, 4]
            assert config["train"] == recipe["train"] | {
                "compute_ms": 16,
                "step_time": "modelled",
            }
    images = 50_000 - recipe["dataset"]["validation"]
    steps = steps_per_epoch(images, recipe["train"]["batch_size"], 4) * recipe["train"]["epochs"]
    window = jobs("table2", "scale=low")["resnet101.gravac07"]["policy"]["window"]
    assert window / steps == pytest.approx(500 / 18_000, rel=0.3)
    with torch.device("meta"):
        module = component(recipe["model"], "model").build(10)
    learn = sum(p.numel() for p in module.parameters() if p.requires_grad)
    scale = jobs("table2", "scale=low")["resnet101.dense"]["network"]["message_scale"]
    assert scale == pytest.approx(PARAMETERS["resnet101"] / learn, rel=0.001)


def test_a_setting_that_came_later_has_the_default_of_its_class() -> None:
    """Read from the source, also through a name that another module imports, and through a base class."""
    for cls, target in (
        (SGD, "dgc_repro.train.settings.SGD"),
        (SAM, "dgc_repro.optimizer.sam.SAM"),
    ):
        usual = {
            f.name: f.default
            for f in dataclasses.fields(cls)
            if f.default is not dataclasses.MISSING
        }
        assert defaults_of_component(target) == usual
    for unknown in ("somebody.elses.SGD", "dgc_repro.generalization.measured.Gone", ""):
        assert defaults_of_component(unknown) == {}
