"""Finished runs, read back: one `Run` for each run folder.

A run was trained (``epochs``, ``decisions``, ``trace``), or measured or computed (``lines``). Unfinished runs
are skipped with a message, and so are damaged ones. A broken file is an error of one line that names it.

The summary of a finished run has the checksums of the record (checksums.py). `summary_of` compares them.
A run folder may be a stranger's (untrusted.py). decisions.py makes the table of its decisions.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgc_repro import files
from dgc_repro.checked import refuse
from dgc_repro.checksums import Damaged, verified
from dgc_repro.errors import CONTROL, UserError, shown
from dgc_repro.names import default_of, defaults_of_component
from dgc_repro.paper.decisions import decisions_of
from dgc_repro.paper.untrusted import (
    RecordShape,
    checked_config,
    json_lines,
    json_object,
    one_line,
    parsed,
)

if TYPE_CHECKING:
    import pandas as pd

FINISHED = "finished"
EPOCHS_FILE, TRACE_FILE = "metrics.jsonl", "policy.csv"
LINES_FILES = ("rows.csv", "repeats.csv")
NEEDED_FILES = ("config.yaml", "environment.json", "summary.json")
FREE_KEYS = ("root", "seed")
"""May differ between the runs of one table: where the data lies, and the seed."""
DATA_SETS = {
    "Cifar10": "CIFAR-10",
    "Cifar100": "CIFAR-100",
    "FashionMnist": "Fashion-MNIST",
    "Ptb": "PTB",
}
"""Data sets by their class, as papers name them; others have their class's name in small letters."""
REQUIRED_METRICS = (
    *("epoch", "train/loss", "train/accuracy_percent", "test/accuracy_percent"),
    *("comm/floats", "comm/payload_bytes", "comm/wire_bytes", "time/train_seconds"),
)
NETWORK = ("net/tx_bytes", "net/expected_tx_bytes", "comm/total_wire_bytes")
"""Of the summary of a run with ``launch=netlab``: bytes that a worker's interface counted, and the ledger."""


