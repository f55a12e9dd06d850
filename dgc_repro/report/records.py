"""A run's record, read back: config, environment, metrics by epoch, summary, policy trace.

A record is what the trainer left in a run folder, or its copy in ``results/``. A run that is not
finished is skipped with a message; one that is broken is an error of one line that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from dgc_repro.errors import UserError
from dgc_repro.report import decisions

EPOCHS_FILE, EPOCHS_TABLE = "metrics.jsonl", "metrics.csv"
RECORD_FILES = (
    *("config.yaml", "environment.json", EPOCHS_FILE, "summary.json", "policy.csv"),
    decisions.TABLE_FILE,
)
NEEDED_FILES = ("config.yaml", "environment.json", "summary.json")
MEASUREMENT_FILES = ("config.yaml", "environment.json", "summary.json", "repeats.csv")
STUDY_FILES = ("config.yaml", "environment.json", "summary.json", "rows.csv")
FINISHED = "finished"
FREE_KEYS = ("root", "seed")
"""Where the data lies, and the seed, may differ between runs of one table."""
REQUIRED_METRICS = (
    "epoch",
    "train/loss",
    "train/accuracy_percent",
    "test/accuracy_percent",
    "comm/floats",
    "comm/payload_bytes",
    "comm/wire_bytes",
    "time/train_seconds",
)


@dataclass(frozen=True)
class Run:
    """One finished run. ``epochs`` has a row an epoch, in order; ``policy`` and ``decisions`` (by step,
    see report/decisions.py) may be empty."""

    name: str
    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    epochs: pd.DataFrame
    policy: pd.DataFrame
    decisions: pd.DataFrame = field(default_factory=pd.DataFrame)

    def setting(self, key: str, missing: Any = None) -> Any:
        """The config value of a dotted key, ``missing`` where the config has no such key."""
        return setting_of(self.config, key, missing)

    @property
    def row(self) -> str:
        """Which row of the table this run is for."""
        return str(self.setting("experiment.row"))

    @property
    def seed(self) -> int:
        """The seed that pairs runs of different rows."""
        return int(self.config["seed"])

    @property
    def scale(self) -> str:
        """``quick``, ``small`` or ``paper``: the name of the scale, however it is configured."""
        return scale_of(self.config)


@dataclass(frozen=True)
class Measurement:
    """One finished measurement or study. ``table``: of a measurement ``repeats.csv``, a row a paired
    repeat, in milliseconds; of a study its ``rows.csv``."""

    name: str
    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    table: pd.DataFrame

    def setting(self, key: str, missing: Any = None) -> Any:
        """The config value of a dotted key, ``missing`` where the config has no such key."""
        return setting_of(self.config, key, missing)

    @property
    def row(self) -> str:
        """Which row of the table this is for."""
        return str(self.setting("experiment.row"))

    @property
    def seed(self) -> int:
        """The seed of the steps that made the gradient, or of the study's random numbers."""
        return int(self.config["seed"])

    @property
    def scale(self) -> str:
        """The name of the scale."""
        return scale_of(self.config)


def setting_of(config: dict[str, Any], key: str, missing: Any = None) -> Any:
    """The value of a dotted key, ``missing`` where the config has no such key."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return missing
        value = value[part]
    return value


def scale_of(config: dict[str, Any]) -> str:
    """The name of a config's scale, however it is configured."""
    value = config.get("scale")
    return str(value.get("name") if isinstance(value, dict) else value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: JSON, got something else ({error}); run again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: a JSON object, got {type(value).__name__}; run again")
    return value


def read_epoch_lines(path: Path) -> list[str]:
    """The lines of kind ``epoch`` of a metrics.jsonl as written; UserError names a broken line."""
    kept = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: UTF-8 text, got something else ({error}); run again") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{path}: line {number} is not JSON ({error}); run again from its checkpoint"
            ) from error
        if not isinstance(record, dict):
            raise UserError(
                f"{path}: line {number} is not a JSON object; run again from its checkpoint"
            )
        if record.get("kind") == "epoch":
            kept.append(line)
    return kept


def read_epochs(folder: Path) -> pd.DataFrame:
    """The metrics by epoch of a run folder or a record, in order; UserError for a broken file."""
    path = folder / EPOCHS_FILE
    if path.is_file():
        frame = pd.DataFrame([json.loads(line) for line in read_epoch_lines(path)])
    else:
        path = folder / EPOCHS_TABLE
        try:
            frame = pd.read_csv(path)
        except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
            raise UserError(f"{path}: a table of epochs, got something else; run again") from error
    if frame.empty:
        raise UserError(f"{path}: at least one epoch, got none; run again")
    missing = [name for name in REQUIRED_METRICS if name not in frame.columns]
    if missing:
        raise UserError(f"{path}: no {', '.join(missing)}; the record is of another version")
    # A killed run that was resumed may have written an epoch twice: the later one counts.
    frame = frame.drop_duplicates("epoch", keep="last").sort_values("epoch")
    return frame.reset_index(drop=True)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: YAML, got something else ({reason}); run again") from error
    if not isinstance(config, dict) or "seed" not in config:
        raise UserError(f"{path}: a resolved config with a seed, got none; run again")
    return config


