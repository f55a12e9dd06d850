"""How long artifacts take: seconds that published runs recorded, and seconds reckoned for scale ``quick``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from dgc_repro import files
from dgc_repro.paper import pool

FILE = "minutes.csv"
"""In a folder of results/bench/: an artifact a line, with its seconds at scale ``quick``
(``python -m dgc_repro.predict.minutes`` writes it)."""
QUICK = "quick"
SECONDS = ("time/cpu_seconds", "time/train_seconds")
"""Of a run's summary: the first that it has."""


class Published(NamedTuple):
    """What the published runs of an artifact at a scale took. ``seconds``: 0 where none was recorded."""

    title: str
    runs: int
    seconds: float


def published(results: Path) -> dict[str, dict[str, Published]]:
    """Return the title, the number of runs and their seconds by artifact (``gravac/table2``) and scale.
    Raises UserError for a damaged pool."""
    found: dict[str, dict[str, Published]] = {}
    for path in sorted(results.glob(f"*/*/{pool.VERDICTS_FILE}")):
        folder = path.parent
        seconds = {run: _seconds(summary) for run, summary in pool.summaries(folder).items()}
        for artifact, record in pool.records(folder).items():
            own = [seconds.get(run, 0.0) for run in record["runs"]]
            name, scale = f"{folder.parent.name}/{artifact}", folder.name
            found.setdefault(name, {})[scale] = Published(record["title"], len(own), sum(own))
    return found


def reckoned(results: Path) -> tuple[dict[str, float], str]:
    """Return the seconds of artifacts at scale ``quick`` from the newest table, and the machine that they are
    of; nothing where there is no table."""
    tables = [pd.read_csv(file) for file in results.glob(f"bench/*/{FILE}")]
    if not tables:
        return {}, ""
    newest = max(tables, key=lambda table: str(table["date"].iloc[0]))
    return (
        dict(zip(newest["artifact"], newest["seconds"].astype(float), strict=True)),
        str(newest["cpu"].iloc[0]),
    )


def title_in(page: Path) -> str:
    """Return the heading of an artifact's words, ``<artifact>.md``; empty where it is filled in later."""
    lines = files.text(page).splitlines() if page.is_file() else []
    heading = next((line for line in lines if line.startswith("# ")), "").removeprefix("# ")
    return "" if "{" in heading else heading


def best_scale(scales: Iterable[str]) -> str:
    """Return the scale to show beside ``quick``: ``small`` where it is there, else the first; empty for
    none."""
    others = [scale for scale in scales if scale != QUICK]
    return "small" if "small" in others else next(iter(others), "")


def _seconds(summary: Mapping[str, object]) -> float:
    found = (summary.get(key) for key in SECONDS)
    return float(next((value for value in found if isinstance(value, int | float)), 0.0))
