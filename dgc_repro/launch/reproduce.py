"""``reproduce <paper>/<artifact>``: make the runs an artifact needs, write its table and figures, print.

They are written to ``paths.reproduced``, which git ignores; with ``publish=true``, a maintainer's setting,
to ``paths.results``, which is tracked.

``conf/artifact/<paper>/<artifact>.yaml`` lists the runs as Hydra sweeps. Finished runs are found by
their config and not made again; seeds are the outer loop, so that every row has one number early.
A line may name the family of scales that it takes: with ``family=gravac/lstm``, ``scale=small`` means
``scale=gravac/lstm/small`` for it. With ``published=true``, artifacts made of one pool of runs
(report/publish.py) take a run that is not in runs/ from the records that one of them has published; else
it is trained: what is printed was measured here.
``at_hand`` lists runs that an artifact takes where they are finished (or published, as above) and never
trains: the dense runs of other seeds that a target is the mean of, static rows that an oracle chooses from.
A line's own ``scale.seeds=`` goes before the artifact's.
``roots.<dataset>=<folder>`` says where a data set lies, for the lines that take it.
With ``measure`` in it, the artifact is a measurement: each line is measured once (launch/measure.py),
and ``measure.<key>=...`` on the command line overrides how. With ``study``, it is computed
(launch/study.py): each part is a component, overridden by ``study.<part>.<key>=...``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.measure import dataset_name, measure_config
from dgc_repro.launch.overrides import check_overrides
from dgc_repro.launch.paths import conf_dir, options
from dgc_repro.launch.sections import check_seed
from dgc_repro.launch.single import is_done, run_config
from dgc_repro.launch.study import STUDY, build_study, study_config, with_networks
from dgc_repro.launch.typed import nearest
from dgc_repro.report.publish import RECORDS, pool_of, publish, show
from dgc_repro.report.render import console_of_width

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
SWEEPS, AT_HAND = "sweeps", "at_hand"
OF_EVERY_STUDY = ("seed", "scale", "experiment", "paths")


def reproduce(arguments: Sequence[str]) -> None:
    """``arguments``: the artifact, then overrides for all of its runs (``scale=small seed=1``)."""
    known = artifacts()
    if not arguments or arguments[0] not in known:
        asked = arguments[0] if arguments else ""
        raise UserError(f"reproduce: no artifact {asked!r}; {nearest(asked, known)}")
    name = arguments[0]
    check_overrides(arguments[1:])
    publishes, given = _yes_or_no(PUBLISH, arguments[1:])
    takes_published, given = _takes_published(name, given)
    roots, given = _roots(given)
    _refuse_settings_of_others(name, given)
    if is_studied(name):
        jobs, make = studied_runs_of(name, given), study_config
    elif is_measured(name):
        jobs, make = measured_runs_of(name, given), measure_config
    else:
        jobs, make = runs_of(name, given), run_config
    at_hand = [] if is_studied(name) or is_measured(name) else runs_of(name, given, AT_HAND)
    _set_roots(name, [config for config, _ in (*jobs, *at_hand)], roots, given)
    key = "results" if publishes else "reproduced"
    target = Path(jobs[0][0]["paths"][key])
    _probe(target, f"paths.{key}")
    folders: list[Path] = []
    for number, (config, overrides) in enumerate(jobs, start=1):
        row, seed = config["experiment"]["row"], config["seed"]
        print(f"[{number}/{len(jobs)}] {name} {row}, seed {seed}", flush=True)
        record = published_record(config) if takes_published else None
        if record is not None:
            print(f"already published: {record}", flush=True)
        folders.append(record or make(config, overrides))
    paper, artifact = name.split("/")
    scale = jobs[0][0]["scale"]["name"]
    found = with_others([*jobs, *at_hand], folders, takes_published)
    written = publish(found, paper, artifact, scale, target)
    show(written, console_of_width())
    print(f"{'published in' if publishes else 'written to'} {written}", flush=True)


def _takes_published(name: str, given: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether published records count as finished runs, and the other overrides."""
    takes, others = _yes_or_no(PUBLISHED, given)
    pooled = pool_of(*name.split("/")) != tuple(name.split("/"))
    if len(others) < len(given) and not pooled:
        raise UserError(f"published: {name} takes no published runs, it has no such setting")
    return takes, others


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


