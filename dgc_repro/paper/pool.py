"""Pools: all published runs of one paper at one scale, in a handful of files.

``<root>/<paper>/<scale>/`` holds ``runs.parquet`` (one row a run: its id, and config, environment and summary
as JSON) and, where runs have any, ``epochs.parquet``, ``decisions.parquet``, ``trace.parquet`` and
``lines.parquet``, whose column ``run`` is the id. The artifacts of the paper share the runs.
``SHA256SUMS`` has the checksum of each of these files, as ``sha256sum -c`` reads it. ``verdicts.json`` has
the verdicts of each artifact and the ids of its runs, and ``numbers.csv`` has the numbers of all artifacts.

A pool may be a stranger's: its files are read as files.py reads, and parquet.py bounds what they decode to.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dgc_repro import files
from dgc_repro.checked import refuse
from dgc_repro.checksums import OTHER
from dgc_repro.errors import UserError
from dgc_repro.names import defaults_of_sections
from dgc_repro.paper.parquet import decoded
from dgc_repro.paper.records import Run, in_order
from dgc_repro.paper.untrusted import checked_config, one_line, refuse_odd

RUNS_FILE, VERDICTS_FILE, NUMBERS_FILE = "runs.parquet", "verdicts.json", "numbers.csv"
TABLES = ("epochs", "decisions", "trace", "lines")
FILES = (*(f"{table}.parquet" for table in TABLES), RUNS_FILE)
"""The files of the runs."""
SUMS_FILE = "SHA256SUMS"
RESTORE = "restore it from git, or remove the folder and reproduce it again"
Sums = Mapping[str, Collection[str]]
"""By file, the SHA-256 that it may have in hex: one, and two while a pool is replaced."""
RECORD = ("config", "environment", "summary", "columns")
"""JSON in the file of the runs; ``columns``: by table, the columns of this run."""


LOCAL = ("root", "partition", "account", "qos", "sbatch", "setup", "python", "logs")
"""Keys of a data set and of a launch by Slurm that name a place, a machine or a user."""


@dataclass
class ArtifactShape:
    """The types that readers expect in an artifact's entry in `VERDICTS_FILE`."""

    title: str
    verdicts: Sequence[Mapping[Any, Any]]
    runs: Sequence[str]


def read(folder: Path, ids: Iterable[str] | None = None) -> list[Run]:
    """Return the runs of a pool, ordered by row and seed; ``ids``: only these. Raises UserError for a file
    that is broken or has another checksum, or an id that is missing."""
    if not (folder / RUNS_FILE).is_file():
        raise UserError(f"{folder}: no {RUNS_FILE}; give a pool such as results/gravac/small")
    wanted = None if ids is None else set(ids)
    with damage(folder):
        sums = checksums(folder)
        lines = _table(folder, RUNS_FILE, sums).to_pylist()
        known = [line for line in lines if wanted is None or line["id"] in wanted]
        names = {line["id"] for line in known}
        tables = {name: _rows_by_run(folder, f"{name}.parquet", sums, names) for name in TABLES}
        found = [_run(line, tables) for line in known]
    if missing := sorted((wanted or set()) - names):
        raise UserError(f"{folder}: no run {missing[0]} in {RUNS_FILE}; publish the artifact again")
    return in_order(found)


def configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the configs of a pool's runs by id; none where there is no pool. Raises UserError."""
    return _by_id(folder, "config", checked_config)


def summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the summaries of a pool's runs by id; none where there is no pool. Raises UserError."""
    return _by_id(folder, "summary", dict)


