"""One run from a resolved config, and a list of them: which exist, and making one that is missing.

The same config finds its folder again, and is continued or done: a run is found by its settings
(`identity.run_folder`), in ``paths.runs`` or, where those count, among the published ones. A single run,
``--multirun`` and ``reproduce`` make theirs by `run_config`, or by `complete` with ``apart=True`` in a
process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import shutil
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dgc_repro.errors import UserError, full_disk, one_line
from dgc_repro.files import as_yaml, refuse_link, replace
from dgc_repro.launch.identity import (
    RESULTS_VERSION,
    file_name,
    is_same_run,
    outside,
    read_config,
    run_folder,
)
from dgc_repro.launch.mirror import finished_before
from dgc_repro.launch.overrides import in_one_line, key_of, known_keys, nearest, sets
from dgc_repro.launch.paths import is_group, writing_to
from dgc_repro.launch.ranks import (
    OWN_TARGETS,
    RunFailed,
    RunHeld,
    RunStopped,
    execute,
    held,
    last_checkpoint,
)
from dgc_repro.launch.rules import validate
from dgc_repro.launch.settings import SLURM, component
from dgc_repro.launch.study import check as check_computed
from dgc_repro.launch.study import compute, kind_of
from dgc_repro.launch.torchrun import Execute, check_launch
from dgc_repro.names import published_in, scale_of
from dgc_repro.paper import records
from dgc_repro.paper.records import Run, read_run
from dgc_repro.paper.untrusted import json_lines
from dgc_repro.train import checkpoint

T = TypeVar("T")
MISTAKES = (UserError, HydraException, OmegaConfBaseException)
"""What a wrong setting raises."""
DEFAULT_COMPRESSOR = "dense"
NOT_IN_NAMES = (
    "seed",
    "paths",
    "sink",
    "experiment",
    "hydra",
    "hparams_search",
    "optimized_metric",
)
LONG_NUMBER = 8  # characters; of longer ones a name has four digits
NO_SETTINGS = (
    "launch.threads",
    "launch.timeout_seconds",
    "launch.start_timeout_seconds",
    "launch.device",
)


def run_config(
    config: dict[str, Any], given: Sequence[str] = (), train: Execute | None = None
) -> Path:
    """Validate, run unless it is finished, and return the run folder.

    ``given``: the overrides on the command line, for the line that says what the scale has set.
    ``train``: trains in the place of what ``launch.kind`` names (launch/torchrun.py).
    Raises UserError, RunFailed, RunStopped.
    """
    if train is not None:
        check_launch(config)
    check(config, given)
    refuse_slurm(config)
    return train_in(named(config, given), config, train)


def is_for_slurm(config: Mapping[str, Any]) -> bool:
    """Whether a run is a job of Slurm. The config may not be checked yet."""
    launch = config.get("launch")
    return isinstance(launch, Mapping) and launch.get("kind") == SLURM


def refuse_slurm(config: Mapping[str, Any]) -> None:
    """Raise UserError for ``launch=slurm`` of a command that runs on this machine."""
    if is_for_slurm(config):
        raise UserError(
            "launch.kind: slurm is for single runs and --multirun; put this command into a job of your own "
            "(sbatch --wrap), with launch=local"
        )


def named(config: dict[str, Any], given: Sequence[str]) -> Path:
    """The folder of a run; a run of one's own gets its name from the overrides that are ``given``."""
    if config["experiment"]["paper"] == "none":
        config["experiment"]["row"] = own_name(given)
    return run_folder(config)


def train_in(folder: Path, config: Mapping[str, Any], train: Execute | None) -> Path:
    """Train a validated config in its run folder unless it is finished; see `run_config`."""
    if "launch" in config:  # else computed without a model (launch/study.py)
        workers, kind = config["launch"]["workers"], config["launch"]["kind"]
        launch = f"{workers} worker{'s' * (workers != 1)} (launch={'torchrun' if train else kind})"
        print(f"{launch}, {scale_line(config)}", flush=True)
    if is_done(folder):
        print(f"already done: {folder}", flush=True)
        if kind_of(config) is None:
            finished_before(config, folder)
    elif why := complete(folder, config, train):
        print(f"warning: {why}", flush=True)
    return folder


def complete(
    folder: Path, config: Mapping[str, Any], train: Execute | None = None, *, apart: bool = False
) -> str | None:
    """Compute a validated config that is not finished, or train it from the last checkpoint in its folder.
    What is wrong with its training, None for nothing. ``apart``: never train in this process."""
    if kind_of(config) is None:
        check_source(folder, config)
    is_new = not folder.exists()
    prepare(folder, config)
    os.environ[OWN_TARGETS] = " ".join(outside(config))
    try:
        if kind_of(config) is not None:
            with held(folder):
                compute(config, folder)
        elif train is not None:
            train(config, folder)
        else:
            execute(config, folder, apart=apart)
    except RunHeld:
        raise
    except UserError:
        if is_new and last_checkpoint(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)  # nothing half-written stays behind a mistake
        raise
    return warning(summary_of(folder), _train_losses(folder))


