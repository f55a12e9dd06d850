"""conf/: every YAML builds, every component has one, and both know the same settings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from everyday import everyday
from hydra.utils import get_object
from omegaconf import OmegaConf
from test_pool_config import POOLED, check_runs
from tiny_run import FINISHED, SETTINGS, configured, tiny

import dgc_repro.compressor
import dgc_repro.dataset
import dgc_repro.model
import dgc_repro.network
import dgc_repro.optimizer
import dgc_repro.policy
import dgc_repro.study
from dgc_repro.compressor.cast import Cast
from dgc_repro.compressor.eden import DRIVE
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.joined import Joined
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import Rest
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.sparsifier import DensitySparsifier
from dgc_repro.dataset.cifar import Cifar
from dgc_repro.dataset.prose import Prose
from dgc_repro.errors import UserError
from dgc_repro.launch import reproduction
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.overrides import known_keys
from dgc_repro.launch.paths import conf_dir, paper_members
from dgc_repro.launch.reproduction import artifact_node, runs_of
from dgc_repro.launch.rules import validate
from dgc_repro.launch.run import scale_line
from dgc_repro.launch.settings import check as check_sections
from dgc_repro.launch.settings import component
from dgc_repro.launch.worker import make_sink
from dgc_repro.names import papers_in, scale_of
from dgc_repro.optimizer.muon import MatrixMethod
from dgc_repro.optimizer.sgd import Optimizer
from dgc_repro.train import schedule, settings
from dgc_repro.train.stopping import Stopping

CONF = conf_dir()
OVERLAYS = sorted(CONF.rglob("*.yaml"))
MEMBERS_OF_PAPERS = paper_members()
ARTIFACTS = {
    name: node for paper in papers_in(CONF).values() for name, node in paper["artifact"].items()
}
COMPONENTS = {
    path.relative_to(CONF).as_posix(): node
    for path in OVERLAYS
    if path.parent not in (CONF, CONF / "paper")
    for written in [yaml.safe_load(path.read_text(encoding="utf-8")) or {}]
    for node in [written.get("mirror") or written.get("compressor") or written]
    if "_target_" in node
} | {
    f"{name} {part}": study
    for name, node in ARTIFACTS.items()
    for part, study in node.get("study", {}).items()
}
"""Nodes that name a class: members of groups (a compressor's YAML may set more), and parts of studies."""
GROUPS = (
    *("model", "dataset", "compressor", "policy", "optimizer", "schedule", "launch", "network"),
    *("sink", "generalization", "recipe"),
)
MEMBERS = [f"{group}={path.stem}" for group in GROUPS for path in sorted(CONF.glob(f"{group}/*"))]
EXPERIMENTS = [
    name.removeprefix("experiment/")
    for name in MEMBERS_OF_PAPERS
    if name.startswith("experiment/") and name != "experiment/gravac/low"
]
READ_TEXT = {"gravac/table3_lstm", *(f"lecture/batch_size_{m}" for m in ("lstm", "transformer"))}
"""Experiments whose data set stands in the lines of their artifacts."""
TRAINED = [name for name, node in ARTIFACTS.items() if not {"study", "measure"} & set(node)]
MADE_BY_THE_BUILDER = {Ladder, Sharded, DRIVE, Joined, Rest}
"""Components that no YAML names: a policy's field and values make them, exchange.aggregation, exchange.unit,
or a `PerLayer`; DRIVE is `EDEN` with one bit, which conf/compressor/drive.yaml says."""
SHARED = {Cast, DensitySparsifier, Cifar, Prose, Optimizer, MatrixMethod}
"""What several components inherit from."""


def name_of(path: Path) -> str:
    return path.relative_to(CONF).as_posix()


def component_classes() -> set[type]:
    """Every public frozen dataclass of the component packages that can be built from a config."""
    modules = [schedule]
    for package in (
        *(dgc_repro.compressor, dgc_repro.dataset, dgc_repro.model, dgc_repro.network),
        *(dgc_repro.policy, dgc_repro.study, dgc_repro.optimizer),
    ):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            modules.append(importlib.import_module(found.name))
    verbs = ("load", "build", "plan", "factor", "worker_rates", "run", "measure")
    classes: set[type] = set()
    for module in modules:
        for name, item in inspect.getmembers(module, inspect.isclass):
            is_ours = item.__module__ == module.__name__ and not name.startswith("_")
            if item is Context:
                continue  # it has a plan, and is no policy
            if not is_ours or not dataclasses.is_dataclass(item):
                continue
            if issubclass(item, Compressor) or any(hasattr(item, v) for v in verbs):
                classes.add(item)
    return classes


def test_an_overlay_begins_with_a_comment_that_says_what_it_is() -> None:
    for path in OVERLAYS:
        lines = path.read_text(encoding="utf-8").splitlines()
        first = lines[1] if lines[0].startswith("# @package") else lines[0]
        assert re.match(r"# \w.{10,}", first), f"{name_of(path)}: {first!r}"


@pytest.mark.parametrize("node", COMPONENTS.values(), ids=COMPONENTS)
def test_the_fields_of_a_yaml_are_the_fields_of_its_class(node: dict[str, Any]) -> None:
    known = {f.name for f in dataclasses.fields(get_object(node["_target_"])) if f.init}
    assert set(node) - {"_target_"} == known - {"inner"}  # what a wrapper wraps is no setting


NOT_DEFAULT: dict[str, dict[str, Any]] = {"vgg16": {"batch_norm": False}}


@pytest.mark.parametrize("path", [*CONF.glob("model/*"), *CONF.glob("dataset/*")], ids=name_of)
def test_the_yaml_of_a_model_or_data_set_gives_every_field_its_default(path: Path) -> None:
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    made = get_object(written.pop("_target_"))(**NOT_DEFAULT.get(path.stem, {}))
    defaults = dataclasses.asdict(made)
    assert written == {k: list(v) if isinstance(v, tuple) else v for k, v in defaults.items()}


def test_every_component_has_a_yaml_and_every_yaml_a_component() -> None:
    named = {
        get_object(node["_target_"]) for name, node in COMPONENTS.items() if "sink" not in name
    }
    assert named == component_classes() - MADE_BY_THE_BUILDER - SHARED


def test_the_table_of_settings_plays_every_compressor_wrapper_and_policy() -> None:
    played = " ".join(" ".join(overrides) for overrides in SETTINGS.values())
    words = {*re.findall(r"\w+", played), "fixed"}  # a policy that plans nothing is the default
    for group in ("compressor", "wrapper", "policy"):
        for path in CONF.glob(f"{group}/*.yaml"):
            assert path.stem in words, f"tests/tiny_run.py: SETTINGS has no {group} {path.stem}"


@pytest.mark.parametrize("override", MEMBERS)
def test_a_member_of_a_group_composes_and_builds(override: str) -> None:
    needs = {
        "policy=stepwise": ["compressor=uniform"],
        "policy=warmup": ["compressor=topk"],
        "policy=scheduled": ["compressor=topk"],
        "policy=accordion": ["compressor=topk"],
        "policy=adaqs": ["compressor=uniform"],
        "optimizer=dion": ["compressor=dion"],
        "policy=gravac": ["compressor=topk"],
        "policy=scadles": ["compressor=topk"],
        "policy=oracle": ["compressor=topk", f"policy.runs=['{FINISHED}',null]"],
        "model=lstm": ["scale=text/quick"],
        "model=transformer": ["scale=text/quick"],
        "model=gpt": ["scale=text/quick"],
        "dataset=descriptions": ["scale=text/quick"],
        "dataset=pydoc": ["scale=text/quick"],
        "dataset=ptb": ["scale=text/quick"],
        "dataset=shakespeare": ["model=gpt", "dataset.bptt=16"],
        "recipe=gpt": ["scale=recipe/text/quick"],
        "recipe=char_lstm": ["scale=recipe/text/quick"],
        "launch=netlab": ["network=ethernet_1gbit"],
        "generalization=measured": ["model=cnn"],
    }
    config = configured(override, *needs.get(override, []))
    validate(config)
    make_sink(config)


@pytest.mark.parametrize("experiment", everyday(EXPERIMENTS, *EXPERIMENTS[::3]))
def test_an_experiment_composes_at_the_small_scale_of_its_family(experiment: str) -> None:
    stated = MEMBERS_OF_PAPERS[f"experiment/{experiment}"]
    family = stated.get("family", "text" if experiment in READ_TEXT else "")
    config = configured(f"experiment={experiment}", f"scale={family}/small".replace("=/", "="))
    validate(config)
    assert (config["scale"]["name"], config["scale"].get("family", "")) == ("small", family)
    sizes = scale_of(family, "small")
    assert sizes is not None
    for group in ("model", "dataset", "train"):
        for key, value in sizes.get(group, {}).items():
            assert config[group][key] == value


def test_an_artifact_of_a_family_takes_its_scales_by_their_short_names() -> None:
    for given in ([], ["scale=small"]):
        for config, overrides in runs_of("lecture/ptb", [*given, "seed=0"]):
            name = "small" if given else "quick"
            assert (config["scale"]["name"], config["scale"]["family"]) == (name, "text")
            assert f"scale=text/{name}" in overrides
            assert config["model"]["_target_"].endswith("LSTM")


def test_a_scale_of_a_recipe_takes_its_sizes_from_the_yaml_files() -> None:
    config = configured("scale=air")
    assert scale_line(config) == "scale=air: dataset=cifar10, sizes of the YAML files"
    custom = {**config, "scale": {"name": "custom"}}
    assert scale_line(custom).endswith(", sizes depart from every stated scale")


def test_without_a_scale_sizes_are_the_components_and_what_is_given_wins_over_a_scale() -> None:
    config = configured("scale=none", "model=vgg16", "dataset=cifar10", "train.epochs=2")
    for group, name in (("model", "vgg16"), ("dataset", "cifar10")):
        assert config[group] == yaml.safe_load((CONF / group / f"{name}.yaml").read_text("utf-8"))
    config = configured("scale=small", "dataset=digits", "train.epochs=3", "model.width=16")
    assert config["dataset"]["_target_"].endswith("Digits")
    assert (config["train"]["epochs"], config["model"]["width"]) == (3, 16)


# -- what a compressor's YAML sets for its method --------------------------------------------------


def test_a_compressor_may_bring_its_policy_optimizer_settings_and_unit() -> None:
    config = configured("compressor=dgc")
    assert config["policy"]["_target_"].endswith("Warmup")
    assert config["optimizer"]["momentum"] == 0
    leaf = configured("compressor=dgc", "policy=fixed")["compressor"]
    sampled = configured("compressor=dgc_sampled")["compressor"]
    assert leaf == sampled | {"density": 0.001}
    validate(config)
    exchange = configured("compressor=magnitude")["exchange"]
    assert (exchange["unit"], exchange["overlap"]) == ("model", False)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("compressor/*.yaml")))
