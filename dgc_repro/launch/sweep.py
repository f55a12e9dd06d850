"""What Hydra runs: one run, or a sweep (``--multirun``), whatever its launcher and sweeper are.

All combinations of a sweep are composed and validated before the first one trains. A run that fails is named
and the others go on. At the end one table compares them, and a search (``hydra/sweeper=optuna``) names its
best. A launcher may start the runs in other processes: each adds a line to ``<hydra.sweep.dir>/runs.jsonl``.

``optimized_metric`` names the numbers of a finished run that a search optimizes. A name is a number of the
last epoch, such as ``validation/accuracy_percent``. With ``@target`` behind it, it is that number at the end
of the first epoch that reaches ``stopping.target``, infinite where no epoch does:
``comm/payload_bytes@target`` are the payload bytes that reach a stated accuracy.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from dgc_repro.errors import UserError, writing
from dgc_repro.exchange.clock import SPANS
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.launch import slurm, torchrun
from dgc_repro.launch.environment import RUNS_AT_ONCE, available_cores
from dgc_repro.launch.main import answer, leave, say
from dgc_repro.launch.mirror import sync_line
from dgc_repro.launch.networks import named_network
from dgc_repro.launch.overrides import (
    in_one_line,
    key_of,
    made,
    nearest,
    plain_value,
    resolved,
    sets,
)
from dgc_repro.launch.paths import is_group, writing_to
from dgc_repro.launch.rank_process import inside_torchrun
from dgc_repro.launch.ranks import RunFailed, RunStopped
from dgc_repro.launch.run import (
    DEFAULT_COMPRESSOR,
    MISTAKES,
    Job,
    check,
    choices,
    expand,
    is_for_slurm,
    outcome,
    run_config,
    train_in,
)
from dgc_repro.launch.settings import SLURM, component
from dgc_repro.launch.torchrun import Execute
from dgc_repro.launch.worker import read_config
from dgc_repro.paper.records import Run, counted_line, read_run
from dgc_repro.paper.untrusted import json_lines
from dgc_repro.train.stopping import Stopping

RECORD, BASIC = "runs.jsonl", "basic"
started: list[Path] = []
"""The record of the sweep that this process has started."""
KEY, AT_TARGET = "optimized_metric", "@target"
PARTS = ("train", "validation", "test")
EVERY_RUN = (
    *("epoch", "step", "weights/change_norm", "time/train_seconds", *Ledger().metrics()),
    *(f"time/{span}_ms" for span in SPANS),
    *(f"{part}/{name}" for part in PARTS for name in ("loss", "accuracy_percent")),
)
OF_KIND = {
    "images": ("validation/top5_percent", "test/top5_percent"),
    "words": tuple(f"{part}/perplexity" for part in PARTS),
}
MODELLED = tuple(
    f"time/modelled_{name}" for name in ("seconds", "communicate_ms", "communicate_seconds")
)


def varied(overrides: Sequence[str]) -> list[list[str]]:
    """Return, for a search, runs with each choice and both ends of each interval, one key at a time."""
    tried = choices(overrides)
    first = [values[0] for values in tried]
    others = [
        [*first[:place], value, *first[place + 1 :]]
        for place, values in enumerate(tried)
        for value in values[1:]
    ]
    return [first, *others]


def with_choices(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep over a group (``compressor=topk,randomk compressor.density=0.1``).
    Hydra composes what the runs share without the group, and would not know its setting: that becomes a
    choice of one."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    if not any(one.is_sweep_override() and is_group(one.key_or_group) for one in parsed):
        return list(overrides)
    found = []
    for text, one in zip(overrides, parsed, strict=True):
        key, _, value = text.partition("=")
        is_fixed = value and "." in key and not (one.is_sweep_override() or one.is_hydra_override())
        found.append(f"{key}=choice({value})" if is_fixed else text)
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
    listed = (varied if is_search else expand)([*params, *hydra.overrides.task])
    jobs: list[Job] = []
    names: list[str] = []
    for given in listed:
        try:
            job, names = _checked(given, hydra.overrides.hydra)
        except MISTAKES as error:
            why = _for_a_sweep(in_one_line(error), given, listed)
            raise UserError(f"{why} (in {' '.join(given)}; nothing was trained)") from error
        jobs.append(job)
    goals = _goals(hydra, names) if is_search else []
    if SLURM in (kinds := {job.config["launch"]["kind"] for job in jobs}):
        if is_search or len(kinds) > 1:
            which = "a search" if is_search else ", ".join(sorted(kinds))
            raise UserError(
                f"launch.kind: slurm submits a sweep as a whole, got {which}; make a sweep for each kind, or "
                "search with launch=local and hydra/launcher=submitit_slurm"
            )
        folders, failed = slurm.train(jobs)
        _show(folders)
        if failed:
            raise failed[0]
        return True
    num_runs = hydra.sweeper.get("n_trials") if is_search else len(jobs)
    _begin(Path(hydra.sweep.dir, RECORD), {"runs": num_runs, "objectives": names, "goals": goals})
    for number in (signal.SIGTERM, signal.SIGHUP):  # ends runs in other processes too
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    return False


def _checked(given: list[str], flags: Sequence[str]) -> tuple[Job, list[str]]:
    """A valid run of the sweep, and the names of the numbers that it returns."""
    composed = compose("config", [*flags, *given], return_hydra_config=True)
    given = with_compressor(given, composed.hydra.runtime.choices)
    with open_dict(composed):
        del composed["hydra"]
    plain = resolved(composed)
    check(plain, given)
    return Job(plain, given), objectives(plain_value(composed, KEY), plain)


def _begin(record: Path, head: Mapping[str, Any]) -> None:
    """Make the record of a sweep. Raises UserError where it cannot be made."""
    with writing_to("hydra.sweep.dir", record.parent):
        record.parent.mkdir(parents=True, exist_ok=True)
        try:
            with record.open("x", encoding="utf-8") as lines:
                lines.write(f"{json.dumps(head)}\n")
        except FileExistsError as error:
            raise UserError(
                f"hydra.sweep.dir: another sweep writes to {record.parent}; name another"
            ) from error
    started.append(record)


def with_compressor(given: list[str], choices: Mapping[str, Any]) -> list[str]:
    """Return the overrides of a run, with the compressor that an experiment or a search has chosen, which is
    part of the run's name."""
    compressor = choices.get("compressor")
    if sets(given, "compressor") or compressor == DEFAULT_COMPRESSOR:
        return given
    return [f"compressor={compressor}", *given]


