"""What a command line of `reproduce` asks for: the runs of an artifact, composed; nothing is trained.

``artifact`` in ``conf/paper/<paper>.yaml`` lists the runs (docs/adding-a-paper.md), seeds outermost, so that
every row has one number early. A run is trained, or computed (launch/study.py): with ``study`` each part is a
component, overridden by ``study.<part>.<key>=...``; with ``measure`` each line is measured, and
``measure.<key>=...`` overrides how. ``roots.<dataset>=<folder>`` names the folder of a data set.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dgc_repro.errors import DiskFull, UserError
from dgc_repro.launch.cli_args import some_text
from dgc_repro.launch.composer import Composer
from dgc_repro.launch.devices import few_gpus, simulates_on_gpu, visible_gpus
from dgc_repro.launch.mirror import mirror_of
from dgc_repro.launch.overrides import apart, check_overrides, key_of, nearest, resolved, sets
from dgc_repro.launch.paths import (
    FAMILY,
    add_conf_dirs,
    artifacts,
    composing,
    conf_dirs_apart,
    options,
    paper_members,
    papers,
    writing_to,
)
from dgc_repro.launch.reproduce_help import KEYS, LIST
from dgc_repro.launch.run import Job, expand
from dgc_repro.launch.settings import check_seed
from dgc_repro.launch.study import FILES, MEASURE, STUDY, dataset_name, kind_of, with_networks
from dgc_repro.paper import pool
from dgc_repro.paper.publish import artifact_of, own_conf_of, publish, require_placed
from dgc_repro.paper.records import Run
from dgc_repro.sink.wandb import Wandb

SIZED_GROUPS = ("dataset", "model", "train", "optimizer", "schedule", "policy", "compressor")
SIZED_KEYS = {"exchange": ("unit", "overlap", "aggregation"), "launch": ("workers",)}
WITHOUT_SIZE = ("root", "resume_from", "reshard", "checkpoint_every_epochs")
CUSTOM = "custom"
ROOTS, SEEDS, SHARE = "roots", "scale.seeds", "share"
PLAN, DEVICE = "plan", "device"
SWEEPS, OPTIONAL_RUNS = "sweeps", "optional_runs"
OF_EVERY_STUDY = ("seed", "scale", "experiment", "paths")
OF_ARTIFACT = (SWEEPS, OPTIONAL_RUNS, "sizes", STUDY, MEASURE, "workloads", "headline", "net")
"""Keys of an artifact; the last three are read by the benchmark's pages."""


@dataclass(frozen=True)
class Reproduction:
    """What a command line of `reproduce` asks for, composed. Nothing is trained yet.

    own       settings of `reproduce` itself: publish, published, share
    jobs      its runs, seeds outermost
    optional  runs that its page uses where they are finished
    mirror    where the page is uploaded, None for nowhere
    note      a line for the user on where its runs are trained, else empty
    """

    name: str
    own: dict[str, Any]
    jobs: list[Job]
    optional: list[Job]
    mirror: Wandb | None
    note: str = ""

    @property
    def is_trained(self) -> bool:
        """Whether its runs are trained, and not computed."""
        return kind_of(self.jobs[0].config) is None

    @property
    def scale(self) -> str:
        """The scale of the page; ``custom`` where sizes depart from it."""
        return str(self.jobs[0].config["scale"]["name"])

    def target(self, is_published: bool) -> Path:
        """Return the root of the page's folder. Raises UserError where it cannot be written, for a full disk
        too, and for a damaged pool there, before hours of training."""
        key = "results" if is_published else "reproduced"
        root = Path(self.jobs[0].config["paths"][key])
        try:
            with writing_to(f"paths.{key}", root):
                root.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=root):
                    pass
        except DiskFull as error:
            raise UserError(f"paths.{key}: {error}, or give another folder") from error
        place = root / self.name.partition("/")[0] / self.scale
        pool.configs(place)
        pool.records(place)
        return root

    def publish(self, runs: Sequence[Run], root: Path) -> Path:
        """Write the page of these runs; its folder."""
        paper, _, artifact = self.name.partition("/")
        return publish(runs, paper, artifact, self.scale, root)