def test_a_compressor_brings_error_feedback_if_its_paper_uses_it(name: str) -> None:
    config = configured(f"compressor={name}")
    method = component(config["compressor"], "compressor")
    assert getattr(method, "needs_feedback", False) == ("error_feedback" in config["wrap"])


def test_random_k_without_bias_says_how_to_leave_the_error_feedback_out() -> None:
    unbiased = ("compressor=randomk", "compressor.unbiased=true")
    with pytest.raises(
        UserError, match=r"RandomK.*; leave error_feedback out \(wrap=\[per_layer\]\)$"
    ):
        validate(configured(*unbiased))
    validate(configured(*unbiased, "wrap=[per_layer]"))


@pytest.mark.parametrize(
    ("given", "section", "key", "value"),
    [
        ("wrap=[error_feedback]", "wrap", None, ["error_feedback"]),
        ("policy=fixed", "policy", "_target_", "dgc_repro.policy.fixed.Fixed"),
        ("optimizer.momentum=0.5", "optimizer", "momentum", 0.5),
        ("exchange.unit=model", "exchange", "unit", "model"),
    ],
)
def test_the_command_line_wins_over_a_compressors_own_defaults(
    given: str, section: str, key: str | None, value: object
) -> None:
    by_itself, with_given = configured("compressor=dgc"), configured("compressor=dgc", given)
    found = with_given[section] if key is None else with_given[section][key]
    assert found == value
    same = {s for s in by_itself if by_itself[s] == with_given[s]}
    assert set(by_itself) - same == {section}


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[[str], str]:
    """Makes an experiment of this text; the override that adds its folder."""

    def write(text: str) -> str:
        path = tmp_path / "experiment" / "mine.yaml"
        path.parent.mkdir()
        path.write_text(f"# @package _global_\n# Mine.\n{text}", encoding="utf-8")
        return f"hydra.searchpath=[file://{tmp_path}]"

    return write