def _goals(hydra: DictConfig, names: Sequence[str]) -> list[str]:
    """The goal of a search for each number. Raises UserError where a run returns other numbers than the
    search needs."""
    if not names:
        raise UserError(
            f"{KEY}: hydra/sweeper={hydra.runtime.choices['hydra/sweeper']} needs the number to search by, "
            f"such as {KEY}=validation/accuracy_percent hydra.sweeper.direction=maximize"
        )
    stated = hydra.sweeper.get("direction")
    listed = list(stated) if OmegaConf.is_list(stated) else [stated]
    goals = [str(goal).rpartition(".")[2] for goal in listed]
    for name, goal in zip(names, goals, strict=False):
        if name.endswith(AT_TARGET) and goal == "maximize":
            raise UserError(
                f"hydra.sweeper.direction: {name} is infinite where the target is not reached; minimize it"
            )
    if len(names) != len(goals):
        raise UserError(
            f"hydra.sweeper.direction: one for each of {KEY}, {len(names)}, such as "
            f"[{','.join(['minimize'] * len(names))}], got {len(goals)}"
        )
    return goals


def one_of_sweep(config: DictConfig, given: list[str]) -> float | list[float] | None:
    """One run, in whatever process Hydra's launcher has started for it; returns the numbers to optimize.
    Raises UserError or RunFailed, after a line in the record."""
    hydra: Any = HydraConfig.get()
    record = Path(hydra.runtime.cwd, hydra.sweep.dir, RECORD)
    num_runs = next(json_lines(record))["runs"]
    os.environ[RUNS_AT_ONCE] = str(_runs_at_once(hydra, num_runs))
    print(f"[{hydra.job.num + 1}/{num_runs}] {' '.join(given)}", flush=True)
    line: dict[str, Any] = {"run": hydra.job.num, "overrides": given}

    def make() -> Path:
        plain = resolved(config)
        folder = run_config(plain, given)
        line["folder"] = str(folder.absolute())
        line[KEY] = measured(objectives(plain_value(config, KEY), plain), folder)
        return folder

    _, failure = outcome(make)
    if failure is not None:
        line["error"] = str(failure)
        print(f"failed: {' '.join(given)}: {failure}", flush=True)
    with writing(record), record.open("a", encoding="utf-8") as lines:
        lines.write(f"{json.dumps(line)}\n")
    if failure is not None:
        raise failure
    value: float | list[float] | None = line[KEY]
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


