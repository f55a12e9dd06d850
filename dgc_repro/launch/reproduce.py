"""``reproduce <paper>/<artifact>``: make the runs an artifact needs, write its page and figures, print them.

They go to ``paths.reproduced``, which git ignores; with ``publish=true``, a maintainer's setting, to
``paths.results``, which is tracked.

``conf/artifact/<paper>/<artifact>.yaml`` lists the runs as Hydra sweeps. Finished runs are found by their
config and not made again. Seeds are the outer loop, so that every row has one number early. A line may name
its family of scales: with ``family=gravac/lstm``, ``scale=small`` means ``scale=gravac/lstm/small`` for it.
With ``published=true`` a run that is not in runs/ is taken from the published pool (paper/pool.py); otherwise
it is trained, and every printed number was measured here.
``optional_runs`` lists runs that an artifact uses if they are finished (or published, as above) and never
trains: dense runs of other seeds for a target, static rows for the best in hindsight. A line's own
``scale.seeds=`` replaces the artifact's. ``roots.<dataset>=<folder>`` says where a data set lies.
With ``measure`` in it, the artifact is a measurement: each line is measured once (launch/measure.py), and
``measure.<key>=...`` overrides how. With ``study``, it is computed (launch/study.py): each part is a
component, overridden by ``study.<part>.<key>=...``.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.measure import dataset_name, measure_config
from dgc_repro.launch.overrides import check_overrides, composing, config_of, resolved
from dgc_repro.launch.paths import add_conf_dir, conf_dirs, options
from dgc_repro.launch.sections import check_seed
from dgc_repro.launch.single import is_done, run_config
from dgc_repro.launch.study import STUDY, build_study, study_config, with_networks
from dgc_repro.launch.sweep import expand
from dgc_repro.launch.typed import nearest
from dgc_repro.paper.page import console_of_width, show
from dgc_repro.paper.publish import own_conf_of, page_of, publish, published
from dgc_repro.paper.records import Run, read_run

SIZED_GROUPS = ("dataset", "model", "train", "optimizer", "schedule", "policy", "compressor")
SIZED_KEYS = (
    *("wrap", "wrapper", "exchange.unit", "exchange.junction", "exchange.combine"),
    *("launch.workers", "launch.workers_per_node"),
)
WHERE_DATA_LIES = ("root", "resume_from", "reshard", "checkpoint_every_epochs")
CUSTOM = "custom"
MEASURE = "measure."
STUDIED = f"{STUDY}."
FAMILY, ROOTS, SEEDS = "family=", "roots.", "scale.seeds="
PUBLISH, PUBLISHED = "publish=", "published="
SWEEPS, OPTIONAL_RUNS = "sweeps", "optional_runs"
OF_EVERY_STUDY = ("seed", "scale", "experiment", "paths")


def reproduce(arguments: Sequence[str]) -> None:
    """``arguments``: the artifact, then overrides for all of its runs (``scale=small seed=1``)."""
    arguments = _with_conf_dirs(arguments)
    known = artifacts()
    if not arguments or arguments[0] not in known:
        asked = arguments[0] if arguments else ""
        raise UserError(f"reproduce: no artifact {asked!r}; {nearest(asked, known)}")
    name = arguments[0]
    check_overrides(arguments[1:])
    publishes, given = _yes_or_no(PUBLISH, arguments[1:])
    takes_published, given = _yes_or_no(PUBLISHED, given)
    roots, given = _roots(given)
    _refuse_settings_of_others(name, given)
    if is_studied(name):
        jobs, make = studied_runs_of(name, given), study_config
    elif is_measured(name):
        jobs, make = measured_runs_of(name, given), measure_config
    else:
        jobs, make = runs_of(name, given), run_config
    optional_runs = (
        [] if is_studied(name) or is_measured(name) else runs_of(name, given, OPTIONAL_RUNS)
    )
    _set_roots(name, [config for config, _ in (*jobs, *optional_runs)], roots, given)
    key = "results" if publishes else "reproduced"
    target = Path(jobs[0][0]["paths"][key])
    _probe(target, f"paths.{key}")
    runs: dict[str, Run] = {}
    seconds: list[float] = []
    for number, (config, overrides) in enumerate(jobs, start=1):
        row, seed = config["experiment"]["row"], config["seed"]
        left = f", about {_minutes(seconds, len(jobs) - number + 1)} left" if seconds else ""
        print(f"[{number}/{len(jobs)}] {name} {row}, seed {seed}{left}", flush=True)
        run = published_run(config) if takes_published else None
        if run is not None:
            print(f"already published: {run.id}", flush=True)
        else:
            was_done, started = is_done(run_folder(config)), time.monotonic()
            run = read_run(make(config, overrides))
            if not was_done:
                seconds.append(time.monotonic() - started)
        runs[run.id] = run
    paper, artifact = name.split("/")
    scale = jobs[0][0]["scale"]["name"]
    found = with_others([*jobs, *optional_runs], runs, takes_published)
    written = publish(found, paper, artifact, scale, target)
    show(page_of(written), console_of_width(), written)


def _with_conf_dirs(arguments: Sequence[str]) -> list[str]:
    """The arguments without ``--help`` and ``--config-dir``. A user's own paper brings its ``conf/``."""
    parser = argparse.ArgumentParser(
        prog="python -m dgc_repro reproduce",
        description=f"Artifacts: {', '.join(artifacts())}.",
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config-dir", type=Path, help="a folder of your own configs")
    given, others = parser.parse_known_args(list(arguments))
    if given.config_dir is not None and not given.config_dir.is_dir():
        raise UserError(f"--config-dir: no folder {given.config_dir}")
    paper = others[0].partition("/")[0] if others else ""
    for folder in filter(None, (given.config_dir, own_conf_of(paper))):
        add_conf_dir(folder)
    return others


def _minutes(seconds: Sequence[float], num_runs: int) -> str:
    """Time for so many runs, from the mean of those before."""
    left = num_runs * sum(seconds) / len(seconds)
    return f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"


def _yes_or_no(prefix: str, given: Sequence[str]) -> tuple[bool, list[str]]:
    """The value of a setting of `reproduce` itself (the last one given), and the other overrides."""
    own, others = _apart(given, prefix)
    words = [override.partition("=")[2] for override in own]
    for word in words:
        if word.lower() not in ("true", "false"):
            raise UserError(f"{prefix.rstrip('=')}: true or false, got {word!r}")
    return bool(words) and words[-1].lower() == "true", others


def _roots(given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Folders by data set, and the other overrides. Raises UserError for a name that is none."""
    own, others = _apart(given, ROOTS)
    known = options("dataset")
    found = {}
    for override in own:
        data, _, folder = override.removeprefix(ROOTS).partition("=")
        if data not in known:
            raise UserError(f"{ROOTS}{data}: no such data set; {nearest(data, known)}")
        if not folder:
            raise UserError(f"{ROOTS}{data}: a folder, got none")
        found[data] = folder
    return found, others


def _set_roots(
    name: str, configs: Sequence[dict[str, Any]], roots: dict[str, str], given: Sequence[str]
) -> None:
    """Say in each config where its data set lies."""
    with_data = [config for config in configs if "dataset" in config]
    several = {dataset_name(config) for config in with_data}
    if len(several) > 1 and any(override.startswith("dataset.root=") for override in given):
        wanted = " and ".join(f"{ROOTS}{data}=<folder>" for data in sorted(several))
        raise UserError(f"dataset.root: {name} takes several data sets; give {wanted}")
    for config in with_data:
        if root := roots.get(dataset_name(config)):
            config["dataset"]["root"] = root


def published_run(config: Mapping[str, Any]) -> Run | None:
    """The published run of this config, None where the run itself is here or none is published."""
    folder = run_folder(config)
    if is_done(folder):
        return None
    root = Path(config["paths"]["results"]).resolve()
    paper, scale = config["experiment"]["paper"], config["scale"]["name"]
    return _pool(root, paper, scale).get(folder.name)


@functools.cache
def _pool(root: Path, paper: str, scale: str) -> dict[str, Run]:
    return published(root, paper, scale)


def _refuse_settings_of_others(name: str, given: Sequence[str]) -> None:
    """``measure.`` and ``study.`` belong to artifacts that have such a section."""
    sections = {MEASURE: is_measured(name), STUDIED: is_studied(name)}
    how = "computed" if sections[STUDIED] else "measured" if sections[MEASURE] else "trained"
    for prefix, has in sections.items():
        own, _ = _apart(given, prefix)
        if own and not has:
            raise UserError(f"{own[0].partition('=')[0]}: {name} is {how}, it has no such setting")


def _apart(overrides: Sequence[str], prefix: str) -> tuple[list[str], list[str]]:
    """Those of a section, and the others."""
    own = [override for override in overrides if override.lstrip("+").startswith(prefix)]
    return own, [override for override in overrides if override not in own]


def _probe(target: Path, key: str) -> None:
    """Find out before hours of training whether the tables can be written."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass
    except OSError as error:
        raise UserError(
            f"{key}: cannot write to {target} ({error.strerror}); set {key} to a folder of yours"
        ) from error


def with_others(
    jobs: Sequence[tuple[dict[str, Any], list[str]]],
    runs: Mapping[str, Run],
    takes_published: bool = False,
) -> list[Run]:
    """The runs just made and the finished ones of ``jobs``, with those of their scale's other seeds: a table
    with one seed more must not lose those that it had."""
    found = dict(runs)
    for config, _ in jobs:
        for seed in (config["seed"], *config["scale"]["seeds"]):
            other = {**config, "seed": seed}
            folder = run_folder(other)
            if folder.name in found:
                continue
            if is_done(folder):
                found[folder.name] = read_run(folder)
            elif takes_published and (run := published_run(other)) is not None:
                found[folder.name] = run
    return list(found.values())


def artifacts() -> list[str]:
    """All ``<paper>/<artifact>`` there are."""
    return sorted(
        {
            path.relative_to(root / "artifact").with_suffix("").as_posix()
            for root in conf_dirs()
            for path in (root / "artifact").rglob("*.yaml")
        }
    )


def runs_of(
    name: str, given: Sequence[str], listed: str = SWEEPS
) -> list[tuple[dict[str, Any], list[str]]]:
    """Resolved configs of all runs, seeds outermost, and the overrides each was composed from. ``listed``:
    the artifact's key that lists them."""
    artifact = _artifact(name)
    whole = OmegaConf.select(artifact, "family")
    with composing():
        scale = _scale(_of_family(whole, given))
        sizes = list(artifact.sizes[scale])
        sweeps = artifact.get(listed) or ListConfig([])
        lines = [_line(words, whole, given) for words in _combinations(sweeps, scale)]
        if not lines:
            return []
        family, first = lines[0]
        _, first = _apart(first, SEEDS)
        jobs = []
        for seed in _seeds(first, [*sizes, *_of_family(family, given)]):
            for family, combination in lines:
                own, _ = _apart(combination, SEEDS)
                sized = [*sizes, *_of_family(family, given), *own]
                stated = [*sizes, *_of_family(family, [f"scale={scale}"]), *own]
                jobs.append((_labelled(combination, stated, [*sized, f"seed={seed}"]), sized))
        return jobs


def _line(
    words: Sequence[str], family: str | None, given: Sequence[str]
) -> tuple[str | None, list[str]]:
    """(family, overrides) of one run: a line's own ``family=`` goes before the artifact's."""
    own, combination = _apart(words, FAMILY)
    if not own:
        return family, combination
    for override in _scales(given):
        if "/" in override:
            raise UserError(
                f"scale: its short name, such as quick: each line has a family of its own, got {override}"
            )
    return own[-1].removeprefix(FAMILY), combination


def _scale(given: Sequence[str]) -> str:
    """The scale that is asked for on the command line, or the default one."""
    name = str(config_of(_scales(given)).scale.name)
    if name == "none":
        raise UserError("scale: an artifact has runs at quick, small and paper, got none")
    return name


def _combinations(sweeps: DictConfig | ListConfig, scale: str) -> list[list[str]]:
    """The overrides of every run: ``sweeps`` is a list of Hydra sweeps, or one for each scale."""
    combinations: list[list[str]] = []
    for sweep in sweeps[scale] if isinstance(sweeps, DictConfig) else sweeps:
        combinations += expand(str(sweep).split())
    return combinations


def _artifact(name: str) -> DictConfig:
    paths = [root / "artifact" / f"{name}.yaml" for root in conf_dirs()]
    node = OmegaConf.load(next(path for path in paths if path.is_file()))
    assert isinstance(node, DictConfig)
    return node


def is_measured(name: str) -> bool:
    """Whether an artifact is a measurement and no training."""
    return "measure" in _artifact(name)


def measured_runs_of(name: str, given: Sequence[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """As `runs_of`, one seed, with ``measure`` in each config: what launch/measure.py is told."""
    own, others = _apart(given, MEASURE)
    if not any(override.lstrip("+").startswith("seed=") for override in others):
        others.append("seed=0")
    with composing():
        scale = _scale(others)
    stated = resolved(_artifact(name).measure)
    settings, roots = _measure_settings(stated, own, scale)
    jobs = runs_of(name, others)
    if len({dataset_name(config) for config, _ in jobs}) > 1 and any(
        override.startswith("dataset.root=") for override in others
    ):
        raise UserError(
            f"dataset.root: {name} takes several data sets; give "
            + " and ".join(f"measure.roots.{data}=<folder>" for data in roots)
        )
    for config, _ in jobs:
        config["measure"] = settings
        config["scale"]["seeds"] = [config["seed"]]
        if settings != _measure_settings(stated, (), scale)[0]:
            config["scale"]["name"] = CUSTOM
        if root := roots.get(dataset_name(config)):
            config["dataset"]["root"] = root
    return jobs


def _measure_settings(
    stated: dict[str, Any], own: Sequence[str], scale: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """How to measure at this scale, and the folders of data sets. Raises UserError for a typo."""
    settings = _overridden({**stated, "repeats": stated["repeats"][scale]}, own, MEASURE)
    return settings, settings.pop("roots")


def _overridden(stated: dict[str, Any], own: Sequence[str], prefix: str) -> dict[str, Any]:
    """A section with the overrides that begin with ``prefix``. Raises UserError for a typo."""
    node = OmegaConf.create(stated)
    OmegaConf.set_struct(node, True)
    for override in own:
        key, _, value = override.lstrip("+").removeprefix(prefix).partition("=")
        try:
            OmegaConf.update(node, key, yaml.safe_load(value))
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise UserError(f"{prefix}{key}: no such key; {nearest(key, stated)}") from error
    return resolved(node)


def is_studied(name: str) -> bool:
    """Whether an artifact is computed."""
    return STUDY in _artifact(name)


def studied_runs_of(name: str, given: Sequence[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """As `runs_of`, with ``study`` in each config: what launch/study.py is told."""
    artifact = _artifact(name)
    stated, sweeps = resolved(artifact.study), artifact.get("sweeps") or {}
    own, others = _apart(given, STUDIED)
    for override in own:
        part, dot, _ = override.lstrip("+").removeprefix(STUDIED).partition("=")[0].partition(".")
        if part not in stated or not dot:
            raise UserError(
                f"{STUDIED}{part}: {name} has {', '.join(f'{STUDIED}{p}.<key>' for p in stated)}"
            )
    for override in others:
        if not (sweeps or _is_of_every_study(override)):
            key = override.lstrip("+").partition("=")[0]
            raise UserError(f"{key}: {name} is computed, it has no such setting")
    with composing():
        scale = _scale(others)
        own_sizes, sizes = _apart(artifact.sizes[scale], STUDIED)
        sized = [*sizes, *others]
        jobs = []
        for seed in _seeds([], sized):
            for part in stated:
                for line in _combinations(sweeps[part], scale) if part in sweeps else [[]]:
                    own_line, combination = _apart(line, STUDIED)
                    with_seed = [*sized, f"seed={seed}"]
                    if part in sweeps:
                        at_scale = [*sizes, f"scale={scale}"]
                        config = _labelled(combination, at_scale, with_seed)
                    else:
                        config = _of_a_study(name, part, with_seed)
                    usual = _part_of(stated, part, [*own_sizes, *own_line])
                    config[STUDY] = _part_of(stated, part, [*own_sizes, *own_line, *own])
                    if config[STUDY] != usual:
                        config["scale"]["name"] = CUSTOM
                    build_study(config[STUDY])  # before anything is computed
                    jobs.append((config, sized))
    if any(config["scale"]["name"] == CUSTOM for config, _ in jobs):
        for config, _ in jobs:  # parts of one artifact are published together
            config["scale"]["name"] = CUSTOM
    return jobs


def _part_of(stated: dict[str, Any], part: str, own: Sequence[str]) -> dict[str, Any]:
    """The node of one part, with what is overridden of it."""
    prefix = f"{STUDIED}{part}."
    node = _overridden(stated[part], _apart(own, prefix)[0], prefix)
    return with_networks({"part": part, **node})


def _of_a_study(name: str, part: str, given: Sequence[str]) -> dict[str, Any]:
    """The config of a part that takes nothing of a model: its seed, its place, where it is written."""
    paper, _, artifact = name.partition("/")
    config = resolved(config_of([o for o in given if _is_of_every_study(o)]))
    found = {key: config[key] for key in OF_EVERY_STUDY}
    return {**found, "experiment": {"paper": paper, "artifact": artifact, "row": part}}


def _is_of_every_study(override: str) -> bool:
    return override.lstrip("+").partition("=")[0].partition(".")[0] in OF_EVERY_STUDY


def _of_family(family: str | None, given: Sequence[str]) -> list[str]:
    """The overrides with ``scale=quick`` (the default too) meaning ``scale=<family>/quick``."""
    if family is None:
        return list(given)
    named = [o if "/" in o else o.replace("scale=", f"scale={family}/") for o in _scales(given)]
    return [*(o for o in given if o not in _scales(given)), *(named or [f"scale={family}/quick"])]


def _scales(given: Sequence[str]) -> list[str]:
    return [override for override in given if override.lstrip("+").startswith("scale=")]


def _labelled(combination: list[str], stated: list[str], given: list[str]) -> dict[str, Any]:
    """The config of a run; its scale is called ``custom`` where what is given departs from it."""
    config = resolved(config_of([*combination, *given]))
    if [override for override in given if not override.lstrip("+").startswith("seed=")] == stated:
        return config
    as_stated = resolved(config_of([*combination, *stated]))
    if any(_part(config, path) != _part(as_stated, path) for path in SIZED_KEYS):
        config["scale"]["name"] = CUSTOM
    for group in SIZED_GROUPS:
        for key, value in config[group].items():
            if key not in WHERE_DATA_LIES and as_stated[group].get(key) != value:
                config["scale"]["name"] = CUSTOM
    return config


def _part(config: dict[str, Any], path: str) -> Any:
    """The node at a dotted path."""
    group, _, key = path.partition(".")
    return config[group][key] if key else config[group]


def _seeds(combination: Sequence[str], given: Sequence[str]) -> list[int]:
    """The seed on the command line, or the scale's seeds."""
    config = config_of([*combination, *given])
    if any(override.lstrip("+").startswith("seed=") for override in given):
        check_seed("seed", config.seed)
        return [int(config.seed)]
    seeds = config.scale.seeds
    for seed in seeds if isinstance(seeds, ListConfig) else [seeds]:
        check_seed("scale.seeds", seed)
    return [int(seed) for seed in seeds]