def test_an_experiment_wins_over_its_compressor_and_loses_to_the_command_line(
    experiment: Callable[[str], str],
) -> None:
    place = experiment(
        "defaults:\n  - override /compressor: dgc\n  - override /policy: fixed\n  - _self_\n"
        "experiment: {paper: none, artifact: custom, row: mine}\n"
        "wrap: [momentum_correction, error_feedback]\n"
        "exchange: {unit: model}\noptimizer: {weight_decay: 1.0e-4}\n"
    )
    config = configured("experiment=mine", place)
    assert config["wrap"] == ["momentum_correction", "error_feedback"]
    assert config["policy"]["_target_"].endswith("Fixed")
    assert config["exchange"]["unit"] == "model"
    assert config["optimizer"]["momentum"] == 0  # the compressor's: the experiment is silent
    assert config["optimizer"]["weight_decay"] == 1e-4
    validate(config)
    given = ("wrap=[error_feedback]", "policy=warmup", "exchange.unit=layer")
    config = configured("experiment=mine", place, *given)
    assert config["wrap"] == ["error_feedback"]
    assert config["policy"]["_target_"].endswith("Warmup")
    assert config["exchange"]["unit"] == "layer"


def test_an_experiments_own_policy_is_not_replaced_by_its_compressors(
    experiment: Callable[[str], str],
) -> None:
    place = experiment(
        "defaults:\n  - override /compressor: uniform\n  - override /policy: stepwise\n  - _self_\n"
        "experiment: {paper: none, artifact: custom, row: mine}\nwrap: [error_feedback]\n"
    )
    config = configured("experiment=mine", place, "compressor=dgc", "policy.field=density")
    assert config["policy"]["_target_"].endswith("Stepwise")
    assert config["wrap"] == ["error_feedback"]


