"""Runs as pandas frames: ``load_runs("runs")`` for your own, ``load_results("gravac/small")`` for published.

runs, epochs, decisions = dgc_repro.load_runs("runs")
runs.groupby("compressor")["test/accuracy_percent"].mean()
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.names import results_dir
from dgc_repro.paper import index, pool
from dgc_repro.paper.records import Run, read_runs
from dgc_repro.paper.setting_names import flat

RESULTS = results_dir()
NAMED = re.compile(r"-s\d+-[0-9a-f]{8}$")
"""How the name of a run folder ends."""
log = logging.getLogger(__name__)


class Frames(NamedTuple):
    """What runs recorded.

    runs       one row a run: ``run`` (its id), ``paper``, ``artifact``, ``row``, ``scale``, ``seed``,
               ``compressor`` (class name), every config key (``optimizer.lr``), every number of the summary
               (``test/accuracy_percent``, ``comm/payload_bytes`` in bytes of one worker over the whole run,
               ``time/train_seconds``), ``commit``, ``hardware``
    epochs     one row an epoch of a run: ``run``, ``row``, ``seed``, ``epoch``, ``step`` and the metrics
    decisions  one row a recorded step of a policy that decides by step: ``run``, ``row``, ``seed``, ``step``,
               ``branch``, ``factor``, ``gain``, ... (paper/decisions.py)
    """

    runs: pd.DataFrame
    epochs: pd.DataFrame
    decisions: pd.DataFrame


def load_runs(folder: str | Path = "runs") -> Frames:
    """The finished runs below a folder. Raises UserError where there is none; skips unfinished ones with a
    logged message."""
    return frames_of(finished_runs(folder))


def finished_runs(folder: str | Path) -> list[Run]:
    """Return the finished runs below a folder as records. Of copies of a run, whatever their folders are
    called, it returns one."""
    place = Path(folder)
    files = ("config.yaml", "summary.json")  # either may be lost
    found = sorted({path.parent for name in files for path in place.rglob(name)})
    runs, skipped = read_runs(found)
    first: dict[str, Run] = {}
    own_folders_first = sorted(runs, key=lambda run: not NAMED.search(run.id))
    for run in own_folders_first:
        record = [run.config, run.summary, run.environment, run.epochs.to_json()]
        first.setdefault(json.dumps(record, sort_keys=True, default=str), run)
    if copies := len(runs) - len(first):
        skipped.append(f"left out: {copies} {'copy' if copies == 1 else 'copies'} of run folders")
    for message in skipped:
        log.warning(message)
    if not runs:
        raise UserError(f"{place}: no finished run; train one, or give the folder of paths.runs")
    return list(first.values())


def load_results(name: str, root: str | Path | None = None) -> Frames:
    """The published runs of a paper and scale, such as ``gravac/small``. ``root``: default, results/ beside
    the package, then in the working folder. Raises UserError where there is no such pool."""
    return frames_of(published_runs(name, root))


def published_runs(name: str, root: str | Path | None = None) -> list[Run]:
    """The same runs as records. Raises UserError where there is no such pool."""
    roots = [Path(root)] if root is not None else [RESULTS, Path("results")]
    place = next((r / name for r in roots if (r / name / pool.RUNS_FILE).is_file()), None)
    if place is None:
        known = sorted(
            path.parent.relative_to(r).as_posix()
            for r in roots
            for path in r.glob(f"*/*/{pool.RUNS_FILE}")
        )
        raise UserError(f"{name}: no published runs; there are {', '.join(known) or 'none'}")
    return pool.read(place)


def load_claims(root: str | Path | None = None) -> pd.DataFrame:
    """Every claim of every paper with its verdict; `paper.index.claims` names the columns. ``root``: as
    of `load_results`. Raises UserError where there are no results."""
    roots = [Path(root)] if root is not None else [RESULTS, Path("results")]
    for place in roots:
        if len(found := index.claims(index.entries(place))):
            return found
    raise UserError(f"{roots[-1]}: no published results; give the folder results of a checkout")


def frames_of(runs: Iterable[Run]) -> Frames:
    """The three frames of some runs."""
    runs = list(runs)

    def table(name: str) -> pd.DataFrame:
        parts = [
            getattr(run, name).assign(run=run.id, row=run.row, seed=run.seed)
            for run in runs
            if not getattr(run, name).empty
        ]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    return Frames(pd.DataFrame([_line(run) for run in runs]), table("epochs"), table("decisions"))


def _line(run: Run) -> dict[str, Any]:
    return {
        "run": run.id,
        "paper": run.setting("experiment.paper"),
        "artifact": run.setting("experiment.artifact"),
        "row": run.row,
        "scale": run.scale,
        "compressor": str(run.setting("compressor._target_", "")).rpartition(".")[2],
        **dict(flat(run.config)),
        **run.summary,
        "commit": run.environment.get("commit"),
        "hardware": run.environment.get("hardware"),
    }
