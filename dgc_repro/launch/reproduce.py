"""``reproduce <paper>/<artifact>``: make the runs an artifact needs, write its page and figures, print them.

They go to ``paths.reproduced``, which git ignores; with ``publish=true``, a maintainer's setting, to
``paths.results``, which is tracked.

``artifact`` in ``conf/paper/<paper>.yaml`` lists the runs as Hydra sweeps, for all scales or by scale: a
line, a list, or lines below what they all begin with. Finished runs are found by their config and not made
again. Seeds are the outer loop, so that every row has one number early. An experiment may have its family of
scales: with ``family: gravac/lstm``, ``scale=small`` means ``scale=gravac/lstm/small`` for it.
With ``published=true`` a run that is not in runs/ is taken from the published pool (paper/pool.py); otherwise
it is trained, and every printed number was measured here. A line with ``seed=0`` belongs to that seed alone,
such as a learning rate that only tuning tries. ``optional_runs`` lists runs that an artifact uses
if they are finished (or published, as above) and never trains. A line's own ``scale.seeds=`` replaces the
artifact's. ``roots.<dataset>=<folder>`` names the folder of a data set. ``share=2/3`` makes the second,
fifth, ... run and no page: several machines then share the runs of an artifact.

An artifact with ``measure`` is a measurement: each line is measured once (launch/measure.py), and
``measure.<key>=...`` overrides how. One with ``study`` is computed (launch/study.py): each part is a
component, overridden by ``study.<part>.<key>=...``.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dgc_repro.errors import UserError
from dgc_repro.launch.cli_args import share_of, some_text, yes_no
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.measure import dataset_name, measure_config
from dgc_repro.launch.mirror import mirror_of
from dgc_repro.launch.overrides import (
    apart,
    check_overrides,
    config_of,
    key_of,
    resolved,
    sets,
)
from dgc_repro.launch.paths import (
    FAMILY,
    add_conf_dirs,
    composing,
    conf_dirs,
    conf_dirs_apart,
    options,
    paper_members,
)
from dgc_repro.launch.sections import check_seed
from dgc_repro.launch.single import is_done, refuse_slurm, run_config, say_damaged
from dgc_repro.launch.study import STUDY, build_study, study_config, with_networks
from dgc_repro.launch.sweep import expand
from dgc_repro.launch.typed import nearest
from dgc_repro.names import papers_in
from dgc_repro.paper.artifact import Artifact
from dgc_repro.paper.page import console_of_width, show
from dgc_repro.paper.publish import (
    artifact_of,
    own_conf_of,
    page_of,
    publish,
    published,
)
from dgc_repro.paper.records import Run, read_run
from dgc_repro.progress import TimeLeft
from dgc_repro.sink.wandb import Wandb

SIZED_GROUPS = ("dataset", "model", "train", "optimizer", "schedule", "policy", "compressor")
WHERE_DATA_LIES = ("root", "resume_from", "reshard", "checkpoint_every_epochs")
CUSTOM = "custom"
MEASURE = "measure"
ROOTS, SEEDS, SHARE = "roots", "scale.seeds", "share"
SWEEPS, OPTIONAL_RUNS = "sweeps", "optional_runs"
OF_EVERY_STUDY = ("seed", "scale", "experiment", "paths")
_pool = functools.cache(published)
Job = tuple[dict[str, Any], list[str]]
"""A run's resolved config, and the overrides that it was composed from."""


USAGE = """usage: python -m dgc_repro reproduce <artifact> [--config-dir <folder>] [key=value ...]

Makes the runs of a table or figure, prints them beside the paper's numbers, and writes a page with figures.
Finished runs are not made again: after a stop, give the same command.

  artifact                   <paper>/<table or figure>, one of those below
  --config-dir               a folder with configs of your own, such as conf/ of your paper
  scale=<name>               sizes of the runs, such as quick, small or paper
  "scale.seeds=[0,1]"        the seeds; seed=0 for a single one
  published=true             take the project's published runs where they exist, and train the others
  share=2/3                  make the second, fifth, ... run and no page: several machines share the work
  roots.<dataset>=<folder>   where the files of a data set lie
  paths.reproduced=<folder>  where the page goes
  measure.<key>=<value>      of an artifact that is measured: how
  study.<part>.<key>=<value> of an artifact that is computed: what of
  key=value                  any other setting, for all runs
"""