def finish() -> None:
    """After the last run: print the table of those that finished, the best of a search, and the failures.
    Nothing where no sweep was started."""
    if not started:
        return
    head, *lines = json_lines(record := started.pop())
    _show([Path(line["folder"]) for line in lines if "folder" in line])
    if head["goals"]:
        print("\n".join([*best(head, lines), f"search: {record.parent}"]), flush=True)
    failed = [line for line in lines if "error" in line]
    if failed:
        print(f"failed: {len(failed)} of {len(lines)} runs")
        for line in failed:
            print(f"{' '.join(line['overrides'])}: {line['error']}", flush=True)


def _show(folders: Sequence[Path]) -> None:
    """The table of these runs."""
    if folders:
        from dgc_repro.compare import command, tasks  # they import pandas, scipy and matplotlib

        runs = [read_run(folder) for folder in dict.fromkeys(folders)]
        found, console = tasks.compared(runs), command.console()
        judged = tasks.judged_sweep(found)
        command.show(found, console)
        command.show_judged(judged, console)
        where = os.path.relpath(folders[0].parent)
        more = " --paper" * any(tasks.is_of_paper(run) for run in runs)
        more += " --against dense" * bool(judged)
        print(f"python -m dgc_repro compare {where}{more} draws them", flush=True)
        if line := sync_line([Path(os.path.relpath(folder)) for folder in folders]):
            print(line, flush=True)