def test_a_default_that_is_given_is_the_same_run() -> None:
    given = ("wrap=[momentum_correction,per_layer,error_feedback]", "policy=warmup")
    assert config_hash(configured("compressor=dgc")) == config_hash(
        configured("compressor=dgc", *given)
    )
    others = [(), ("policy=fixed",), ("wrap=[momentum_correction,error_feedback]",)]
    runs = {config_hash(configured("compressor=dgc", *other)) for other in others}
    assert len(runs) == 3


def test_a_line_of_an_artifact_with_a_seed_belongs_to_that_seed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "experiment=lecture/large_batch optimizer.lr"
    artifact = {"sweeps": [f"{line}=0.1,0.3 seed=0", f"{line}=0.2"], "sizes": {"small": []}}
    monkeypatch.setattr(reproduction, "artifact_node", lambda name: OmegaConf.create(artifact))

    def found(*given: str) -> list[tuple[int, float]]:
        jobs = runs_of("lecture/large_batch", ["scale=small", *given])
        return [(config["seed"], config["optimizer"]["lr"]) for config, _ in jobs]

    assert found("scale.seeds=[0,1]") == [(0, 0.1), (0, 0.3), (0, 0.2), (1, 0.2)]
    assert found("seed=1") == [(1, 0.2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("artifact", "scale"),
    [  # at small: tests that compose these runs anyway, test_pool_config.py and predict/test_recommend.py
        (artifact, scale)
        for artifact in TRAINED
        for scale in artifact_node(artifact).sizes
        if scale != "small" or artifact.partition("/")[2] not in (*POOLED, "methods")
    ],
)
def test_the_runs_of_an_artifact_are_different_and_all_valid(artifact: str, scale: str) -> None:
    found = runs_of(artifact, [f"scale={scale}", "seed=0"])
    check_runs(artifact, scale, [config for config, _ in found])


def test_the_sections_that_are_not_components_have_the_keys_that_are_read() -> None:
    config = configured()
    check_sections(config)
    train = {field.name for field in dataclasses.fields(settings.TrainSettings)}
    assert set(config["train"]) == train
    assert config["stopping"] == dataclasses.asdict(Stopping())


def test_the_keys_that_a_typo_is_compared_with_are_the_keys_there_are() -> None:
    some = {"compressor.bits", "policy.values", "train.epochs", "launch.workers"}
    assert some <= set(known_keys())
    assert not [key for key in known_keys() if key.startswith(("hydra", "paper", "experiment/"))]


# -- nonsense ------------------------------------------------------------------------------------


def test_a_key_that_nothing_reads_is_refused() -> None:
    for section in ("compressor", "policy", "optimizer", "schedule", "dataset", "model", "train"):
        config = tiny()
        config[section]["nothing"] = 1
        with pytest.raises(UserError, match=rf"^{section}\b.*nothing"):
            validate(config)
    for section in ("", "launch", "exchange", "paths"):
        config = tiny()
        (config[section] if section else config)["chek"] = True
        with pytest.raises(UserError, match=r"chek: no such key"):
            validate(config)


def test_an_edited_component_of_ones_own_makes_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "own_method_of_a_test.py"
    source.write_text("class Own:\n    pass\n", encoding="utf-8")
    config = configured("compressor=dense")
    inside = config_hash(config)
    own = {**config, "compressor": {"_target_": "own_method_of_a_test.Own"}}
    before = config_hash(own)
    assert config_hash(own) == before
    source.write_text("class Own:\n    fixed = True\n", encoding="utf-8")
    assert config_hash(own) != before
    source.unlink()
    config_hash(own)  # a record of a method that is gone is still read
    assert config_hash(config) == inside


IDLE = """
from dataclasses import dataclass
from dgc_repro.policy.fixed import Fixed

@dataclass(frozen=True)
class Idle:
    field = None
    values = ()
    chooses = False
    watches = None
    init, plan, observe, choose, after_step = (
        getattr(Fixed, name) for name in ("init", "plan", "observe", "choose", "after_step")
    )
"""


def test_an_own_policy_does_not_inherit_the_keys_of_the_one_that_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "idle_policy_of_a_test.py").write_text(IDLE, encoding="utf-8")
    own = "policy._target_=idle_policy_of_a_test.Idle"
    validate(configured(own))
    with pytest.raises(UserError, match=r"^policy\.rung: no such key"):
        validate(configured(own, "policy.rung=1"))
