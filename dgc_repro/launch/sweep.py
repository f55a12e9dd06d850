"""A sweep: what is done around the runs of Hydra's ``--multirun``, whatever its launcher and sweeper are.

All combinations are composed and validated before the first one trains. A run that fails is named and the
others go on. At the end one table compares them, and a search (``hydra/sweeper=optuna``) names its best. A
launcher may start the runs in other processes: each adds a line to ``<hydra.sweep.dir>/runs.jsonl``.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from dgc_repro import compare
from dgc_repro.errors import UserError, full_disk, writing
from dgc_repro.launch import slurm
from dgc_repro.launch.environment import RUNS_AT_ONCE, available_cores
from dgc_repro.launch.local import RunFailed, RunStopped
from dgc_repro.launch.mirror import sync_line
from dgc_repro.launch.optimized import AT_TARGET, KEY, measured, objectives
from dgc_repro.launch.overrides import in_one_line, key_of, plain_value, resolved, sets
from dgc_repro.launch.parent import inside_torchrun
from dgc_repro.launch.paths import is_group, options
from dgc_repro.launch.sections import SLURM
from dgc_repro.launch.single import DEFAULT_COMPRESSOR, check
from dgc_repro.paper.decisions import json_lines
from dgc_repro.paper.records import read_run
from dgc_repro.progress import console_of

RECORD, BEST = "runs.jsonl", "optimization_results.yaml"
BASIC = "basic"
started: list[Path] = []
"""The record of the sweep that this process has started."""


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of every run of a sweep, the last key fastest."""
    return [list(job) for job in itertools.product(*_choices(overrides))]


def varied(overrides: Sequence[str]) -> list[list[str]]:
    """For a search: runs with each choice and both ends of each interval, one key at a time."""
    choices = _choices(overrides)
    first = [values[0] for values in choices]
    others = [
        [*first[:place], value, *first[place + 1 :]]
        for place, values in enumerate(choices)
        for value in values[1:]
    ]
    return [first, *others]


def _choices(overrides: Sequence[str]) -> list[list[str]]:
    """For each key the overrides that a sweep tries; a key's last override counts."""
    found = {}
    for o in OverridesParser.create().parse_overrides(list(overrides)):
        key = f"{str(o.input_line).partition('=')[0]}"
        values = [f"{key}={value}" for value in _values(o)] if o.is_sweep_override() else []
        found[key] = values or [str(o.input_line)]
    return list(found.values())


def _values(swept: Override) -> Iterable[Any]:
    value: Any = swept.value()
    if isinstance(value, IntervalSweep):
        return value.start, value.end
    if isinstance(value, Glob):
        return value.filter(options(swept.key_or_group))
    return swept.sweep_string_iterator()


