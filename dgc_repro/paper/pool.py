"""Pools: all published runs of one paper at one scale, in a handful of files.

``<root>/<paper>/<scale>/`` holds ``runs.parquet`` (one row a run: its id, and config, environment and summary
as JSON) and, where runs have any, ``epochs.parquet``, ``decisions.parquet``, ``trace.parquet`` and
``lines.parquet``, whose column ``run`` is the id. The artifacts of the paper share the runs.
``verdicts.json`` has the verdicts of each artifact and the ids of its runs, and ``numbers.csv`` has the
numbers of all artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dgc_repro.errors import UserError
from dgc_repro.names import with_current_names
from dgc_repro.paper.records import Run, in_order

RUNS_FILE, VERDICTS_FILE, NUMBERS_FILE = "runs.parquet", "verdicts.json", "numbers.csv"
TABLES = ("epochs", "decisions", "trace", "lines")
FILES = (*(f"{table}.parquet" for table in TABLES), RUNS_FILE)
"""The files of the runs."""
RECORD = ("config", "environment", "summary", "columns")
"""JSON in the file of the runs; ``columns``: by table, the columns of this run."""


def read(folder: Path, ids: Iterable[str] | None = None) -> list[Run]:
    """Return the runs of a pool, ordered by row and seed; ``ids``: only these. Raises UserError for a broken
    file or an id that is missing."""
    path = folder / RUNS_FILE
    if not path.is_file():
        raise UserError(f"{folder}: no {RUNS_FILE}; give a pool such as results/gravac/small")
    wanted = None if ids is None else set(ids)
    try:
        lines = pq.read_table(path).to_pylist()
        known = [line for line in lines if wanted is None or line["id"] in wanted]
        names = {line["id"] for line in known}
        tables = {name: _rows_by_run(folder / f"{name}.parquet", names) for name in TABLES}
        found = [_run(line, tables) for line in known]
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{folder}: a damaged pool ({reason}); restore it from git") from error
    if missing := sorted((wanted or set()) - names):
        raise UserError(f"{folder}: no run {missing[0]} in {RUNS_FILE}; publish the artifact again")
    return in_order(found)


def configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the configs of a pool's runs by id; none where there is no pool. Raises UserError."""
    path = folder / RUNS_FILE
    if not path.is_file():
        return {}
    try:
        lines = pq.read_table(path, columns=["id", "config"]).to_pylist()
        return {line["id"]: with_current_names(json.loads(line["config"])) for line in lines}
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"{folder}: a damaged pool ({error}); restore it from git") from error


def write(runs: Sequence[Run], folder: Path) -> None:
    """Write the runs of a pool in place of others. The same runs make the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    runs = in_order(runs)
    for name in TABLES:
        kept = [_nullable(getattr(run, name)).assign(run=run.id) for run in runs]
        kept = [table for table in kept if not table.empty]
        if not kept:
            continue
        table = pd.concat(kept, ignore_index=True)
        for column in [c for c in table if table[c].dtype.kind == "O"]:  # words in some runs
            if table[column].dropna().map(type).nunique() > 1:
                table[column] = table[column].map(lambda v: None if pd.isna(v) else str(v))
        _write(pa.Table.from_pandas(table, preserve_index=False), folder / f"{name}.parquet")
    heads = [
        {
            "config": run.config,
            "environment": run.environment,
            "summary": run.summary,
            "columns": {n: list(getattr(run, n)) for n in TABLES if not getattr(run, n).empty},
        }
        for run in runs
    ]
    columns = {key: [json.dumps(one[key], ensure_ascii=False) for one in heads] for key in RECORD}
    _write(pa.table({"id": [run.id for run in runs], **columns}), folder / RUNS_FILE)


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return by artifact what verdicts.json of a pool says: title, tally, verdicts, ids of runs."""
    path = folder / VERDICTS_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def numbers(folder: Path) -> pd.DataFrame:
    """Return the numbers of all artifacts of a pool, with the artifact in the first column, as text."""
    path = folder / NUMBERS_FILE
    return as_text(path) if path.is_file() else pd.DataFrame({"artifact": []})


def as_text(table: Path | IO[str]) -> pd.DataFrame:
    """Read a CSV table with the digits that it has."""
    return pd.read_csv(table, dtype=str, keep_default_na=False)


def _write(table: pa.Table, path: Path) -> None:
    """Write a table without pandas' metadata, which is larger than most tables. Floats split by bytes are a
    third smaller."""
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    pq.write_table(
        table.replace_schema_metadata(None),
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.column_names if name not in floats],
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        store_schema=False,
    )


def _run(line: dict[str, Any], tables: dict[str, dict[str, pd.DataFrame]]) -> Run:
    config, environment, summary, columns = (json.loads(line[key]) for key in RECORD)
    own = {name: _own(tables[name][line["id"]], columns[name]) for name in columns}
    return Run(line["id"], with_current_names(config), environment, summary, **own)


def _rows_by_run(path: Path, runs: set[str]) -> dict[str, pd.DataFrame]:
    """The rows of each of these runs; whole numbers and truth values in types that may be missing."""
    if not path.is_file() or not runs:
        return {}
    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    found = pq.read_table(path, filters=[("run", "in", runs)]).to_pandas(types_mapper=nullable.get)
    return {str(run): rows.drop(columns="run") for run, rows in found.groupby("run", sort=False)}


def _nullable(table: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers and truth values in types that stay what they are beside runs without the column."""
    types = dict.fromkeys(table.select_dtypes("int64"), "Int64")
    return table.astype(types | dict.fromkeys(table.select_dtypes("bool"), "boolean"))


def _own(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows of one run with its own columns, in plain types where no value is missing."""
    rows = rows[list(columns)].reset_index(drop=True)
    plain = {"Int64": "int64", "boolean": "bool"}
    kinds = {str(name): plain.get(str(kind)) for name, kind in rows.dtypes.items()}
    whole = {name: kind for name, kind in kinds.items() if kind and not rows[name].hasnans}
    return rows.assign(**{name: rows[name].array.to_numpy(kind) for name, kind in whole.items()})