def best(head: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the result of a search in words, with the run folders: the best trial, or of several goals each
    trial that no other one beats in everything. ``head``, ``lines``: of the record."""
    tried = []
    for line in lines:
        if line.get(KEY) is not None:
            values = line[KEY] if isinstance(line[KEY], list) else [line[KEY]]
            pairs = zip(values, head["goals"], strict=True)
            tried.append(([-v if goal == "maximize" else v for v, goal in pairs], values, line))
    words = []
    for cost, values, line in tried:
        others = (other for other, *_ in tried if other != cost)
        if any(all(a <= b for a, b in zip(other, cost, strict=True)) for other in others):
            continue
        if len(values) == 1 and math.isinf(values[0]):
            return ["no trial reached stopping.target"]
        named = zip(head["objectives"], values, strict=True)
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in named)
        place = os.path.relpath(line["folder"])
        words.append(f"{numbers} with {' '.join(line['overrides'])} ({place})")
    if not words or len(head["goals"]) == 1:
        return [f"best: {text}" for text in words[:1]]
    return [f"the best {len(words)} trials (no other is better in everything):", *words]


def _for_a_sweep(line: str, given: Sequence[str], jobs: Sequence[Sequence[str]]) -> str:
    """The error line. Where another member of a swept group has the key, it says which member lacks it."""
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


class BeforeSweep(Callback):
    """Hydra's callback (conf/config.yaml): a sweep is validated as a whole before its first run."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """A mistake ends the command here: SystemExit passes Hydra, which makes warnings of other errors. So
        does a sweep that Slurm has taken."""
        taken: list[bool] = []
        code = answer(lambda: taken.append(start(config)))
        if code or taken[0]:
            leave(code)


# -- what Hydra calls for each composed config --


def one_run(config: DictConfig, execute: Execute | None = None) -> float | list[float] | None:
    """What Hydra calls for each composed config; of a sweep, in whatever process its launcher has started."""
    # Unresolved: an override may hold an interpolation that is wrong, which `resolved` reports.
    hydra_config = HydraConfig.get()
    given: Any = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    given = with_compressor(given, hydra_config.runtime.choices)
    if hydra_config.mode == RunMode.MULTIRUN:
        try:
            return one_of_sweep(config, given)
        except RunStopped as stop:
            leave(say(str(stop), 128 + stop.signal_number))

    def run() -> None:
        plain = resolved(config)
        objectives(plain_value(config, KEY), plain)
        report_run(plain, given, execute)

    if code := answer(run):
        leave(code)
    return None


def report_run(config: dict[str, Any], given: list[str], execute: Execute | None) -> None:
    """Run, or submit, and say where the record lies."""
    if is_for_slurm(config) and execute is None:
        check(config, given)
        done, failed = slurm.train([(config, given)])
        for error in failed:
            raise error
        for folder in done:
            report(folder)
    else:
        report(run_config(config, given, execute))


def train_submitted(folder: Path, execute: Execute | None) -> None:
    """In a job of ``launch=slurm``: train what the run folder says."""
    config = read_config(folder)
    if execute is not None:
        torchrun.check_launch(config)
    report(train_in(folder, config, execute))


def report(folder: Path) -> None:
    """Say what a finished run has sent, and where its record lies."""
    if line := counted_line(folder):
        print(line, flush=True)
    if line := sync_line([folder]):
        print(line, flush=True)
    print(f"run folder: {folder}", flush=True)


# -- the numbers that a search optimizes --


def objectives(metric: Any, config: Mapping[str, Any]) -> list[str]:
    """The names in ``optimized_metric`` of a run with this config; none for null. Raises UserError for what
    such a run does not record."""
    names = metric if isinstance(metric, list) else [] if metric is None else [metric]
    if not all(isinstance(name, str) for name in names) or names == metric == []:
        like = "validation/accuracy_percent or [test/loss,comm/payload_bytes]"
        raise UserError(f"{KEY}: a name or a list of names, such as {like}, got {metric!r}")
    kind = getattr(component(config["dataset"], "dataset"), "gives", "images")
    known = (*EVERY_RUN, *OF_KIND[kind])
    for name in names:
        plain = name.removesuffix(AT_TARGET)
        if plain in MODELLED:
            if named_network(config) is None:
                raise UserError(f"{KEY}: {plain} needs a network, such as network=ethernet_1gbit")
        elif plain not in known:
            raise UserError(f"{KEY}: no run records {plain!r}; {nearest(plain, known)}")
        if plain != name and config["stopping"]["target"] is None:
            raise UserError(f"{KEY}: {name} needs stopping.target, got null; give one")
    return names


def measured(names: Sequence[str], folder: Path) -> float | list[float] | None:
    """The numbers of a finished run; one number alone. Raises UserError for one that the run has not
    recorded, RunFailed for one that is no number."""
    if not names:
        return None
    run = read_run(folder)
    values = [_value(run, name) for name in names]
    return values if len(values) > 1 else values[0]


def _value(run: Run, name: str) -> float:
    plain = name.removesuffix(AT_TARGET)
    value = run.last(plain)
    if plain != name:
        stopping = made(Stopping, run.setting("stopping"), "stopping")
        reached = [stopping.is_reached(dict(epoch)) for _, epoch in run.epochs.iterrows()]
        value = next(iter(run.epochs.loc[reached, plain]), math.inf)
    if math.isnan(value):
        raise RunFailed(f"{name} is not a number: the run diverged")
    return float(value)
