"""The published results of the checkout: its pools and pages, and tests that go through all of them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from dgc_repro.paper import pool
from dgc_repro.paper.publish import artifacts_in
from dgc_repro.paper.records import Run

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "results"
POOLS = sorted(path.parent for path in RESULTS.rglob(pool.RUNS_FILE))
PAGES = [folder for place in POOLS for folder in artifacts_in(place)]


def name_of(folder: Path) -> str:
    """Return a page's paper, scale and artifact as one word."""
    return "-".join(folder.parts[-3:])


@functools.lru_cache(maxsize=2)
def runs_in_pool(place: Path) -> tuple[Run, ...]:
    """Return the runs of a pool, read once; tests must not change them."""
    return tuple(pool.read(place))


BENCHMARK = RESULTS / "benchmark" / "small"
each_page = pytest.mark.parametrize("folder", PAGES, ids=name_of)
