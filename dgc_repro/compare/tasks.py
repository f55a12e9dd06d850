"""Runs sorted by what they were trained on, their lines, and a line judged against another."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, setting_names
from dgc_repro.paper.against import Against, against, unlike, workload_of
from dgc_repro.paper.frame import amount, count, number
from dgc_repro.paper.records import Run

log = logging.getLogger(__name__)
OWN = "none"
"""The paper of a run of one's own."""
QUALITIES = {
    "test/perplexity": ("test perplexity", ""),
    "test/accuracy_percent": ("test accuracy", "%"),
}
AMOUNTS = {
    "floats": ("comm/floats", "floats sent", count),
    "payload_bytes": ("comm/payload_bytes", "payload", amount),
    "wire_bytes": ("comm/wire_bytes", "wire", amount),
    "seconds": ("time/train_seconds", "training s", number),
}
DENSE = "Dense"
"""The compressor that sweeps are judged against."""


@dataclass(frozen=True)
class Task:
    """The runs on one data set.

    runs    the runs, in the order of the table
    table   one row a run: ``task``, ``line`` (what its line is called), ``settings`` (what its settings are
            called), ``seed``, ``metric``, ``quality``, floats, payload_bytes and wire_bytes of one worker,
            seconds of training, ``folder``
    facts   data, models and workers, for the caption
    notes   what a reader of the table needs besides
    """

    name: str
    metric: str
    runs: tuple[Run, ...]
    table: pd.DataFrame
    facts: str
    notes: tuple[str, ...]

    @property
    def lines(self) -> list[tuple[str, pd.DataFrame]]:
        """The runs of each line, best mean quality first."""
        found = [(str(name), rows) for name, rows in self.table.groupby("line", sort=False)]
        sign = 1 if self.metric == "test/perplexity" else -1

        def place(line: tuple[str, pd.DataFrame]) -> float:
            mean = float(line[1]["quality"].mean())
            return sign * mean if math.isfinite(mean) else math.inf

        return sorted(found, key=place)

    @property
    def runs_of(self) -> dict[str, list[Run]]:
        """The runs of each line, in the order of `lines`."""
        return {name: [self.runs[place] for place in rows.index] for name, rows in self.lines}

    def called(self, name: str) -> list[str]:
        """The lines that a name may mean: that of the line, else its compressor."""
        runs_of = self.runs_of
        if name in runs_of:
            return [name]
        own = name.casefold()
        return [line for line, runs in runs_of.items() if own in compressors(runs)]


def is_of_paper(run: Run) -> bool:
    """Whether a run belongs to a paper's table or figure."""
    return str(run.setting("experiment.paper", OWN)) != OWN


def compared(runs: Sequence[Run], by: str | None = None) -> list[Task]:
    """Sort the runs by data set, most runs first, and by metric where a data set has two.

    Raises UserError where no run has a test accuracy or perplexity, or none has the key ``by``."""
    keys = dict.fromkeys(key for run in runs for key, _ in setting_names.flat(run.config))
    if by is not None and by != "compressor" and by not in keys:
        near = [key for key in keys if by.rpartition(".")[2] in key]
        raise UserError(
            f"--by: no setting {by!r} in these runs; {', '.join(near) or 'see config.yaml'}"
        )
    trained = sorted((run for run in runs if _metric(run)), key=_task)
    for run in runs:
        if not _metric(run) and not run.epochs.empty:
            log.warning(
                f"left out: {run.id}: its summary.json has no test accuracy or perplexity; "
                "remove the folder and run again"
            )
    if not trained:
        raise UserError(
            "compare: these runs have no test accuracy or perplexity; give trained runs"
        )
    tasks = [_compared(task, list(own), by) for task, own in groupby(trained, _task)]
    return sorted(tasks, key=lambda task: -len(task.table))


def _metric(run: Run) -> str:
    return next((name for name in QUALITIES if name in run.summary), "")


def _task(run: Run) -> tuple[str, str]:
    name = str(run.setting("dataset._target_", "")).rpartition(".")[2]
    return setting_names.bounded(name), _metric(run)