def with_choices(overrides: Sequence[str]) -> list[str]:
    """The overrides of a sweep over a group, such as ``compressor=topk,randomk compressor.density=0.1``.
    Hydra composes what the runs share without the group, and would not know its setting: that becomes a
    choice of one."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    if not any(o.is_sweep_override() and is_group(o.key_or_group) for o in parsed):
        return list(overrides)
    found = []
    for text, o in zip(overrides, parsed, strict=True):
        key, equals, value = text.partition("=")
        is_plain = equals and value and not o.is_sweep_override() and "." in key
        found.append(f"{key}=choice({value})" if is_plain and not o.is_hydra_override() else text)
    return found


def start(config: DictConfig) -> bool:
    """Before the first run: validate all that the sweep will make. ``config``: what the runs share, with
    Hydra's own section. Returns whether Slurm has taken the sweep, so that nothing is left to run here.
    Raises UserError."""
    hydra = config.hydra
    if inside_torchrun():
        raise UserError("hydra.mode: a sweep starts ranks of its own; leave torchrun out")
    is_search = hydra.runtime.choices["hydra/sweeper"] != BASIC
    params = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
    overrides = [*params, *hydra.overrides.task]
    jobs = (varied if is_search else expand)(overrides)
    checked: list[tuple[dict[str, Any], list[str]]] = []
    for given in jobs:
        try:
            composed = compose("config", [*hydra.overrides.hydra, *given], return_hydra_config=True)
            given = with_compressor(given, composed.hydra.runtime.choices)
            with open_dict(composed):
                del composed["hydra"]
            plain = resolved(composed)
            check(plain, given)
            names = objectives(plain_value(composed, KEY), plain)
        except (UserError, HydraException, OmegaConfBaseException) as error:
            why = _for_a_sweep(in_one_line(error), given, jobs)
            raise UserError(f"{why} (in {' '.join(given)}; nothing was trained)") from error
        checked.append((plain, given))
    if is_search:
        _check_search(hydra, names)
    if SLURM in (kinds := {plain["launch"]["kind"] for plain, _ in checked}):
        if is_search or len(kinds) > 1:
            which = "a search" if is_search else ", ".join(sorted(kinds))
            raise UserError(
                f"launch.kind: slurm submits a sweep as a whole, got {which}; make a sweep for each kind, or "
                "search with launch=local and hydra/launcher=submitit_slurm"
            )
        folders, failed = slurm.train(checked)
        _show(folders)
        if failed:
            raise failed[0]
        return True
    record = Path(hydra.sweep.dir, RECORD)
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"hydra.sweep.dir: cannot make {record.parent} ({error.strerror}); name another"
        ) from error
    num_runs = hydra.sweeper.get("n_trials") if is_search else len(jobs)
    head = {"runs": num_runs, "objectives": names}
    try:
        with writing(record), record.open("x", encoding="utf-8") as lines:
            lines.write(f"{json.dumps(head)}\n")
    except FileExistsError as error:
        raise UserError(
            f"hydra.sweep.dir: another sweep writes to {record.parent}; name another"
        ) from error
    started.append(record)
    for number in (signal.SIGTERM, signal.SIGHUP):  # ends runs in other processes too
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    return False


def with_compressor(given: list[str], choices: Mapping[str, Any]) -> list[str]:
    """The overrides of a run, with the compressor that an experiment or a search has chosen, which is part of
    the run's name."""
    compressor = choices.get("compressor")
    if sets(given, "compressor") or compressor == DEFAULT_COMPRESSOR:
        return given
    return [f"compressor={compressor}", *given]


def _check_search(hydra: DictConfig, names: Sequence[str]) -> None:
    """Raise UserError where a run returns other numbers than the search needs."""
    sweeper = hydra.runtime.choices["hydra/sweeper"]
    direction = hydra.sweeper.get("direction")
    num_goals = len(direction) if OmegaConf.is_list(direction) else 1
    if not names:
        raise UserError(
            f"{KEY}: hydra/sweeper={sweeper} needs the number to search by, such as "
            f"{KEY}=validation/accuracy_percent hydra.sweeper.direction=maximize"
        )
    goals = list(direction) if OmegaConf.is_list(direction) else [direction]
    for name, goal in zip(names, goals, strict=False):
        if name.endswith(AT_TARGET) and str(goal).rpartition(".")[2] == "maximize":
            raise UserError(
                f"hydra.sweeper.direction: {name} is infinite where the target is not reached; minimize it"
            )
    if len(names) != num_goals:
        raise UserError(
            f"hydra.sweeper.direction: one for each of {KEY}, {len(names)}, such as "
            f"[{','.join(['minimize'] * len(names))}], got {num_goals}"
        )