def published_record(config: dict[str, Any]) -> Path | None:
    """The record of this run that some artifact of its paper has published, where the run itself is not
    here. Its name ends in the hash of the config, so that it is this run's."""
    folder = run_folder(config)
    if is_done(folder):
        return None
    paper, scale = config["experiment"]["paper"], config["scale"]["name"]
    places = Path(config["paths"]["results"]).glob(f"{paper}/*/{scale}/{RECORDS}/{folder.name}")
    return next((place for place in sorted(places) if is_done(place)), None)


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
    folders: Sequence[Path],
    takes_published: bool = False,
) -> list[Path]:
    """The runs just made and the finished ones of ``jobs``, with those of their scale's other seeds: a table
    with one seed more must not lose those that it had."""
    found = {folder.name: folder for folder in folders}
    for config, _ in jobs:
        for seed in (config["seed"], *config["scale"]["seeds"]):
            other = {**config, "seed": seed}
            folder = run_folder(other)
            record = published_record(other) if takes_published else None
            if folder.name not in found and (record or is_done(folder)):
                found[folder.name] = record or folder
    return list(found.values())


def artifacts() -> list[str]:
    """All ``<paper>/<artifact>`` there are."""
    root = conf_dir() / "artifact"
    return sorted(
        path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")
    )


def runs_of(
    name: str, given: Sequence[str], listed: str = SWEEPS
) -> list[tuple[dict[str, Any], list[str]]]:
    """Resolved configs of all runs, seeds outermost, and the overrides each was composed from. ``listed``:
    the artifact's key that lists them."""
    artifact = _artifact(name)
    whole = OmegaConf.select(artifact, "family")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
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
    return str(compose("config", _scales(given)).scale.name)


def _combinations(sweeps: DictConfig | ListConfig, scale: str) -> list[list[str]]:
    """The overrides of every run: ``sweeps`` is a list of Hydra sweeps, or one for each scale."""
    combinations: list[list[str]] = []
    for sweep in sweeps[scale] if isinstance(sweeps, DictConfig) else sweeps:
        parsed = OverridesParser.create().parse_overrides(str(sweep).split())
        for batch in BasicSweeper.split_arguments(parsed, None):
            combinations += [list(job) for job in batch]
    return combinations


def _artifact(name: str) -> DictConfig:
    node = OmegaConf.load(conf_dir() / "artifact" / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    return node


def is_measured(name: str) -> bool:
    """Whether an artifact is a measurement and no training."""
    return "measure" in _artifact(name)


def measured_runs_of(name: str, given: Sequence[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """As `runs_of`, one seed, with ``measure`` in each config: what launch/measure.py is told."""
    own, others = _apart(given, MEASURE)
    if not any(override.startswith("seed=") for override in others):
        others.append("seed=0")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        scale = _scale(others)
    stated = _plain(_artifact(name).measure)
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
    return _plain(node)


def is_studied(name: str) -> bool:
    """Whether an artifact is computed."""
    return STUDY in _artifact(name)


def studied_runs_of(name: str, given: Sequence[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """As `runs_of`, with ``study`` in each config: what launch/study.py is told."""
    artifact = _artifact(name)
    stated, sweeps = _plain(artifact.study), artifact.get("sweeps") or {}
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
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
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
    config = _plain(compose("config", [o for o in given if _is_of_every_study(o)]))
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
    return [override for override in given if override.startswith("scale=")]


def _labelled(combination: list[str], stated: list[str], given: list[str]) -> dict[str, Any]:
    """The config of a run; its scale is called ``custom`` where what is given departs from it."""
    config = _plain(compose("config", [*combination, *given]))
    if [override for override in given if not override.startswith("seed=")] == stated:
        return config
    as_stated = _plain(compose("config", [*combination, *stated]))
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
    config = compose("config", [*combination, *given])
    if any(override.startswith("seed=") for override in given):
        check_seed("seed", config.seed)
        return [int(config.seed)]
    seeds = config.scale.seeds
    for seed in seeds if isinstance(seeds, ListConfig) else [seeds]:
        check_seed("scale.seeds", seed)
    return [int(seed) for seed in seeds]


def _plain(config: DictConfig) -> dict[str, Any]:
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    return plain
