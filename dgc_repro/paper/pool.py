"""Pools: all published runs of one paper at one scale, in a handful of files.

``<root>/<paper>/<scale>/`` holds ``runs.jsonl`` (one line a run: id, config, environment, summary) and, where
runs have any, ``epochs.parquet``, ``decisions.parquet``, ``trace.parquet`` and ``lines.parquet``, whose
column ``run`` is the id. Artifacts of the paper share the runs: the folder of an artifact names their ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.names import with_current_names
from dgc_repro.paper.records import Run, in_order

RUNS_FILE = "runs.jsonl"
TABLES = ("epochs", "decisions", "trace", "lines")


def read(folder: Path, ids: Iterable[str] | None = None) -> list[Run]:
    """The runs of a pool, ordered by row and seed; ``ids``: only these. Raises UserError for a broken file
    or an id that is missing."""
    path = folder / RUNS_FILE
    if not path.is_file():
        raise UserError(f"{folder}: no {RUNS_FILE}; give a pool such as results/gravac/small")
    wanted = None if ids is None else dict.fromkeys(ids)
    try:
        heads = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        known = {head["id"]: head for head in heads if wanted is None or head["id"] in wanted}
        tables = {name: _read_table(folder / f"{name}.parquet", known) for name in TABLES}
        found = [
            _run(
                head,
                {n: _of_run(t, run, head.get("columns", {}).get(n)) for n, t in tables.items()},
            )
            for run, head in known.items()
        ]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{folder}: a damaged pool ({error}); restore it from git") from error
    if missing := [run for run in wanted or () if run not in known]:
        raise UserError(f"{folder}: no run {missing[0]} in {RUNS_FILE}; publish the artifact again")
    return in_order(found)


def write(runs: Sequence[Run], folder: Path) -> None:
    """Write a pool from nothing. The same runs make the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = in_order(runs)
    heads = [
        {
            "id": r.id,
            "config": r.config,
            "environment": r.environment,
            "summary": r.summary,
            "columns": {n: list(getattr(r, n)) for n in TABLES if not getattr(r, n).empty},
        }
        for r in runs
    ]
    text = "".join(json.dumps(head, ensure_ascii=False) + "\n" for head in heads)
    (folder / RUNS_FILE).write_text(text, encoding="utf-8", newline="\n")
    for name in TABLES:
        path = folder / f"{name}.parquet"
        kept = [_nullable(getattr(run, name)).assign(run=run.id) for run in runs]
        kept = [table for table in kept if not table.empty]
        if not kept:
            path.unlink(missing_ok=True)
            continue
        table = pd.concat(kept, ignore_index=True)
        for column in [c for c in table if table[c].dtype.kind == "O"]:  # words in some runs
            if table[column].dropna().map(type).nunique() > 1:
                table[column] = table[column].map(lambda v: None if pd.isna(v) else str(v))
        table.to_parquet(path, index=False, compression="zstd")


def _run(head: dict[str, Any], tables: dict[str, pd.DataFrame]) -> Run:
    config = with_current_names(head["config"])
    return Run(head["id"], config, head["environment"], head["summary"], **tables)


def _read_table(path: Path, runs: Iterable[str]) -> dict[str, pd.DataFrame]:
    """The rows of each of these runs."""
    if not path.is_file():
        return {}
    table = pd.read_parquet(path, filters=[("run", "in", set(runs))]) if runs else pd.DataFrame()
    return {str(run): rows.drop(columns="run") for run, rows in table.groupby("run", sort=False)}


def _nullable(table: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers and truth values in types that stay what they are beside runs without the column."""
    types = dict.fromkeys(table.select_dtypes("int64"), "Int64")
    return table.astype(types | dict.fromkeys(table.select_dtypes("bool"), "boolean"))


def _of_run(
    table: dict[str, pd.DataFrame], run: str, columns: list[str] | None = None
) -> pd.DataFrame:
    """The rows of one run, with its own ``columns`` (where they are not known: those that hold a value)."""
    rows = table.get(run)
    if rows is None:
        return pd.DataFrame()
    own = rows.columns[rows.notna().any()] if columns is None else columns
    rows = rows[list(own)].reset_index(drop=True)
    plain = {
        name: "int64" if str(dtype) == "Int64" else "bool"
        for name, dtype in rows.dtypes.items()
        if str(dtype) in ("Int64", "boolean") and rows[name].notna().all()
    }
    return rows.astype(plain)