def one_of_sweep(
    config: DictConfig, given: list[str], run: Callable[[dict[str, Any], list[str]], Path]
) -> float | list[float] | None:
    """One run, in whatever process Hydra's launcher has started for it; returns the numbers to optimize.
    Raises UserError or RunFailed, after a line in the record."""
    hydra: Any = HydraConfig.get()
    record = Path(hydra.runtime.cwd, hydra.sweep.dir, RECORD)
    num_runs = json_lines(record)[0]["runs"]
    os.environ[RUNS_AT_ONCE] = str(_runs_at_once(hydra, num_runs))
    print(f"[{hydra.job.num + 1}/{num_runs}] {' '.join(given)}", flush=True)
    line: dict[str, Any] = {"run": hydra.job.num, "overrides": given}
    failure: UserError | RunFailed | None = None
    value = None
    try:
        plain = resolved(config)
        names = objectives(plain_value(config, KEY), plain)
        folder = run(plain, given)
        line["folder"] = str(folder.absolute())
        line[KEY] = value = measured(names, folder)
    except RunStopped:
        raise
    except (UserError, HydraException, OmegaConfBaseException) as error:
        failure = UserError(in_one_line(error))
    except RunFailed as error:
        failure = RunFailed(str(error))
    except Exception as error:
        full = full_disk(error, "a file of this run")
        if full is None:
            traceback.print_exc()
        failure = RunFailed(str(full) if full else f"{type(error).__name__}: {error}")
    if failure is not None:
        line["error"] = str(failure)
        print(f"failed: {' '.join(given)}: {failure}", flush=True)
    with writing(record), record.open("a", encoding="utf-8") as lines:
        lines.write(f"{json.dumps(line)}\n")
    if (
        failure is not None
    ):  # raised here, so that no frame of its traceback holds what the run held
        raise failure
    return value


def _runs_at_once(hydra: DictConfig, num_runs: int) -> int:
    """How many runs the launcher has on this machine at a time."""
    launcher, most = hydra.runtime.choices["hydra/launcher"], num_runs  # submitit_local starts all
    if launcher not in ("joblib", "submitit_local"):
        return 1
    if launcher == "joblib":
        n_jobs = int(hydra.launcher.n_jobs)
        most = n_jobs if n_jobs > 0 else max(1, available_cores() + 1 + n_jobs)
    return min(most, num_runs, int(hydra.sweeper.get("n_jobs", num_runs)))


def finish() -> list[str]:
    """After the last run: print the table of those that finished, the best of a search, and the failures,
    which are returned. Nothing where no sweep was started."""
    if not started:
        return []
    record = started.pop()
    _, *lines = json_lines(record)
    folders = [Path(line["folder"]) for line in lines if "folder" in line]
    _show(folders)
    for text in best(record):
        print(text, flush=True)
    failed = [
        f"{' '.join(line['overrides'])}: {line['error']}" for line in lines if "error" in line
    ]
    if failed:
        print("\n".join([f"failed: {len(failed)} of {len(lines)} runs", *failed]), flush=True)
    return failed


def _show(folders: Sequence[Path]) -> None:
    """The table of these runs."""
    if folders:
        runs = [read_run(folder) for folder in dict.fromkeys(folders)]
        compare.show(compare.compared(runs), console_of(sys.stdout, width=100))
        where = os.path.relpath(folders[0].parent)
        papers = " --paper" * any(compare.is_of_paper(run) for run in runs)
        print(f"python -m dgc_repro compare {where}{papers} draws them", flush=True)
        if line := sync_line([Path(os.path.relpath(folder)) for folder in folders]):
            print(line, flush=True)


def best(record: Path) -> list[str]:
    """The result of optuna's sweeper in words, with the run folders; nothing where there is none."""
    path = record.with_name(BEST)
    if not path.is_file():
        return []
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    head, *lines = json_lines(record)
    several = found.get("solutions")
    trials = several or [{"params": found["best_params"], "values": [found["best_value"]]}]
    words = (
        [f"the best {len(trials)} trials (no other is better in everything):"] if several else []
    )
    for trial in trials:
        values = trial["values"]
        pairs = zip(head["objectives"], values, strict=True)
        settings = " ".join(f"{key}={value}" for key, value in trial["params"].items())
        # Tied trials have equal values. The text of a setting may differ from the sweeper's.
        given = {f"{key}={value}" for key, value in trial["params"].items()}
        tied = [line for line in lines if line.get(KEY) == (values if several else values[0])]
        same = [line for line in tied if given <= set(line["overrides"])] or tied
        folder = same[0].get("folder") if same else None
        words.append(
            f"{'best: ' if not several else ''}{', '.join(f'{name} {value:.6g}' for name, value in pairs)}"
            f" with {settings} ({os.path.relpath(folder) if folder else 'run folder not found'})"
        )
    if found.get("best_value") in (math.inf, -math.inf):
        words = ["no trial reached stopping.target"]
    return [*words, f"search: {path}"]


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