def is_finished(folder: Path) -> bool:
    """Whether the run's summary says that it ended."""
    path = folder / "summary.json"
    return path.is_file() and _read_json(path).get("status") == FINISHED


def _require_files(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder}: no {name}; this is not a finished run")


def load_run(folder: Path) -> Run:
    """Read one finished record; UserError for a missing or broken file."""
    _require_files(folder, NEEDED_FILES)
    if not any((folder / name).is_file() for name in (EPOCHS_FILE, EPOCHS_TABLE)):
        raise UserError(f"{folder}: no {EPOCHS_FILE}; this is not a finished run")
    policy = folder / "policy.csv"
    try:
        trace = pd.read_csv(policy) if policy.is_file() else pd.DataFrame()
    except (pd.errors.EmptyDataError, pd.errors.ParserError):
        trace = pd.DataFrame()
    return Run(
        name=folder.name,
        folder=folder,
        config=_read_config(folder / "config.yaml"),
        environment=_read_json(folder / "environment.json"),
        summary=_read_json(folder / "summary.json"),
        epochs=read_epochs(folder),
        policy=trace,
        decisions=decisions.read(folder),
    )


def load_measurement(folder: Path) -> Measurement:
    """Read one finished measurement; UserError for a missing or broken file."""
    return _load_table(folder, MEASUREMENT_FILES, {"block", "method", "repeat"}, "repeats")


def load_study(folder: Path) -> Measurement:
    """Read one finished part of a study; UserError for a missing or broken file."""
    return _load_table(folder, STUDY_FILES, set(), "rows")


def _load_table(folder: Path, files: Sequence[str], needed: set[str], what: str) -> Measurement:
    _require_files(folder, files)
    path = folder / f"{what}.csv"
    try:
        table = pd.read_csv(path)
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise UserError(f"{path}: a table of {what}, got something else; measure again") from error
    missing = needed - set(table.columns)
    if missing:
        raise UserError(f"{path}: no {', '.join(sorted(missing))}; measure again")
    return Measurement(
        name=folder.name,
        folder=folder,
        config=_read_config(folder / "config.yaml"),
        environment=_read_json(folder / "environment.json"),
        summary=_read_json(folder / "summary.json"),
        table=table,
    )


def load_measurements(folders: Sequence[Path]) -> tuple[list[Measurement], list[str]]:
    """The finished measurements, ordered by row, and a message for each one skipped."""
    return _load_finished(folders, load_measurement)


def load_studies(folders: Sequence[Path]) -> tuple[list[Measurement], list[str]]:
    """The finished parts of studies, ordered by row and seed, and a message for each one skipped."""
    return _load_finished(folders, load_study)


def _load_finished(
    folders: Sequence[Path], load: Callable[[Path], Measurement]
) -> tuple[list[Measurement], list[str]]:
    done = [load(folder) for folder in folders if is_finished(folder)]
    skipped = [f"{f}: not finished, left out" for f in folders if not is_finished(f)]
    return sorted(done, key=lambda found: (found.row, found.seed)), skipped


def load_runs(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The finished runs, ordered by row and seed, and a message for each one skipped."""
    runs, skipped = [], []
    for folder in folders:
        if is_finished(folder):
            runs.append(load_run(folder))
        else:
            skipped.append(f"{folder}: not finished, left out")
    return sorted(runs, key=lambda run: (run.row, run.seed)), skipped


def in_order(value: Any) -> Any:
    """With the keys of mappings in order: a config is the same however its keys are."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return value


def require_alike(runs: Sequence[Run | Measurement], keys: Sequence[str]) -> None:
    """UserError unless all runs share these config values and no row has a seed twice.

    Rows trained for different numbers of epochs, or on other data, are not rows of one table.
    """
    for key in keys:
        found: dict[str, str] = {}
        for run in runs:
            value = run.setting(key)
            if isinstance(value, dict):
                value = {k: v for k, v in value.items() if k not in FREE_KEYS}
            found.setdefault(repr(in_order(value)), run.name)
        if len(found) > 1:
            which = ", ".join(f"{value} in {name}" for value, name in found.items())
            raise UserError(f"{key}: the same in every run of one table, got {which}")
    seen: dict[tuple[str, int], str] = {}
    for run in runs:
        first = seen.setdefault((run.row, run.seed), run.name)
        if first != run.name:
            raise UserError(
                f"experiment.row: one run for row {run.row} and seed {run.seed}, got {first} "
                f"and {run.name}; publish one of them"
            )
