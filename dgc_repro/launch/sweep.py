"""A sweep: every combination of ``key=a,b`` overrides, one run after another in this process.

All combinations are composed and validated before the first one trains. A run that fails is named and the
others go on. At the end one table compares them; the exit code is that of the first failure. A sweep with
another launcher or sweeper of Hydra (``hydra/launcher=...``) goes through Hydra.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from dgc_repro import compare
from dgc_repro.errors import UserError
from dgc_repro.launch import slurm
from dgc_repro.launch.local import RunFailed, RunStopped
from dgc_repro.launch.overrides import composed, in_one_line, key_of
from dgc_repro.launch.paths import options
from dgc_repro.launch.sections import SLURM
from dgc_repro.launch.single import check
from dgc_repro.paper.records import read_run
from dgc_repro.results import frames_of


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of every run of a sweep, the last key fastest."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    choices = [
        [f"{str(o.input_line).partition('=')[0]}={value}" for value in _values(o)]
        if o.is_sweep_override()
        else [str(o.input_line)]
        for o in parsed
    ]
    return [list(job) for job in itertools.product(*choices)]


def _values(swept: Override) -> Iterable[str]:
    value: Any = swept.value()
    if isinstance(value, Glob):
        return value.filter(options(swept.key_or_group))
    return swept.sweep_string_iterator()


def sweep(
    overrides: Sequence[str], run: Callable[[dict[str, Any], list[str]], Path]
) -> list[BaseException]:
    """Run all; the errors of those that failed. Raises UserError where one is not valid."""
    expanded = expand(overrides)
    jobs = []
    for given in expanded:
        try:
            config = composed(given)
            check(config, given)
        except (UserError, HydraException, OmegaConfBaseException) as error:
            why = _for_a_sweep(in_one_line(error), given, expanded)
            raise UserError(f"{why} (in {' '.join(given)}; nothing was trained)") from error
        jobs.append((config, given))
    folders: list[Path] = []
    failed: list[BaseException] = []
    if SLURM in (kinds := {config["launch"]["kind"] for config, _ in jobs}):
        if len(kinds) > 1:
            raise UserError(
                f"launch.kind: slurm submits a sweep as a whole, got {', '.join(sorted(kinds))}; make a "
                "sweep for each"
            )
        folders, failed = slurm.train(jobs)
        jobs = []
    for place, (config, given) in enumerate(jobs, start=1):
        print(f"[{place}/{len(jobs)}] {' '.join(given)}", flush=True)
        try:
            folders.append(run(config, given))
        except (KeyboardInterrupt, RunStopped):
            raise
        except Exception as error:
            print(f"failed: {' '.join(given)}: {error}", flush=True)
            if not isinstance(error, (UserError, RunFailed)):
                traceback.print_exc()
            # Only the text is kept: the frames hold what the run held, such as the ranks' store.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            failed.append(error)
    if folders:
        frames = frames_of([read_run(folder) for folder in dict.fromkeys(folders)])
        compare.show(compare.compared(frames), Console(highlight=False, width=100))
        print(f"python -m dgc_repro compare {folders[0].parent} draws them", flush=True)
    return failed


def _for_a_sweep(line: str, given: Sequence[str], jobs: Sequence[Sequence[str]]) -> str:
    """The error line; where another member of a swept group has the key, it says which member lacks it."""
    key, is_of_another, _ = line.partition(": no such key; it is a setting of ")
    group, _, setting = key.partition(".")
    members = {override for job in jobs for override in job if key_of(override) == group}
    if not is_of_another or len(members) < 2:
        return line
    member = " ".join(members.intersection(given))
    return (
        f"{key}: {member} has no {setting}; make one sweep for each {group}, or sweep settings that all of "
        "them have"
    )