def _compared(task: tuple[str, str], runs: Sequence[Run], by: str | None) -> Task:
    dataset, metric = task
    names, usual = setting_names.named(runs)
    settings = _told_apart(names, runs)
    table = pd.DataFrame(
        {
            "task": dataset,
            "line": settings if by is None else [_value(run, by) for run in runs],
            "settings": settings,
            "seed": [run.seed for run in runs],
            "metric": metric,
            "quality": [_number(run.summary[metric]) for run in runs],
            **{
                key: [_number(run.summary.get(column)) for run in runs]
                for key, (column, _, _) in AMOUNTS.items()
            },
            "folder": [run.id for run in runs],
        }
    )
    said = facts.distinct(map(facts.model_text, runs)), facts.worlds(runs)
    notes = [f"unless named: {usual}"] if usual and by is None else []
    notes += [
        f"{line} pools {several} settings: its mean and ± are over settings as well as seeds"
        for line, several in table.groupby("line", sort=False)["settings"].nunique().items()
        if several > 1
    ]
    for line, own in table.groupby("line", sort=False):
        if seeds := [runs[place].seed for place in own.index if runs[place].guesses]:
            notes.append(f"{line}: no better than guessing with seed {', '.join(map(str, seeds))}")
    text = setting_names.bounded("; ".join((facts.data_text(runs), *said)))
    return Task(dataset, metric, tuple(runs), table, text, tuple(notes))


def _told_apart(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The names; of runs with the same name and seed, with the hashes of their folders, and a number where
    these are equal too."""
    pairs = Counter((name, run.seed) for name, run in zip(names, runs, strict=True))
    seen: Counter[tuple[str, int]] = Counter()
    found = []
    for name, run in zip(names, runs, strict=True):
        label = f"{name} {run.id.rpartition('-')[2]}"
        seen[label, run.seed] += 1
        unique = f"{label} ({number})" if (number := seen[label, run.seed]) > 1 else label
        found.append(unique if pairs[name, run.seed] > 1 else name)
    return found


def _number(value: object) -> float:
    """A number of a summary; NaN where the record has none."""
    return float(value) if isinstance(value, int | float) else math.nan


def _value(run: Run, by: str) -> str:
    """The name of a run's line by one config key."""
    key = "compressor._target_" if by == "compressor" else by
    value = run.setting(key)
    if key.endswith("._target_"):
        return setting_names.bounded(str(value).rpartition(".")[2])
    text = "not set" if value is None else facts.short(value)
    return setting_names.bounded(f"{key.rpartition('.')[2]} {text}")


def judged_against(
    tasks: Sequence[Task], name: str, margin: float | None = None
) -> list[tuple[Task, Against]]:
    """Judge the lines of each task that has a line of this name. Raises UserError where none has, and where
    the name may mean several lines."""
    called = [(task, task.called(name)) for task in tasks]
    for task, lines in called:
        if len(lines) > 1:
            raise UserError(
                f"--against: {name!r} may be one of several settings of {task.name}; give one of: "
                f"{_quoted(lines)}"
            )
    if not any(lines for _, lines in called):
        every = [line for task in tasks for line, _ in task.lines]
        raise UserError(f"--against: no setting {name!r}; there are: {_quoted(every)}")
    return [(task, _against(task, lines[0], margin)) for task, lines in called if lines]


def judged_sweep(tasks: Sequence[Task]) -> list[tuple[Task, Against]]:
    """Judge the tasks in which one line is uncompressed training and all lines train the same model in the
    same way, against that line."""
    found = []
    for task in tasks:
        lines = task.called(DENSE)
        if len(lines) == 1 and len(task.lines) > 1 and not unlike(task.runs):
            found.append((task, _against(task, lines[0], None)))
    return found


def _against(task: Task, reference: str, margin: float | None) -> Against:
    workload = workload_of(task.name, task.metric.removeprefix("test/"), margin)
    return against(task.runs_of, reference, workload)


def compressors(runs: Sequence[Run]) -> list[str]:
    """Return what the compressor of a line may be called: its module and its class, in small letters."""
    target = str(runs[0].setting("compressor._target_", "")).casefold()
    return target.split(".")[-2:]


def _quoted(names: Sequence[str]) -> str:
    return "; ".join(f'"{name}"' for name in names)