def _by_id(
    folder: Path, column: str, made: Callable[[Any], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Read one column of JSON of a pool's runs, without the tables of their epochs."""
    if not (folder / RUNS_FILE).is_file():
        return {}
    with damage(folder):
        lines = _table(folder, RUNS_FILE, checksums(folder), ["id", column]).to_pylist()
        return {line["id"]: made(files.parsed_json(line[column])) for line in lines}


def checksums(folder: Path) -> dict[str, list[str]]:
    """Return what `SUMS_FILE` of a pool says; nothing where there are no runs. Raises UserError."""
    path = folder / SUMS_FILE
    if not path.is_file():
        if not (folder / RUNS_FILE).is_file():
            return {}
        raise UserError(
            f"{folder}: no {SUMS_FILE}, so that damage would go unnoticed; it is lost, or an older version "
            f"wrote the pool: if you trust it, run `cd {shlex.quote(str(folder))} && sha256sum *.parquet > "
            f"{SUMS_FILE}`"
        )
    found: dict[str, list[str]] = {}
    *lines, end = files.text(path).split("\n")
    for line in lines:
        entry = re.fullmatch(r"([0-9a-f]{64})  (\S+)", line)
        if entry is None or entry[2] not in FILES:
            raise UserError(f"{path}: is damaged at {line!r}; {RESTORE}")
        found.setdefault(entry[2], []).append(entry[1])
    if end or RUNS_FILE not in found:
        raise UserError(f"{path}: is truncated; {RESTORE}")
    return found


def write_checksums(folder: Path, sums: Sums) -> None:
    """Write `SUMS_FILE` of a pool."""
    lines = [f"{digest}  {name}\n" for name, own in sorted(sums.items()) for digest in sorted(own)]
    files.replace(folder / SUMS_FILE, "".join(lines).encode())


def write(runs: Sequence[Run], folder: Path) -> None:
    """Write the runs of a pool in place of others. The same runs make the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    runs, sums = in_order(runs), {}
    for name in TABLES:
        kept = [_nullable(getattr(run, name)).assign(run=run.id) for run in runs]
        kept = [table for table in kept if not table.empty]
        if not kept:
            continue
        table = pd.concat(kept, ignore_index=True)
        for column in [c for c in table if table[c].dtype.kind == "O"]:  # words in some runs
            if table[column].dropna().map(type).nunique() > 1:
                table[column] = table[column].map(lambda v: None if pd.isna(v) else str(v))
        path = folder / f"{name}.parquet"
        sums[path.name] = [_write(pa.Table.from_pandas(table, preserve_index=False), path)]
    heads = [
        {
            "config": public(run.config),
            "environment": run.environment,
            "summary": run.summary,
            "columns": {n: list(getattr(run, n)) for n in TABLES if not getattr(run, n).empty},
        }
        for run in runs
    ]
    columns = {key: [json.dumps(one[key], ensure_ascii=False) for one in heads] for key in RECORD}
    heads_of_runs = pa.table({"id": [run.id for run in runs], **columns})
    sums[RUNS_FILE] = [_write(heads_of_runs, folder / RUNS_FILE)]
    write_checksums(folder, sums)


def public(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's config without what is local to the machine that trained: the folders of data and runs,
    and the settings of its sinks and its cluster. None of it is part of a run's id."""
    found = {key: value for key, value in config.items() if key != "sink"}
    if "paths" in config:
        found["paths"] = dict(defaults_of_sections()["paths"])
    for group in ("dataset", "launch"):
        if isinstance(config.get(group), Mapping):
            found[group] = {
                key: None if key in LOCAL else value for key, value in config[group].items()
            }
    return found


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return by artifact what verdicts.json of a pool says: title, tally, verdicts, ids of runs. Raises
    UserError."""
    path = folder / VERDICTS_FILE
    if not path.is_file():
        return {}
    with damage(folder):
        found = files.parsed_json(files.content(path))
        refuse_odd(found)
        for record in found.values():
            refuse(ArtifactShape, record)
    return dict(found)


def numbers(folder: Path) -> pd.DataFrame:
    """Return the numbers of all artifacts of a pool, with the artifact in the first column, as text."""
    path = folder / NUMBERS_FILE
    if not path.is_file():
        return pd.DataFrame({"artifact": []})
    with damage(folder):
        return as_text(files.content(path))


def as_text(content: bytes) -> pd.DataFrame:
    """Read a CSV table with the digits that it has. Raises ValueError for one that is too large."""
    files.refuse_large_csv(content)
    return pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)


def damage(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Raise UserError for whatever reading a broken pool may raise."""
    return one_line(folder, "a damaged pool", RESTORE)


def _table(folder: Path, name: str, sums: Sums, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file of a pool. Raises UserError where its checksum is another."""
    content = files.content(folder / name)
    if hashlib.sha256(content).hexdigest() not in sums[name]:
        raise UserError(f"{folder}: {name} {OTHER}; {RESTORE}")
    return decoded(content, columns)


def _write(table: pa.Table, path: Path) -> str:
    """Write a table without pandas' metadata, which is larger than most tables. Floats split by bytes are a
    third smaller. Return the checksum."""
    content = pa.BufferOutputStream()
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    pq.write_table(
        table.replace_schema_metadata(None),
        content,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.column_names if name not in floats],
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        store_schema=False,
    )
    written = content.getvalue().to_pybytes()
    files.replace(path, written)
    return hashlib.sha256(written).hexdigest()


def _run(line: dict[str, Any], tables: dict[str, dict[str, pd.DataFrame]]) -> Run:
    config, environment, summary, columns = (files.parsed_json(line[key]) for key in RECORD)
    for value in (line["id"], environment, summary):
        refuse_odd(value)
    own = {name: _own(tables[name][line["id"]], columns[name]) for name in columns}
    return Run(line["id"], checked_config(config), environment, summary, **own)


def _rows_by_run(folder: Path, name: str, sums: Sums, runs: set[str]) -> dict[str, pd.DataFrame]:
    """The rows of each of these runs; whole numbers and truth values in types that may be missing."""
    if name not in sums or not runs:
        return {}
    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    table = _table(folder, name, sums)
    own = table.filter(pc.is_in(table["run"], pa.array(sorted(runs))))
    found = own.to_pandas(types_mapper=nullable.get)
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