def check_source(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError where the run has no checkpoint, and the run that it continues has none either."""
    source = config["train"]["resume_from"]
    if source and last_checkpoint(folder) is None and last_checkpoint(Path(source)) is None:
        raise UserError(f"train.resume_from: no checkpoint in {source}")


def check(config: Mapping[str, Any], given: Sequence[str]) -> None:
    """Build what can be built without data or processes. Raises UserError, also for a key in ``given`` that
    nothing would read."""
    if kind_of(config) is not None:
        check_computed(config)
        return
    validate(config)
    _refuse_unused_wrapper_settings(config, given)
    _refuse_unread(given)
    if config["sink"]["mirror"]:
        component(config["sink"]["mirror"], "sink").check()


def own_name(overrides: Sequence[str]) -> str:
    """The name of a run of one's own: the compressor and the given settings, such as ``topk-density0.01``."""
    compressor, parts = DEFAULT_COMPRESSOR, []
    for override in overrides:
        key, value = key_of(override), override.partition("=")[2].strip("[]'\"") or "none"
        group, _, last = key.rpartition(".")
        if len(value) > LONG_NUMBER:
            with contextlib.suppress(ValueError):
                value = f"{float(value):.4g}"
        if key in ("compressor", "compressor._target_"):
            compressor = value.rpartition(".")[2]
        elif key == "experiment" or not (
            key.partition(".")[0] in NOT_IN_NAMES or key in NO_SETTINGS or override[0] == "~"
        ):
            parts.append(
                value if is_group(key) else f"{last}{value}" if group else f"{key}_{value}"
            )
    return file_name("-".join([compressor, *parts]))[:80]


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary of a run; empty where there is none, or the run is damaged."""
    try:
        return records.summary_of(folder)
    except UserError:
        return {}


def say_damaged(folder: Path) -> None:
    """Name a run that does not count as finished because a file of it is damaged."""
    try:
        records.summary_of(folder)
    except UserError as error:
        print(f"does not count as finished: {error}", flush=True)


def _train_losses(folder: Path) -> list[float]:
    """The training loss of each epoch."""
    path = folder / "metrics.jsonl"
    lines = json_lines(path) if path.is_file() else []
    return [line["train/loss"] for line in lines if line.get("kind") == "epoch"]


def warning(summary: Mapping[str, Any], train_losses: Sequence[float] = ()) -> str | None:
    """What is wrong with a finished run's training. It diverged where a loss is not finite; else its loss may
    have grown since the first epoch, or its quality may be no better than a uniform guess among the classes
    or tokens."""
    for key in ("train/loss", "test/loss"):
        if not math.isfinite(loss := summary.get(key, 0.0)):
            return f"the run diverged ({key} is {loss})"
    if train_losses and train_losses[-1] > train_losses[0]:
        return f"train/loss grew from {train_losses[0]:.4g} to {train_losses[-1]:.4g}; lower optimizer.lr"
    if not records.is_guess(summary):
        return None
    is_text = "test/perplexity" in summary
    key, what = ("perplexity", "tokens") if is_text else ("accuracy_percent", "classes")
    return (
        f"test/{key} {summary[f'test/{key}']:.4g} of {summary['classes']} {what} is no better than guessing; "
        "raise train.epochs, or lower optimizer.lr"
    )


def is_done(folder: Path) -> bool:
    """Whether the run is finished, by this version's standards."""
    summary = summary_of(folder)
    status, version = summary.get("status"), summary.get("results_version")
    return status == "finished" and version == RESULTS_VERSION


def prepare(folder: Path, config: Mapping[str, Any]) -> None:
    """Make the folder and write its config, unless it holds another one."""
    path = folder / "config.yaml"
    for place in (folder, folder / checkpoint.FOLDER):
        refuse_link(place, "paths.runs")
    say_damaged(folder)
    if path.is_file() and not is_same_run(read_config(path), config):
        raise UserError(
            f"paths.runs: {folder} holds another config; give another paths.runs, or, if {path.name} was "
            "edited or damaged, delete it: the same command writes it again and continues"
        )
    with writing_to("paths.runs", folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace(path, as_yaml(dict(config)).encode())


def scale_line(config: Mapping[str, Any]) -> str:
    """What the scale sets; beside a value that departs from it, the scale's own."""
    name = config["scale"]["name"]
    stated = scale_of(config["scale"].get("family", ""), name)
    sizes = stated or {}
    words = []
    for group in ("dataset", "model", "train", "launch"):
        for key, value in sizes.get(group, {}).items():
            now = config[group].get(key)
            mark = f" ({name}: {_shown(value)})" if now != value else ""
            words.append(f"{group}.{key}={_shown(now)}{mark}")
    target = config["dataset"]["_target_"].rsplit(".", 1)[-1].lower()
    unstated = (
        "sizes of the YAML files" if stated is not None else "sizes depart from every stated scale"
    )
    what = ", ".join(words) or unstated
    return f"scale={name}: dataset={target}, {what}"


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _refuse_unused_wrapper_settings(config: Mapping[str, Any], given: Sequence[str]) -> None:
    for key in map(key_of, given):
        group, name, *_ = [*key.split("."), ""]
        if group == "wrapper" and name and name not in config["wrap"]:
            raise UserError(
                f"{key}: {name} is not in wrap={list(config['wrap'])}, so that this would do nothing; add "
                "it to wrap"
            )


def _refuse_unread(given: Sequence[str]) -> None:
    """Refuse a key that ``+`` adds to the section `sink` and that no config file has. (Members of the group
    have keys of their own, so that settings.py cannot know them.)"""

    def names(keys: Iterable[str]) -> set[str]:
        return {key.split(".")[1] for key in keys if key.startswith("sink.")}

    added = names(key_of(text) for text in given if text[0] == "+")
    known = names(known_keys()) if added else set()
    for key in sorted(added - known):
        raise UserError(f"sink.{key}: no such key; {nearest(key, known)}")


# -- a list of runs --


class Job(NamedTuple):
    """A run's resolved config, and the overrides that it was composed from."""

    config: dict[str, Any]
    given: list[str]

    @property
    def row(self) -> str:
        """The row of the run in its artifact."""
        return str(self.config["experiment"]["row"])

    @property
    def name(self) -> str:
        """The row and the seed."""
        return f"{self.row}, seed {self.config['seed']}"


def choices(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides that a sweep tries for each key: all values, or both ends of an interval. A key's
    last override counts. A glob needs to be inside `composing`."""
    hydra = GlobalHydra.instance()
    parser = OverridesParser.create(hydra.config_loader() if hydra.is_initialized() else None)
    found = {}
    for one in parser.parse_overrides(list(overrides)):
        swept: Any = one.value()
        tried: Iterable[Any] = ()
        if isinstance(swept, IntervalSweep):
            tried = swept.start, swept.end
        elif one.is_sweep_override():
            tried = one.sweep_string_iterator()
        key = str(one.input_line).partition("=")[0]
        found[key] = [f"{key}={value}" for value in tried] or [str(one.input_line)]
    return list(found.values())


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every run of a sweep, the last key fastest."""
    return [list(job) for job in itertools.product(*choices(overrides))]


def check_rows(jobs: Iterable[Job]) -> None:
    """Check a run of each row before the first one trains. Raises UserError."""
    for job in {job.row: job for job in jobs}.values():
        check(*job)


def outcome(make: Callable[[], T]) -> tuple[T | None, UserError | RunFailed | None]:
    """Make a run; return what `make` does, or why it failed, in one line. Raises RunStopped."""
    try:
        return make(), None
    except RunStopped:
        raise
    except MISTAKES as error:
        # A new error: the frames of this one's traceback hold what the run held.
        return None, (RunHeld if isinstance(error, RunHeld) else UserError)(in_one_line(error))
    except Exception as error:
        full = full_disk(error, "a file of this run")
        if isinstance(error, RunFailed) or full is not None:
            return None, RunFailed(str(full or error))
        traceback.print_exc()
        return None, RunFailed(one_line(error))


def published_run(config: Mapping[str, Any]) -> Run | None:
    """Return the published run of this config; None where the run itself is here, or none is published."""
    folder = run_folder(config)
    return None if is_done(folder) else _published_beside(config).get(folder.name)


def finished(jobs: Sequence[Job], optional: Sequence[Job], takes_published: bool) -> list[Run]:
    """Return the finished runs of these jobs and of their scale's other seeds, and of ``jobs``, where they
    are trained and do not state ``scale.seeds``, of any other seed: a table with one seed more must not lose
    those that it had. A run that does not count because it is damaged is named."""
    found: dict[str, Run] = {}
    for number, (config, given) in enumerate([*jobs, *optional]):
        seeds = {config["seed"], *config["scale"]["seeds"]}
        if number < len(jobs) and kind_of(config) is None and not sets(given, "scale.seeds"):
            seeds |= _seeds_at_hand(config, takes_published)
        for seed in sorted(seeds):
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


def _seeds_at_hand(config: Mapping[str, Any], takes_published: bool) -> set[int]:
    """The seeds of run folders of this row, and of published runs where those count."""
    folder = run_folder(config)
    stem = folder.name.rpartition(f"{config['seed']}-")[0]
    ends = (place.name.removeprefix(stem) for place in folder.parent.glob(f"{stem}*-*"))
    seeds = {int(seed) for seed in (end.partition("-")[0] for end in ends) if seed.isdigit()}
    published = _published_beside(config).values() if takes_published else ()
    return seeds | {run.seed for run in published}


def _published_beside(config: Mapping[str, Any]) -> dict[str, Run]:
    """The published runs of a config's paper and scale, by id."""
    paper, scale = config["experiment"]["paper"], config["scale"]["name"]
    root = published_in(config["paths"]["results"])
    folder = root / paper / scale
    return _pool(root, paper, scale, folder.stat().st_mtime_ns) if folder.is_dir() else {}


@functools.cache
def _pool(root: Path, paper: str, scale: str, _changed: int) -> dict[str, Run]:
    from dgc_repro.paper import publish  # imports pandas, scipy and matplotlib

    return publish.published(root, paper, scale)