@dataclass(frozen=True)
class Reproduction:
    """What a command line of `reproduce` asks for, composed and checked. Nothing is trained yet.

    own         settings of `reproduce` itself: publish, published, share
    jobs        its runs, seeds outermost
    optional    runs that its page uses where they are finished
    is_trained  its runs are trained, neither measured nor computed
    make        makes one run and returns its folder
    mirror      where the page is uploaded, None for nowhere
    """

    name: str
    own: dict[str, Any]
    jobs: list[Job]
    optional: list[Job]
    is_trained: bool
    make: Callable[[dict[str, Any], Sequence[str]], Path]
    mirror: Wandb | None

    @property
    def scale(self) -> str:
        """The scale of the page; ``custom`` where sizes depart from it."""
        return str(self.jobs[0][0]["scale"]["name"])

    def target(self, is_published: bool) -> Path:
        """The root of the page's folder. Raises UserError where it cannot be written."""
        key = "results" if is_published else "reproduced"
        root = Path(self.jobs[0][0]["paths"][key])
        _probe(root, f"paths.{key}")
        return root

    def publish(self, runs: Sequence[Run], root: Path) -> Path:
        """Write the page of these runs; its folder."""
        paper, _, artifact = self.name.partition("/")
        return publish(runs, paper, artifact, self.scale, root)


def prepared(arguments: Sequence[str]) -> Reproduction:
    """The reproduction of a command line. Raises UserError for whatever is wrong with it."""
    name, *given = _with_conf_dirs(arguments) or [""]
    if name not in (known := artifacts()):
        raise UserError(f"reproduce: no artifact {name!r}; {nearest(name, known)}")
    check_overrides(given)
    own, given = _own_settings(given)
    _refuse_sweeps(given)
    mirror = mirror_of(given)
    sections = _artifact(name)
    _refuse_settings_of_others(name, sections, given)
    optional: list[Job] = []
    if STUDY in sections:
        jobs, make = studied_runs_of(name, apart(given, "sink")[1]), study_config
    elif MEASURE in sections:
        jobs, make = measured_runs_of(name, given), measure_config
    else:
        jobs, make = runs_of(name, given), run_config
        optional = runs_of(name, given, OPTIONAL_RUNS)
        if sets(given, "seed"):  # lines of another seed, such as tuning
            optional += runs_of(name, apart(given, "seed")[1])
    for config, _ in jobs:
        refuse_slurm(config)
    part, parts = own.get(SHARE, (1, 1))
    if parts > len(jobs):
        raise UserError(f"{SHARE}: at most {len(jobs)} shares of {len(jobs)} runs, got {parts}")
    if parts > 1 and own.get("publish"):
        raise UserError("publish: a share has no page to publish; give it without share")
    jobs = jobs[part - 1 :: parts]
    paper, _, artifact = name.partition("/")
    page = artifact_of(paper, artifact).page
    if isinstance(page, Artifact):
        page.require_rows(config["experiment"]["row"] for config, _ in jobs)
    _set_roots(name, [config for config, _ in (*jobs, *optional)], own, given)
    is_trained = not {STUDY, MEASURE} & set(sections)
    return Reproduction(name, own, jobs, optional, is_trained, make, mirror)