def prepared(arguments: Sequence[str]) -> Reproduction:
    """Return the reproduction of a command line. Raises UserError for whatever is wrong with it."""
    name, *given = _with_conf_dirs(arguments) or [""]
    if name not in (known := artifacts()):
        raise UserError(f"reproduce: no artifact {name!r}; {nearest(name, known)}")
    _refuse_hidden(name.partition("/")[0])
    check_overrides(given)
    own, given = _own_settings(given)
    _refuse_sweeps(given)
    mirror = mirror_of(given)
    jobs, optional = _runs(name, given)
    if kind_of(jobs[0].config) is None:
        optional += runs_of(name, given, OPTIONAL_RUNS)
    part, parts = own.get(SHARE, (1, 1))
    if parts > len(jobs):
        raise UserError(f"{SHARE}: at most {len(jobs)} shares of {len(jobs)} runs, got {parts}")
    if parts > 1 and own.get("publish"):
        raise UserError("publish: a share has no page to publish; give it without share")
    paper, _, artifact = name.partition("/")
    # A run that the page does not take is refused before it is trained.
    every = [Run(f"row {job.row}", job.config, {}, {}) for job in (*jobs, *optional)]
    require_placed(every, paper, artifact, every[0].scale)
    jobs = jobs[part - 1 :: parts]
    page = artifact_of(paper, artifact).page
    if require_rows := getattr(page, "require_rows", None):  # of a page that is data
        require_rows(job.row for job in jobs)
    configs = [job.config for job in (*jobs, *optional)]
    _set_roots(name, configs, own, given)
    chosen = sets(given, "launch") or sets(given, "launch.kind")
    note = "" if chosen else _simulate_on_gpu(configs)
    return Reproduction(name, own, jobs, optional, mirror, note)


def _with_conf_dirs(arguments: Sequence[str]) -> list[str]:
    """The arguments without ``--config-dir``. A user's own paper brings its ``conf/``."""
    added, others = conf_dirs_apart(arguments)
    own = own_conf_of(others[0].partition("/")[0]) if others else None
    add_conf_dirs([*added, *([own] if own else [])])
    return others