def _frame(rows: Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """Return a table of these rows. A summary is read without pandas, which takes half a second to import."""
    import pandas as pd

    return pd.DataFrame(list(rows))


def is_guess(summary: Mapping[str, Any]) -> bool:
    """Whether the test quality of a finished run is no better than a uniform guess among the classes or
    tokens. False where the summary does not say."""
    names = ("classes", "test/accuracy_percent", "test/perplexity")
    known = {name: summary.get(name) for name in names}
    classes, accuracy, perplexity = (
        value if isinstance(value, int | float) else math.nan for value in known.values()
    )
    if not classes > 0:
        return False
    return bool(accuracy <= 100 / classes if math.isnan(perplexity) else perplexity >= classes)


@dataclass(frozen=True)
class Run:
    """One finished run.

    id           the name of the run folder, which ends in the hash of the config
    epochs       one row an epoch, in order: metrics by name
    decisions    one row a recorded step: what the policy decided (`decisions_of`)
    trace        one row a change of the policy's plan
    lines        of a measurement or a study: its table
    """

    id: str
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    epochs: pd.DataFrame = field(default_factory=_frame)
    decisions: pd.DataFrame = field(default_factory=_frame)
    trace: pd.DataFrame = field(default_factory=_frame)
    lines: pd.DataFrame = field(default_factory=_frame)

    def setting(self, key: str, missing: Any = None) -> Any:
        """The config value of a dotted key, ``missing`` where the config has no such key."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return missing
            value = value[part]
        return value

    @property
    def row(self) -> str:
        """The row of the table or figure that the run belongs to."""
        return str(self.setting("experiment.row"))

    @property
    def guesses(self) -> bool:
        """Whether its quality is no better than a guess (`is_guess`)."""
        return is_guess(self.summary)

    @property
    def is_on_gpu(self) -> bool:
        return bool(self.environment.get("device") == "cuda")

    @property
    def processor(self) -> str:
        """The kind of processor that trained: the GPU, or the CPU with its vector instructions. Sums are
        rounded differently on another kind, so the same seed is another run there."""
        name, *_ = str(self.environment.get("hardware", "")).split(", ")
        vectors = "" if self.is_on_gpu else str(self.environment.get("vectors", ""))
        return ", ".join(part for part in (name, vectors) if part)

    @property
    def model(self) -> str:
        """The part of the row before the first dot, empty where there is none."""
        return self.row.partition(".")[0] if "." in self.row else ""

    @property
    def method(self) -> str:
        """The part of the row after the model."""
        return self.row.partition(".")[2] or self.row

    @property
    def data(self) -> str:
        """The data set that the run has read, empty for none."""
        name = str(self.setting("dataset._target_", "")).rpartition(".")[2]
        read = name and self.environment.get("data") != "none"
        return DATA_SETS.get(name, name.lower()) if read else ""

    @property
    def precision(self) -> str:
        """The precision in which the run was computed; ``train.precision=half`` leaves it to the device."""
        return str(self.environment.get("precision") or self.setting("train.precision", ""))

    @property
    def seed(self) -> int:
        """The seed, which pairs the runs of different rows."""
        return int(self.config["seed"])

    @property
    def scale(self) -> str:
        """``quick``, ``small``, ``medium``, ``paper``, or a recipe: ``low``, ``air``, ``fashion``."""
        value = self.config.get("scale")
        return str(value.get("name") if isinstance(value, dict) else value)

    def last(self, metric: str) -> float:
        """A metric of the last epoch. Raises UserError where the record lacks it."""
        if metric not in self.epochs.columns:
            names = ", ".join(self.epochs.columns)
            raise UserError(f"{self.id}: no {metric} in its epochs; there are {names}")
        return float(self.epochs[metric].iloc[-1])


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary of a run folder; empty where there is none. Raises UserError where it, or a file of a
    finished run, is damaged."""
    path = folder / "summary.json"
    if CONTROL.search(folder.name) or len(folder.name.split("\n")) > 1:
        raise UserError(f"{folder}: a name with control characters; rename the folder")
    try:
        is_there = path.exists() or path.is_symlink()
        return verified(parsed(path, json_object, "JSON"), path) if is_there else {}
    except Damaged as error:
        raise UserError(f"{folder}: {error}") from error


def is_finished(folder: Path) -> bool:
    """Whether the run's summary says that it ended. Raises UserError for a damaged run."""
    return summary_of(folder).get("status") == FINISHED


def read_run(folder: Path) -> Run:
    """Read a finished run folder. Raises UserError for a missing, broken or damaged file."""
    for name in NEEDED_FILES:
        if not (folder / name).is_file():
            raise UserError(f"{folder}: no {name}; this is not a finished run")
    summary = summary_of(folder)
    lines = next((folder / name for name in LINES_FILES if (folder / name).is_file()), None)
    if lines is None and not (folder / EPOCHS_FILE).is_file():
        raise UserError(f"{folder}: no {EPOCHS_FILE}; this is not a finished run")
    with one_line(folder):
        environment = parsed(folder / "environment.json", json_object, "JSON")
        for of_record in (summary, environment):
            refuse(RecordShape, of_record)
        return Run(
            id=folder.name,
            config=parsed(folder / "config.yaml", _config, "YAML of a resolved config with a seed"),
            environment=environment,
            summary=summary,
            epochs=_read_epochs(folder / EPOCHS_FILE) if lines is None else _frame(),
            decisions=decisions_of(folder) if lines is None else _frame(),
            trace=_read_trace(folder / TRACE_FILE),
            lines=parsed(lines, table, "a table") if lines is not None else _frame(),
        )


def read_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The finished runs, ordered by row and seed, and a message for each one left out: it is not finished, or
    a file of it is missing, broken or damaged."""
    runs, skipped = [], []
    for folder in folders:
        try:
            if is_finished(folder):
                runs.append(read_run(folder))
            else:
                skipped.append(shown(f"{folder}: not finished, left out"))
        except UserError as error:
            skipped.append(f"left out: {error}")
    return in_order(runs), skipped


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Ordered by row and seed."""
    return sorted(runs, key=lambda run: (run.row, run.seed, run.id))


def of_rows(runs: Sequence[Run], rows: Iterable[str]) -> list[Run]:
    """The runs of these rows, row by row."""
    return [run for row in rows for run in runs if run.row == row]


def require_alike(runs: Sequence[Run], keys: Sequence[str]) -> None:
    """Raise UserError unless all runs share these config values and no row has a seed twice: rows trained
    for different numbers of epochs, or on other data, are not rows of one table."""
    for key in keys:
        if len(found := values_of(runs, key)) > 1:
            which = ", ".join(f"{value} in {name}" for value, name in found.items())
            raise UserError(f"{key}: the same in every run of one table, got {which}")
    seen: dict[tuple[str, int], str] = {}
    for run in runs:
        if first := seen.get((run.row, run.seed)):
            raise UserError(
                f"experiment.row: one run for row {run.row} and seed {run.seed}, got {first} and "
                f"{run.id}; publish one of them"
            )
        seen[run.row, run.seed] = run.id


def values_of(runs: Sequence[Run], key: str) -> dict[str, str]:
    """The values of a config key in these runs, as JSON, and the first run that has each. A setting that a
    record lacks came later: it has its default."""
    found: dict[str, str] = {}
    for run in runs:
        value = run.setting(key, default_of(key))
        if isinstance(value, dict):
            later = defaults_of_component(str(value.get("_target_", "")))
            value = {k: v for k, v in (later | value).items() if k not in FREE_KEYS}
        found.setdefault(json.dumps(value, sort_keys=True), run.id)
    return found


def table(content: bytes) -> pd.DataFrame:
    """Return the table of a CSV file. Raises ValueError for one that is too large, or is no table."""
    import pandas as pd

    files.refuse_large_csv(content)
    return pd.read_csv(io.BytesIO(content))


def _config(content: bytes) -> dict[str, Any]:
    return checked_config(files.parsed_yaml(content.decode("utf-8")))


def _read_trace(path: Path) -> pd.DataFrame:
    """The trace of a policy; no rows where the policy wrote none."""
    is_there = path.is_file() and files.content(path).strip()
    return parsed(path, table, "a table") if is_there else _frame()


def _read_epochs(path: Path) -> pd.DataFrame:
    """The lines of kind ``epoch``. A run that was killed and resumed may have written an epoch twice: the
    later one counts."""
    lines: list[dict[str, Any]] = []
    names: set[str] = set()
    for line in json_lines(path):
        if line.get("kind") == "epoch":
            lines.append(line)
            names.update(line)
            files.refuse_large(len(lines), len(names))
    frame = _frame(lines)
    if frame.empty:
        raise UserError(f"{path}: at least one epoch, got none; run again")
    if missing := [name for name in REQUIRED_METRICS if name not in frame.columns]:
        raise UserError(f"{path}: no {', '.join(missing)}; the record is of another version")
    frame = frame.drop(columns="kind").drop_duplicates("epoch", keep="last").sort_values("epoch")
    return frame.reset_index(drop=True)


def counted_line(folder: Path) -> str | None:
    """Return what the network interface of a worker counted, beside the ledger of the exchange, as a line to
    print; None where no interface was read."""
    try:
        summary = summary_of(folder)
    except UserError:
        return None
    if not all(summary.get(key) for key in NETWORK[:2]):
        return None
    from dgc_repro.paper.frame import amount  # imports pandas

    difference = 100 * (summary[NETWORK[0]] / summary[NETWORK[1]] - 1)
    counted, expected, ledger = (amount([summary[key]]) for key in NETWORK)
    return (
        f"network: {counted} sent a worker by its interface, {expected} by the ledger with headers "
        f"({difference:+.2f} %; {ledger} without)"
    )