def reproduce(arguments: Sequence[str]) -> None:
    """``arguments``: the artifact, then overrides for all of its runs (``scale=small seed=1``)."""
    asked = prepared(arguments)
    name, jobs = asked.name, asked.jobs
    target = asked.target(bool(asked.own.get("publish")))
    takes_published = bool(asked.own.get("published"))
    runs: dict[str, Run] = {}
    ready = [published_run(config) if takes_published else None for config, _ in jobs]
    is_new = [
        run is None and not is_done(run_folder(config))
        for run, (config, _) in zip(ready, jobs, strict=True)
    ]
    time_left = TimeLeft(sum(is_new))
    for number, (config, overrides) in enumerate(jobs, start=1):
        row, seed = config["experiment"]["row"], config["seed"]
        left = f", {words}" if (words := time_left.words()) else ""
        print(f"[{number}/{len(jobs)}] {name} {row}, seed {seed}{left}", flush=True)
        run = ready[number - 1]
        if run is not None:
            print(f"already published: {run.id}", flush=True)
        else:
            run = read_run(asked.make(config, overrides))
        time_left.advance(is_new[number - 1])
        runs[run.id] = run
    part, parts = asked.own.get(SHARE, (1, 1))
    if parts > 1:
        print(
            f"share {part} of {parts} is finished; run the same command without share to make the page"
        )
        return
    others = other_seeds(jobs, takes_published) if asked.is_trained else []
    if others:
        seeds = sorted({config["seed"] for config, _ in others})
        stated = jobs[0][0]["scale"]["seeds"]
        print(f'the page has finished seeds {seeds} too ("scale.seeds={stated}" leaves them out)')
    found = with_others([*jobs, *others, *asked.optional], runs, takes_published)
    written = asked.publish(found, target)
    show(page_of(written), console_of_width(), written)
    if asked.mirror is not None:
        page = f"{name.replace('/', '-')}-{asked.scale}"
        ids = [run.id for run in found]
        asked.mirror.log_page(
            written, Path(jobs[0][0]["paths"]["runs"]) / page, page, {"runs": ids}
        )


def _with_conf_dirs(arguments: Sequence[str]) -> list[str]:
    """The arguments without ``--config-dir``. A user's own paper brings its ``conf/``. Answers ``--help``."""
    added, others = conf_dirs_apart(arguments)
    own = own_conf_of(others[0].partition("/")[0]) if others else None
    add_conf_dirs([*added, *([own] if own else [])])
    if {"-h", "--help"} & set(others):
        print(f"{USAGE}\nArtifacts: {', '.join(artifacts())}.")
        sys.exit()
    return others