def _own_settings(given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Settings of `reproduce` itself by key, and the other overrides. Raises UserError for a wrong value."""
    roots = dict.fromkeys([f"{ROOTS}.{data}" for data in options("dataset")], some_text)
    readers = {key: reader for key, (reader, *_) in KEYS.items()} | roots
    own: dict[str, Any] = {}
    others = []
    for override in given:
        key, _, text = override.lstrip("+").partition("=")
        if key == LIST:
            raise UserError(f"{LIST}: it stands in the place of an artifact; leave one of them out")
        if key in readers:
            own[key] = readers[key](key, text)
        elif key.startswith(f"{ROOTS}."):
            raise UserError(f"{key}: no such data set; {nearest(key, list(roots))}")
        else:
            others.append(override)
    if DEVICE in own and not own.get(PLAN):
        raise UserError(f"{DEVICE}: needs plan=true; the runs themselves take launch.device=")
    return own, others


def _refuse_sweeps(given: Sequence[str]) -> None:
    """Raise UserError for ``seed=0,1``, which is a sweep."""
    for override in given:
        if (key := key_of(override)).startswith(("hydra", "hparams_search", "optimized_metric")):
            raise UserError(
                f"{key}: reproduce makes its runs one after another by itself; leave it out"
            )
        if OverridesParser.create().parse_override(override).is_sweep_override():
            key, _, values = override.partition("=")
            several = f'several are a list in quotes: "{key}=[{values}]"'
            is_seed = key in ("seed", SEEDS)
            raise UserError(f"{key}: {several if is_seed else 'one value, the same for all rows'}")


def _set_roots(
    name: str, configs: Sequence[dict[str, Any]], roots: Mapping[str, Any], given: Sequence[str]
) -> None:
    """Set the folder of each config's data set: ``roots.<dataset>``."""
    keys = {f"{ROOTS}.{dataset_name(config)}" for config in configs if "dataset" in config}
    if len(keys) > 1 and sets(given, "dataset.root"):
        wanted = " and ".join(f"{key}=<folder>" for key in sorted(keys))
        raise UserError(f"dataset.root: {name} takes several data sets; give {wanted}")
    for config in configs:
        if "dataset" in config and (root := roots.get(f"{ROOTS}.{dataset_name(config)}")):
            config["dataset"]["root"] = root


def _simulate_on_gpu(configs: Sequence[dict[str, Any]]) -> str:
    """Simulate the workers of runs that have fewer GPUs here than workers. Returns the line that says so;
    empty where there are none."""
    moved = [config["launch"] for config in configs if simulates_on_gpu(config)]
    for launch in moved:
        launch["kind"] = "simulated"
    if not moved:
        return ""
    few = few_gpus(visible_gpus(), max(launch["workers"] for launch in moved))
    return (
        f"{few}: one process trains all workers of a run on one GPU (launch=simulated). Their means are "
        "those of real ranks; times of an exchange do not apply. launch.device=cpu trains ranks on CPU cores"
    )


def _refuse_hidden(paper: str) -> None:
    """Raise UserError where the working folder has a paper that another one of the same name hides."""
    here, own = Path(paper, "conf"), own_conf_of(paper)
    if (here / "paper").is_dir() and (own is None or own.resolve() != here.resolve()):
        raise UserError(
            f"reproduce: {paper} is a paper of this package or an installed one, and the folder {paper} here "
            "has another; rename the folder, or run from another one"
        )


def artifact_node(name: str) -> DictConfig:
    """Return what an artifact's file says, which may name strings of ``runs``. Without ``sizes`` it has three
    scales. Raises UserError for a key that no artifact has, and for an artifact without runs."""
    sections = next(found for found in papers() if name in found.get("artifact", {}))
    sizes: dict[str, Any] = {"quick": [], "small": [], "paper": []}
    stated = sections["artifact"][name] or {}
    for key in stated:
        if key not in OF_ARTIFACT:
            raise UserError(f"artifact.{name}.{key}: no such key; {nearest(key, OF_ARTIFACT[:-3])}")
    if not any(stated.get(key) for key in (SWEEPS, STUDY, MEASURE)):
        raise UserError(f"artifact.{name}: it has no runs; list them under {SWEEPS}")
    own = {"sizes": sizes, **stated}
    node = OmegaConf.create({"runs": sections.get("runs", {}), "artifact": own})
    artifact: DictConfig = node.artifact
    return artifact


def runs_of(name: str, given: Sequence[str], listed: str = SWEEPS) -> list[Job]:
    """Return all runs of an artifact, seeds outermost. ``listed``: the artifact's key that lists them."""
    return _runs(name, given, listed)[0]


def _runs(name: str, given: Sequence[str], listed: str = SWEEPS) -> tuple[list[Job], list[Job]]:
    """The runs, and those of lines with a seed that is not asked for, such as a rate that one seed tries."""
    artifact = artifact_node(name)
    kind = kind_of(artifact)
    others = apart(given, "sink")[1] if kind else list(given)
    _refuse_settings_of_others(name, artifact, others)
    own, others = apart(others, *FILES)
    scale = _scale(name, artifact.sizes, others)
    others = [override for override in others if key_of(override) != "scale"]
    jobs: dict[int, list[Job]] = {}
    not_asked: list[Job] = []
    with composing(), contextlib.closing(Composer()) as compose:
        own_sizes, sizes = apart(artifact.sizes[scale], *FILES)
        for place, line in _placed_lines(artifact, listed, scale):
            own_seed, words = apart(line, "seed")
            own_seeds, words = apart(words, SEEDS)
            own_words, words = apart(words, *FILES)
            family = _family(words)
            stated = [*sizes, f"scale={family}/{scale}" if family else f"scale={scale}"]
            sized = [*stated, *others]
            config = (
                _labelled(compose, words, stated, sized)
                if line
                else _of_a_study(compose, name, place, sized)
            )
            jobs = jobs or {seed: [] for seed in _seeds(config, sets(others, "seed"))}
            for override in own_seeds:
                config["scale"]["seeds"] = yaml.safe_load(override.partition("=")[2])
            if kind:
                usual = section_of(artifact, place, [*own_sizes, *own_words])
                config[kind] = section_of(artifact, place, [*own_sizes, *own_words, *own])
                if config[kind] != usual:
                    config["scale"]["name"] = CUSTOM
            for seed in [int(one.partition("=")[2]) for one in own_seed] or jobs:
                job = Job({**deepcopy(config), "seed": seed}, [*sized, *own_seeds])
                jobs.get(seed, not_asked).append(job)
    found = list(chain.from_iterable(jobs.values()))
    is_custom = any(config["scale"]["name"] == CUSTOM for config, _ in found)
    for config, _ in found if kind else ():
        if is_custom:  # parts of one artifact are published together
            config["scale"]["name"] = CUSTOM
        if kind == MEASURE:  # seeds are no repeats
            config["scale"]["seeds"] = [config["seed"]]
    return found, not_asked


def _refuse_settings_of_others(name: str, artifact: DictConfig, given: Sequence[str]) -> None:
    """Raise UserError for a setting that no run of the artifact has."""
    how = {None: "trained", MEASURE: "measured", STUDY: "computed"}[kind_of(artifact)]
    has_run = STUDY not in artifact or artifact.get(SWEEPS)
    for key in map(key_of, given):
        section, part, rest, *_ = [*key.split(".", 2), "", ""]
        if section not in artifact and (
            section in FILES or not (has_run or section in OF_EVERY_STUDY)
        ):
            raise UserError(f"{key}: {name} is {how}, it has no such setting")
        if section == STUDY and not (part in artifact.study and rest):
            keys = ", ".join(f"{STUDY}.{known}.<key>" for known in artifact.study)
            raise UserError(f"{STUDY}.{part}: {name} has {keys}")


def _placed_lines(artifact: DictConfig, listed: str, scale: str) -> Iterator[tuple[str, list[str]]]:
    """The overrides of every run, each after its place: ``study.<part>``, ``measure``, or nothing."""
    sweeps = artifact.get(listed)
    if STUDY in artifact:
        for part in artifact.study:
            of_part = _lines(sweeps[part], scale) if sweeps and part in sweeps else [[]]
            yield from ((f"{STUDY}.{part}", line) for line in of_part)
    else:
        yield from ((kind_of(artifact) or "", line) for line in _lines(sweeps, scale))


def section_of(artifact: DictConfig, place: str, own: Sequence[str]) -> dict[str, Any]:
    """Return the settings at a place such as ``study.<part>``, with the overrides of them. Raises UserError
    for a typo."""
    node = OmegaConf.create(resolved(OmegaConf.select(artifact, place)))
    OmegaConf.set_struct(node, True)
    for override in apart(own, place)[0]:
        key, _, value = override.lstrip("+").removeprefix(f"{place}.").partition("=")
        try:
            OmegaConf.update(node, key, yaml.safe_load(value))
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            known = nearest(key, map(str, node))
            raise UserError(f"{place}.{key}: no such key; {known}") from error
    part = place.partition(".")[2]
    return with_networks({"part": part, **resolved(node)}) if part else resolved(node)


def _of_a_study(compose: Composer, name: str, place: str, given: Sequence[str]) -> dict[str, Any]:
    """The config of a part that takes nothing of a model: its seed, its place, where it is written."""
    paper, _, artifact = name.partition("/")
    config = compose(apart(given, *OF_EVERY_STUDY)[0])
    experiment = {"paper": paper, "artifact": artifact, "row": place.partition(".")[2]}
    return {key: config[key] for key in OF_EVERY_STUDY} | {"experiment": experiment}


def _lines(sweeps: Any, scale: str, before: str = "") -> list[list[str]]:
    """The overrides of every run. ``sweeps``: a Hydra sweep, a list of them, or sweeps by how they begin
    or by scale."""
    if isinstance(sweeps, DictConfig):
        if scale in sweeps:
            return _lines(sweeps[scale], scale, before)
        return [line for key in sweeps for line in _lines(sweeps[key], scale, f"{before} {key!s}")]
    if isinstance(sweeps, ListConfig):
        return [line for entry in sweeps for line in _lines(entry, scale, before)]
    return expand(f"{before} {sweeps}".split()) if sweeps else []


def _scale(name: str, known: Iterable[str], given: Sequence[str]) -> str:
    """The scale that is asked for on the command line, or the default one. ``known``: the artifact's."""
    named = [override for override in given if key_of(override) == "scale"]
    scale = (named or ["scale=quick"])[-1].partition("=")[2]
    if "/" in scale:
        raise UserError(
            f"scale: its short name, such as quick: each experiment has its own family, got scale={scale}"
        )
    if scale not in known:
        raise UserError(f"scale: {name} has runs at {', '.join(known)}, got {scale}")
    return scale


def _family(words: Sequence[str]) -> str | None:
    """The family of scales of a line's experiment."""
    chosen = [o.partition("=")[2] for o in words if key_of(o) == "experiment"]
    return paper_members().get(f"experiment/{chosen[-1]}", {}).get(FAMILY) if chosen else None


def _labelled(
    compose: Composer, words: list[str], stated: list[str], given: list[str]
) -> dict[str, Any]:
    """The config of a run; its scale is called ``custom`` where what is given departs from it."""
    config = compose([*words, *given])
    if apart(given, "seed", "paths", "sink")[1] == stated:
        return config
    if _sizes(config) != _sizes(compose([*words, *stated])):
        config["scale"]["name"] = CUSTOM
    return config


def _sizes(config: dict[str, Any]) -> list[Any]:
    """What a scale sets."""
    groups = [
        {key: value for key, value in config[group].items() if key not in WITHOUT_SIZE}
        for group in SIZED_GROUPS
    ]
    kept = [config[section][key] for section, keys in SIZED_KEYS.items() for key in keys]
    return [*groups, *kept, config["wrap"], config["wrapper"]]


def _seeds(config: Mapping[str, Any], is_given: bool) -> list[int]:
    """The seeds that are given, or the scale's. Raises UserError."""
    key, found = ("seed", config["seed"]) if is_given else (SEEDS, config["scale"]["seeds"])
    seeds = found if isinstance(found, list) else [found]
    if not seeds:
        raise UserError(f"{key}: at least one, such as [0,1], got []")
    for seed in seeds:
        check_seed(key, seed)
    return [int(seed) for seed in seeds]
