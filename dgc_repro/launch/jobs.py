"""A list of runs, which of them exist, and making one that is missing.

``--multirun`` and ``reproduce`` make such a list. A run is found by its settings
(`identity.run_folder`): in ``paths.runs`` or, where those count, among the published ones. A missing one is
made by `single.run_config`, or by `single.complete` with ``apart=True`` in a process of its own.
"""

from __future__ import annotations

import functools
import itertools
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
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.overrides import in_one_line, sets
from dgc_repro.launch.ranks import RunFailed, RunHeld, RunStopped
from dgc_repro.launch.single import check, is_done, say_damaged
from dgc_repro.launch.study import kind_of
from dgc_repro.names import published_in
from dgc_repro.paper.records import Run, read_run

T = TypeVar("T")
MISTAKES = (UserError, HydraException, OmegaConfBaseException)
"""What a wrong setting raises."""


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