def _own_settings(given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Settings of `reproduce` itself by key, and the other overrides. Raises UserError for a wrong value."""
    roots = dict.fromkeys([f"{ROOTS}.{data}" for data in options("dataset")], some_text)
    readers = {"publish": yes_no, "published": yes_no, SHARE: share_of, **roots}
    own: dict[str, Any] = {}
    others = []
    for override in given:
        key, _, text = override.lstrip("+").partition("=")
        if key in readers:
            own[key] = readers[key](key, text)
        elif key.startswith(f"{ROOTS}."):
            raise UserError(f"{key}: no such data set; {nearest(key, list(roots))}")
        else:
            others.append(override)
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
    with_data = [config for config in configs if "dataset" in config]
    several = sorted({f"{ROOTS}.{dataset_name(config)}" for config in with_data})
    if len(several) > 1 and sets(given, "dataset.root"):
        wanted = " and ".join(f"{key}=<folder>" for key in several)
        raise UserError(f"dataset.root: {name} takes several data sets; give {wanted}")
    for config in with_data:
        if root := roots.get(f"{ROOTS}.{dataset_name(config)}"):
            config["dataset"]["root"] = root


def _published_beside(config: Mapping[str, Any]) -> dict[str, Run]:
    """The published runs of a config's paper and scale, by id."""
    root = Path(config["paths"]["results"]).resolve()
    return _pool(root, config["experiment"]["paper"], config["scale"]["name"])


def published_run(config: Mapping[str, Any]) -> Run | None:
    """The published run of this config, None where the run itself is here or none is published."""
    folder = run_folder(config)
    return None if is_done(folder) else _published_beside(config).get(folder.name)


def _refuse_settings_of_others(name: str, sections: DictConfig, given: Sequence[str]) -> None:
    """``measure.`` and ``study.`` belong to artifacts that have such a section."""
    how = "computed" if STUDY in sections else "measured" if MEASURE in sections else "trained"
    for section in (MEASURE, STUDY):
        if section not in sections and (own := apart(given, section)[0]):
            raise UserError(f"{key_of(own[0])}: {name} is {how}, it has no such setting")


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


def with_others(jobs: Sequence[Job], runs: Mapping[str, Run], takes_published: bool) -> list[Run]:
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
            else:
                say_damaged(folder)
    return list(found.values())


def other_seeds(jobs: Sequence[Job], takes_published: bool = False) -> list[Job]:
    """The same trainings with other seeds, as far as they are finished, or published where those count; none
    for a job that states its ``scale.seeds``."""
    found = []
    for config, overrides in jobs:
        if sets(overrides, SEEDS):
            continue
        folder = run_folder(config)
        stem = folder.name.rpartition(f"-s{config['seed']}-")[0]
        places = folder.parent.glob(f"{stem}-s*-*")
        ends = [place.name.removeprefix(f"{stem}-s").partition("-")[0] for place in places]
        seeds = {int(end) for end in ends if end.isdigit()}
        if takes_published:
            seeds |= {run.seed for run in _published_beside(config).values()}
        for seed in sorted(seeds - {config["seed"], *config["scale"]["seeds"]}):
            other = {**config, "seed": seed}
            is_published = takes_published and published_run(other) is not None
            if is_published or is_done(run_folder(other)):
                found.append((other, overrides))
    return found


def artifacts() -> list[str]:
    """All ``<paper>/<artifact>`` there are."""
    return sorted(
        {
            name
            for root in conf_dirs()
            for sections in papers_in(root).values()
            for name in sections.get("artifact", {})
        }
    )


def runs_of(name: str, given: Sequence[str], listed: str = SWEEPS) -> list[Job]:
    """All runs, seeds outermost. ``listed``: the artifact's key that lists them."""
    artifact = _artifact(name)
    with composing():
        scale = _scale(name, artifact.sizes, given)
        sizes = list(artifact.sizes[scale])
        lines = _lines(artifact.get(listed), scale)
        if not lines:
            return []
        first = [*apart(lines[0], SEEDS, "seed")[1], *sizes]
        seeds = _seeds([*first, *_of_family(_family(lines[0]), given)])
        jobs: dict[int, list[Job]] = {seed: [] for seed in seeds}
        for words in lines:
            family = _family(words)
            own_seed, combination = apart(words, "seed")
            own = apart(combination, SEEDS)[0]
            sized = [*sizes, *_of_family(family, given), *own]
            stated = [*sizes, *_of_family(family, [f"scale={scale}"]), *own]
            config = _labelled(combination, stated, sized)
            for seed in seeds:
                if own_seed in ([], [f"seed={seed}"]):
                    jobs[seed].append(({**deepcopy(config), "seed": seed}, sized))
        return list(chain.from_iterable(jobs.values()))


def _family(words: Sequence[str]) -> str | None:
    """The family of scales of a line's experiment."""
    chosen = [o.partition("=")[2] for o in words if key_of(o) == "experiment"]
    return paper_members().get(f"experiment/{chosen[-1]}", {}).get(FAMILY) if chosen else None


def _scale(name: str, known: Iterable[str], given: Sequence[str]) -> str:
    """The scale that is asked for on the command line, or the default one. ``known``: the artifact's."""
    scale = (_scales(given) or ["scale=quick"])[-1].partition("=")[2]
    if "/" in scale:
        raise UserError(
            f"scale: its short name, such as quick: each experiment has its own family, got scale={scale}"
        )
    if scale not in known:
        raise UserError(f"scale: {name} has runs at {', '.join(known)}, got {scale}")
    return scale


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


def _artifact(name: str) -> DictConfig:
    """An artifact, which may name what stands in ``runs``. Without ``sizes`` it has three scales."""
    files = [sections for root in conf_dirs() for sections in papers_in(root).values()]
    sections = next(found for found in files if name in found.get("artifact", {}))
    node = OmegaConf.create(
        {
            "runs": sections.get("runs", {}),
            "artifact": {
                "sizes": {"quick": [], "small": [], "paper": []},
                **sections["artifact"][name],
            },
        }
    )
    artifact: DictConfig = node.artifact
    return artifact


def measured_runs_of(name: str, given: Sequence[str]) -> list[Job]:
    """As `runs_of`, one seed, with ``measure`` in each config: the settings of launch/measure.py."""
    artifact = _artifact(name)
    own, others = apart(given, MEASURE)
    if not sets(others, "seed"):
        others.append("seed=0")
    with composing():
        scale = _scale(name, artifact.sizes, others)
    stated = resolved(artifact.measure)
    stated["repeats"] = stated["repeats"][scale]
    settings = _overridden(stated, own, f"{MEASURE}.")
    jobs = runs_of(name, others)
    for config, _ in jobs:
        config["measure"] = settings
        config["scale"]["seeds"] = [config["seed"]]
        if settings != stated:
            config["scale"]["name"] = CUSTOM
    return jobs


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


def studied_runs_of(name: str, given: Sequence[str]) -> list[Job]:
    """As `runs_of`, with ``study`` in each config: the settings of launch/study.py."""
    artifact = _artifact(name)
    stated, sweeps = resolved(artifact.study), artifact.get("sweeps") or {}
    own, others = apart(given, STUDY)
    for key in map(key_of, own):
        _, part, *rest = [*key.split("."), ""]
        if part not in stated or not any(rest):
            keys = ", ".join(f"{STUDY}.{known}.<key>" for known in stated)
            raise UserError(f"{STUDY}.{part}: {name} has {keys}")
    for key in map(key_of, others):
        if not sweeps and key.partition(".")[0] not in OF_EVERY_STUDY:
            raise UserError(f"{key}: {name} is computed, it has no such setting")
    with composing():
        scale = _scale(name, artifact.sizes, others)
        own_sizes, sizes = apart(artifact.sizes[scale], STUDY)
        sized = [*sizes, *others]
        jobs = []
        for seed in _seeds(sized):
            with_seed = [*sized, f"seed={seed}"]
            for part in stated:
                for line in _lines(sweeps[part], scale) if part in sweeps else [[]]:
                    own_line, combination = apart(line, STUDY)
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
    place = f"{STUDY}.{part}"
    node = _overridden(stated[part], apart(own, place)[0], f"{place}.")
    return with_networks({"part": part, **node})


def _of_a_study(name: str, part: str, given: Sequence[str]) -> dict[str, Any]:
    """The config of a part that takes nothing of a model: its seed, its place, where it is written."""
    paper, _, artifact = name.partition("/")
    config = resolved(config_of(apart(given, *OF_EVERY_STUDY)[0]))
    found = {key: config[key] for key in OF_EVERY_STUDY}
    return {**found, "experiment": {"paper": paper, "artifact": artifact, "row": part}}


def _of_family(family: str | None, given: Sequence[str]) -> list[str]:
    """The overrides with ``scale=quick`` (the default too) meaning ``scale=<family>/quick``."""
    if family is None:
        return list(given)
    named = [o if "/" in o else o.replace("scale=", f"scale={family}/") for o in _scales(given)]
    return [*(o for o in given if o not in _scales(given)), *(named or [f"scale={family}/quick"])]


def _scales(given: Sequence[str]) -> list[str]:
    return [override for override in given if key_of(override) == "scale"]


def _labelled(combination: list[str], stated: list[str], given: list[str]) -> dict[str, Any]:
    """The config of a run; its scale is called ``custom`` where what is given departs from it."""
    config = resolved(config_of([*combination, *given]))
    if apart(given, "seed", "paths", "sink")[1] == stated:
        return config
    if _sizes(config) != _sizes(resolved(config_of([*combination, *stated]))):
        config["scale"]["name"] = CUSTOM
    return config


def _sizes(config: dict[str, Any]) -> list[Any]:
    """What a scale sets."""
    groups = [
        {key: value for key, value in config[group].items() if key not in WHERE_DATA_LIES}
        for group in SIZED_GROUPS
    ]
    exchange, launch = config["exchange"], config["launch"]
    kept = [exchange[key] for key in ("unit", "overlap", "aggregation")]
    kept += [launch[key] for key in ("workers", "workers_per_node")]
    return [*groups, *kept, config["wrap"], config["wrapper"]]


def _seeds(given: Sequence[str]) -> list[int]:
    """The seed on the command line, or the scale's seeds."""
    config = config_of(given)
    key, found = ("seed", config.seed) if sets(given, "seed") else (SEEDS, config.scale.seeds)
    seeds = found if isinstance(found, ListConfig) else [found]
    for seed in seeds:
        check_seed(key, seed)
    return [int(seed) for seed in seeds]
